use std::collections::BTreeMap;

use ferroute_core::{ServicePortName, ServiceTable};

use super::{
    ChainContents, ChainDigest, FixedChain, Jump, KernelChains, PlanContext, ServicePlan, SharedChain,
    chain_state::PortState,
    fixed::{fixed_chains, node_port_jumps},
    is_service_chain,
};
use crate::{ChainName, TableName};

/// The difference between planned and applied rules: the chains to write and to delete. A chain is written as a whole,
/// and only if it differs.
#[derive(Clone, Debug)]
pub struct Difference {
    pub(super) context: PlanContext,
    /// All service ports were compared, not only those of changed Services.
    pub(super) complete: bool,
    /// The compared service ports; `None` for removed ones.
    pub(super) ports: BTreeMap<ServicePortName, Option<PortState>>,
    /// The shared chains to write, by [`SharedChain::index`].
    pub(super) shared: [bool; SharedChain::ALL.len()],
    /// The planned digests of the shared chains, where they are known before writing.
    pub(super) shared_digests: [Option<ChainDigest>; SharedChain::ALL.len()],
    /// The fixed chains to write.
    pub(super) fixed: Vec<FixedChain>,
    /// The missing jumps.
    pub(super) jumps: Vec<Jump>,
    /// [`super::fixed::localnet_rule`] must be written.
    pub(super) write_localnet_rule: bool,
    /// [`super::fixed::localnet_rule`] exists once the difference is applied.
    pub(super) has_localnet_rule: bool,
    /// Chains of table nat to delete.
    pub(super) delete: Vec<ChainName>,
    /// Chains of table nat to flush; they cannot be deleted, because rules of other programs jump to them.
    pub(super) flush: Vec<ChainName>,
}

impl Difference {
    /// Creates an empty difference.
    pub(super) fn empty(context: PlanContext) -> Self {
        Self {
            context,
            complete: false,
            ports: BTreeMap::new(),
            shared: [false; SharedChain::ALL.len()],
            shared_digests: [None; SharedChain::ALL.len()],
            fixed: Vec::new(),
            jumps: Vec::new(),
            write_localnet_rule: false,
            has_localnet_rule: false,
            delete: Vec::new(),
            flush: Vec::new(),
        }
    }

    /// Compares the rules planned for `table` with the chains in the kernel, whichever program wrote those.
    pub fn from_kernel(table: &ServiceTable, context: PlanContext, mut kernel: KernelChains) -> Self {
        let mut difference = Self { complete: true, ..Self::empty(context) };
        let context = &difference.context;
        let mut shared = [ChainDigest::EMPTY; SharedChain::ALL.len()];
        for (name, entry) in &table.entries {
            let plan = ServicePlan::new(name, &entry.service, table.endpoint_sets(entry), context);
            let mut port = PortState::from_plan(&plan, &mut shared);
            for chain in &mut port.chains {
                chain.applied = kernel.chains.remove(&(TableName::Nat, chain.name)) == Some(chain.digest);
            }
            difference.ports.insert(name.clone(), Some(port));
        }
        node_port_jumps(context).iter().for_each(|rule| shared[SharedChain::NatServices.index()].append(rule));
        for chain in SharedChain::ALL {
            let applied = kernel.chains.get(&(chain.table(), chain.name()));
            difference.shared[chain.index()] = applied != Some(&shared[chain.index()]);
        }
        difference.shared_digests = shared.map(Some);
        difference.fixed = fixed_chains(context);
        difference.fixed.retain(|chain| {
            let applied = kernel.chains.get(&(chain.table, chain.name));
            match &chain.contents {
                ChainContents::Rules(rules) => applied != Some(&ChainDigest::from_rules(rules)),
                ChainContents::Unmanaged => applied.is_none(),
            }
        });
        difference.jumps = kernel.missing_jumps;
        difference.has_localnet_rule = kernel.has_localnet_rule || context.localhost_node_ports;
        difference.write_localnet_rule = difference.has_localnet_rule && !kernel.has_localnet_rule;
        for ((table, chain), digest) in kernel.chains {
            if table != TableName::Nat || !is_service_chain(chain) {
                continue;
            }
            match kernel.referenced.contains(&chain) {
                false => difference.delete.push(chain),
                true if digest != ChainDigest::EMPTY => difference.flush.push(chain),
                true => {}
            }
        }
        difference.delete.sort_unstable();
        difference.flush.sort_unstable();
        difference
    }

    /// Reports whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        TABLES.into_iter().all(|table| !self.changes(table))
    }

    /// Reports whether all service ports were compared, not only those of changed Services.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the number of chains to delete.
    pub fn deleted(&self) -> usize {
        self.delete.len()
    }

    /// Returns the service port that a chain belongs to, if it was compared.
    pub fn owner(&self, chain: ChainName) -> Option<&ServicePortName> {
        let owns = |(_, port): &(_, &Option<PortState>)| port.as_ref().is_some_and(|port| port.chain(chain).is_some());
        self.ports.iter().find(owns).map(|(name, _)| name)
    }

    /// Reports whether a table must be written.
    pub(super) fn changes(&self, table: TableName) -> bool {
        self.shared_in(table).next().is_some()
            || self.fixed.iter().any(|chain| chain.table == table)
            || self.jumps.iter().any(|jump| jump.table == table)
            || (table == TableName::Filter && self.write_localnet_rule)
            || (table == TableName::Nat && self.changes_service_chains())
    }

    fn changes_service_chains(&self) -> bool {
        !self.delete.is_empty() || !self.flush.is_empty() || self.ports.values().flatten().any(PortState::is_stale)
    }

    /// Returns the shared chains of a table that must be written.
    pub(super) fn shared_in(&self, table: TableName) -> impl Iterator<Item = SharedChain> {
        SharedChain::ALL.into_iter().filter(move |chain| chain.table() == table && self.shared[chain.index()])
    }
}

/// The tables in the order in which they are written, which is kube-proxy's.
pub(super) const TABLES: [TableName; 3] = [TableName::Filter, TableName::Nat, TableName::Mangle];
