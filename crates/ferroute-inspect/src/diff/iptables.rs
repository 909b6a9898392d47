//! What a service proxy's iptables rules say about frontends.
//!
//! The chains that all service ports share are long, and every packet walks them from their start. So they are indexed
//! once, by the address or port that a rule is about, and packets walk a small copy of just those rules that can concern
//! them; a rule that is left out is about another address or port, so no packet that is walked could match it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use ferroute_core::Frontend;
use ferroute_iptables::{
    AddressMatch, ChainHead, ChainName, Match, Policy, ProtocolMatch, RecentAction, Rule, RuleSet, Sense, TableName,
    Target,
    plan::{SharedChain, is_service_chain, jumps},
};
use ipnet::IpNet;

/// A proxy's rules with an index of the long chains.
pub(super) struct IndexedRules<'a> {
    rules: &'a RuleSet,
    /// Where walks begin, found once among all the chains of Services.
    builtin: Vec<(TableName, ChainName)>,
    dispatch: HashMap<(TableName, ChainName), Index>,
    /// Chains that builtin chains lead to; what else is in builtin chains is not a proxy's.
    entries: HashSet<ChainName>,
}

/// Where the rules of a chain are, by what a packet must have. Positions are in ascending order.
#[derive(Default)]
struct Index {
    by_address: HashMap<IpAddr, Vec<usize>>,
    by_port: HashMap<u16, Vec<usize>>,
    rest: Vec<usize>,
}

impl<'a> IndexedRules<'a> {
    pub(super) fn new(rules: &'a RuleSet) -> Self {
        let mut dispatch = HashMap::new();
        for shared in SharedChain::ALL {
            let mut index = Index::default();
            for (position, rule) in rules.rules(shared.table(), shared.name()).iter().enumerate() {
                match (address_of(rule), port_of(rule)) {
                    (Some(address), _) => index.by_address.entry(address).or_default().push(position),
                    (None, Some(port)) => index.by_port.entry(port).or_default().push(position),
                    (None, None) => index.rest.push(position),
                }
            }
            dispatch.insert((shared.table(), shared.name()), index);
        }
        let chains =
            rules.tables.iter().flat_map(|(name, table)| table.chains.keys().map(move |chain| (*name, *chain)));
        let builtin = chains.filter(|(_, chain)| chain.is_builtin()).collect();
        let entries = jumps().iter().filter_map(|jump| jump.rule.next_chain()).collect();
        Self { rules, builtin, dispatch, entries }
    }

    /// The rules without the index.
    pub(super) fn all(&self) -> &'a RuleSet {
        self.rules
    }

    /// All frontends that rules dispatch or refuse, with the first word of their comments.
    pub(super) fn frontends(&self) -> BTreeMap<Frontend, Option<String>> {
        const SHARED: [SharedChain; 4] =
            [SharedChain::NatServices, SharedChain::NatNodePorts, SharedChain::FilterServices, SharedChain::FilterExternalServices];
        let mut all = BTreeMap::new();
        for shared in SHARED {
            for rule in self.rules.rules(shared.table(), shared.name()) {
                let decides = match &rule.target {
                    Some(Target::Jump(chain) | Target::Goto(chain)) => is_service_chain(*chain),
                    Some(Target::Reject(_) | Target::Drop) => true,
                    _ => false,
                };
                let Some(frontend) = frontend_of(shared, rule).filter(|_| decides) else { continue };
                let name = rule.first_comment().and_then(|comment| comment.split(' ').next()).map(str::to_owned);
                all.entry(frontend).or_insert(name);
            }
        }
        all
    }

    /// The rules that packets to these frontends can meet; `node` are the addresses that node ports can be on.
    pub(super) fn about(&self, frontends: &[Frontend], node: &BTreeSet<IpAddr>) -> RuleSet {
        let mut addresses: BTreeSet<IpAddr> = frontends.iter().filter_map(|frontend| frontend.address).collect();
        if frontends.iter().any(|frontend| frontend.address.is_none()) {
            addresses.extend(node);
        }
        let mut ports: BTreeSet<u16> = frontends.iter().map(|frontend| frontend.port).collect();
        let mut about = RuleSet::new(self.rules.family);
        self.copy(TableName::Nat, &addresses, &ports, &mut about);
        // From here on a packet may have an endpoint's address in place of the Service's.
        for rule in about.tables.values().flat_map(|table| table.chains.values()).flat_map(|chain| &chain.rules) {
            if let Some(Target::Dnat { address, port }) = &rule.target {
                addresses.insert(*address);
                ports.extend(port);
            }
        }
        for table in self.rules.tables.keys().filter(|table| **table != TableName::Nat) {
            self.copy(*table, &addresses, &ports, &mut about);
        }
        about
    }

    /// Copies what can be reached in a table by packets to these addresses and ports.
    fn copy(&self, table: TableName, addresses: &BTreeSet<IpAddr>, ports: &BTreeSet<u16>, into: &mut RuleSet) {
        if !self.rules.tables.contains_key(&table) {
            return;
        }
        let part = into.table_mut(table);
        let builtin = self.builtin.iter().filter(|(of, _)| *of == table);
        let mut waiting: Vec<ChainName> = builtin.map(|(_, chain)| *chain).collect();
        while let Some(name) = waiting.pop() {
            if part.chains.contains_key(&name) {
                continue;
            }
            let all = self.rules.rules(table, name);
            let rules: Vec<&Rule> = if name.is_builtin() {
                let enters = |rule: &&Rule| rule.next_chain().is_some_and(|next| self.entries.contains(&next));
                all.iter().filter(enters).collect()
            } else if let Some(index) = self.dispatch.get(&(table, name)) {
                index.positions(addresses, ports).into_iter().map(|position| &all[position]).collect()
            } else {
                all.iter().collect()
            };
            waiting.extend(rules.iter().filter_map(|rule| rule.next_chain()));
            // What falls to a policy is somebody else's decision.
            let policy = name.is_builtin().then_some(Policy::Accept);
            let chain = part.declare(name, ChainHead { policy, ..ChainHead::default() });
            chain.rules = rules.into_iter().cloned().collect();
        }
    }
}

impl Index {
    fn positions(&self, addresses: &BTreeSet<IpAddr>, ports: &BTreeSet<u16>) -> BTreeSet<usize> {
        let by_address = addresses.iter().filter_map(|address| self.by_address.get(address));
        let by_port = ports.iter().filter_map(|port| self.by_port.get(port));
        by_address.chain(by_port).chain([&self.rest]).flatten().copied().collect()
    }
}

/// Seconds for which a client's endpoint at these frontends is remembered.
pub(super) fn affinity(about: &RuleSet, frontends: &[Frontend]) -> Option<u32> {
    let modules = own_rules(about, frontends).into_iter().flat_map(|(_, rule)| &rule.matches);
    modules
        .filter_map(|module| match module {
            Match::Recent(recent) if recent.action == RecentAction::Check => recent.seconds,
            _ => None,
        })
        .max()
}

/// Sources that the chains which apply source ranges let through to these frontends.
pub(super) fn source_ranges(about: &RuleSet, frontends: &[Frontend]) -> Vec<IpNet> {
    let rules = own_rules(about, frontends).into_iter().filter(|(chain, _)| chain.as_str().starts_with(FIREWALL));
    rules
        .filter_map(|(_, rule)| match &rule.source {
            Some(Sense::Is(AddressMatch::Net(net))) => Some(*net),
            _ => None,
        })
        .collect()
}

/// The rules of all chains that packets to these frontends are sent to, with the chains' names.
fn own_rules<'r>(about: &'r RuleSet, frontends: &[Frontend]) -> Vec<(ChainName, &'r Rule)> {
    let dispatched = [SharedChain::NatServices, SharedChain::NatNodePorts].into_iter().flat_map(|shared| {
        let rules = about.rules(shared.table(), shared.name()).iter();
        rules.filter(move |rule| frontend_of(shared, rule).is_some_and(|frontend| frontends.contains(&frontend)))
    });
    let next = |rule: &Rule| rule.next_chain().filter(|next| is_service_chain(*next));
    let mut waiting: Vec<ChainName> = dispatched.filter_map(next).collect();
    let (mut seen, mut own) = (HashSet::new(), Vec::new());
    while let Some(chain) = waiting.pop() {
        if seen.insert(chain) {
            let rules = about.rules(TableName::Nat, chain);
            waiting.extend(rules.iter().filter_map(next));
            own.extend(rules.iter().map(|rule| (chain, rule)));
        }
    }
    own
}

/// The frontend that a rule of a shared chain is about.
fn frontend_of(shared: SharedChain, rule: &Rule) -> Option<Frontend> {
    let Some(Sense::Is(ProtocolMatch::Transport(protocol))) = rule.protocol else { return None };
    // A rule for a node port may name localhost's address, which is no Service's.
    let address = address_of(rule).filter(|_| shared != SharedChain::NatNodePorts);
    Some(Frontend { address, protocol, port: port_of(rule)? })
}

/// The one address that a rule is about.
fn address_of(rule: &Rule) -> Option<IpAddr> {
    match rule.destination.as_ref()? {
        Sense::Is(AddressMatch::Net(net)) if net.prefix_len() == net.max_prefix_len() => Some(net.addr()),
        _ => None,
    }
}

/// The one destination port that a rule is about.
fn port_of(rule: &Rule) -> Option<u16> {
    rule.matches.iter().find_map(|module| match module {
        Match::Transport { destination: Some(Sense::Is(ports)), .. } if ports.first == ports.last => Some(ports.first),
        _ => None,
    })
}

/// How the names of chains begin that apply source ranges.
const FIREWALL: &str = "KUBE-FW-";
