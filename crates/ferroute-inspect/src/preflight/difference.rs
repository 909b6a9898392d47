//! The differences in behaviour between modes. Pure.

use std::{collections::BTreeSet, net::IpAddr};

use ferroute_config::ModeName;
use ferroute_core::{
    IpFamily, NodePortMatch, Protocol, ProxySettings, ServicePortEntry, ServicePortName, ServiceTable,
};
use serde::{Serialize, Serializer};

use super::KernelSnapshot;

/// A mode with its settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side<'a> {
    pub(super) mode: ModeName,
    pub(super) settings: &'a ProxySettings,
}

impl Side<'_> {
    fn serves_node_ports_on_localhost(&self, family: IpFamily) -> bool {
        self.mode != ModeName::IPVS && self.settings.localhost_node_ports(family)
    }
}

/// A switch of modes, for one IP family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switch<'a> {
    pub(super) from: Side<'a>,
    pub(super) to: Side<'a>,
    pub(super) table: &'a ServiceTable,
    /// The addresses of the host's interfaces.
    pub(super) host_addresses: &'a [IpAddr],
    /// The state of the kernel before the switch.
    pub(super) kernel: &'a KernelSnapshot,
}

/// A difference in behaviour after a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// The kind of difference.
    pub kind: Kind,
    /// The IP family, `IPv4` or `IPv6`.
    pub family: &'static str,
    /// The difference.
    pub summary: String,
    /// How to avoid the difference, if that is possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The affected Services; empty for all, or if it does not depend on Services.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// The affected rules of other programs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
}

/// The kind of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Node ports on 127.0.0.1.
    LocalhostNodePorts,
    /// The addresses that serve node ports.
    NodePortAddresses,
    /// Session affinity.
    Affinity,
    /// Open connections.
    OpenConnections,
    /// Service addresses as addresses of the host.
    ServiceAddresses,
    /// External addresses with traffic policy Local.
    LocalPolicy,
    /// The source address that endpoints see.
    SourceAddresses,
    /// Services whose protocol the mode does not support.
    Protocols,
    /// Ports that a Service does not have.
    UnknownPorts,
    /// Unassigned addresses.
    UnknownAddresses,
    /// Forwarded packets that only the proxy's rules accept.
    ForwardedTraffic,
    /// Health checks that only the proxy's rules accept.
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
            Self::OpenConnections => "openConnections",
            Self::ServiceAddresses => "serviceAddresses",
            Self::LocalPolicy => "localPolicy",
            Self::SourceAddresses => "sourceAddresses",
            Self::Protocols => "protocols",
            Self::UnknownPorts => "unknownPorts",
            Self::UnknownAddresses => "unknownAddresses",
            Self::ForwardedTraffic => "forwardedTraffic",
            Self::HealthChecks => "healthChecks",
            Self::ForeignRules => "foreignRules",
        }
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Returns all differences for the table's IP family.
pub(super) fn differences(switch: &Switch<'_>) -> Vec<Difference> {
    if switch.from.mode == switch.to.mode {
        return Vec::new();
    }
    let mut differences = Vec::new();
    differences.extend(switch.localhost_node_ports());
    differences.extend(switch.node_port_addresses());
    differences.extend(switch.affinity());
    differences.extend(switch.virtual_servers());
    differences.extend(switch.userspace());
    differences.extend(switch.unknown_destinations());
    differences.extend(switch.firewall());
    differences.extend(switch.foreign_rules());
    differences
}

impl Switch<'_> {
    fn family(&self) -> IpFamily {
        self.table.family
    }

    fn difference(&self, kind: Kind, summary: impl Into<String>) -> Difference {
        Difference {
            kind,
            family: self.family().as_str(),
            summary: summary.into(),
            remedy: None,
            services: Vec::new(),
            rules: Vec::new(),
        }
    }

    /// Returns the Services with a port for which `is_affected` is true.
    fn services(&self, is_affected: impl Fn(&ServicePortEntry) -> bool) -> Vec<String> {
        let ports = self.table.entries.iter().filter(|(_, entry)| is_affected(entry));
        let names: BTreeSet<&str> = ports.map(|(name, _): (&ServicePortName, _)| name.service.as_str()).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    fn with_node_ports(&self) -> Vec<String> {
        self.services(|entry| entry.service.node_port.is_some())
    }

    fn localhost_node_ports(&self) -> Option<Difference> {
        let [before, after] = [self.from, self.to].map(|side| side.serves_node_ports_on_localhost(self.family()));
        let services = self.with_node_ports();
        if before == after || services.is_empty() {
            return None;
        }
        let (summary, remedy) = if before {
            let remedy = "add 127.0.0.0/8 to nodePortAddresses, along with the networks of the node";
            ("node ports are no longer served on 127.0.0.1", remedy)
        } else {
            ("node ports are also served on 127.0.0.1", "set iptables.localhostNodePorts to false")
        };
        Some(Difference {
            remedy: Some(remedy.to_owned()),
            services,
            ..self.difference(Kind::LocalhostNodePorts, summary)
        })
    }

    fn node_port_addresses(&self) -> Option<Difference> {
        let family = self.family();
        let matched = |side: Side<'_>| side.settings.node_ports(family, &self.table.node, self.host_addresses);
        let (before, after) = (matched(self.from), matched(self.to));
        let services = self.with_node_ports();
        if before == after || services.is_empty() {
            return None;
        }
        let [before, after] = [before, after].map(|matched| self.addresses(&matched));
        let lost: Vec<String> = before.difference(&after).map(ToString::to_string).collect();
        let gained: Vec<String> = after.difference(&before).map(ToString::to_string).collect();
        let summary = match (lost.is_empty(), gained.is_empty()) {
            (false, true) => format!("node ports are no longer served on {}", lost.join(", ")),
            (true, false) => format!("node ports are also served on {}", gained.join(", ")),
            (false, false) => {
                format!("node ports are served on {} and no longer on {}", gained.join(", "), lost.join(", "))
            }
            // They only differ in addresses that the host does not have yet.
            (true, true) => "node ports are served on other addresses once the host gets new ones".to_owned(),
        };
        let remedy = "set nodePortAddresses, which has the same effect in both modes".to_owned();
        Some(Difference { remedy: Some(remedy), services, ..self.difference(Kind::NodePortAddresses, summary) })
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

    fn affinity(&self) -> Option<Difference> {
        let services = self.services(|entry| entry.service.affinity.is_some());
        let summary = "clients of Services with session affinity may get another endpoint once: the modes do not share the \
                       affinity state";
        (!services.is_empty()).then(|| Difference { services, ..self.difference(Kind::Affinity, summary) })
    }

    fn virtual_servers(&self) -> Vec<Difference> {
        if self.from.mode != ModeName::IPVS && self.to.mode == ModeName::IPVS {
            let addresses = "Service addresses become addresses of this host: they respond to ping, and connections to \
                             ports that no Service has are rejected";
            let mut differences = vec![self.difference(Kind::ServiceAddresses, addresses)];
            let services =
                self.services(|entry| entry.service.external_local() && entry.service.externally_accessible());
            let summary = "connections of pods and of the node to external addresses with traffic policy Local use only \
                           endpoints on this node, if there are any";
            if !services.is_empty() {
                differences.push(Difference { services, ..self.difference(Kind::LocalPolicy, summary) });
            }
            return differences;
        }
        if self.from.mode != ModeName::IPVS || self.to.mode == ModeName::IPVS {
            return Vec::new();
        }
        let open = "virtual servers remain until their open connections have ended, which is checked every hour; new \
                    connections do not use them";
        let addresses = "when the virtual servers have been removed, Service addresses are no longer addresses of this \
                         host and do not respond to ping";
        vec![self.difference(Kind::OpenConnections, open), self.difference(Kind::ServiceAddresses, addresses)]
    }

    /// Returns the differences of a process that relays connections.
    fn userspace(&self) -> Vec<Difference> {
        match (self.from.mode, self.to.mode) {
            (ModeName::USERSPACE, _) => {
                let open = "open connections continue in the process that relays them, for ten minutes at most";
                let addresses = "endpoints see the addresses of clients again, unless these are masqueraded";
                vec![self.difference(Kind::OpenConnections, open), self.difference(Kind::SourceAddresses, addresses)]
            }
            (_, ModeName::USERSPACE) => {
                let addresses = "endpoints see the address of this node as the source of all connections";
                let mut differences = vec![self.difference(Kind::SourceAddresses, addresses)];
                let sctp = self.table.entries.keys().filter(|name| name.protocol == Protocol::Sctp);
                let services: BTreeSet<String> = sctp.map(|name| name.service.to_string()).collect();
                if !services.is_empty() {
                    let services = services.into_iter().collect();
                    let summary = "connections by SCTP are rejected";
                    differences.push(Difference { services, ..self.difference(Kind::Protocols, summary) });
                }
                differences
            }
            _ => Vec::new(),
        }
    }

    /// Returns the differences for packets to unknown ports and unassigned cluster IPs.
    fn unknown_destinations(&self) -> Vec<Difference> {
        let (ports, addresses) = match (self.from.mode, self.to.mode) {
            (ModeName::IPTABLES, ModeName::NFTABLES) => (
                "connections to unknown ports of cluster IPs are rejected instead of routed",
                "are dropped instead of routed",
            ),
            (ModeName::NFTABLES, ModeName::IPTABLES) => (
                "connections to unknown ports of cluster IPs are routed instead of rejected",
                "are routed instead of dropped",
            ),
            _ => return Vec::new(),
        };
        let mut differences = Vec::new();
        if !self.table.entries.is_empty() {
            differences.push(self.difference(Kind::UnknownPorts, ports));
        }
        if !self.table.service_cidrs.is_empty() {
            let networks: Vec<String> = self.table.service_cidrs.iter().map(ToString::to_string).collect();
            let summary = format!("packets to unassigned addresses in {} {addresses}", networks.join(", "));
            differences.push(self.difference(Kind::UnknownAddresses, summary));
        }
        differences
    }

    /// Returns the differences for traffic of Services that only the proxy's accept rules let through a firewall. In
    /// nftables, a table cannot accept packets that another table drops.
    fn firewall(&self) -> Vec<Difference> {
        if self.to.mode != ModeName::NFTABLES {
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
        if rules.is_empty() || self.from.mode == ModeName::NFTABLES {
            return None;
        }
        let summary = "rules of other programs in, or with jumps to, chains of the proxy have no effect";
        let remedy = "configure these programs not to use chains of kube-proxy".to_owned();
        Some(Difference { remedy: Some(remedy), rules, ..self.difference(Kind::ForeignRules, summary) })
    }
}

#[cfg(test)]
mod tests;
