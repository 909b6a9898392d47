//! The iptables rules of the mode, in kube-proxy's order. Three kinds of rules have no counterpart in kube-proxy: the
//! chain that accepts connections to virtual servers in `INPUT`, the rule that masquerades connections of the node to
//! [`SetKind::Remote`], and the rules on [`SetKind::NodePortIps`], which distinguish node ports from Service addresses
//! with the same port or exempt them from rules of other programs.

use ferroute_core::{ModeTraits, Protocol, Routes, SourceAddress, TrafficPolicy};
use ferroute_iptables::{
    AddressType, ChainName, CtStates, MarkMatch, Match, ProtocolMatch, RejectWith, Rule, Sense, SetMatch, SetSide,
    TableName, Target, VirtualServerMatch,
    plan::{
        ChainGroup,
        chains::{FORWARD, IPVS_ACCEPT, MARK_MASQ, POSTROUTING, PROXY_FIREWALL, SERVICES},
    },
};
use ipnet::IpNet;

use super::{IpvsContext, ServerKey, sets::SetKind};

/// Returns the chains and the jumps into them. `is_used` reports whether a set has entries; `denied` are the virtual servers
/// that the node itself may not use.
pub(super) fn chain_group(
    context: &IpvsContext,
    is_used: impl Fn(SetKind) -> bool,
    denied: impl Iterator<Item = ServerKey>,
) -> ChainGroup {
    use TableName::{Filter, Nat};
    let mut group = ChainGroup::default();
    let rules = Rules { context, is_used };
    group.add(Nat, SERVICES, rules.services());
    group.add(Nat, POSTROUTING, rules.postrouting());
    group.add(Nat, NODE_PORT, rules.node_ports());
    group.add(Nat, LOAD_BALANCER, rules.load_balancers());
    group.add(Nat, MARK_MASQ, vec![Rule::new().then(Target::or_mark(context.settings.masquerade_mark))]);
    group.add(Filter, FORWARD, rules.forward());
    group.add(Filter, NODE_PORT, rules.health_checks());
    group.add(Filter, PROXY_FIREWALL, rules.firewall());
    group.add(Filter, SOURCE_RANGES_FIREWALL, rules.source_ranges());
    group.add(Filter, IPVS_FILTER, rules.ipvs_filter());
    group.add(Filter, IPVS_ACCEPT, rules.accept());
    group.add(Filter, IPVS_OUT_FILTER, denied.map(deny_node).collect());
    for (table, from, to, comment) in [
        (Nat, ChainName::OUTPUT, SERVICES, "kubernetes service portals"),
        (Nat, ChainName::PREROUTING, SERVICES, "kubernetes service portals"),
        (Nat, ChainName::POSTROUTING, POSTROUTING, "kubernetes postrouting rules"),
        (Filter, ChainName::FORWARD, FORWARD, "kubernetes forwarding rules"),
        (Filter, ChainName::INPUT, IPVS_ACCEPT, "kubernetes ipvs service traffic"),
        (Filter, ChainName::INPUT, NODE_PORT, "kubernetes health check rules"),
        (Filter, ChainName::INPUT, PROXY_FIREWALL, "kube-proxy firewall rules"),
        (Filter, ChainName::FORWARD, PROXY_FIREWALL, "kube-proxy firewall rules"),
        (Filter, ChainName::INPUT, IPVS_FILTER, "kubernetes ipvs access filter"),
        (Filter, ChainName::OUTPUT, IPVS_OUT_FILTER, "kubernetes ipvs access filter"),
    ] {
        group.add_jump(table, from, Rule::new().comment(comment).then(Target::Jump(to)));
    }
    group
}

/// The rules of each chain.
struct Rules<'a, F> {
    context: &'a IpvsContext,
    is_used: F,
}

impl<F: Fn(SetKind) -> bool> Rules<'_, F> {
    /// nat `KUBE-SERVICES`: marks packets to be masqueraded, and exempts packets to virtual servers from other rules.
    fn services(&self) -> Vec<Rule> {
        use SetKind::{ClusterIp, ExternalIp, ExternalIpLocal, LoadBalancer, Remote};
        let mut rules = vec![Rule::new().source(self.context.settings.family.loopback()).then(Target::Return)];
        let from_host = Match::AddrType { source: Some(Sense::Is(AddressType::Local)), destination: None };
        rules.extend(self.commented(Remote, TO).map(|rule| rule.and(from_host).then(Target::Jump(MARK_MASQ))));
        rules.extend(self.commented(LoadBalancer, TO).map(|rule| rule.then(Target::Jump(LOAD_BALANCER))));
        rules.extend(self.masquerade_cluster_ips());
        let accept_external = |rule: Rule| {
            // The first rule matches packets from other machines, not from bridges or local processes; the second
            // matches packets to an address of this host.
            let from_outside = Match::AddrType { source: Some(Sense::Not(AddressType::Local)), destination: None };
            let not_bridged = rule.clone().and(Match::PhysdevIsIn(Sense::Not(())));
            [not_bridged.and(from_outside).then(Target::Accept), rule.and(to_host()).then(Target::Accept)]
        };
        if let Some(rule) = self.commented(ExternalIp, TO) {
            rules.push(rule.clone().then(Target::Jump(MARK_MASQ)));
            rules.extend(accept_external(rule));
        }
        rules.extend(self.commented(ExternalIpLocal, TO).into_iter().flat_map(accept_external));
        rules.push(Rule::new().and(to_host()).then(Target::Jump(NODE_PORT)));
        // Exempts these packets from rules of other programs.
        let accepted = [ClusterIp, LoadBalancer].into_iter().filter(|kind| (self.is_used)(*kind));
        rules.extend(accepted.map(|kind| self.in_set(kind, TO).then(Target::Accept)));
        rules.extend(self.accept_node_ports());
        rules
    }

    /// Returns the rule that marks packets to cluster IPs depending on their client.
    fn masquerade_cluster_ips(&self) -> Option<Rule> {
        use SourceAddress::{Kept, Node};
        let settings = &self.context.settings;
        // Sources do not depend on the policy.
        let Routes { pod, node, outside } = Routes::internal(TrafficPolicy::Cluster, settings, &ModeTraits::IPVS);
        let mark = |sides| Some(self.commented(SetKind::ClusterIp, sides)?.then(Target::Jump(MARK_MASQ)));
        match (pod.source, node.source, outside.source) {
            (_, Kept, _) => None,
            // The source of a connection of the node to a virtual server is the address of the virtual server, which
            // the dummy device has.
            (_, Node, Kept) => mark(FROM_AND_TO),
            (Kept, Node, Node) => mark(TO)?.local_pods(Sense::Not(settings.local_traffic.as_ref()?)),
            (Node, Node, Node) => mark(TO),
        }
    }

    /// nat `KUBE-POSTROUTING`: masquerades marked packets, and packets of a pod to itself.
    fn postrouting(&self) -> Vec<Rule> {
        let IpvsContext { settings, random_fully, .. } = self.context;
        let (mark, random_fully) = (settings.masquerade_mark, *random_fully);
        let hairpin = self.commented(SetKind::LoopBack, TO_AND_FROM);
        let mut rules: Vec<Rule> =
            hairpin.map(|rule| rule.then(Target::Masquerade { random_fully: false })).into_iter().collect();
        rules.push(Rule::new().and(Match::Mark(Sense::Not(MarkMatch::has(mark)))).then(Target::Return));
        // Clears the mark, so that a packet that traverses the network stack again is not masqueraded again.
        rules.push(Rule::new().then(Target::xor_mark(mark)));
        // The source of the node's own connections may be the Service's address, to which the endpoint cannot reply.
        let from_others = || Match::AddrType { source: Some(Sense::Not(AddressType::Local)), destination: None };
        let keep = settings.no_masquerade_cidrs.iter();
        rules.extend(keep.map(|net| Rule::new().destination(*net).and(from_others()).then(Target::Return)));
        let comment = "kubernetes service traffic requiring SNAT";
        rules.push(Rule::new().comment(comment).then(Target::Masquerade { random_fully }));
        rules
    }

    /// nat `KUBE-NODE-PORT`: marks packets to node ports, unless their policy is Local. Service addresses are addresses of the host
    /// as well, and may have the same port.
    fn node_ports(&self) -> Vec<Rule> {
        let at =
            SetMatch { name: SetKind::NodePortIps.name(self.context.settings.family).into(), sides: TO_PORT.into() };
        let others = || Rule::new().and(Match::Set(Sense::Not(at))).then(Target::Return);
        let others = (self.is_used)(SetKind::NodePortIps).then(others);
        let each = Protocol::ALL.into_iter().flat_map(|protocol| {
            let rule = |kind, target| Some(self.node_port(kind, protocol)?.then(target));
            let local = rule(SetKind::local_node_ports(protocol), Target::Return);
            local.into_iter().chain(rule(SetKind::node_ports(protocol), Target::Jump(MARK_MASQ)))
        });
        others.into_iter().chain(each).collect()
    }

    /// nat `KUBE-LOAD-BALANCER`: marks packets to load balancer IPs, unless their policy is Local.
    fn load_balancers(&self) -> Vec<Rule> {
        let local = self.commented(SetKind::LoadBalancerLocal, TO).map(|rule| rule.then(Target::Return));
        local.into_iter().chain([Rule::new().then(Target::Jump(MARK_MASQ))]).collect()
    }

    /// filter `KUBE-FORWARD`: accepts marked packets and packets of known connections.
    fn forward(&self) -> Vec<Rule> {
        let marked = Match::Mark(Sense::Is(MarkMatch::has(self.context.settings.masquerade_mark)));
        let known = Match::Conntrack(Sense::Is(CtStates::RELATED.or(CtStates::ESTABLISHED)));
        vec![
            Rule::new().comment("kubernetes forwarding rules").and(marked).then(Target::Accept),
            Rule::new().comment("kubernetes forwarding conntrack rule").and(known).then(Target::Accept),
        ]
    }

    /// filter `KUBE-NODE-PORT`: accepts health checks.
    fn health_checks(&self) -> Vec<Rule> {
        let kind = SetKind::HealthCheckNodePort;
        let rule = Rule::new().comment(kind.comment()).in_set(kind.name(self.context.settings.family), TO_PORT);
        vec![rule.then(Target::Accept)]
    }

    /// filter `KUBE-PROXY-FIREWALL`: restricted load balancer IPs.
    fn firewall(&self) -> Vec<Rule> {
        let restricted = self.commented(SetKind::LoadBalancerFirewall, TO);
        restricted.map(|rule| rule.then(Target::Jump(SOURCE_RANGES_FIREWALL))).into_iter().collect()
    }

    /// filter `KUBE-SOURCE-RANGES-FIREWALL`: drops packets from outside of the source ranges.
    fn source_ranges(&self) -> Vec<Rule> {
        let permitted = [SetKind::LoadBalancerSourceCidr, SetKind::LoadBalancerSourceIp];
        let permitted = permitted.into_iter().filter_map(|kind| self.commented(kind, TO_AND_FROM));
        permitted.map(|rule| rule.then(Target::Return)).chain([Rule::new().then(Target::Drop)]).collect()
    }

    /// filter `KUBE-IPVS-FILTER`: rejects connections to other ports of the dummy device's addresses, which would reach
    /// processes of the host.
    fn ipvs_filter(&self) -> Vec<Rule> {
        use SetKind::{ClusterIp, ExternalIp, ExternalIpLocal, HealthCheckNodePort, IpvsIps, LoadBalancer};
        let served = [LoadBalancer, ClusterIp, ExternalIp, ExternalIpLocal].map(|kind| self.in_set(kind, TO));
        let served = served.into_iter().chain([self.in_set(HealthCheckNodePort, TO_PORT)]);
        let mut rules: Vec<Rule> = served.map(|rule| rule.then(Target::Return)).collect();
        let reject = RejectWith::port_unreachable(self.context.settings.family);
        let new = Rule::new().and(Match::Conntrack(Sense::Is(CtStates::NEW)));
        rules.push(new.in_set(IpvsIps.name(self.context.settings.family), TO_PORT).then(Target::Reject(reject)));
        rules
    }

    /// filter `KUBE-IPVS-ACCEPT`: accepts connections to virtual servers, which pass `INPUT` in this mode, where a
    /// firewall expects only connections to processes of the host. It accepts no packet that other chains drop, so its
    /// position does not matter.
    fn accept(&self) -> Vec<Rule> {
        use SetKind::{
            ClusterIp, ExternalIp, ExternalIpLocal, LoadBalancer, LoadBalancerFirewall, LoadBalancerSourceCidr,
            LoadBalancerSourceIp,
        };
        let permitted = [LoadBalancerSourceCidr, LoadBalancerSourceIp].map(|kind| (kind, TO_AND_FROM, Target::Accept));
        let others = [(LoadBalancerFirewall, TO, Target::Return)];
        let served = [ClusterIp, ExternalIp, ExternalIpLocal, LoadBalancer].map(|kind| (kind, TO, Target::Accept));
        let all = permitted.into_iter().chain(others).chain(served);
        let all = all.filter_map(|(kind, sides, target)| Some(self.commented(kind, sides)?.then(target)));
        all.chain(self.accept_node_ports()).collect()
    }

    /// Accepts packets to node ports, only at the addresses with virtual servers: processes of the host may use the
    /// port at other addresses.
    fn accept_node_ports(&self) -> impl Iterator<Item = Rule> {
        let at = SetKind::NodePortIps.name(self.context.settings.family);
        Protocol::ALL.into_iter().filter_map(move |protocol| {
            Some(self.node_port(SetKind::node_ports(protocol), protocol)?.in_set(at, TO_PORT).then(Target::Accept))
        })
    }

    /// Returns a rule that matches members of a set of node ports; `None` if it is empty.
    fn node_port(&self, kind: SetKind, protocol: Protocol) -> Option<Rule> {
        let rule = self.commented(kind, if protocol == Protocol::Sctp { TO } else { TO_PORT })?;
        Some(Rule { protocol: Some(Sense::Is(ProtocolMatch::Transport(protocol))), ..rule })
    }

    /// Returns a rule that matches members of the set; `None` if it is empty.
    fn commented(&self, kind: SetKind, sides: &[SetSide]) -> Option<Rule> {
        let rule = || Rule::new().comment(kind.comment()).in_set(kind.name(self.context.settings.family), sides);
        (self.is_used)(kind).then(rule)
    }

    fn in_set(&self, kind: SetKind, sides: &[SetSide]) -> Rule {
        Rule::new().in_set(kind.name(self.context.settings.family), sides)
    }
}

/// Drops the node's own connections to a virtual server, whose source is the same address.
fn deny_node(key: ServerKey) -> Rule {
    let ServerKey { address, port, protocol } = key;
    let server = Match::Ipvs(VirtualServerMatch { address, protocol, port });
    Rule::new().source(IpNet::from(address)).and(server).then(Target::Drop)
}

fn to_host() -> Match {
    Match::AddrType { source: None, destination: Some(Sense::Is(AddressType::Local)) }
}

const TO: &[SetSide] = &[SetSide::Destination; 2];
const TO_PORT: &[SetSide] = &[SetSide::Destination];
const FROM_AND_TO: &[SetSide] = &[SetSide::Source, SetSide::Destination];
const TO_AND_FROM: &[SetSide] = &[SetSide::Destination, SetSide::Destination, SetSide::Source];

/// nat: node ports; filter: health checks.
const NODE_PORT: ChainName = ChainName::literal("KUBE-NODE-PORT");
const LOAD_BALANCER: ChainName = ChainName::literal("KUBE-LOAD-BALANCER");
const SOURCE_RANGES_FIREWALL: ChainName = ChainName::literal("KUBE-SOURCE-RANGES-FIREWALL");
const IPVS_FILTER: ChainName = ChainName::literal("KUBE-IPVS-FILTER");
const IPVS_OUT_FILTER: ChainName = ChainName::literal("KUBE-IPVS-OUT-FILTER");
