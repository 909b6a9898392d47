use std::collections::{BTreeMap, BTreeSet};

use ferroute_core::{ServiceName, ServicePortName, ServiceTable};

use super::{
    ChainDigest, Difference, Dispatch, PlanContext, ServicePlan, Tally,
    base::{Contents, base_chains, node_port_jumps},
};
use crate::ChainName;

/// What is in force, in small: enough to tell which chains a change touches, without the rules themselves.
///
/// Whoever writes rules keeps one: [`Ledger::difference`] gives what is to be written, and [`Ledger::note`] remembers
/// it once it is in force.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// What the rules in force were planned for; `None` while there are none.
    context: Option<PlanContext>,
    ports: BTreeMap<ServicePortName, Record>,
    /// Of all `ports` together.
    tally: Tally,
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
    /// What must be written to bring `table` into force; only ports of `services` can differ from what is, unless the
    /// context differs, in which case any can.
    pub fn difference(
        &self,
        table: &ServiceTable,
        context: &PlanContext,
        services: &BTreeSet<ServiceName>,
    ) -> Difference {
        let mut difference = Difference::nothing(context.clone());
        if self.context.as_ref() == Some(context) {
            for service in services {
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

    /// What `difference` says is in force now.
    pub fn note(&mut self, difference: Difference) {
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
        self.context = Some(difference.context);
    }

    /// How many rules of ours are in force, and what they lack.
    pub fn tally(&self) -> Tally {
        let mut tally = self.tally;
        let Some(context) = &self.context else { return tally };
        for chain in base_chains(context) {
            if let Contents::Rules(rules) = chain.contents {
                *tally.rules.of_mut(chain.table) += rules.len();
            }
        }
        tally.rules.nat += node_port_jumps(context).len();
        tally
    }

    fn ports_of(&self, service: &ServiceName) -> impl Iterator<Item = &ServicePortName> {
        let first =
            ServicePortName { service: service.clone(), port: "".into(), protocol: ferroute_core::Protocol::Tcp };
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
        let old = self.context.as_ref();
        let known = old.map(base_chains).unwrap_or_default();
        difference.base = base_chains(&difference.context).into_iter().filter(|new| !known.contains(new)).collect();
        if old.map(node_port_jumps) != Some(node_port_jumps(&difference.context)) {
            difference.shared[Dispatch::Services.index()] = true;
        }
        if old.is_none() {
            difference.shared.fill(true);
            difference.jumps = super::jumps();
        }
    }
}
