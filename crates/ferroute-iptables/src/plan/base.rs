use std::net::IpAddr;

use ferroute_core::{IpFamily, NodePortMatch};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{NfacctCounters, PlanContext, chains};
use crate::{AddressType, ChainName, CtStates, MarkMatch, Match, Rule, Sense, TableName, Target};

/// A rule in a builtin chain by which packets come into ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The table.
    pub table: TableName,
    /// The builtin chain.
    pub from: ChainName,
    /// The rule.
    pub rule: Rule,
}

/// A chain that is there whatever the Services, and is not a [`super::Dispatch`] chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// The table.
    pub table: TableName,
    /// Its name.
    pub name: ChainName,
    /// What is in it.
    pub contents: Contents,
}

/// What is in a [`BaseChain`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// These rules and no others.
    Rules(Vec<Rule>),
    /// Whatever somebody else puts in; the chain must exist, but must not be flushed. `KUBE-FIREWALL` is the kubelet's as
    /// well: all that matters to us is that one rule of ours is somewhere in it while node ports answer on localhost.
    Foreign,
}

/// The jumps into our chains. Each is put before all rules of its builtin chain if it is not in there, the first one
/// here first, so that later ones come to stand before earlier ones, as in kube-proxy.
pub fn jumps() -> Vec<Jump> {
    use TableName::{Filter, Nat};
    let jump = |table, from, new_only, comment: &str, to| {
        let mut rule = Rule::new();
        if new_only {
            rule = rule.and(Match::Conntrack(Sense::Is(CtStates::NEW)));
        }
        if !comment.is_empty() {
            rule = rule.comment(comment);
        }
        Jump { table, from, rule: rule.then(Target::Jump(to)) }
    };
    let external = "kubernetes externally-visible service portals";
    let portals = "kubernetes service portals";
    let firewall = "kubernetes load balancer firewall";
    vec![
        jump(Filter, ChainName::INPUT, true, external, chains::EXTERNAL_SERVICES),
        jump(Filter, ChainName::FORWARD, true, external, chains::EXTERNAL_SERVICES),
        jump(Filter, ChainName::INPUT, false, "kubernetes health check service ports", chains::NODE_PORTS),
        jump(Filter, ChainName::FORWARD, true, portals, chains::SERVICES),
        jump(Filter, ChainName::OUTPUT, true, portals, chains::SERVICES),
        jump(Filter, ChainName::FORWARD, false, "kubernetes forwarding rules", chains::FORWARD),
        jump(Filter, ChainName::INPUT, true, firewall, chains::PROXY_FIREWALL),
        jump(Filter, ChainName::OUTPUT, true, firewall, chains::PROXY_FIREWALL),
        jump(Filter, ChainName::FORWARD, true, firewall, chains::PROXY_FIREWALL),
        jump(Nat, ChainName::OUTPUT, false, portals, chains::SERVICES),
        jump(Nat, ChainName::PREROUTING, false, portals, chains::SERVICES),
        jump(Nat, ChainName::POSTROUTING, false, "kubernetes postrouting rules", chains::POSTROUTING),
        jump(Filter, ChainName::INPUT, false, "", chains::FIREWALL),
        jump(Filter, ChainName::OUTPUT, false, "", chains::FIREWALL),
    ]
}

/// The chains with fixed rules, filter's first.
pub fn base_chains(context: &PlanContext) -> Vec<BaseChain> {
    use TableName::{Filter, Mangle, Nat};
    let chain = |table, name, contents| BaseChain { table, name, contents };
    vec![
        chain(Filter, chains::FORWARD, Contents::Rules(forward(context))),
        chain(Filter, chains::FIREWALL, Contents::Foreign),
        chain(Filter, chains::CANARY, Contents::Rules(Vec::new())),
        chain(Nat, chains::POSTROUTING, Contents::Rules(postrouting(context))),
        chain(
            Nat,
            chains::MARK_MASQ,
            Contents::Rules(vec![Rule::new().then(Target::or_mark(context.masquerade_mark))]),
        ),
        chain(Nat, chains::CANARY, Contents::Rules(Vec::new())),
        chain(Mangle, chains::CANARY, Contents::Rules(Vec::new())),
    ]
}

/// The last rules of nat `KUBE-SERVICES`, after those of the Services: what is for the host itself may be for a node
/// port.
pub(super) fn node_port_jumps(context: &PlanContext) -> Vec<Rule> {
    let comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    let jump = |rule: Rule| rule.then(Target::Jump(chains::NODE_PORTS));
    match &context.node_ports {
        NodePortMatch::AnyLocal => {
            let to_host = Match::AddrType { source: None, destination: Some(Sense::Is(AddressType::Local)) };
            let rule = match loopback(context.family) {
                net if !context.localhost_node_ports => Rule::new().destination_not(net),
                _ => Rule::new(),
            };
            vec![jump(rule.comment(comment).and(to_host))]
        }
        NodePortMatch::Addresses(addresses) => {
            let served = |address: &&IpAddr| context.localhost_node_ports || !address.is_loopback();
            let rule = |address: &IpAddr| jump(Rule::new().destination(*address).comment(comment));
            addresses.iter().filter(served).map(rule).collect()
        }
    }
}

/// Addresses that never leave the host.
pub(super) fn loopback(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => Ipv4Net::new_assert([127, 0, 0, 0].into(), 8).into(),
        IpFamily::V6 => Ipv6Net::new_assert(1.into(), 128).into(),
    }
}

fn forward(context: &PlanContext) -> Vec<Rule> {
    let mut rules = Vec::with_capacity(3);
    if !context.conntrack_tcp_be_liberal {
        // A packet that connection tracking does not know would keep its pod address and make the client reset the
        // connection.
        let mut invalid = Rule::new().and(Match::Conntrack(Sense::Is(CtStates::INVALID)));
        if context.counters.invalid_dropped {
            invalid = invalid.and(NfacctCounters::count(NfacctCounters::INVALID_DROPPED));
        }
        rules.push(invalid.then(Target::Drop));
    }
    let marked = Match::Mark(Sense::Is(MarkMatch::has(context.masquerade_mark)));
    rules.push(Rule::new().comment("kubernetes forwarding rules").and(marked).then(Target::Accept));
    let going_on = Match::Conntrack(Sense::Is(CtStates::RELATED.or(CtStates::ESTABLISHED)));
    rules.push(Rule::new().comment("kubernetes forwarding conntrack rule").and(going_on).then(Target::Accept));
    rules
}

/// The rule that must be in `KUBE-FIREWALL` while node ports answer on localhost: with `route_localnet`, which they
/// need, neighbours could reach services that listen on localhost, and this shuts them out. The kubelet makes the same.
pub(super) fn localnet_guard(family: IpFamily) -> Rule {
    let localhost = loopback(family);
    let known = CtStates::RELATED.or(CtStates::ESTABLISHED).or(CtStates::DNAT);
    Rule::new()
        .source_not(localhost)
        .destination(localhost)
        .comment("block incoming localnet connections")
        .and(Match::Conntrack(Sense::Not(known)))
        .then(Target::Drop)
}

fn postrouting(context: &PlanContext) -> Vec<Rule> {
    let mark = context.masquerade_mark;
    vec![
        Rule::new().and(Match::Mark(Sense::Not(MarkMatch::has(mark)))).then(Target::Return),
        // Without the mark, the packet is not masqueraded again if it goes through the network stack once more.
        Rule::new().then(Target::xor_mark(mark)),
        Rule::new()
            .comment("kubernetes service traffic requiring SNAT")
            .then(Target::Masquerade { random_fully: context.random_fully }),
    ]
}
