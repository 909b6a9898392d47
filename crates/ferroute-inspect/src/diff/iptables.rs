//! The frontends in a service proxy's iptables rules.
//!
//! The chains that all service ports share are long, and every packet is evaluated against them from the start. They
//! are therefore indexed by the address or port that a rule matches, and packets are traced through a small copy that
//! contains only the rules that they can match.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    slice,
};

use ferroute_core::Frontend;
use ferroute_iptables::{
    AddressMatch, ChainHead, ChainName, Match, Policy, PortRange, PortSide, ProtocolMatch, RecentAction, Rule, RuleSet,
    Sense, TableName, Target,
    plan::{SharedChain, is_service_chain, jumps},
};
use ipnet::IpNet;

/// A proxy's rules with an index of the long chains.
pub(super) struct IndexedRules<'a> {
    rules: &'a RuleSet,
    /// The builtin chains, where traces start.
    builtin: Vec<(TableName, ChainName)>,
    dispatch: HashMap<(TableName, ChainName), Index>,
    /// Chains that a proxy's jumps in builtin chains lead to; other rules in builtin chains do not belong to a proxy. With
    /// `None`, all rules in builtin chains are traced.
    entries: Option<HashSet<ChainName>>,
}

/// The positions of a chain's rules, in ascending order, by the destination address or port that they match.
#[derive(Default)]
struct Index {
    /// With the port, because all ports of a Service have the same address.
    by_address: HashMap<IpAddr, Vec<(usize, Option<u16>)>>,
    by_port: HashMap<u16, Vec<usize>>,
    rest: Vec<usize>,
}

impl<'a> IndexedRules<'a> {
    /// The rules of iptables mode.
    pub(super) fn new(rules: &'a RuleSet) -> Self {
        let entries = jumps().iter().filter_map(|jump| jump.rule.next_chain()).collect();
        let long = SharedChain::ALL.iter().map(|shared| (shared.table(), shared.name()));
        Self { entries: Some(entries), ..Self::of_chains(rules, long) }
    }

    /// The rules of another mode, which has these long chains, and of other programs.
    pub(super) fn of_chains(rules: &'a RuleSet, long: impl IntoIterator<Item = (TableName, ChainName)>) -> Self {
        let index = |(table, chain)| ((table, chain), Index::new(rules.rules(table, chain)));
        let dispatch = long.into_iter().map(index).collect();
        let chains =
            rules.tables.iter().flat_map(|(name, table)| table.chains.keys().map(move |chain| (*name, *chain)));
        let builtin = chains.filter(|(_, chain)| chain.is_builtin()).collect();
        Self { rules, builtin, dispatch, entries: None }
    }

    /// Returns all rules.
    pub(super) fn all(&self) -> &'a RuleSet {
        self.rules
    }

    /// Returns the frontends that rules dispatch, reject or drop, with the first word of their comments.
    pub(super) fn frontends(&self) -> BTreeMap<Frontend, Option<String>> {
        const SHARED: [SharedChain; 4] = [
            SharedChain::NatServices,
            SharedChain::NatNodePorts,
            SharedChain::FilterServices,
            SharedChain::FilterExternalServices,
        ];
        let mut frontends = BTreeMap::new();
        for shared in SHARED {
            for rule in self.rules.rules(shared.table(), shared.name()) {
                let is_service = match &rule.target {
                    Some(Target::Jump(chain) | Target::Goto(chain)) => is_service_chain(*chain),
                    Some(Target::Reject(_) | Target::Drop) => true,
                    _ => false,
                };
                let Some(frontend) = frontend_of(shared, rule).filter(|_| is_service) else { continue };
                let name = rule.first_comment().and_then(|comment| comment.split(' ').next()).map(str::to_owned);
                frontends.entry(frontend).or_insert(name);
            }
        }
        frontends
    }

    /// Returns the rules that packets to these frontends can match; `node` contains the addresses that can serve node
    /// ports.
    pub(super) fn project(&self, frontends: &[Frontend], node: &BTreeSet<IpAddr>) -> RuleSet {
        let mut addresses: BTreeSet<IpAddr> = frontends.iter().filter_map(|frontend| frontend.address).collect();
        if frontends.iter().any(|frontend| frontend.address.is_none()) {
            addresses.extend(node);
        }
        let mut ports: BTreeSet<u16> = frontends.iter().map(|frontend| frontend.port).collect();
        let mut projection = RuleSet::new(self.rules.family);
        self.copy(TableName::Nat, &addresses, &ports, &mut projection);
        // In the other tables, the destination of a packet may be an endpoint.
        for rule in projection.tables.values().flat_map(|table| table.chains.values()).flat_map(|chain| &chain.rules) {
            if let Some(Target::Dnat { address, port }) = &rule.target {
                addresses.insert(*address);
                ports.extend(port);
            }
        }
        for table in self.rules.tables.keys().filter(|table| **table != TableName::Nat) {
            self.copy(*table, &addresses, &ports, &mut projection);
        }
        projection
    }

    /// Copies the rules of a table that packets to these addresses and ports can match.
    fn copy(&self, table: TableName, addresses: &BTreeSet<IpAddr>, ports: &BTreeSet<u16>, into: &mut RuleSet) {
        if !self.rules.tables.contains_key(&table) {
            return;
        }
        let part = into.table_mut(table);
        let builtin = self.builtin.iter().filter(|(name, _)| *name == table);
        let mut pending: Vec<ChainName> = builtin.map(|(_, chain)| *chain).collect();
        while let Some(name) = pending.pop() {
            if part.chains.contains_key(&name) {
                continue;
            }
            let all = self.rules.rules(table, name);
            let entries = self.entries.as_ref().filter(|_| name.is_builtin());
            let rules: Vec<&Rule> = if let Some(entries) = entries {
                let enters = |rule: &&Rule| rule.next_chain().is_some_and(|next| entries.contains(&next));
                all.iter().filter(enters).collect()
            } else if let Some(index) = self.dispatch.get(&(table, name)) {
                index.positions(addresses, ports).into_iter().map(|position| &all[position]).collect()
            } else {
                all.iter().collect()
            };
            pending.extend(rules.iter().filter_map(|rule| rule.next_chain()));
            // Policies are not the proxy's.
            let policy = match entries {
                Some(_) => Some(Policy::Accept),
                None => self.rules.chain(table, name).and_then(|chain| chain.head.as_ref()?.policy),
            };
            let chain = part.declare(name, ChainHead { policy, ..ChainHead::default() });
            chain.rules = rules.into_iter().cloned().collect();
        }
    }
}

impl Index {
    fn new(rules: &[Rule]) -> Self {
        let mut index = Self::default();
        for (position, rule) in rules.iter().enumerate() {
            let ports = ports_of(rule).filter(|ports| ports.iter().all(|range| range.first == range.last));
            match (address_of(rule), ports) {
                (Some(address), _) => index.by_address.entry(address).or_default().push((position, port_of(rule))),
                (None, Some(ports)) => {
                    ports.iter().for_each(|port| index.by_port.entry(port.first).or_default().push(position));
                }
                (None, None) => index.rest.push(position),
            }
        }
        index
    }

    fn positions(&self, addresses: &BTreeSet<IpAddr>, ports: &BTreeSet<u16>) -> BTreeSet<usize> {
        let has_port = |port: &Option<u16>| port.is_none_or(|port| ports.contains(&port));
        let by_address = addresses.iter().filter_map(|address| self.by_address.get(address)).flatten();
        let by_address = by_address.filter(|(_, port)| has_port(port)).map(|(position, _)| *position);
        let by_port = ports.iter().filter_map(|port| self.by_port.get(port));
        by_address.chain(by_port.chain([&self.rest]).flatten().copied()).collect()
    }
}

/// Returns the session affinity timeout of these frontends in seconds.
pub(super) fn affinity(rules: &RuleSet, frontends: &[Frontend]) -> Option<u32> {
    let modules = service_rules(rules, frontends).into_iter().flat_map(|(_, rule)| &rule.matches);
    modules
        .filter_map(|module| match module {
            Match::Recent(recent) if recent.action == RecentAction::Check => recent.seconds,
            _ => None,
        })
        .max()
}

/// Returns the source ranges of these frontends.
pub(super) fn source_ranges(rules: &RuleSet, frontends: &[Frontend]) -> Vec<IpNet> {
    let rules = service_rules(rules, frontends).into_iter().filter(|(chain, _)| chain.as_str().starts_with(FIREWALL));
    rules
        .filter_map(|(_, rule)| match &rule.source {
            Some(Sense::Is(AddressMatch::Net(net))) => Some(*net),
            _ => None,
        })
        .collect()
}

/// Returns the rules of all chains that packets to these frontends are dispatched to, with the chains' names.
fn service_rules<'r>(rules: &'r RuleSet, frontends: &[Frontend]) -> Vec<(ChainName, &'r Rule)> {
    let dispatched = [SharedChain::NatServices, SharedChain::NatNodePorts].into_iter().flat_map(|shared| {
        let shared_rules = rules.rules(shared.table(), shared.name()).iter();
        shared_rules.filter(move |rule| frontend_of(shared, rule).is_some_and(|frontend| frontends.contains(&frontend)))
    });
    let next = |rule: &Rule| rule.next_chain().filter(|next| is_service_chain(*next));
    let mut pending: Vec<ChainName> = dispatched.filter_map(next).collect();
    let (mut visited, mut service_rules) = (HashSet::new(), Vec::new());
    while let Some(chain) = pending.pop() {
        if visited.insert(chain) {
            let chain_rules = rules.rules(TableName::Nat, chain);
            pending.extend(chain_rules.iter().filter_map(next));
            service_rules.extend(chain_rules.iter().map(|rule| (chain, rule)));
        }
    }
    service_rules
}

/// Returns the frontend that a rule of a shared chain matches.
fn frontend_of(shared: SharedChain, rule: &Rule) -> Option<Frontend> {
    let Some(Sense::Is(ProtocolMatch::Transport(protocol))) = rule.protocol else { return None };
    // A rule for a node port may match localhost's address, which is not part of the frontend.
    let address = address_of(rule).filter(|_| shared != SharedChain::NatNodePorts);
    Some(Frontend { address, protocol, port: port_of(rule)? })
}

/// Returns the destination address that a rule matches, if there is exactly one.
fn address_of(rule: &Rule) -> Option<IpAddr> {
    match rule.destination.as_ref()? {
        Sense::Is(AddressMatch::Net(net)) if net.prefix_len() == net.max_prefix_len() => Some(net.addr()),
        _ => None,
    }
}

/// Returns the destination port that a rule matches, if there is exactly one.
fn port_of(rule: &Rule) -> Option<u16> {
    match ports_of(rule)? {
        [ports] if ports.first == ports.last => Some(ports.first),
        _ => None,
    }
}

/// Returns the destination ports that a rule matches.
fn ports_of(rule: &Rule) -> Option<&[PortRange]> {
    rule.matches.iter().find_map(|module| match module {
        Match::Transport { destination: Some(Sense::Is(ports)), .. } => Some(slice::from_ref(ports)),
        Match::Multiport { side: PortSide::Destination, ports: Sense::Is(ports) } => Some(ports.ranges()),
        _ => None,
    })
}

/// The name prefix of the chains that apply source ranges.
const FIREWALL: &str = "KUBE-FW-";
