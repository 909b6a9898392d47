use std::{net::IpAddr, time::Duration};

use ferroute_core::{
    Client, Endpoint, FrontendKind, LocalTraffic, ModeTraits, Outcome, PortForwarding, Protocol, Refusal, Routes,
    ServicePortEntry, ServicePortName, ServiceTable, TrafficPolicy, forwarding,
};
use ferroute_iptables::{AddressType, Match, RejectWith, Rule, Sense, Target, plan::refusal};
use ipnet::IpNet;

use super::{ListenerKey, RelayContext, chains::Slot};
use crate::ListenerSpec;

/// The plan of a service port.
pub(super) struct PortRelay<'a> {
    name: &'a ServicePortName,
    forwarding: PortForwarding<'a>,
    context: &'a RelayContext,
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

impl Ports {
    fn of(self, policy: TrafficPolicy) -> Option<u16> {
        match policy {
            TrafficPolicy::Cluster => self.cluster,
            TrafficPolicy::Local => self.local,
        }
    }
}

impl<'a> PortRelay<'a> {
    pub(super) fn new(
        name: &'a ServicePortName,
        entry: &'a ServicePortEntry,
        table: &ServiceTable,
        context: &'a RelayContext,
    ) -> Self {
        let forwarding = forwarding(table, name, entry, &context.settings, &ModeTraits::USERSPACE);
        Self { name, forwarding, context, text: name.to_string() }
    }

    /// Returns the listeners, at most one for each policy.
    pub(super) fn listeners(&self) -> impl Iterator<Item = (ListenerKey, ListenerSpec)> + '_ {
        [TrafficPolicy::Cluster, TrafficPolicy::Local].into_iter().filter_map(|policy| {
            let endpoints = self.forwarding.list(policy).ok()?;
            let affinity = self.forwarding.service.affinity;
            let family = self.context.settings.family;
            let key = ListenerKey { family, service_port: self.name.clone(), policy };
            let spec = ListenerSpec {
                family,
                protocol: self.name.protocol,
                endpoints: endpoints.iter().map(Endpoint::socket).collect(),
                affinity: affinity.map(|affinity| Duration::from_secs(affinity.timeout_seconds.into())),
            };
            Some((key, spec))
        })
    }

    /// Generates the rules. The rules of each slot are generated in order.
    pub(super) fn rules(&self, ports: Ports, each: &mut dyn FnMut(Slot, Rule)) {
        let PortForwarding { service, protocol, .. } = self.forwarding;
        for (kind, frontend) in service.frontends(protocol) {
            let rule = |comment: &str| {
                let rule = Rule::new().comment(format!("{} {comment}", self.text));
                let rule = match frontend.address {
                    Some(address) => rule.destination(address),
                    None => rule,
                };
                rule.port(frontend.protocol, frontend.port)
            };
            self.frontend(kind, frontend.address, ports, &rule, each);
        }
        if let Some(port) = service.health_check_node_port {
            let rule = Rule::new().comment(format!("{} health check node port", self.text));
            each(Slot::HealthChecks, rule.port(Protocol::Tcp, port.get()).then(Target::Accept));
        }
    }

    /// Generates the rules of a frontend. `rule` returns a rule with its conditions and a comment.
    fn frontend(
        &self,
        kind: FrontendKind,
        address: Option<IpAddr>,
        ports: Ports,
        rule: &dyn Fn(&str) -> Rule,
        each: &mut dyn FnMut(Slot, Rule),
    ) {
        let permitted = self.forwarding.has_source_ranges(kind).then(|| {
            // The source of a packet of the node to one of the addresses is never another one of them.
            self.forwarding.permitted_sources(address.as_slice())
        });
        let mut send = |slot, policy, pods: bool| {
            let Some(port) = ports.of(policy) else { return };
            for source in permitted.iter().flatten().copied().map(Some).chain(permitted.is_none().then_some(None)) {
                let rule = match source {
                    Some(source) => rule(kind.as_str()).source(source),
                    None => rule(kind.as_str()),
                };
                if let Some(rule) = if pods { self.restrict_to_pods(rule, source) } else { Some(rule) } {
                    each(slot, rule.then(Target::Dnat { address: self.context.listen_address, port: Some(port) }));
                }
            }
        };
        let (container, host) = match kind {
            FrontendKind::NodePort => (Slot::NodePortContainer, Slot::NodePortHost),
            _ => (Slot::PortalsContainer, Slot::PortalsHost),
        };
        let Routes { pod, node, outside } = *self.forwarding.routes(kind);
        send(host, node.list, false);
        if pod != outside {
            send(container, pod.list, true);
        }
        send(container, outside.list, false);
        self.refuse(kind, ports, rule, each);
        if permitted.is_some()
            && let outcome @ Outcome::Drop(_) = self.forwarding.outcome_outside_source_ranges(kind, Client::Outside)
            && let Some((comment, target)) = refusal(outcome, self.context.settings.family)
        {
            each(Slot::Filter, rule(comment).then(target));
        }
    }

    /// Generates the rule for connections that reach no listener. It matches all clients; in table filter, connections
    /// that do reach one have the listener's address as their destination.
    fn refuse(&self, kind: FrontendKind, ports: Ports, rule: &dyn Fn(&str) -> Rule, each: &mut dyn FnMut(Slot, Rule)) {
        let family = self.context.settings.family;
        let outcome = self.forwarding.outcome(kind, Client::Outside);
        let (comment, target) = match (refusal(outcome, family), outcome) {
            (Some(refusal), _) => refusal,
            (None, Outcome::Forward(route)) if ports.of(route.list).is_none() => {
                let reject = Target::Reject(RejectWith::port_unreachable(family));
                ("has no free port in the range of proxy ports", reject)
            }
            (None, _) => return,
        };
        // Rules of the other slot do not apply to packets that leave the node.
        let slot = match (kind, outcome) {
            (FrontendKind::ClusterIp, _) | (_, Outcome::Reject(Refusal::UnsupportedProtocol)) => Slot::Filter,
            _ => Slot::ExternalFilter,
        };
        let to_host = Match::AddrType { source: None, destination: Some(Sense::Is(AddressType::Local)) };
        let rule = match kind {
            FrontendKind::NodePort => rule(comment).and(to_host),
            _ => rule(comment),
        };
        each(slot, rule.then(target));
    }

    /// Restricts a rule to packets of local pods; it may be restricted to `source` already. `None` if pods cannot be
    /// recognised, or if no pod is within `source`.
    fn restrict_to_pods(&self, rule: Rule, source: Option<IpNet>) -> Option<Rule> {
        let pods = self.context.settings.local_traffic.as_ref()?;
        match (pods, source) {
            (LocalTraffic::Source(net), Some(source)) if net.contains(&source) => Some(rule),
            (LocalTraffic::Source(net), Some(source)) if !source.contains(net) => None,
            _ => rule.local_pods(Sense::Is(pods)),
        }
    }
}
