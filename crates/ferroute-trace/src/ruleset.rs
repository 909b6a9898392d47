use std::borrow::Cow;

use ferroute_iptables::{Match, RuleSet, TableName};
use ferroute_ipvs::IpvsObjects;
use ferroute_nftables::kernel::MemoryTable;
use ferroute_userspace::Listeners;

use crate::{
    Hook, Host, Ipsets, Leaf, Packet, PacketState, Trace, iptables, ipvs, nftables,
    record::Detail,
    trace::Branches,
    userspace,
    walk::{ChainVerdict, Forks, Walk, Walker},
};

/// Rules that packets can be walked through.
///
/// The planned rules of each proxy mode implement this, as do rules that were read from the kernel.
pub trait Traceable {
    /// Adds the rules' base chains to `ruleset`, in the order in which the kernel registers them.
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>);
}

/// A chain of rules that is registered at a netfilter hook, or another handler of packets at a hook.
pub trait BaseChain {
    /// Returns the hook.
    fn hook(&self) -> Hook;

    /// Returns the priority; chains with lower priorities are evaluated first.
    fn priority(&self) -> i32;

    /// Reports whether the chain is only evaluated to set up the NAT of a connection.
    fn is_nat(&self) -> bool {
        false
    }

    /// Reports whether packets of the host itself are routed again if the chain has changed their addresses or their
    /// mark, as in the table `mangle`. NAT chains route packets again if they translate their destination.
    fn routes_again(&self) -> bool {
        false
    }

    /// Returns the name of the chain's table in traces; empty for other handlers of packets.
    fn table(&self) -> &str {
        ""
    }

    /// Walks a packet through the chain and all chains that it calls.
    ///
    /// If the result depends on chance or on a condition that cannot be evaluated, `walker` takes one branch and
    /// `forks` receives clones of it for the others.
    fn walk<'a>(&'a self, walker: &mut Walker<'a>, forks: &mut Forks<'a>) -> ChainVerdict;
}

/// All rules of a kernel, in the order in which packets are walked through them: hook by hook, chains with lower
/// priorities first.
///
/// Among chains of equal priority, the kernel evaluates the one first that was registered last. Tables must therefore
/// be added in the order of their creation. All chains of a table are assumed to be older than those of later tables.
#[derive(Default)]
pub struct Ruleset<'a> {
    /// The base chains of each hook.
    chains: [Vec<Box<dyn BaseChain + 'a>>; HOOKS.len()],
    /// The objects of ipvs mode, whose sets iptables rules refer to.
    ipvs: Vec<&'a dyn IpvsObjects>,
    /// The ipsets of other programs.
    ipsets: Option<&'a Ipsets>,
}

impl<'a> Ruleset<'a> {
    /// An empty ruleset.
    pub fn new() -> Self {
        Self::default()
    }

    /// A ruleset with only these rules.
    pub fn from_rules(rules: &'a dyn Traceable) -> Self {
        let mut ruleset = Self::new();
        rules.add_to(&mut ruleset);
        ruleset
    }

    /// A ruleset with a single nftables table; see [`add_nftables_table`](Self::add_nftables_table).
    pub fn from_nftables_table(name: impl Into<Cow<'static, str>>, table: &'a MemoryTable) -> Self {
        let mut ruleset = Self::new();
        ruleset.add_nftables_table(name, table);
        ruleset
    }

    /// Adds a base chain.
    pub fn add_chain(&mut self, chain: impl BaseChain + 'a) {
        let chains = &mut self.chains[index(chain.hook())];
        let order = order(&chain);
        let index = chains.partition_point(|other| self::order(other.as_ref()) < order);
        chains.insert(index, Box::new(chain));
    }

    /// Adds all iptables tables of one backend (legacy or nf_tables).
    pub fn add_iptables(&mut self, rules: &'a RuleSet) {
        rules.tables.keys().for_each(|table| self.add_iptables_table(rules, *table));
    }

    /// Adds one iptables table.
    pub fn add_iptables_table(&mut self, rules: &'a RuleSet, table: TableName) {
        iptables::Base::chains(rules, table).for_each(|chain| self.add_chain(chain));
    }

    /// Adds virtual servers, sets and addresses of ipvs mode; its iptables rules are added separately.
    pub fn add_ipvs(&mut self, objects: &'a dyn IpvsObjects) {
        self.ipvs.push(objects);
        self.add_virtual_servers(objects);
    }

    /// Adds virtual servers only.
    pub fn add_virtual_servers(&mut self, objects: &'a dyn IpvsObjects) {
        ipvs::Scheduler::chains(objects).for_each(|chain| self.add_chain(chain));
    }

    /// Adds the ipsets that iptables rules refer to.
    pub fn add_ipsets(&mut self, sets: &'a Ipsets) {
        self.ipsets = Some(sets);
    }

    /// Adds the listeners of userspace mode; its iptables rules are added separately.
    pub fn add_userspace(&mut self, listeners: &'a dyn Listeners) {
        self.add_chain(userspace::Process(listeners));
    }

    /// Adds an nftables table, whose family must include the packet's; traces show it as `name`.
    pub fn add_nftables_table(&mut self, name: impl Into<Cow<'static, str>>, table: &'a MemoryTable) {
        nftables::Base::chains(name.into(), table).for_each(|chain| self.add_chain(chain));
    }

    /// Walks a packet through the rules and returns all results, without events. The same verdict may occur several times.
    pub fn verdicts(&self, host: &Host, packet: &Packet) -> Vec<Leaf> {
        self.walk(host, packet, Detail::Verdict).map(Leaf::from).collect()
    }

    /// Walks a packet through the rules and returns all results with their events, on demand: each of possibly
    /// thousands of endpoints has a list as long as the rules.
    pub fn leaves<'w>(&'w self, host: &'w Host, packet: &'w Packet) -> impl Iterator<Item = Leaf> + use<'w, 'a> {
        self.walk(host, packet, Detail::Events).map(Leaf::from)
    }

    /// Walks a packet through the rules, as [`leaves`](Self::leaves) does, without events of rules that do not match.
    pub fn matching_leaves<'w>(&'w self, host: &'w Host, packet: &'w Packet) -> MatchingLeaves<'w> {
        MatchingLeaves(self.walk(host, packet, Detail::Matches))
    }

    /// Traces a packet through the rules.
    pub fn trace(&self, host: &Host, packet: &Packet) -> Trace {
        self.merged(host, packet, Detail::Events)
    }

    /// Traces a packet through the rules, with steps but without events.
    pub fn summary(&self, host: &Host, packet: &Packet) -> Trace {
        self.merged(host, packet, Detail::Steps)
    }

    /// Reports whether new connections to a packet's destination match an extension of a rule of iptables, from any source;
    /// `None` if this depends on more than the destination, or is unknown.
    pub fn matches_destination(&self, packet: &Packet, extension: &Match) -> Option<bool> {
        let host = Host::default();
        let mut state = PacketState::new(&host, self, packet, false);
        state.track();
        state.matches_destination(extension)
    }

    fn merged(&self, host: &Host, packet: &Packet, detail: Detail) -> Trace {
        let mut branches = Branches::default();
        let _ = self.walk(host, packet, Detail::Steps).all(|(verdict, walker)| branches.add(verdict, &walker));
        let (mut trace, leaves) = branches.merge_equal_ends();
        if detail == Detail::Events {
            // Only the branches that remain get events: there may be thousands of leaves with a long list each.
            let (mut walk, mut leaf, mut events) = (self.walk(host, packet, detail), 0, 0);
            for (branch, first) in trace.branches.iter_mut().zip(leaves) {
                while events < MAX_EVENTS && walk.rules() < MAX_EVENTS && leaf <= first {
                    let walker = walk.next().map(|(_, walker)| walker).filter(|_| leaf == first);
                    branch.events = walker.map(|walker| walker.record.events()).unwrap_or_default();
                    events += branch.events.len();
                    leaf += 1;
                }
            }
        }
        trace
    }

    fn walk<'w>(&'w self, host: &'w Host, packet: &'w Packet, detail: Detail) -> Walk<'w> {
        Walk::new(self, host, packet, detail)
    }

    /// Returns the chains of equal priority in different tables that follow each other at a hook. Only the order in which
    /// these chains were created, and not that of their tables, decides which one is evaluated first.
    pub fn ties(&self) -> Vec<Tie> {
        let of_hook = |hook| {
            let pairs = self.chains(hook).windows(2).enumerate().filter(|(_, pair)| {
                self::order(&*pair[0]) == self::order(&*pair[1])
                    && pair[0].table() != pair[1].table()
                    && pair.iter().all(|chain| !chain.table().is_empty())
            });
            let tie = |(position, pair): (usize, &[Box<dyn BaseChain + 'a>])| {
                let [newer, older] = [0, 1].map(|index: usize| pair[index].table().to_owned());
                Tie { hook, older, newer, is_nat: pair[0].is_nat(), position }
            };
            pairs.map(tie).collect::<Vec<_>>()
        };
        HOOKS.into_iter().flat_map(of_hook).collect()
    }

    /// Reverses the order of the two chains of a tie.
    pub fn reverse(&mut self, tie: &Tie) {
        self.chains[index(tie.hook)].swap(tie.position, tie.position + 1);
    }

    /// Returns the objects of ipvs mode.
    pub(crate) fn ipvs(&self) -> &[&'a dyn IpvsObjects] {
        &self.ipvs
    }

    /// Returns the ipsets, if any were added.
    pub(crate) fn ipsets(&self) -> Option<&'a Ipsets> {
        self.ipsets
    }

    /// Returns the base chains at a hook, in order.
    pub(crate) fn chains(&self, hook: Hook) -> &[Box<dyn BaseChain + 'a>] {
        &self.chains[index(hook)]
    }
}

/// The results of a packet, each with the events of the rules that match.
pub struct MatchingLeaves<'a>(Walk<'a>);

impl MatchingLeaves<'_> {
    /// Returns the number of rules that were evaluated so far.
    pub fn rules(&self) -> usize {
        self.0.all_rules()
    }
}

impl Iterator for MatchingLeaves<'_> {
    type Item = Leaf;

    fn next(&mut self) -> Option<Leaf> {
        self.0.next().map(Leaf::from)
    }
}

/// Chains of equal priority at a hook.
#[derive(Clone, Debug)]
pub struct Tie {
    /// The hook.
    pub hook: Hook,
    /// The table that is assumed to be older.
    pub older: String,
    /// The table that is assumed to be newer, and whose chain is evaluated first.
    pub newer: String,
    /// Whether these are NAT chains.
    pub is_nat: bool,
    position: usize,
}

/// Sort key of a chain at its hook. The kernel's NAT is a single hook function, which calls all NAT chains in the order
/// of their priorities.
fn order(chain: &dyn BaseChain) -> (i32, i32) {
    let priority = chain.priority();
    if chain.is_nat() { (iptables::priority(TableName::Nat, chain.hook()), priority) } else { (priority, priority) }
}

fn index(hook: Hook) -> usize {
    match hook {
        Hook::Prerouting => 0,
        Hook::Input => 1,
        Hook::Forward => 2,
        Hook::Output => 3,
        Hook::Postrouting => 4,
    }
}

/// Number of events, and of rules that were evaluated again to get them, from which further branches of a trace have
/// none.
const MAX_EVENTS: usize = 1 << 18;

pub(crate) const HOOKS: [Hook; 5] = [Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting];

#[cfg(test)]
mod tests;
