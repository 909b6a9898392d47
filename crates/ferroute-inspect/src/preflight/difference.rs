//! The differences in behaviour between modes. Pure.

mod virtual_servers;

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ferroute_config::ModeName;
use ferroute_core::{
    Client, FamilySettings, IpFamily, ModeTraits, NodePortMatch, Outcome, PortForwarding, ProxySettings, Refusal,
    ServicePortEntry, ServicePortName, ServiceTable, SourceAddress, Sources, TrafficPolicy, UnsupportedSetting,
    forwarding,
};
use ferroute_modes::REGISTRY;
use serde::{Deserialize, Serialize};

use super::KernelSnapshot;

/// A mode with its settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side<'a> {
    pub(super) mode: ModeName,
    pub(super) settings: &'a ProxySettings,
    /// The Services, with the limits and the reserved addresses of the mode.
    pub(super) table: &'a ServiceTable,
}

impl Side<'_> {
    fn traits(&self) -> &'static ModeTraits {
        REGISTRY.active(self.mode).traits()
    }
}

/// A switch of modes, for one IP family.
#[derive(Clone, Copy)]
pub(super) struct Switch<'a> {
    pub(super) from: Side<'a>,
    pub(super) to: Side<'a>,
    /// Reports whether the EndpointSlices of a service port give an endpoint another weight than the default. Those in
    /// tables may follow from other settings.
    pub(super) has_weights: &'a dyn Fn(&ServicePortName) -> bool,
    /// The addresses of the host's interfaces.
    pub(super) host_addresses: &'a [IpAddr],
    /// The state of the kernel before the switch.
    pub(super) kernel: &'a KernelSnapshot,
}

/// A difference in behaviour after a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// The kind of difference.
    pub kind: Kind,
    /// The IP family.
    pub family: IpFamily,
    /// The difference.
    pub summary: String,
    /// How to avoid the difference, if that is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The affected Services; empty for all, or if it does not depend on Services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// The affected rules of other programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
}

/// The kind of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// Node ports on localhost.
    LocalhostNodePorts,
    /// The addresses that serve node ports.
    NodePortAddresses,
    /// Session affinity.
    Affinity,
    /// The method that chooses endpoints.
    LoadBalancing,
    /// Limits of connections.
    ConnectionLimits,
    /// The number of endpoints that a mode uses of a Service.
    EndpointLimits,
    /// Open connections.
    OpenConnections,
    /// Service addresses as addresses of the host.
    ServiceAddresses,
    /// The endpoints of traffic policy Local.
    LocalPolicy,
    /// The source address that endpoints see.
    SourceAddresses,
    /// Services whose protocol a mode does not support.
    Protocols,
    /// Connections of the node itself to Services without endpoints.
    OwnConnections,
    /// Source ranges of load balancers.
    SourceRanges,
    /// Ports that a Service does not have.
    UnknownPorts,
    /// Unassigned addresses.
    UnknownAddresses,
    /// Forwarded packets that only the proxy's rules accept.
    ForwardedTraffic,
    /// The firewall chains that packets to Services pass.
    FirewallChains,
    /// Connections to Services that are deleted.
    DeletedServices,
    /// Health checks that only the proxy's rules accept, or that are served at other addresses.
    HealthChecks,
    /// Rules of other programs that use the proxy's chains.
    ForeignRules,
}

impl Kind {
    /// Returns the name, which is also its value in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LocalhostNodePorts => "localhostNodePorts",
            Self::NodePortAddresses => "nodePortAddresses",
            Self::Affinity => "affinity",
            Self::LoadBalancing => "loadBalancing",
            Self::ConnectionLimits => "connectionLimits",
            Self::EndpointLimits => "endpointLimits",
            Self::OpenConnections => "openConnections",
            Self::ServiceAddresses => "serviceAddresses",
            Self::LocalPolicy => "localPolicy",
            Self::SourceAddresses => "sourceAddresses",
            Self::Protocols => "protocols",
            Self::OwnConnections => "ownConnections",
            Self::SourceRanges => "sourceRanges",
            Self::UnknownPorts => "unknownPorts",
            Self::UnknownAddresses => "unknownAddresses",
            Self::ForwardedTraffic => "forwardedTraffic",
            Self::FirewallChains => "firewallChains",
            Self::DeletedServices => "deletedServices",
            Self::HealthChecks => "healthChecks",
            Self::ForeignRules => "foreignRules",
        }
    }
}

/// Returns all differences for the table's IP family.
pub(super) fn differences(switch: &Switch<'_>) -> Vec<Difference> {
    if switch.from.mode == switch.to.mode {
        return Vec::new();
    }
    let mut differences = Vec::new();
    differences.extend(switch.localhost_node_ports());
    differences.extend(switch.link_local_node_ports());
    differences.extend(switch.node_port_addresses());
    differences.extend(switch.health_check_addresses());
    differences.extend(switch.affinity());
    differences.extend(switch.unsupported());
    differences.extend(switch.outcomes());
    differences.extend(switch.remains());
    differences.extend(switch.virtual_servers());
    differences.extend(switch.unknown_destinations());
    differences.extend(switch.firewall());
    differences.extend(switch.foreign_rules());
    differences
}

impl Switch<'_> {
    fn family(&self) -> IpFamily {
        self.to.table.family
    }

    fn difference(&self, kind: Kind, summary: impl Into<String>) -> Difference {
        Difference {
            kind,
            family: self.family(),
            summary: summary.into(),
            remedy: None,
            services: Vec::new(),
            rules: Vec::new(),
        }
    }

    /// Returns the Services with a port for which `is_affected` is true.
    fn services(&self, is_affected: impl Fn(&ServicePortEntry) -> bool) -> Vec<String> {
        let ports = self.to.table.entries.iter().filter(|(_, entry)| is_affected(entry));
        let names: BTreeSet<&str> = ports.map(|(name, _): (&ServicePortName, _)| name.service.as_str()).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    /// Returns the settings of both modes.
    fn settings(&self) -> [FamilySettings; 2] {
        [self.from, self.to]
            .map(|side| FamilySettings::new(side.settings, side.table, side.traits(), self.host_addresses))
    }

    fn with_node_ports(&self) -> Vec<String> {
        self.services(|entry| entry.service.node_port.is_some())
    }

    fn localhost_node_ports(&self) -> Option<Difference> {
        let [before, after] = self.settings().map(|settings| settings.localhost_node_ports);
        let services = self.with_node_ports();
        if before == after || services.is_empty() {
            return None;
        }
        let is_possible = self.to.traits().localhost_node_ports.contains(&self.family());
        let (change, remedy) = match self.to.mode {
            _ if before && !is_possible => ("no longer", None),
            _ if before => (
                "no longer",
                Some("add localhost to nodePortAddresses, along with primary or the networks of the node"),
            ),
            ModeName::NFTABLES => ("also", Some("remove localhost from nodePortAddresses")),
            _ => ("also", Some("set iptables.localhostNodePorts to false")),
        };
        let summary = format!("node ports are {change} served on {}", self.family().localhost());
        Some(Difference {
            remedy: remedy.map(str::to_owned),
            services,
            ..self.difference(Kind::LocalhostNodePorts, summary)
        })
    }

    fn link_local_node_ports(&self) -> Option<Difference> {
        let [before, after] = self
            .settings()
            .map(|settings| settings.node_ports == NodePortMatch::AnyLocal && settings.link_local_node_ports);
        let services = self.with_node_ports();
        if before == after || self.family() == IpFamily::V4 || services.is_empty() {
            return None;
        }
        let change = if after { "also" } else { "no longer" };
        let summary = format!("node ports are {change} served on link-local addresses");
        Some(Difference { services, ..self.difference(Kind::NodePortAddresses, summary) })
    }

    fn node_port_addresses(&self) -> Option<Difference> {
        let [before, after] = self.settings().map(|settings| settings.node_ports);
        let services = self.with_node_ports();
        if before == after || services.is_empty() {
            return None;
        }
        let are_listed = [&before, &after].iter().all(|matched| matches!(matched, NodePortMatch::Addresses(_)));
        let [before, after] = [before, after].map(|matched| self.addresses(&matched));
        // Other differences say what changes at localhost.
        if before == after && are_listed {
            return None;
        }
        let lost: Vec<String> = before.difference(&after).map(ToString::to_string).collect();
        let gained: Vec<String> = after.difference(&before).map(ToString::to_string).collect();
        let summary = match (lost.is_empty(), gained.is_empty()) {
            (false, true) => format!("node ports are no longer served on {}", lost.join(", ")),
            (true, false) => format!("node ports are also served on {}", gained.join(", ")),
            (false, false) => {
                format!("node ports are served on {} and no longer on {}", gained.join(", "), lost.join(", "))
            }
            // They differ only in addresses that the host does not have yet.
            (true, true) => "node ports are served on other addresses once the host gets new ones".to_owned(),
        };
        let remedy = "set nodePortAddresses, which has the same effect in both modes".to_owned();
        Some(Difference { remedy: Some(remedy), services, ..self.difference(Kind::NodePortAddresses, summary) })
    }

    /// Returns the Services whose health checks are no longer served at addresses of the host. All modes serve those at
    /// addresses of load balancers.
    fn health_check_addresses(&self) -> Option<Difference> {
        let [before, after] = self.settings().map(|settings| self.addresses(&settings.node_ports));
        let lost = |entry: &ServicePortEntry| -> BTreeSet<IpAddr> {
            let of_load_balancer = &entry.service.load_balancer_vips;
            before.difference(&after).filter(|address| !of_load_balancer.contains(*address)).copied().collect()
        };
        let has_check = |entry: &&ServicePortEntry| entry.service.health_check_node_port.is_some();
        let all_lost: BTreeSet<IpAddr> = self.to.table.entries.values().filter(has_check).flat_map(lost).collect();
        if all_lost.is_empty() {
            return None;
        }
        let services = self.services(|entry| has_check(&entry) && !lost(entry).is_empty());
        let addresses = all_lost.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let summary = format!("health checks of load balancers are no longer answered on {addresses}");
        let remedy = "set nodePortAddresses, which has the same effect in both modes".to_owned();
        Some(Difference { remedy: Some(remedy), services, ..self.difference(Kind::HealthChecks, summary) })
    }

    /// Returns the host's addresses, except localhost and IPv6 link-local ones, that serve node ports.
    fn addresses(&self, matched: &NodePortMatch) -> BTreeSet<IpAddr> {
        let all = match matched {
            NodePortMatch::AnyLocal => self.host_addresses,
            NodePortMatch::Addresses(addresses) => addresses,
        };
        let is_relevant = |address: &&IpAddr| {
            let is_local = match address {
                IpAddr::V4(address) => address.is_loopback(),
                IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
            };
            IpFamily::of(**address) == self.family() && !is_local
        };
        all.iter().filter(is_relevant).copied().collect()
    }

    /// Returns the settings of Services that only one of the modes supports.
    fn unsupported(&self) -> Vec<Difference> {
        let unsupported = |side: Side<'_>, name: &ServicePortName, entry: &ServicePortEntry| -> BTreeSet<_> {
            let traits = side.traits();
            let weights = !traits.weights && (self.has_weights)(name);
            traits.unsupported(&entry.service).chain(weights.then_some(UnsupportedSetting::Weights)).collect()
        };
        let mut services: BTreeMap<(Kind, &'static str), BTreeSet<&str>> = BTreeMap::new();
        for (name, entry) in &self.to.table.entries {
            let [before, after] = [self.from, self.to].map(|side| unsupported(side, name, entry));
            for setting in before.symmetric_difference(&after) {
                let difference = support_difference(*setting, !after.contains(setting));
                services.entry(difference).or_default().insert(name.service.as_str());
            }
        }
        self.of_services(services)
    }

    fn of_services(&self, services: BTreeMap<(Kind, &'static str), BTreeSet<&str>>) -> Vec<Difference> {
        let difference = |((kind, summary), services): ((Kind, &'static str), BTreeSet<&str>)| Difference {
            services: services.into_iter().map(str::to_owned).collect(),
            ..self.difference(kind, summary)
        };
        services.into_iter().map(difference).collect()
    }

    fn affinity(&self) -> Option<Difference> {
        let services = self.services(|entry| entry.service.affinity.is_some());
        let summary = "clients of Services with session affinity may get another endpoint once: the modes do not share the \
                       affinity state";
        (!services.is_empty()).then(|| Difference { services, ..self.difference(Kind::Affinity, summary) })
    }

    /// Returns the differences in the handling of connections to Services, with the affected Services of each.
    fn outcomes(&self) -> Vec<Difference> {
        let settings = self.settings();
        let mut services: BTreeMap<(Kind, &'static str), BTreeSet<&str>> = BTreeMap::new();
        for (name, entry) in &self.to.table.entries {
            let Some(from) = self.from.table.entries.get(name) else { continue };
            let of = |side: Side<'_>, entry, settings| forwarding(side.table, name, entry, settings, side.traits());
            let (before, after) = (of(self.from, from, &settings[0]), of(self.to, entry, &settings[1]));
            let mut add = |difference: Option<(Kind, &'static str)>| {
                services.entry(difference?).or_default().insert(name.service.as_str());
                Some(())
            };
            let refuses_elsewhere = |side: &PortForwarding<'_>, settings: &FamilySettings| {
                entry.service.node_port.is_some()
                    && !settings.serves_node_ports_everywhere()
                    && side.outcome_at_other_address() != Outcome::NotOurs
            };
            add(match (refuses_elsewhere(&before, &settings[0]), refuses_elsewhere(&after, &settings[1])) {
                (false, true) => Some((
                    Kind::NodePortAddresses,
                    "node ports that are refused are refused at all addresses of the node",
                )),
                (true, false) => Some((
                    Kind::NodePortAddresses,
                    "node ports that are refused are refused only at the addresses that serve node ports",
                )),
                _ => None,
            });
            let [lost, left] =
                [self.from, self.to].map(|side| side.table.excess.get(name).copied().unwrap_or_default());
            add(match left.cmp(&lost) {
                Ordering::Equal => None,
                Ordering::Greater => {
                    Some((Kind::EndpointLimits, "fewer endpoints are used: the mode has a lower limit"))
                }
                Ordering::Less => Some((Kind::EndpointLimits, "more endpoints are used: the mode has a higher limit")),
            });
            let claimed = self.to.table.claimed(name).unwrap_or(&entry.service);
            for (kind, frontend) in claimed.claims(name.protocol) {
                let has = |side: Side<'_>| side.table.lost_frontend(name, frontend).is_none();
                add(match (has(self.from), has(self.to)) {
                    (true, false) => {
                        Some((Kind::ServiceAddresses, "Service addresses that belong to other hosts are not served"))
                    }
                    (false, true) => {
                        Some((Kind::ServiceAddresses, "Service addresses that belong to other hosts are served again"))
                    }
                    _ => None,
                });
                if !has(self.from) || !has(self.to) {
                    continue;
                }
                for client in Client::ALL {
                    let seen = |side: &PortForwarding<'_>| side.as_seen(side.outcome(kind, client), client);
                    add(outcome_difference(seen(&before), seen(&after), client));
                    let excludes = |side: &PortForwarding<'_>| {
                        side.is_restricted(kind, frontend)
                            && side.outcome_outside_source_ranges(kind, client) == Outcome::Drop(Refusal::SourceRanges)
                    };
                    add(match (excludes(&before), excludes(&after)) {
                        (false, true) => Some((Kind::SourceRanges, "clients outside of the source ranges are dropped")),
                        (true, false) => {
                            Some((Kind::SourceRanges, "some clients outside of the source ranges are not dropped"))
                        }
                        _ => None,
                    });
                }
            }
        }
        self.of_services(services)
    }

    /// Returns the objects that the old mode leaves for open connections, and whether Service addresses are the host's.
    fn remains(&self) -> Vec<Difference> {
        let mut differences = Vec::new();
        let [before, after] = [self.from, self.to].map(|side| side.traits().binds_service_addresses);
        if before && !after {
            let open = "virtual servers remain until their open connections have ended, which is checked every hour; new \
                        connections do not use them";
            let addresses = "when the virtual servers have been removed, Service addresses are no longer addresses of \
                             this host and do not respond to ping";
            differences.push(self.difference(Kind::OpenConnections, open));
            differences.push(self.difference(Kind::ServiceAddresses, addresses));
        }
        if after && !before {
            let addresses = "Service addresses become addresses of this host: they respond to ping, and connections to \
                             ports that no Service has are rejected";
            differences.push(self.difference(Kind::ServiceAddresses, addresses));
        }
        if self.from.traits().sources == Sources::Node {
            let open = "open connections continue in the process that relays them, for ten minutes at most";
            differences.push(self.difference(Kind::OpenConnections, open));
        }
        differences
    }

    /// Returns the differences for packets to unknown ports and unassigned cluster IPs.
    fn unknown_destinations(&self) -> Vec<Difference> {
        let [before, after] = [self.from, self.to].map(|side| side.traits());
        let mut differences = Vec::new();
        // If Service addresses belong to the host, the difference states this.
        let is_same = before.unknown_ports == after.unknown_ports
            || before.binds_service_addresses != after.binds_service_addresses;
        if !is_same && !self.to.table.entries.is_empty() {
            let (after, before) = (after.unknown_ports.as_str(), before.unknown_ports.as_str());
            let summary = format!("connections to unknown ports of cluster IPs are {after} instead of {before}");
            differences.push(self.difference(Kind::UnknownPorts, summary));
        }
        if before.unassigned_addresses != after.unassigned_addresses && !self.to.table.service_cidrs.is_empty() {
            let networks: Vec<String> = self.to.table.service_cidrs.iter().map(ToString::to_string).collect();
            let (after, before) = (after.unassigned_addresses.as_str(), before.unassigned_addresses.as_str());
            let networks = networks.join(", ");
            let summary = format!("packets to unassigned addresses in {networks} are {after} instead of {before}");
            differences.push(self.difference(Kind::UnknownAddresses, summary));
        }
        differences
    }

    /// Returns the differences for traffic of Services that only the proxy's accept rules let pass a firewall. In
    /// nftables, a table cannot accept packets that another table drops.
    fn firewall(&self) -> Vec<Difference> {
        if self.to.traits().accepts_in_firewalls {
            return Vec::new();
        }
        let mut differences = Vec::new();
        if self.kernel.drops_forwarded.contains(&self.family()) {
            let summary = "the policy of FORWARD is DROP, and the chain KUBE-FORWARD, which accepts packets of Services, is \
                           removed";
            let mark = self.to.settings.masquerade_mark();
            let remedy = format!(
                "configure the firewall to accept packets with mark {mark:#x}/{mark:#x} and those of established connections"
            );
            differences.push(Difference { remedy: Some(remedy), ..self.difference(Kind::ForwardedTraffic, summary) });
        }
        let services = self.services(|entry| entry.service.health_check_node_port.is_some());
        if self.kernel.drops_input.contains(&self.family()) && !services.is_empty() {
            let summary = "the policy of INPUT is DROP, and the chain KUBE-NODEPORTS, which accepts health checks of load \
                           balancers, is removed";
            let remedy = "configure the firewall to accept the health-check node ports of these Services".to_owned();
            differences.push(Difference {
                remedy: Some(remedy),
                services,
                ..self.difference(Kind::HealthChecks, summary)
            });
        }
        differences
    }

    fn foreign_rules(&self) -> Option<Difference> {
        let references = self.kernel.references.iter().filter(|(family, _)| *family == self.family());
        let rules: Vec<String> = references.map(|(_, rule)| rule.clone()).collect();
        if rules.is_empty() || !self.from.traits().accepts_in_firewalls {
            return None;
        }
        let summary = "rules of other programs in, or with jumps to, chains of the proxy have no effect";
        let remedy = "configure these programs not to use chains of kube-proxy".to_owned();
        Some(Difference { remedy: Some(remedy), rules, ..self.difference(Kind::ForeignRules, summary) })
    }
}

/// Returns the difference if a mode supports a setting and the other one does not.
fn support_difference(setting: UnsupportedSetting, is_supported: bool) -> (Kind, &'static str) {
    use UnsupportedSetting::{DrainTimeout, Limits, Method, SlowStart, SourceRangesScope, Weights, ZoneWeight};
    let (kind, gained, lost) = match setting {
        Method(_) => {
            let both =
                "endpoints share connections differently: one of the modes does not support the requested method";
            (Kind::LoadBalancing, both, both)
        }
        Weights => (Kind::LoadBalancing, "weights of endpoints apply", "weights of endpoints no longer apply"),
        SlowStart => (
            Kind::LoadBalancing,
            "slow start of new endpoints applies",
            "slow start of new endpoints no longer applies",
        ),
        ZoneWeight => (Kind::LoadBalancing, "weights of zones apply", "weights of zones no longer apply"),
        DrainTimeout => (
            Kind::OpenConnections,
            "deadlines of connections to terminating endpoints apply",
            "deadlines of connections to terminating endpoints no longer apply",
        ),
        SourceRangesScope => (
            Kind::SourceRanges,
            "source ranges apply to other addresses than those of load balancers",
            "source ranges no longer apply to other addresses than those of load balancers",
        ),
        Limits => (Kind::ConnectionLimits, "limits of connections apply", "limits of connections no longer apply"),
    };
    (kind, if is_supported { gained } else { lost })
}

/// Returns the difference between the handling of a connection of a class of clients in two modes.
fn outcome_difference(before: Outcome, after: Outcome, client: Client) -> Option<(Kind, &'static str)> {
    use Outcome::{Drop, Forward, NotOurs, Reject};
    use Refusal::{NoEndpoints, NoLocalEndpoints, UnsupportedProtocol};
    if before == after {
        return None;
    }
    Some(match (before, after) {
        (_, Reject(UnsupportedProtocol)) => (Kind::Protocols, "connections by this protocol are rejected"),
        (Reject(UnsupportedProtocol), _) => (Kind::Protocols, "connections by this protocol are no longer rejected"),
        (NotOurs, Reject(NoEndpoints)) => {
            (Kind::OwnConnections, "the node's own connections to external addresses without endpoints are rejected")
        }
        (Reject(NoEndpoints), NotOurs) => (
            Kind::OwnConnections,
            "the node's own connections to external addresses without endpoints leave the node instead of being rejected",
        ),
        (Drop(NoLocalEndpoints), Forward(_)) => (
            Kind::LocalPolicy,
            "connections with traffic policy Local use endpoints of other nodes if there are none on this node; they were \
             dropped",
        ),
        (Forward(_), Drop(NoLocalEndpoints)) => (
            Kind::LocalPolicy,
            "connections with traffic policy Local are dropped if there are no endpoints on this node; they used those of \
             other nodes",
        ),
        (Drop(NoLocalEndpoints), Reject(_)) => (
            Kind::LocalPolicy,
            "connections with traffic policy Local are rejected instead of dropped if there are no endpoints on this node",
        ),
        (Reject(_), Drop(NoLocalEndpoints)) => (
            Kind::LocalPolicy,
            "connections with traffic policy Local are dropped instead of rejected if there are no endpoints on this node",
        ),
        (Forward(before), Forward(after)) if before.list != after.list => match after.list {
            TrafficPolicy::Local => (
                Kind::LocalPolicy,
                "connections of pods and of the node to external addresses with traffic policy Local use only endpoints on \
                 this node, if there are any",
            ),
            TrafficPolicy::Cluster => (
                Kind::LocalPolicy,
                "connections of pods and of the node to external addresses with traffic policy Local use all endpoints",
            ),
        },
        // The node's own connections always have one of its addresses.
        (Forward(_), Forward(_)) if client == Client::Node => return None,
        (Forward(_), Forward(after)) => match after.source {
            SourceAddress::Node => {
                (Kind::SourceAddresses, "endpoints see the address of this node as the source, instead of the client's")
            }
            SourceAddress::Kept => (Kind::SourceAddresses, "endpoints see the addresses of clients again"),
        },
        // Traits have no such pair; the test over all pairs of modes would show it.
        _ => (Kind::LocalPolicy, "connections have another outcome"),
    })
}

#[cfg(test)]
mod tests;
