//! The chains of the mode. Their names are those of kube-proxy's userspace mode, which had no chains for refused traffic.

use std::collections::BTreeSet;

use ferroute_core::{Frontend, NodePortMatch, Protocol};
use ferroute_iptables::{
    AddressType, ChainName, CtStates, InterfaceMatch, Match, PortList, PortRange, PortSide, ProtocolMatch, Rule,
    RuleSet, Sense, TableName, Target,
    plan::{
        ChainGroup,
        chains::{
            NODEPORT_CONTAINER, NODEPORT_HOST, NODEPORT_NON_LOCAL, PORTALS_CONTAINER, PORTALS_EXTERNAL, PORTALS_FILTER,
            PORTALS_HOST,
        },
    },
};

use super::RelayContext;

/// A place for the rules of service ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Slot {
    /// nat `KUBE-PORTALS-CONTAINER`.
    PortalsContainer,
    /// nat `KUBE-PORTALS-HOST`.
    PortalsHost,
    /// nat `KUBE-NODEPORT-CONTAINER`.
    NodePortContainer,
    /// nat `KUBE-NODEPORT-HOST`.
    NodePortHost,
    /// filter `KUBE-PORTALS-FILTER`.
    Filter,
    /// filter `KUBE-PORTALS-EXTERNAL`.
    ExternalFilter,
    /// The beginning of filter `KUBE-NODEPORT-NON-LOCAL`.
    HealthChecks,
}

impl Slot {
    pub(super) const ALL: [Self; 7] = [
        Self::PortalsContainer,
        Self::PortalsHost,
        Self::NodePortContainer,
        Self::NodePortHost,
        Self::Filter,
        Self::ExternalFilter,
        Self::HealthChecks,
    ];

    fn chain(self) -> (TableName, ChainName) {
        match self {
            Self::PortalsContainer => (TableName::Nat, PORTALS_CONTAINER),
            Self::PortalsHost => (TableName::Nat, PORTALS_HOST),
            Self::NodePortContainer => (TableName::Nat, NODEPORT_CONTAINER),
            Self::NodePortHost => (TableName::Nat, NODEPORT_HOST),
            Self::Filter => (TableName::Filter, PORTALS_FILTER),
            Self::ExternalFilter => (TableName::Filter, PORTALS_EXTERNAL),
            Self::HealthChecks => (TableName::Filter, NODEPORT_NON_LOCAL),
        }
    }
}

/// Returns the chains with rules for each service port.
pub fn long_chains() -> Vec<(TableName, ChainName)> {
    Slot::ALL.map(Slot::chain).to_vec()
}

/// The rules of service ports, by slot.
#[derive(Debug, Default)]
pub(super) struct SlotRules([Vec<Rule>; Slot::ALL.len()]);

impl SlotRules {
    pub(super) fn push(&mut self, slot: Slot, rule: Rule) {
        self.0[slot as usize].push(rule);
    }

    /// Returns the chains and the jumps into them. `ports` are the ports of all listeners.
    pub(super) fn into_group(self, context: &RelayContext, ports: &BTreeSet<(Protocol, u16)>) -> ChainGroup {
        let mut group = ChainGroup::default();
        for (slot, mut rules) in Slot::ALL.into_iter().zip(self.0) {
            if slot == Slot::HealthChecks {
                rules.extend(protect(ports));
            }
            let (table, chain) = slot.chain();
            group.add(table, chain, rules);
        }
        let new = || Rule::new().and(Match::Conntrack(Sense::Is(CtStates::NEW)));
        let node_ports = "kubernetes service nodeports";
        for (from, to) in [(ChainName::OUTPUT, NODEPORT_HOST), (ChainName::PREROUTING, NODEPORT_CONTAINER)] {
            for rule in to_node_ports(context) {
                group.add_jump(TableName::Nat, from, rule.comment(node_ports).then(Target::Jump(to)));
            }
        }
        let portals = "kubernetes service portals";
        for (from, to) in [(ChainName::OUTPUT, PORTALS_HOST), (ChainName::PREROUTING, PORTALS_CONTAINER)] {
            group.add_jump(TableName::Nat, from, Rule::new().comment(portals).then(Target::Jump(to)));
        }
        let comment = "kubernetes ports of the userspace proxy";
        let jump = Rule::new().comment(comment).then(Target::Jump(NODEPORT_NON_LOCAL));
        group.add_jump(TableName::Filter, ChainName::INPUT, jump);
        for from in [ChainName::INPUT, ChainName::FORWARD] {
            // Not for packets that the node sends, because their route to these addresses may differ.
            let external = "kubernetes externally-visible service portals";
            group.add_jump(TableName::Filter, from, new().comment(external).then(Target::Jump(PORTALS_EXTERNAL)));
        }
        for from in [ChainName::INPUT, ChainName::FORWARD, ChainName::OUTPUT] {
            let jump = new().comment(portals).then(Target::Jump(PORTALS_FILTER));
            group.add_jump(TableName::Filter, from, jump);
        }
        group
    }
}

/// Returns rules that match packets to node ports.
fn to_node_ports(context: &RelayContext) -> Vec<Rule> {
    match &context.settings.node_ports {
        NodePortMatch::AnyLocal => {
            let to_host = Match::AddrType { source: None, destination: Some(Sense::Is(AddressType::Local)) };
            let rule = match context.settings.localhost_node_ports {
                true => Rule::new(),
                false => Rule::new().destination_not(context.settings.family.loopback()),
            };
            vec![rule.and(to_host)]
        }
        NodePortMatch::Addresses(addresses) => {
            addresses.iter().map(|address| Rule::new().destination(*address)).collect()
        }
    }
}

/// Returns the rules that accept packets to listeners if a rule of this mode sent them there, and drop others from
/// another host or a pod, which would bypass source ranges and traffic policies.
fn protect(ports: &BTreeSet<(Protocol, u16)>) -> Vec<Rule> {
    let mut rules = Vec::new();
    let established = CtStates::RELATED.or(CtStates::ESTABLISHED);
    rules.push(Rule::new().and(Match::Conntrack(Sense::Is(established))).then(Target::Return));
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let ports: Vec<PortRange> =
            ports.iter().filter(|(of, _)| *of == protocol).map(|(_, port)| PortRange::one(*port)).collect();
        for ports in ports.chunks(PORTS_PER_RULE) {
            let to_listener = || {
                let mut rule = Rule::new();
                rule.protocol = Some(Sense::Is(ProtocolMatch::Transport(protocol)));
                rule.and(Match::Multiport { side: PortSide::Destination, ports: Sense::Is(PortList::new(ports)) })
            };
            let translated = Match::Conntrack(Sense::Is(CtStates::DNAT));
            rules.push(to_listener().and(translated).then(Target::Accept));
            let from_outside = Sense::Not(InterfaceMatch::Name("lo".into()));
            rules.push(to_listener().in_interface(from_outside).then(Target::Drop));
        }
    }
    rules
}

/// A frontend in rules of this mode, planned or read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// The frontend.
    pub frontend: Frontend,
    /// The service port that the rule's comment names.
    pub service_port: Option<String>,
    /// Source that the rule permits; `None` for all.
    pub source: Option<ipnet::IpNet>,
    /// The port of the listener.
    pub listener: u16,
}

/// Returns the frontends in the rules of this mode for connections of the node itself, in their order. A frontend with
/// source ranges has several rules. Rules that the mode does not write are ignored.
pub fn portals(rules: &RuleSet) -> impl Iterator<Item = Portal> + '_ {
    let chains = [(PORTALS_HOST, true), (NODEPORT_HOST, false), (PORTALS_CONTAINER, true), (NODEPORT_CONTAINER, false)];
    chains.into_iter().flat_map(move |(chain, has_address)| {
        rules.rules(TableName::Nat, chain).iter().filter_map(move |rule| portal(rule, has_address))
    })
}

fn portal(rule: &Rule, has_address: bool) -> Option<Portal> {
    let Some(Target::Dnat { port: Some(listener), .. }) = rule.target else { return None };
    let (protocol, port) = rule.matches.iter().find_map(|module| match module {
        Match::Transport { protocol, destination: Some(Sense::Is(ports)), .. } if ports.first == ports.last => {
            Some((*protocol, ports.first))
        }
        _ => None,
    })?;
    let net = |address: &Option<Sense<ferroute_iptables::AddressMatch>>| match address {
        Some(Sense::Is(ferroute_iptables::AddressMatch::Net(net))) => Some(*net),
        _ => None,
    };
    let address = net(&rule.destination).map(|net| net.addr());
    if address.is_some() != has_address {
        return None;
    }
    let service_port = rule.first_comment().and_then(|comment| comment.split(' ').next()).map(str::to_owned);
    let frontend = Frontend { address, protocol, port };
    Some(Portal { frontend, service_port, source: net(&rule.source), listener })
}

/// The limit of the module `multiport`.
const PORTS_PER_RULE: usize = 15;
