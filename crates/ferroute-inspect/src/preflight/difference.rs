//! The differences themselves. Pure.

use std::{collections::BTreeSet, net::IpAddr};

use ferroute_config::ModeName;
use ferroute_core::{ServicePortEntry, IpFamily, NodePortMatch, ProxySettings, ServicePortName, ServiceTable};
use serde::Serialize;

use super::Found;

/// A mode with what it would be told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side<'a> {
    pub(super) mode: ModeName,
    pub(super) settings: &'a ProxySettings,
}

impl Side<'_> {
    fn answers_on_localhost(&self, family: IpFamily) -> bool {
        self.mode != ModeName::IPVS && self.settings.localhost_node_ports(family)
    }
}

/// A switch of one family's rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switch<'a> {
    pub(super) from: Side<'a>,
    pub(super) to: Side<'a>,
    pub(super) table: &'a ServiceTable,
    /// The addresses of the host's interfaces.
    pub(super) host_addresses: &'a [IpAddr],
    /// What is in the kernel now.
    pub(super) found: &'a Found,
}

/// Something that behaves differently afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// What it is about.
    pub kind: Kind,
    /// Of which family, `IPv4` or `IPv6`.
    pub family: &'static str,
    /// What will be different.
    pub summary: String,
    /// What to do if that is not wanted, where something can be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The Services that are concerned; none where all or none in particular are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// Rules of others that are concerned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
}

/// What a difference is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// Node ports on 127.0.0.1.
    LocalhostNodePorts,
    /// Which addresses answer on node ports.
    NodePortAddresses,
    /// Which endpoint a client had last.
    Affinity,
    /// Connections that are open.
    OpenConnections,
    /// Addresses of Services as addresses of the host.
    ServiceAddresses,
    /// Ports that a Service has not.
    UnknownPorts,
    /// Addresses that no Service has.
    UnknownAddresses,
    /// Traffic that a firewall lets pass because the proxy's rules do.
    ForwardedTraffic,
    /// Health checks that a firewall lets in because the proxy's rules do.
    HealthChecks,
    /// Rules of other programs that use the proxy's chains.
    ForeignRules,
}

/// Everything that behaves differently for the table's family after a switch.
pub(super) fn differences(switch: &Switch<'_>) -> Vec<Difference> {
    if switch.from.mode == switch.to.mode {
        return Vec::new();
    }
    let mut found = Vec::new();
    found.extend(switch.localhost_node_ports());
    found.extend(switch.node_port_addresses());
    found.extend(switch.affinity());
    found.extend(switch.virtual_servers());
    found.extend(switch.unknown_destinations());
    found.extend(switch.firewall());
    found.extend(switch.foreign_rules());
    found
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

    /// The Services with a port for which `concerns` holds.
    fn services(&self, concerns: impl Fn(&ServicePortEntry) -> bool) -> Vec<String> {
        let ports = self.table.entries.iter().filter(|(_, entry)| concerns(entry));
        let names: BTreeSet<&str> = ports.map(|(name, _): (&ServicePortName, _)| name.service.as_str()).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    fn with_node_ports(&self) -> Vec<String> {
        self.services(|entry| entry.service.node_port.is_some())
    }

    fn localhost_node_ports(&self) -> Option<Difference> {
        let [before, after] = [self.from, self.to].map(|side| side.answers_on_localhost(self.family()));
        let services = self.with_node_ports();
        if before == after || services.is_empty() {
            return None;
        }
        let (summary, remedy) = if before {
            let remedy = "name 127.0.0.0/8 in nodePortAddresses, beside the networks of the node";
            ("node ports do not answer on 127.0.0.1 any more", remedy)
        } else {
            ("node ports answer on 127.0.0.1, too", "set iptables.localhostNodePorts to false")
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
        let [before, after] = [before, after].map(|matched| self.answering(&matched));
        let lost: Vec<String> = before.difference(&after).map(ToString::to_string).collect();
        let gained: Vec<String> = after.difference(&before).map(ToString::to_string).collect();
        let summary = match (lost.is_empty(), gained.is_empty()) {
            (false, true) => format!("node ports do not answer on {} any more", lost.join(", ")),
            (true, false) => format!("node ports answer on {}, too", gained.join(", ")),
            (false, false) => {
                format!("node ports answer on {} and not on {} any more", gained.join(", "), lost.join(", "))
            }
            // They differ in addresses that are yet to come.
            (true, true) => "node ports answer on other addresses when the host gets new ones".to_owned(),
        };
        let remedy = "say in nodePortAddresses which networks node ports answer on, in either mode".to_owned();
        Some(Difference { remedy: Some(remedy), services, ..self.difference(Kind::NodePortAddresses, summary) })
    }

    /// The host's addresses, but localhost, that answer on node ports.
    fn answering(&self, matched: &NodePortMatch) -> BTreeSet<IpAddr> {
        let all = match matched {
            NodePortMatch::AnyLocal => self.host_addresses,
            NodePortMatch::Addresses(addresses) => addresses,
        };
        let is_meant = |address: &&IpAddr| {
            let is_own = match address {
                IpAddr::V4(address) => address.is_loopback(),
                IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
            };
            IpFamily::of(**address) == self.family() && !is_own
        };
        all.iter().filter(is_meant).copied().collect()
    }

    fn affinity(&self) -> Option<Difference> {
        let services = self.services(|entry| entry.service.affinity.is_some());
        let summary = "clients of Services with affinity may get another endpoint with their next connection, once: \
                       each mode remembers them in a place of its own";
        (!services.is_empty()).then(|| Difference { services, ..self.difference(Kind::Affinity, summary) })
    }

    fn virtual_servers(&self) -> Vec<Difference> {
        if self.from.mode != ModeName::IPVS {
            return Vec::new();
        }
        let open = "virtual servers with open connections stay until these have ended, which is looked at each hour; new \
                    connections do not use them";
        let addresses = "once virtual servers are gone, the addresses of Services are no addresses of this host any \
                         more, so they answer to no ping";
        vec![self.difference(Kind::OpenConnections, open), self.difference(Kind::ServiceAddresses, addresses)]
    }

    /// Packets to cluster IPs that no Service wants.
    fn unknown_destinations(&self) -> Vec<Difference> {
        let (ports, addresses) = match (self.from.mode, self.to.mode) {
            (ModeName::IPTABLES, ModeName::NFTABLES) => (
                "connections to a cluster IP on a port that the Service has not are refused; so far they went where the \
                 routes lead",
                "are dropped; so far they went where the routes lead",
            ),
            (ModeName::NFTABLES, ModeName::IPTABLES) => (
                "connections to a cluster IP on a port that the Service has not go where the routes lead; so far they \
                 were refused",
                "go where the routes lead; so far they were dropped",
            ),
            _ => return Vec::new(),
        };
        let mut found = Vec::new();
        if !self.table.entries.is_empty() {
            found.push(self.difference(Kind::UnknownPorts, ports));
        }
        if !self.table.service_cidrs.is_empty() {
            let networks: Vec<String> = self.table.service_cidrs.iter().map(ToString::to_string).collect();
            let summary = format!("packets to addresses in {} that no Service has {addresses}", networks.join(", "));
            found.push(self.difference(Kind::UnknownAddresses, summary));
        }
        found
    }

    /// Where rules that accept traffic of Services are all that lets it through a firewall. In nftables no table can
    /// accept for another.
    fn firewall(&self) -> Vec<Difference> {
        if self.to.mode != ModeName::NFTABLES {
            return Vec::new();
        }
        let mut found = Vec::new();
        if self.found.drops_forwarded.contains(&self.family()) {
            let summary = "forwarded packets are dropped unless a rule accepts them, and KUBE-FORWARD, which accepts \
                           those of Services, goes";
            let mark = self.to.settings.masquerade_mark();
            let remedy = format!(
                "let the firewall accept packets with mark {mark:#x}/{mark:#x} and those of established connections"
            );
            found.push(Difference { remedy: Some(remedy), ..self.difference(Kind::ForwardedTraffic, summary) });
        }
        let services = self.services(|entry| entry.service.health_check_node_port.is_some());
        if self.found.drops_input.contains(&self.family()) && !services.is_empty() {
            let summary = "packets to this host are dropped unless a rule accepts them, and KUBE-NODEPORTS, which \
                           accepts health checks of load balancers, goes";
            let remedy = "let the firewall accept the health-check node ports of these Services".to_owned();
            found.push(Difference { remedy: Some(remedy), services, ..self.difference(Kind::HealthChecks, summary) });
        }
        found
    }

    fn foreign_rules(&self) -> Option<Difference> {
        let of_family = self.found.references.iter().filter(|(family, _)| *family == self.family());
        let rules: Vec<String> = of_family.map(|(_, rule)| rule.clone()).collect();
        if rules.is_empty() || self.from.mode == ModeName::NFTABLES {
            return None;
        }
        let summary = "rules of other programs use chains that go, or are in such chains; they will do nothing";
        let remedy = "have these programs do without chains of kube-proxy".to_owned();
        Some(Difference { remedy: Some(remedy), rules, ..self.difference(Kind::ForeignRules, summary) })
    }
}

#[cfg(test)]
mod tests;
