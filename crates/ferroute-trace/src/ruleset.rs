use std::borrow::Cow;

use ferroute_iptables::{RuleSet, TableName};
use ferroute_nftables::{
    kernel::MemoryTable,
    model::{Base, BaseKind},
};

use crate::{
    Account, Ending, Event, Hook, Host, Packet, Story, Summary, iptables,
    journey::Journeys,
    nftables,
    path::{Effects, Path, Trail},
};

/// All rules that a kernel obeys, of `iptables` and nftables: packets meet both, at each hook in the order of priorities.
///
/// Where priorities are equal, the kernel takes first what came last. So tables are to be added in the order in which they
/// were made.
#[derive(Clone, Debug, Default)]
pub struct Ruleset<'a> {
    /// By hook; the first one is met first.
    entries: [Vec<Entry<'a>>; HOOKS.len()],
}

/// A chain that a hook leads to.
#[derive(Clone, Debug)]
pub(crate) enum Entry<'a> {
    /// Of `iptables`.
    Iptables(iptables::Base<'a>),
    /// Of nftables.
    Nftables(nftables::Base<'a>),
}

impl<'a> Ruleset<'a> {
    /// No rules at all.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds all tables of `iptables`, of one of its backends.
    pub fn add_iptables(&mut self, rules: &'a RuleSet) {
        rules.tables.keys().for_each(|table| self.add_iptables_table(rules, *table));
    }

    /// Adds one table of `iptables`.
    pub fn add_iptables_table(&mut self, rules: &'a RuleSet, table: TableName) {
        for hook in HOOKS.into_iter().filter(|hook| iptables::tables(*hook).contains(&table)) {
            let base = iptables::Base { rules, table, hook };
            if base.matters() {
                self.add(hook, Entry::Iptables(base));
            }
        }
    }

    /// Adds a table of nftables that sees the packets' family; `name` is what stories call it.
    pub fn add_table(&mut self, name: impl Into<Cow<'static, str>>, table: &'a MemoryTable) {
        let name = name.into();
        for chain in table.chains() {
            if let Some(base) = chain.chain.base {
                let entry = nftables::Base { table, name: name.clone(), chain, base };
                self.add(base.hook.into(), Entry::Nftables(entry));
            }
        }
    }

    /// Everything that can become of a packet, without the stories. The same verdict may come more than once.
    pub fn endings(self, host: &Host, packet: &Packet) -> Vec<Ending> {
        Journeys::<()>::new(self, host, packet).map(|(ending, ())| ending).collect()
    }

    /// Everything that can become of a packet, and how, rule by rule.
    ///
    /// Each story tells all the rules from the start, so that of a choice among many endpoints the last one can be long;
    /// they are made one by one, as they are asked for.
    pub fn stories(self, host: &'a Host, packet: &'a Packet) -> impl Iterator<Item = Story> + use<'a> {
        self.walk::<Trail>(host, packet).map(|(ending, trail)| Story { events: trail.events(), ending })
    }

    /// Everything that can become of a packet, rule by rule, with all choices among endpoints in one place.
    pub fn account(self, host: &Host, packet: &Packet) -> Account {
        let mut account = Account::default();
        for (ending, trail) in Journeys::<Trail>::new(self, host, packet) {
            account.take(ending, trail.events_that(Event::is_effect), || trail.events());
        }
        account
    }

    /// What changes and decides a packet's way, with all choices among endpoints in one place.
    pub fn summary(self, host: &Host, packet: &Packet) -> Summary {
        let ends = Journeys::<Effects>::new(self, host, packet);
        Summary::of(ends.map(|(ending, effects)| Story { events: effects.0, ending }))
    }

    pub(crate) fn walk<P: Path>(self, host: &'a Host, packet: &'a Packet) -> Journeys<'a, P> {
        Journeys::new(self, host, packet)
    }

    /// The chains of a hook, in order.
    pub(crate) fn entries(&self, hook: Hook) -> &[Entry<'a>] {
        &self.entries[position(hook)]
    }

    fn add(&mut self, hook: Hook, entry: Entry<'a>) {
        let entries = &mut self.entries[position(hook)];
        let order = entry.order(hook);
        let at = entries.partition_point(|other| other.order(hook) < order);
        entries.insert(at, entry);
    }
}

impl Entry<'_> {
    /// It decides a connection's addresses.
    pub(crate) fn is_nat(&self) -> bool {
        match self {
            Self::Iptables(base) => base.table == TableName::Nat,
            Self::Nftables(base) => base.base.kind == BaseKind::Nat,
        }
    }

    /// When it is met, least first. All chains for nat of a hook are met when the kernel's own nat is, in the order of
    /// their priorities.
    fn order(&self, hook: Hook) -> (i32, i32) {
        let priority = match self {
            Self::Iptables(base) => iptables::priority(base.table, hook),
            Self::Nftables(nftables::Base { base: Base { priority, .. }, .. }) => *priority,
        };
        if self.is_nat() { (iptables::priority(TableName::Nat, hook), priority) } else { (priority, priority) }
    }
}

fn position(hook: Hook) -> usize {
    match hook {
        Hook::Prerouting => 0,
        Hook::Input => 1,
        Hook::Forward => 2,
        Hook::Output => 3,
        Hook::Postrouting => 4,
    }
}

const HOOKS: [Hook; 5] = [Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting];
