use std::collections::BTreeMap;

use ferroute_core::{Changes, Protocol, ServiceName, ServicePortName, ServiceTable};

use super::{
    BaseChain, ChainDigest, Contents, Difference, Dispatch, InForce, PlanContext, ServicePlan, Tally, Written,
    base::{base_chains, node_port_jumps},
    chains,
};
use crate::{ChainName, TableName};

/// What is in force, in small: enough to tell which chains a change touches, without the rules themselves.
///
/// It begins with a comparison with the kernel, [`Difference::from_kernel`], once that is in force. From then on
/// [`Ledger::difference`] gives what is to be written, and [`Ledger::note`] remembers it when that is in force as well.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// What the rules in force were planned for.
    context: PlanContext,
    ports: BTreeMap<ServicePortName, Record>,
    /// What is in the dispatch chains, by [`Dispatch::index`].
    shared: [ChainDigest; Dispatch::ALL.len()],
    /// [`super::base::localnet_guard`] is there. It stays when it is not needed any more, for the kubelet may need it.
    guarded: bool,
    /// Of all `ports` together.
    tally: Tally,
}

/// What somebody else has done to our rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The jump from this builtin chain into a chain of ours is gone.
    #[error("a jump from {1} of table {0} is gone")]
    Jump(TableName, ChainName),
    /// A chain of ours is gone or holds other rules.
    #[error("chain {1} of table {0} is gone or holds other rules")]
    Chain(TableName, ChainName),
}

/// A service port's rules, in small.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Its own chains, sorted by name.
    pub(super) chains: Box<[OwnChain]>,
    /// What it contributes to dispatch chains, by [`Dispatch::index`].
    pub(super) parts: [ChainDigest; Dispatch::ALL.len()],
    pub(super) tally: Tally,
}

/// One of a service port's own chains.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnChain {
    pub(super) name: ChainName,
    pub(super) digest: ChainDigest,
    /// The kernel holds the chain as it is here.
    pub(super) in_force: bool,
}

impl Record {
    /// Sums up a plan. Contributions are also added to `shared`, the digests of the whole dispatch chains.
    pub(super) fn of(plan: &ServicePlan<'_>, shared: &mut [ChainDigest; Dispatch::ALL.len()]) -> Self {
        let mut parts = [ChainDigest::EMPTY; Dispatch::ALL.len()];
        let mut tally = Tally {
            no_local_internal: plan.lacks_local_internal().into(),
            no_local_external: plan.lacks_local_external().into(),
            ..Tally::default()
        };
        plan.contribute(&mut |dispatch, rule| {
            parts[dispatch.index()].append(&rule);
            shared[dispatch.index()].append(&rule);
            *tally.rules.of_mut(dispatch.table()) += 1;
        });
        let mut chains = Vec::new();
        plan.own_chains(&mut |name, rules| {
            tally.rules.nat += rules.len();
            chains.push(OwnChain { name, digest: ChainDigest::of(rules), in_force: false });
        });
        chains.sort_unstable_by_key(|chain| chain.name);
        Self { chains: chains.into(), parts, tally }
    }

    pub(super) fn chain(&self, name: ChainName) -> Option<&OwnChain> {
        self.chains.binary_search_by_key(&name, |chain| chain.name).ok().map(|at| &self.chains[at])
    }

    /// Some chain must be written.
    pub(super) fn is_stale(&self) -> bool {
        self.chains.iter().any(|chain| !chain.in_force)
    }
}

impl Ledger {
    /// What is in force once everything that differed from the kernel's rules is.
    pub fn new(everything: Difference) -> Self {
        let mut ledger = Self {
            context: everything.context.clone(),
            ports: BTreeMap::new(),
            shared: [ChainDigest::EMPTY; Dispatch::ALL.len()],
            guarded: false,
            tally: Tally::default(),
        };
        ledger.note(everything, &Written::default());
        ledger
    }

    /// What must be written to bring `table` into force after `changes`. Only ports of Services that have changed are
    /// looked at, except where the node or the context has: then any can differ.
    pub fn difference(&self, table: &ServiceTable, context: &PlanContext, changes: &Changes) -> Difference {
        let mut difference = Difference { guarded: self.guarded, ..Difference::nothing(context.clone()) };
        if self.context == *context && !changes.node {
            for service in &changes.services {
                for name in self.ports_of(service).chain(table.ports_of(service).map(|(name, _)| name)) {
                    self.compare_port(name, table, &mut difference);
                }
            }
        } else {
            self.compare_base(&mut difference);
            difference.complete = true;
            for name in self.ports.keys().chain(table.entries.keys()) {
                self.compare_port(name, table, &mut difference);
            }
        }
        difference
    }

    /// What `difference` says is in force now; `written` is what was written of it.
    pub fn note(&mut self, difference: Difference, written: &Written) {
        for (at, digest) in self.shared.iter_mut().enumerate() {
            *digest = difference.shared_digests[at].or(written.shared[at]).unwrap_or(*digest);
        }
        if difference.complete {
            self.ports.clear();
            self.tally = Tally::default();
        }
        for (name, record) in difference.ports {
            if let Some(old) = self.ports.remove(&name) {
                self.tally -= old.tally;
            }
            if let Some(mut record) = record {
                self.tally += record.tally;
                record.chains.iter_mut().for_each(|chain| chain.in_force = true);
                self.ports.insert(name, record);
            }
        }
        self.guarded = difference.guarded;
        self.context = difference.context;
    }

    /// Compares with what the kernel really holds and tells the first thing that is missing. Chains that should be gone
    /// do no damage.
    pub fn damage(&self, in_force: &InForce) -> Option<Damage> {
        if let Some(jump) = in_force.missing_jumps.first() {
            return Some(Damage::Jump(jump.table, jump.from));
        }
        if self.context.localhost_node_ports && !in_force.has_guard {
            return Some(Damage::Chain(TableName::Filter, chains::FIREWALL));
        }
        let base = base_chains(&self.context).into_iter().map(|chain| {
            let digest = match &chain.contents {
                Contents::Rules(rules) => Some(ChainDigest::of(rules)),
                Contents::Foreign => None,
            };
            (chain.table, chain.name, digest)
        });
        let shared = Dispatch::ALL.into_iter().zip(self.shared);
        let shared = shared.map(|(dispatch, digest)| (dispatch.table(), dispatch.chain(), Some(digest)));
        let own = self.ports.values().flat_map(|record| &record.chains);
        let own = own.map(|chain| (TableName::Nat, chain.name, Some(chain.digest)));
        let is_damaged = |(table, chain, digest): &(_, _, Option<ChainDigest>)| {
            let found = in_force.chains.get(&(*table, *chain));
            found.is_none_or(|found| digest.is_some_and(|digest| *found != digest))
        };
        base.chain(shared).chain(own).find(is_damaged).map(|(table, chain, _)| Damage::Chain(table, chain))
    }

    /// How many rules of ours are in force, and what they lack.
    pub fn tally(&self) -> Tally {
        let mut tally = self.tally;
        for chain in base_chains(&self.context) {
            if let Contents::Rules(rules) = chain.contents {
                *tally.rules.of_mut(chain.table) += rules.len();
            }
        }
        tally.rules.nat += node_port_jumps(&self.context).len();
        tally.rules.filter += usize::from(self.context.localhost_node_ports);
        tally
    }

    fn ports_of(&self, service: &ServiceName) -> impl Iterator<Item = &ServicePortName> {
        let first = ServicePortName { service: service.clone(), port: "".into(), protocol: Protocol::Tcp };
        self.ports.range(first..).map(|(name, _)| name).take_while(move |name| name.service == *service)
    }

    fn compare_port(&self, name: &ServicePortName, table: &ServiceTable, difference: &mut Difference) {
        if difference.ports.contains_key(name) {
            return;
        }
        let old = self.ports.get(name);
        let mut new = table.entries.get(name).map(|entry| {
            let plan = ServicePlan::new(name, &entry.service, table.routes(entry), &difference.context);
            Record::of(&plan, &mut [ChainDigest::EMPTY; Dispatch::ALL.len()])
        });
        let part = |record: Option<&Record>, at: usize| record.map_or(ChainDigest::EMPTY, |record| record.parts[at]);
        for (at, stale) in difference.shared.iter_mut().enumerate() {
            *stale |= part(old, at) != part(new.as_ref(), at);
        }
        for chain in new.iter_mut().flat_map(|record| &mut record.chains) {
            let known = old.and_then(|old| old.chain(chain.name));
            chain.in_force = known.is_some_and(|known| known.digest == chain.digest);
        }
        let wanted = |chain: ChainName| new.as_ref().is_some_and(|new| new.chain(chain).is_some());
        let gone = old.into_iter().flat_map(|old| &old.chains).map(|chain| chain.name);
        difference.delete.extend(gone.filter(|chain| !wanted(*chain)));
        difference.ports.insert(name.clone(), new);
    }

    /// Compares what does not depend on Services.
    fn compare_base(&self, difference: &mut Difference) {
        let known = base_chains(&self.context);
        // A chain that is somebody else's to fill is there already.
        let differs = |new: &BaseChain| new.contents != Contents::Foreign && !known.contains(new);
        difference.base = base_chains(&difference.context).into_iter().filter(differs).collect();
        difference.guarded |= difference.context.localhost_node_ports;
        difference.guard = difference.guarded && !self.guarded;
        if node_port_jumps(&self.context) != node_port_jumps(&difference.context) {
            difference.shared[Dispatch::Services.index()] = true;
        }
    }
}
