use std::collections::BTreeMap;

use ferroute_core::{ServicePortName, ServiceTable};

use super::{
    BaseChain, ChainDigest, Contents, Dispatch, InForce, Jump, PlanContext, ServicePlan,
    base::{base_chains, node_port_jumps},
    is_service_chain,
    ledger::Record,
};
use crate::{ChainName, TableName};

/// What must be written so that the kernel holds what is planned: whole chains, nothing that is in force already.
#[derive(Clone, Debug)]
pub struct Difference {
    pub(super) context: PlanContext,
    /// All service ports were looked at, not only some.
    pub(super) complete: bool,
    /// Service ports that were looked at; `None` for those that are gone.
    pub(super) ports: BTreeMap<ServicePortName, Option<Record>>,
    /// Which dispatch chains must be written, by [`Dispatch::index`].
    pub(super) shared: [bool; Dispatch::ALL.len()],
    /// What is in the dispatch chains then, as far as that is known before they are written.
    pub(super) shared_digests: [Option<ChainDigest>; Dispatch::ALL.len()],
    /// Base chains to be written.
    pub(super) base: Vec<BaseChain>,
    /// Jumps that are missing.
    pub(super) jumps: Vec<Jump>,
    /// [`super::base::localnet_guard`] must be written.
    pub(super) guard: bool,
    /// It is there afterwards.
    pub(super) guarded: bool,
    /// Chains of table nat that are wanted no more.
    pub(super) delete: Vec<ChainName>,
    /// Such chains that cannot be deleted, because rules of others lead to them.
    pub(super) clear: Vec<ChainName>,
}

impl Difference {
    /// No difference, until somebody finds one.
    pub(super) fn nothing(context: PlanContext) -> Self {
        Self {
            context,
            complete: false,
            ports: BTreeMap::new(),
            shared: [false; Dispatch::ALL.len()],
            shared_digests: [None; Dispatch::ALL.len()],
            base: Vec::new(),
            jumps: Vec::new(),
            guard: false,
            guarded: false,
            delete: Vec::new(),
            clear: Vec::new(),
        }
    }

    /// What must be written for `table` where the kernel holds `in_force`, whoever has written that.
    pub fn from_kernel(table: &ServiceTable, context: PlanContext, mut in_force: InForce) -> Self {
        let mut difference = Self { complete: true, ..Self::nothing(context) };
        let context = &difference.context;
        let mut shared = [ChainDigest::EMPTY; Dispatch::ALL.len()];
        for (name, entry) in &table.entries {
            let plan = ServicePlan::new(name, &entry.service, table.routes(entry), context);
            let mut record = Record::of(&plan, &mut shared);
            for chain in &mut record.chains {
                chain.in_force = in_force.chains.remove(&(TableName::Nat, chain.name)) == Some(chain.digest);
            }
            difference.ports.insert(name.clone(), Some(record));
        }
        node_port_jumps(context).iter().for_each(|rule| shared[Dispatch::Services.index()].append(rule));
        for dispatch in Dispatch::ALL {
            let known = in_force.chains.get(&(dispatch.table(), dispatch.chain()));
            difference.shared[dispatch.index()] = known != Some(&shared[dispatch.index()]);
        }
        difference.shared_digests = shared.map(Some);
        difference.base = base_chains(context);
        difference.base.retain(|chain| {
            let known = in_force.chains.get(&(chain.table, chain.name));
            match &chain.contents {
                Contents::Rules(rules) => known != Some(&ChainDigest::of(rules)),
                Contents::Foreign => known.is_none(),
            }
        });
        difference.jumps = in_force.missing_jumps;
        difference.guarded = in_force.has_guard || context.localhost_node_ports;
        difference.guard = difference.guarded && !in_force.has_guard;
        for ((table, chain), digest) in in_force.chains {
            if table != TableName::Nat || !is_service_chain(chain) {
                continue;
            }
            match in_force.used_by_others.contains(&chain) {
                false => difference.delete.push(chain),
                true if digest != ChainDigest::EMPTY => difference.clear.push(chain),
                true => {}
            }
        }
        difference.delete.sort_unstable();
        difference.clear.sort_unstable();
        difference
    }

    /// There is nothing to write.
    pub fn is_empty(&self) -> bool {
        TABLES.into_iter().all(|table| !self.concerns(table))
    }

    /// All service ports were looked at, not only those of Services that changed.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// How many chains it deletes.
    pub fn deleted(&self) -> usize {
        self.delete.len()
    }

    /// The service port that has a chain to itself, if it was looked at.
    pub fn owner(&self, chain: ChainName) -> Option<&ServicePortName> {
        let owns = |(_, record): &(_, &Option<Record>)| record.as_ref().is_some_and(|own| own.chain(chain).is_some());
        self.ports.iter().find(owns).map(|(name, _)| name)
    }

    /// Something in this table must be written.
    pub(super) fn concerns(&self, table: TableName) -> bool {
        self.shared_in(table).next().is_some()
            || self.base.iter().any(|chain| chain.table == table)
            || self.jumps.iter().any(|jump| jump.table == table)
            || (table == TableName::Filter && self.guard)
            || (table == TableName::Nat && self.concerns_services())
    }

    fn concerns_services(&self) -> bool {
        !self.delete.is_empty() || !self.clear.is_empty() || self.ports.values().flatten().any(Record::is_stale)
    }

    pub(super) fn shared_in(&self, table: TableName) -> impl Iterator<Item = Dispatch> {
        Dispatch::ALL.into_iter().filter(move |dispatch| dispatch.table() == table && self.shared[dispatch.index()])
    }
}

/// In the order in which they are written, which is kube-proxy's.
pub(super) const TABLES: [TableName; 3] = [TableName::Filter, TableName::Nat, TableName::Mangle];
