use std::{net::IpAddr, time::Duration};

use ferroute_core::{
    Endpoint, EndpointSets, FrontendKind, IpFamily, LocalTraffic, Protocol, ServicePort, ServicePortEntry,
    ServicePortName, ServiceTable,
};
use ferroute_iptables::{AddressType, InterfaceMatch, Match, RejectWith, Rule, Sense, Target};
use ipnet::IpNet;

use super::{ListenerKey, PlanContext, chains::Slot};
use crate::ListenerSpec;

/// The plan of a service port.
pub(super) struct PortPlan<'a> {
    name: &'a ServicePortName,
    service: &'a ServicePort,
    sets: EndpointSets,
    context: &'a PlanContext,
    text: String,
}

/// The ports of a service port's listeners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ports {
    /// For traffic with policy Cluster.
    pub(super) cluster: Option<u16>,
    /// For traffic with policy Local.
    pub(super) local: Option<u16>,
}

/// The reason why traffic to a frontend reaches no listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// There is no endpoint; the traffic is rejected.
    NoEndpoints,
    /// Only other nodes have endpoints; the traffic is dropped, so that the client or a load balancer retries there.
    NoLocalEndpoints,
    /// The protocol cannot be relayed.
    Unsupported,
    /// No port is free.
    NoPort,
}

impl<'a> PortPlan<'a> {
    pub(super) fn new(
        name: &'a ServicePortName,
        entry: &'a ServicePortEntry,
        table: &ServiceTable,
        context: &'a PlanContext,
    ) -> Self {
        let sets = table.endpoint_sets(entry);
        Self { name, service: &entry.service, sets, context, text: name.to_string() }
    }

    /// Returns the listeners, at most one for each policy.
    pub(super) fn listeners(&self) -> impl Iterator<Item = (ListenerKey, ListenerSpec)> + '_ {
        let sets = [(false, &self.sets.cluster), (true, &self.sets.local)];
        let used = sets.into_iter().filter(|(_, endpoints)| !endpoints.is_empty() && self.is_supported());
        used.map(|(local, endpoints)| {
            let key = ListenerKey { family: self.context.family, service_port: self.name.clone(), local };
            let spec = ListenerSpec {
                family: self.context.family,
                protocol: self.name.protocol,
                endpoints: endpoints.iter().map(Endpoint::socket).collect(),
                affinity: self.service.affinity.map(|affinity| Duration::from_secs(affinity.timeout_seconds.into())),
            };
            (key, spec)
        })
    }

    /// Reports whether the protocol can be relayed.
    pub(super) fn is_supported(&self) -> bool {
        self.name.protocol != Protocol::Sctp
    }

    /// Generates the rules. Rules of one slot are generated in their order.
    pub(super) fn rules(&self, ports: Ports, each: &mut dyn FnMut(Slot, Rule)) {
        for (kind, frontend) in self.service.frontends(self.name.protocol) {
            let rule = |comment: &str| {
                let rule = Rule::new().comment(format!("{} {comment}", self.text));
                let rule = match frontend.address {
                    Some(address) => rule.destination(address),
                    None => rule,
                };
                rule.port(frontend.protocol, frontend.port)
            };
            match kind {
                FrontendKind::ClusterIp => self.internal(ports, &rule, each),
                FrontendKind::LoadBalancer if !self.service.load_balancer_source_ranges.is_empty() => {
                    let sources = self.permitted_sources(frontend.address);
                    self.external(kind, ports, Some(&sources), &rule, each);
                    if self.sets.has_any_endpoints && self.is_supported() {
                        each(Slot::Filter, rule("is restricted to source ranges").then(Target::Drop));
                    }
                }
                _ => self.external(kind, ports, None, &rule, each),
            }
        }
        if let Some(port) = self.service.health_check_node_port {
            let rule = Rule::new().comment(format!("{} health check node port", self.text));
            each(Slot::HealthChecks, rule.port(Protocol::Tcp, port.get()).then(Target::Accept));
        }
    }

    fn internal(&self, ports: Ports, rule: &dyn Fn(&str) -> Rule, each: &mut dyn FnMut(Slot, Rule)) {
        let local = self.service.internal_local();
        let port = if local { ports.local } else { ports.cluster };
        match port {
            Some(port) => {
                for slot in [Slot::PortalsContainer, Slot::PortalsHost] {
                    each(slot, rule("cluster IP").then(self.to_listener(port)));
                }
            }
            None => self.refuse(Slot::Filter, self.refusal(local), rule, each),
        }
    }

    /// The rules of all frontends but cluster IPs. `sources` restricts the senders.
    fn external(
        &self,
        kind: FrontendKind,
        ports: Ports,
        sources: Option<&[IpNet]>,
        rule: &dyn Fn(&str) -> Rule,
        each: &mut dyn FnMut(Slot, Rule),
    ) {
        let (container, host) = match kind {
            FrontendKind::NodePort => (Slot::NodePortContainer, Slot::NodePortHost),
            _ => (Slot::PortalsContainer, Slot::PortalsHost),
        };
        let comment = kind.as_str();
        let from_anywhere = [IpNet::from(self.unspecified())];
        let (sources, is_restricted) = match sources {
            Some(sources) => (sources, true),
            None => (&from_anywhere[..], false),
        };
        let mut send = |slot, port: Option<u16>, pods: bool| {
            let Some(port) = port else { return };
            for source in sources {
                let mut rule = rule(comment);
                if is_restricted {
                    rule = rule.source(*source);
                }
                if pods {
                    let Some(of_pods) = self.restrict_to_pods(rule, is_restricted.then_some(*source)) else { continue };
                    rule = of_pods;
                }
                each(slot, rule.then(self.to_listener(port)));
            }
        };
        // The policy does not apply to pods of this node and to the node itself: their traffic is treated as if it left the
        // cluster and came back through a load balancer, which could send it to any node.
        send(host, ports.cluster, false);
        let local = self.service.external_local();
        if local {
            send(container, ports.cluster, true);
            send(container, ports.local, false);
        } else {
            send(container, ports.cluster, false);
        }
        let port = if local { ports.local } else { ports.cluster };
        if port.is_none() {
            let to_host = Match::AddrType { source: None, destination: Some(Sense::Is(AddressType::Local)) };
            let refused = |comment: &str| match kind {
                FrontendKind::NodePort => rule(comment).and(to_host.clone()),
                _ => rule(comment),
            };
            self.refuse(Slot::ExternalFilter, self.refusal(local), &refused, each);
        }
    }

    /// Returns the sources that may use the load balancer's address.
    fn permitted_sources(&self, address: Option<IpAddr>) -> Vec<IpNet> {
        let mut sources = self.service.load_balancer_source_ranges.clone();
        // A packet from the node to the load balancer's address has that address as source, if the node has it too.
        if self.context.node_ip.is_some_and(|node| sources.iter().any(|range| range.contains(&node))) {
            sources.extend(address.map(IpNet::from));
        }
        sources
    }

    /// Restricts a rule, which may be restricted to `source` already, to packets of local pods. `None` if they cannot be
    /// detected or are not among its packets.
    fn restrict_to_pods(&self, rule: Rule, source: Option<IpNet>) -> Option<Rule> {
        Some(match (self.context.local_traffic.as_ref()?, source) {
            (LocalTraffic::Source(pods), Some(source)) if source.contains(pods) => rule.source(*pods),
            (LocalTraffic::Source(pods), Some(source)) if pods.contains(&source) => rule,
            (LocalTraffic::Source(_), Some(_)) => return None,
            (LocalTraffic::Source(pods), None) => rule.source(*pods),
            (LocalTraffic::Interface(name), _) => {
                rule.in_interface(Sense::Is(InterfaceMatch::Name(name.as_str().into())))
            }
            (LocalTraffic::InterfacePrefix(prefix), _) => {
                rule.in_interface(Sense::Is(InterfaceMatch::Prefix(prefix.as_str().into())))
            }
        })
    }

    fn refusal(&self, local: bool) -> Refusal {
        if !self.sets.has_any_endpoints {
            Refusal::NoEndpoints
        } else if !self.is_supported() {
            Refusal::Unsupported
        } else if local && self.sets.local.is_empty() {
            Refusal::NoLocalEndpoints
        } else {
            Refusal::NoPort
        }
    }

    fn refuse(&self, slot: Slot, refusal: Refusal, rule: &dyn Fn(&str) -> Rule, each: &mut dyn FnMut(Slot, Rule)) {
        let (comment, is_dropped) = match refusal {
            Refusal::NoEndpoints => ("has no endpoints", false),
            Refusal::NoLocalEndpoints => ("has no local endpoints", true),
            Refusal::Unsupported => ("has a protocol that userspace mode does not support", false),
            Refusal::NoPort => ("has no free port in the range of proxy ports", false),
        };
        let target = match (is_dropped, self.context.family) {
            (true, _) => Target::Drop,
            (false, IpFamily::V4) => Target::Reject(RejectWith::IcmpPortUnreachable),
            (false, IpFamily::V6) => Target::Reject(RejectWith::Icmp6PortUnreachable),
        };
        // The node itself would send its packets elsewhere, where there may be no Services.
        let slot = if refusal == Refusal::Unsupported { Slot::Filter } else { slot };
        each(slot, rule(comment).then(target));
    }

    fn to_listener(&self, port: u16) -> Target {
        Target::Dnat { address: self.context.listen_address, port: Some(port) }
    }

    fn unspecified(&self) -> IpAddr {
        match self.context.family {
            IpFamily::V4 => IpAddr::from([0; 4]),
            IpFamily::V6 => IpAddr::from([0_u8; 16]),
        }
    }
}
