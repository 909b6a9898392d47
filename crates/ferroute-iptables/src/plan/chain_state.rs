use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{AddAssign, SubAssign},
};

use ferroute_core::{Changes, NamespacedName, Protocol, ServicePortName, ServiceTable};

use super::{
    ChainContents, ChainDigest, Difference, FixedChain, IptablesContext, KernelChains, RuleSum, ServicePlan,
    SharedChain, chains,
    difference::{SharedChange, proxy_chains},
    fixed::{fixed_chains, jumps, node_port_jumps},
};
use crate::{ChainName, TableName};

/// Digests of the applied chains: enough to determine the chains that a change affects, without the rules themselves.
///
/// It is created from a full comparison with the kernel ([`Difference::from_kernel`]) after that was applied.
/// [`ChainState::difference`] then returns the difference to be written for a change, and [`ChainState::record`]
/// updates the state after the difference was applied.
#[derive(Clone, Debug)]
pub struct ChainState {
    /// The context of the applied rules.
    pub(super) context: IptablesContext,
    pub(super) ports: BTreeMap<ServicePortName, PortState>,
    /// Whether [`super::fixed::localnet_rule`] exists. It is never deleted, because the kubelet may need it.
    has_localnet_rule: bool,
    /// The sum over `ports`.
    counts: RuleCounts,
}

/// A difference between the kernel's rules and the applied ones, caused by another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Drift {
    /// The jump from this builtin chain is missing.
    #[error("missing jump from chain {1} of table {0}")]
    Jump(TableName, ChainName),
    /// A chain is missing or has different rules.
    #[error("chain {1} of table {0} is missing or has other rules")]
    Chain(TableName, ChainName),
}

/// The state of a service port's rules.
#[derive(Clone, Debug)]
pub(super) struct PortState {
    /// The chains that belong to the service port, sorted by name.
    pub(super) chains: Box<[ServiceChain]>,
    /// Digests of its rules in the shared chains, by [`SharedChain::index`].
    pub(super) shared: [RuleSum; SharedChain::ALL.len()],
    pub(super) counts: RuleCounts,
}

/// A chain that belongs to one service port.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceChain {
    pub(super) name: ChainName,
    pub(super) digest: ChainDigest,
    /// Whether the kernel has the chain with this digest, as far as is known.
    pub(super) applied: bool,
}

/// Numbers of rules, without the jumps from builtin chains: the same numbers that kube-proxy reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// In table filter.
    pub filter: usize,
    /// In table nat.
    pub nat: usize,
}

impl PortState {
    /// Computes the state of a plan.
    pub(super) fn from_plan(plan: &ServicePlan<'_>) -> Self {
        let mut shared = [RuleSum::EMPTY; SharedChain::ALL.len()];
        let mut counts = RuleCounts::default();
        plan.shared_rules(&mut |chain, rule| {
            shared[chain.index()].add(&rule);
            *counts.table_mut(chain.table()) += 1;
        });
        let mut chains = Vec::new();
        plan.service_chains(&mut |name, rules| {
            counts.nat += rules.len();
            chains.push(ServiceChain { name, digest: ChainDigest::from_rules(rules), applied: false });
        });
        chains.sort_unstable_by_key(|chain| chain.name);
        Self { chains: chains.into(), shared, counts }
    }

    pub(super) fn chain(&self, name: ChainName) -> Option<&ServiceChain> {
        self.chains.binary_search_by_key(&name, |chain| chain.name).ok().map(|at| &self.chains[at])
    }

    /// Reports whether a chain must be written.
    pub(super) fn is_stale(&self) -> bool {
        self.chains.iter().any(|chain| !chain.applied)
    }
}

impl ChainState {
    /// Creates the state after the full comparison `everything` was applied.
    pub fn new(everything: Difference) -> Self {
        let mut state = Self {
            context: everything.context.clone(),
            ports: BTreeMap::new(),
            has_localnet_rule: false,
            counts: RuleCounts::default(),
        };
        state.record(everything);
        state
    }

    /// Determines the difference to be written for `table` after `changes`. Compares only ports of changed Services,
    /// unless the node or the context changed, which may affect every port.
    pub fn difference(&self, table: &ServiceTable, context: &IptablesContext, changes: &Changes) -> Difference {
        let mut difference =
            Difference { has_localnet_rule: self.has_localnet_rule, ..Difference::empty(context.clone()) };
        if self.context == *context && !changes.node {
            for service in &changes.services {
                for name in self.ports_of(service).chain(table.ports_of(service).map(|(name, _)| name)) {
                    self.compare_port(name, table, &mut difference);
                }
            }
        } else {
            self.compare_fixed(&mut difference);
            difference.complete = true;
            for name in self.ports.keys().chain(table.entries.keys()) {
                self.compare_port(name, table, &mut difference);
            }
        }
        difference
    }

    /// Updates the state after `difference` was applied.
    pub fn record(&mut self, difference: Difference) {
        if difference.complete {
            self.ports.clear();
            self.counts = RuleCounts::default();
        }
        for (name, port) in difference.ports {
            if let Some(old) = self.ports.remove(&name) {
                self.counts -= old.counts;
            }
            if let Some(mut port) = port {
                self.counts += port.counts;
                port.chains.iter_mut().for_each(|chain| chain.applied = true);
                self.ports.insert(name, port);
            }
        }
        self.has_localnet_rule = difference.has_localnet_rule;
        self.context = difference.context;
    }

    /// Compares the state with the kernel's chains and returns the first difference. Superfluous chains are not
    /// reported.
    pub fn drift(&self, kernel: &KernelChains) -> Option<Drift> {
        if let Some(jump) = kernel.missing_jumps.first() {
            return Some(Drift::Jump(jump.table, jump.from));
        }
        let service = self.ports.values().flat_map(|port| &port.chains).find(|chain| {
            kernel.chains.get(&(TableName::Nat, chain.name)).is_none_or(|actual| *actual != chain.digest)
        });
        self.shared_drift(kernel).or(service.map(|chain| Drift::Chain(TableName::Nat, chain.name)))
    }

    /// Like [`ChainState::drift`], for [`ChainState::shared_chains`] without the jumps to them.
    pub(crate) fn shared_drift(&self, kernel: &KernelChains) -> Option<Drift> {
        if self.context.settings.localhost_node_ports && !kernel.has_localnet_rule {
            return Some(Drift::Chain(TableName::Filter, chains::FIREWALL));
        }
        let mut fixed = fixed_chains(&self.context).into_iter().map(|chain| {
            let digest = match &chain.contents {
                ChainContents::Rules(rules) => Some(ChainDigest::from_rules(rules)),
                ChainContents::Unmanaged => None,
            };
            (chain.table, chain.name, digest)
        });
        let shared = shared_digests(&self.context, self.ports.values());
        for ((chain, digest), actual) in SharedChain::ALL.into_iter().zip(shared).zip(kernel.shared) {
            if actual != Some(digest) {
                return Some(Drift::Chain(chain.table(), chain.name()));
            }
        }
        let has_drifted = |(table, chain, digest): &(_, _, Option<ChainDigest>)| {
            let actual = kernel.chains.get(&(*table, *chain));
            actual.is_none_or(|actual| digest.is_some_and(|digest| *actual != digest))
        };
        fixed.find(has_drifted).map(|(table, chain, _)| Drift::Chain(table, chain))
    }

    /// Returns those of `chains` that belong to one service port and differ in `kernel`.
    pub(crate) fn drifted(&self, chains: &[(TableName, ChainName)], kernel: &KernelChains) -> BTreeSet<ChainName> {
        let chains: BTreeSet<_> = chains.iter().collect();
        let of_ports = self.ports.values().flat_map(|port| &port.chains);
        let read =
            of_ports.map(|chain| ((TableName::Nat, chain.name), chain.digest)).filter(|(key, _)| chains.contains(key));
        read.filter(|(key, digest)| kernel.chains.get(key) != Some(digest)).map(|((_, chain), _)| chain).collect()
    }

    /// Has [`ChainState::difference`] write these chains, which another program changed.
    pub(crate) fn forget(&mut self, names: &BTreeSet<ChainName>) {
        let chains = self.ports.values_mut().flat_map(|port| &mut port.chains);
        chains.filter(|chain| names.contains(&chain.name)).for_each(|chain| chain.applied = false);
    }

    /// Returns what restores the chains that do not belong to one service port, and the jumps to them, which `kernel` must
    /// have. Empty if a shared chain is missing, because those of Services may be missing, too.
    pub fn shared_repair(&self, mut kernel: KernelChains) -> Difference {
        let mut repair =
            Difference { has_localnet_rule: self.has_localnet_rule, ..Difference::empty(self.context.clone()) };
        if kernel.shared.iter().all(Option::is_some) {
            repair.shared.fill(SharedChange::Whole);
            repair.fixed = fixed_chains(&self.context);
            repair.without_shared(shared_digests(&self.context, self.ports.values()), &mut kernel);
        }
        repair
    }

    /// The applied chains that do not belong to one service port.
    pub(crate) fn shared_chains(&self) -> Vec<(TableName, ChainName)> {
        proxy_chains(&self.context, [].into_iter())
    }

    /// The applied chains.
    pub(crate) fn chains(&self) -> Vec<(TableName, ChainName)> {
        proxy_chains(&self.context, self.ports.values())
    }

    /// Returns the numbers of applied rules.
    pub fn counts(&self) -> RuleCounts {
        let mut counts = self.counts;
        for chain in fixed_chains(&self.context) {
            if let ChainContents::Rules(rules) = chain.contents {
                *counts.table_mut(chain.table) += rules.len();
            }
        }
        counts.nat += node_port_jumps(&self.context).len();
        counts.filter += usize::from(self.context.settings.localhost_node_ports);
        counts
    }

    fn ports_of(&self, service: &NamespacedName) -> impl Iterator<Item = &ServicePortName> {
        let first = ServicePortName { service: service.clone(), port: "".into(), protocol: Protocol::Tcp };
        self.ports.range(first..).map(|(name, _)| name).take_while(move |name| name.service == *service)
    }

    fn compare_port(&self, name: &ServicePortName, table: &ServiceTable, difference: &mut Difference) {
        if difference.ports.contains_key(name) {
            return;
        }
        let old = self.ports.get(name);
        let mut new = table.entries.get(name).map(|entry| {
            let plan = ServicePlan::new(table, name, entry, &difference.context);
            PortState::from_plan(&plan)
        });
        let digests = shared_digests_of(old).into_iter().zip(shared_digests_of(new.as_ref()));
        for (change, (old, new)) in difference.shared.iter_mut().zip(digests) {
            if old != new {
                *change = SharedChange::Whole;
            }
        }
        for chain in new.iter_mut().flat_map(|port| &mut port.chains) {
            let applied = old.and_then(|old| old.chain(chain.name));
            chain.applied = applied.is_some_and(|applied| applied.applied && applied.digest == chain.digest);
        }
        let is_needed = |chain: ChainName| new.as_ref().is_some_and(|new| new.chain(chain).is_some());
        let previous = old.into_iter().flat_map(|old| &old.chains).map(|chain| chain.name);
        difference.delete.extend(previous.filter(|chain| !is_needed(*chain)));
        difference.ports.insert(name.clone(), new);
    }

    /// Compares the rules that do not depend on Services.
    fn compare_fixed(&self, difference: &mut Difference) {
        let applied = fixed_chains(&self.context);
        // An unmanaged chain exists already.
        let differs = |new: &FixedChain| new.contents != ChainContents::Unmanaged && !applied.contains(new);
        difference.fixed = fixed_chains(&difference.context).into_iter().filter(differs).collect();
        difference.has_localnet_rule |= difference.context.settings.localhost_node_ports;
        difference.write_localnet_rule = difference.has_localnet_rule && !self.has_localnet_rule;
        if node_port_jumps(&self.context) != node_port_jumps(&difference.context) {
            difference.shared[SharedChain::NatServices.index()] = SharedChange::Whole;
        }
    }
}

/// The builtin chains that jump to shared chains.
pub(crate) fn callers() -> BTreeSet<(TableName, ChainName)> {
    jumps().into_iter().map(|jump| (jump.table, jump.from)).collect()
}

/// Returns the digests of a service port's rules in the shared chains.
pub(super) fn shared_digests_of(port: Option<&PortState>) -> [RuleSum; SharedChain::ALL.len()] {
    port.map_or([RuleSum::EMPTY; SharedChain::ALL.len()], |port| port.shared)
}

/// Returns the digests of the shared chains with the rules of these service ports.
pub(super) fn shared_digests<'a>(
    context: &IptablesContext,
    ports: impl Iterator<Item = &'a PortState>,
) -> [RuleSum; SharedChain::ALL.len()] {
    let mut digests = [RuleSum::EMPTY; SharedChain::ALL.len()];
    for port in ports {
        digests.iter_mut().zip(port.shared).for_each(|(digest, of_port)| *digest += of_port);
    }
    digests[SharedChain::NatServices.index()] += RuleSum::from_rules(&node_port_jumps(context));
    digests
}

impl RuleCounts {
    /// The sum over both tables.
    pub fn total(self) -> usize {
        self.filter + self.nat
    }

    /// Returns the number of rules in a table. Tables other than filter count as nat, although only filter and nat have
    /// rules.
    pub(super) fn table_mut(&mut self, table: TableName) -> &mut usize {
        match table {
            TableName::Filter => &mut self.filter,
            _ => &mut self.nat,
        }
    }
}

impl AddAssign for RuleCounts {
    fn add_assign(&mut self, Self { filter, nat }: Self) {
        self.filter += filter;
        self.nat += nat;
    }
}

impl SubAssign for RuleCounts {
    fn sub_assign(&mut self, Self { filter, nat }: Self) {
        self.filter -= filter;
        self.nat -= nat;
    }
}
