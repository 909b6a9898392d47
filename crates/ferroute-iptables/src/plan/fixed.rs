//! Chains and jumps that exist regardless of Services.

use ferroute_core::{IpFamily, NfacctCounters, NodePortMatch};

use super::{IptablesContext, chains, context::count_packet, names::IPTABLES_FIREWALL_COMMENT};
use crate::{AddressType, ChainName, CtStates, MarkMatch, Match, Rule, Sense, TableName, Target};

/// A jump from a builtin chain into a chain of the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The table.
    pub table: TableName,
    /// The builtin chain.
    pub from: ChainName,
    /// The rule.
    pub rule: Rule,
}

/// A chain whose rules do not depend on Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedChain {
    /// The table.
    pub table: TableName,
    /// The name.
    pub name: ChainName,
    /// The rules.
    pub contents: ChainContents,
}

/// The contents of a [`FixedChain`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainContents {
    /// Exactly these rules.
    Rules(Vec<Rule>),
    /// Rules of the proxy and of other programs; the chain must exist, but must not be flushed. The kubelet uses
    /// `KUBE-FIREWALL` as well; the proxy only requires one rule anywhere in it while node ports answer on localhost.
    Unmanaged,
}

/// A chain with rules of all service ports. The order of two service ports' rules does not matter, because no two service
/// ports have the same frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharedChain {
    /// `KUBE-SERVICES` in table filter: rejects traffic to cluster IPs.
    FilterServices,
    /// `KUBE-EXTERNAL-SERVICES` in table filter: rejects traffic to external addresses and node ports.
    FilterExternalServices,
    /// `KUBE-NODEPORTS` in table filter: accepts health checks.
    FilterNodePorts,
    /// `KUBE-PROXY-FIREWALL` in table filter: drops traffic from outside of the source ranges.
    FilterProxyFirewall,
    /// `KUBE-SERVICES` in table nat.
    NatServices,
    /// `KUBE-NODEPORTS` in table nat.
    NatNodePorts,
}

impl SharedChain {
    /// All shared chains, those of table filter first.
    pub const ALL: [Self; 6] = [
        Self::FilterServices,
        Self::FilterExternalServices,
        Self::FilterNodePorts,
        Self::FilterProxyFirewall,
        Self::NatServices,
        Self::NatNodePorts,
    ];

    /// The table.
    pub fn table(self) -> TableName {
        match self {
            Self::FilterServices | Self::FilterExternalServices | Self::FilterNodePorts | Self::FilterProxyFirewall => {
                TableName::Filter
            }
            Self::NatServices | Self::NatNodePorts => TableName::Nat,
        }
    }

    /// The name.
    pub fn name(self) -> ChainName {
        match self {
            Self::FilterServices | Self::NatServices => chains::SERVICES,
            Self::FilterExternalServices => chains::EXTERNAL_SERVICES,
            Self::FilterNodePorts | Self::NatNodePorts => chains::NODE_PORTS,
            Self::FilterProxyFirewall => chains::PROXY_FIREWALL,
        }
    }

    /// Returns the shared chain of this table and name.
    pub(crate) fn find(table: TableName, name: ChainName) -> Option<Self> {
        Self::ALL.into_iter().find(|shared| shared.table() == table && shared.name() == name)
    }

    /// The position in [`SharedChain::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// Returns the jumps into the proxy's chains. A missing jump is inserted at the start of its builtin chain, in this order,
/// so that later jumps precede earlier ones, as in kube-proxy.
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
    let firewall = IPTABLES_FIREWALL_COMMENT;
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

/// Returns the chains whose rules do not depend on Services, those of table filter first.
pub fn fixed_chains(context: &IptablesContext) -> Vec<FixedChain> {
    use TableName::{Filter, Mangle, Nat};
    let chain = |table, name, contents| FixedChain { table, name, contents };
    vec![
        chain(Filter, chains::FORWARD, ChainContents::Rules(forward(context))),
        chain(Filter, chains::FIREWALL, ChainContents::Unmanaged),
        chain(Filter, chains::CANARY, ChainContents::Rules(Vec::new())),
        chain(Nat, chains::POSTROUTING, ChainContents::Rules(postrouting(context))),
        chain(
            Nat,
            chains::MARK_MASQ,
            ChainContents::Rules(vec![Rule::new().then(Target::or_mark(context.settings.masquerade_mark))]),
        ),
        chain(Nat, chains::CANARY, ChainContents::Rules(Vec::new())),
        chain(Mangle, chains::CANARY, ChainContents::Rules(Vec::new())),
    ]
}

/// Returns the last rules of nat `KUBE-SERVICES`, after those of the Services: packets to the host itself may be for a
/// node port.
pub(super) fn node_port_jumps(context: &IptablesContext) -> Vec<Rule> {
    let comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    let jump = |rule: Rule| rule.then(Target::Jump(chains::NODE_PORTS));
    match &context.settings.node_ports {
        NodePortMatch::AnyLocal => {
            let to_host = Match::AddrType { source: None, destination: Some(Sense::Is(AddressType::Local)) };
            let rule = match context.settings.localhost_node_ports {
                true => Rule::new(),
                false => Rule::new().destination_not(context.settings.family.loopback()),
            };
            vec![jump(rule.comment(comment).and(to_host))]
        }
        NodePortMatch::Addresses(addresses) => {
            addresses.iter().map(|address| jump(Rule::new().destination(*address).comment(comment))).collect()
        }
    }
}

/// Returns the rule that must be in `KUBE-FIREWALL` while node ports answer on localhost: with the sysctl
/// `route_localnet`, which they need, neighbours could reach services that listen on localhost. The kubelet adds the
/// same rule.
pub(super) fn localnet_rule(family: IpFamily) -> Rule {
    let localhost = family.loopback();
    let tracked = CtStates::RELATED.or(CtStates::ESTABLISHED).or(CtStates::DNAT);
    Rule::new()
        .source_not(localhost)
        .destination(localhost)
        .comment("block incoming localnet connections")
        .and(Match::Conntrack(Sense::Not(tracked)))
        .then(Target::Drop)
}

fn forward(context: &IptablesContext) -> Vec<Rule> {
    let mut rules = Vec::with_capacity(3);
    if !context.conntrack_tcp_be_liberal {
        // An untracked packet would leave with its pod's address and make the client reset the connection.
        let mut invalid = Rule::new().and(Match::Conntrack(Sense::Is(CtStates::INVALID)));
        if context.counters.invalid_dropped {
            invalid = invalid.and(count_packet(NfacctCounters::INVALID_DROPPED));
        }
        rules.push(invalid.then(Target::Drop));
    }
    let marked = Match::Mark(Sense::Is(MarkMatch::has(context.settings.masquerade_mark)));
    rules.push(Rule::new().comment("kubernetes forwarding rules").and(marked).then(Target::Accept));
    let tracked = Match::Conntrack(Sense::Is(CtStates::RELATED.or(CtStates::ESTABLISHED)));
    rules.push(Rule::new().comment("kubernetes forwarding conntrack rule").and(tracked).then(Target::Accept));
    rules
}

fn postrouting(context: &IptablesContext) -> Vec<Rule> {
    let mark = context.settings.masquerade_mark;
    vec![
        Rule::new().and(Match::Mark(Sense::Not(MarkMatch::has(mark)))).then(Target::Return),
        // Clears the mark, so that a packet that traverses the network stack again is not masqueraded again.
        Rule::new().then(Target::xor_mark(mark)),
        Rule::new()
            .comment("kubernetes service traffic requiring SNAT")
            .then(Target::Masquerade { random_fully: context.random_fully }),
    ]
}
