use std::collections::BTreeMap;

use ferroute_core::{ServicePortName, ServiceTable};

use super::{
    ChainContents, ChainDigest, FixedChain, IptablesContext, Jump, KernelChains, RuleSum, ServicePlan, SharedChain,
    chain_state::{PortState, shared_digests},
    edit::SharedEdit,
    fixed::fixed_chains,
    is_service_chain, jumps,
};
use crate::{ChainName, TableName};

/// The difference between planned and applied rules: the chains to write and to delete. A chain is written only if it
/// differs, and then as a whole, except for shared chains that are edited.
#[derive(Clone, Debug)]
pub struct Difference {
    pub(super) context: IptablesContext,
    /// Whether all service ports were compared, not only those of changed Services.
    pub(super) complete: bool,
    /// The compared service ports; `None` for removed ones.
    pub(super) ports: BTreeMap<ServicePortName, Option<PortState>>,
    /// The changes of the shared chains, by [`SharedChain::index`].
    pub(super) shared: [SharedChange; SharedChain::ALL.len()],
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

/// The change of a shared chain.
#[derive(Clone, Debug, Default)]
pub(super) enum SharedChange {
    /// The chain does not change.
    #[default]
    Nothing,
    /// The rules of some service ports are replaced.
    Edit(SharedEdit),
    /// The chain is written as a whole.
    Whole,
}

impl Difference {
    /// Creates an empty difference.
    pub(super) fn empty(context: IptablesContext) -> Self {
        Self {
            context,
            complete: false,
            ports: BTreeMap::new(),
            shared: Default::default(),
            fixed: Vec::new(),
            jumps: Vec::new(),
            write_localnet_rule: false,
            has_localnet_rule: false,
            delete: Vec::new(),
            flush: Vec::new(),
        }
    }

    /// Compares the rules planned for `table` with the chains in the kernel, written by any program.
    pub fn from_kernel(table: &ServiceTable, context: IptablesContext, kernel: KernelChains) -> Self {
        Self::everything(table, context).without(kernel)
    }

    /// Plans all rules for `table`, as if the kernel had none of the proxy's chains.
    pub(crate) fn everything(table: &ServiceTable, context: IptablesContext) -> Self {
        let mut difference = Self { complete: true, ..Self::empty(context) };
        let context = &difference.context;
        for (name, entry) in &table.entries {
            let plan = ServicePlan::new(table, name, entry, context);
            difference.ports.insert(name.clone(), Some(PortState::from_plan(&plan)));
        }
        difference.shared.fill(SharedChange::Whole);
        difference.fixed = fixed_chains(context);
        difference.jumps = jumps();
        difference.has_localnet_rule = context.settings.localhost_node_ports;
        difference.write_localnet_rule = context.settings.localhost_node_ports;
        difference
    }

    /// Returns the proxy's chains, if this is [`Difference::everything`].
    pub(crate) fn chains(&self) -> Vec<(TableName, ChainName)> {
        proxy_chains(&self.context, self.ports.values().flatten())
    }

    /// Removes the chains that the kernel already has from [`Difference::everything`], and adds those that it should
    /// not have.
    pub(crate) fn without(mut self, mut kernel: KernelChains) -> Self {
        for chain in self.ports.values_mut().flatten().flat_map(|port| &mut port.chains) {
            chain.applied = kernel.chains.remove(&(TableName::Nat, chain.name)) == Some(chain.digest);
        }
        let planned = shared_digests(&self.context, self.ports.values().flatten());
        self.without_shared(planned, &mut kernel);
        for ((table, chain), digest) in kernel.chains {
            if table != TableName::Nat || !is_service_chain(chain) {
                continue;
            }
            match kernel.referenced.contains(&chain) {
                false => self.delete.push(chain),
                true if digest != ChainDigest::EMPTY => self.flush.push(chain),
                true => {}
            }
        }
        self.delete.sort_unstable();
        self.flush.sort_unstable();
        self
    }

    /// Removes the chains that do not belong to one service port, and that the kernel already has. `planned` are the
    /// digests of the shared chains.
    pub(super) fn without_shared(&mut self, planned: [RuleSum; SharedChain::ALL.len()], kernel: &mut KernelChains) {
        for ((change, planned), applied) in self.shared.iter_mut().zip(planned).zip(kernel.shared) {
            if applied == Some(planned) {
                *change = SharedChange::Nothing;
            }
        }
        self.fixed.retain(|chain| {
            let applied = kernel.chains.get(&(chain.table, chain.name));
            match &chain.contents {
                ChainContents::Rules(rules) => applied != Some(&ChainDigest::from_rules(rules)),
                ChainContents::Unmanaged => applied.is_none(),
            }
        });
        self.jumps = std::mem::take(&mut kernel.missing_jumps);
        self.has_localnet_rule |= kernel.has_localnet_rule;
        self.write_localnet_rule = self.has_localnet_rule && !kernel.has_localnet_rule;
    }

    /// Reports whether shared chains are edited, which depends on their rules in the kernel.
    pub(crate) fn has_edits(&self) -> bool {
        self.shared.iter().any(|change| matches!(change, SharedChange::Edit(_)))
    }

    /// Replaces edits of shared chains by writing the whole chains.
    pub(crate) fn replace_edits(&mut self) {
        let edits = self.shared.iter_mut().filter(|change| matches!(change, SharedChange::Edit(_)));
        edits.for_each(|change| *change = SharedChange::Whole);
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
    pub(super) fn shared_in(&self, table: TableName) -> impl Iterator<Item = (SharedChain, &SharedChange)> {
        let changes = SharedChain::ALL.into_iter().zip(&self.shared);
        changes.filter(move |(chain, change)| chain.table() == table && !matches!(change, SharedChange::Nothing))
    }
}

/// Returns the proxy's chains, with those of some service ports.
pub(super) fn proxy_chains<'a>(
    context: &IptablesContext,
    ports: impl Iterator<Item = &'a PortState>,
) -> Vec<(TableName, ChainName)> {
    let fixed = fixed_chains(context).into_iter().map(|chain| (chain.table, chain.name));
    let shared = SharedChain::ALL.into_iter().map(|chain| (chain.table(), chain.name()));
    let service = ports.flat_map(|port| &port.chains).map(|chain| (TableName::Nat, chain.name));
    fixed.chain(shared).chain(service).collect()
}

/// The tables in the order in which they are written, which is kube-proxy's.
pub(super) const TABLES: [TableName; 3] = [TableName::Filter, TableName::Nat, TableName::Mangle];
