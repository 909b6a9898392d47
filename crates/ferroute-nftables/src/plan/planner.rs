use std::{
    collections::{BTreeSet, HashMap, HashSet},
    iter,
    sync::Arc,
};

use ferroute_core::{ModeTraits, NodePortMatch, ServicePortName, ServiceTable, forwarding};

use super::{
    Context, FLOWTABLE, Frontend, KeyOwner, ListNumber, SetId, Steps, TABLE,
    elements::{Difference, FrontendView, SetElement},
    existing::ExistingLists,
    fixed::{fixed_chains, fixed_elements},
    frontend_from_key,
    list::ListNumbers,
    list_number,
    port_plan::{Exposure, PlanError, PortElements},
    shared::{SharedObjects, Written, delete},
};
use crate::model::{ChainWithRules, Change, Comment, Element, Flowtable, Name, Set, TableId, Transaction, Value};

/// Computes the changes that bring a table from its current to its desired state.
///
/// The planner assumes that all its changes are applied, in order. After a failed transaction, or after another
/// program's changes, create a new planner and compare its result with the kernel's table.
#[derive(Clone, Debug)]
pub(crate) struct Planner {
    context: Context,
    /// Boxed, because a hash table allocates up to twice as many slots as it has entries.
    ports: HashMap<ServicePortName, Box<PortElements>>,
    /// Frontends that changed service ports lose in the current sync, with these service ports.
    leaving: HashMap<Frontend, ServicePortName>,
    /// The service ports that lose frontends in the current sync.
    losers: HashSet<ServicePortName>,
    shared: SharedObjects,
    numbers: ListNumbers,
    /// Numbers that are free after the current transaction.
    released: HashSet<ListNumber>,
    /// Service ports without a plan, because all numbers are in use. They are planned when they change.
    unnumbered: BTreeSet<ServicePortName>,
    /// The lists in the kernel, for service ports that were not planned yet.
    existing: ExistingLists,
}

/// The plan of a service port before an update.
#[derive(Debug)]
pub(crate) struct Undo {
    /// The service port.
    pub(crate) name: ServicePortName,
    old: Option<Box<PortElements>>,
    /// Plans of the service ports that lost a frontend to this one.
    losers: Vec<(ServicePortName, Box<PortElements>)>,
}

/// The frontends whose elements are replaced with the plan of a service port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// All of them.
    All,
    /// No frontends: other service ports have replaced those that this one loses.
    None,
}

impl Planner {
    /// Returns a planner for an empty table.
    pub(crate) fn new(context: Context) -> Self {
        Self::with_lists(context, ExistingLists::default())
    }

    /// Returns a planner for an empty table that keeps lists as they were read from the kernel.
    pub(crate) fn with_lists(context: Context, existing: ExistingLists) -> Self {
        Self {
            context,
            ports: HashMap::new(),
            leaving: HashMap::new(),
            losers: HashSet::new(),
            shared: SharedObjects::default(),
            numbers: ListNumbers::new(existing.numbers()),
            released: HashSet::new(),
            unnumbered: BTreeSet::new(),
            existing,
        }
    }

    /// Returns the context.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the frontends with the numbers of their service ports.
    pub(crate) fn numbers(&self) -> Vec<(Frontend, ListNumber)> {
        self.views().map(|view| (view.plan.frontend, view.port.number)).collect()
    }

    /// Writes the objects that exist without any Service.
    pub(crate) fn create_table(&self, transaction: &mut Transaction) {
        transaction.push(Change::AddTable(Some(Comment::TABLE)));
        transaction.changes.extend(self.flowtable().map(Change::AddFlowtable));
        transaction.changes.extend(self.sets().into_iter().map(Change::AddSet));
        for chain in fixed_chains(&self.context, self.shared.sets()) {
            transaction.add_chain(chain);
        }
        let elements = fixed_elements().chain(node_port_addresses(&self.context));
        transaction.changes.extend(elements.map(|(set, element)| Change::AddElement(set.name(), element)));
    }

    /// Prepares for the updates of these service ports, so that a frontend that moves between two of them is replaced
    /// in one step, regardless of the order of the updates.
    pub(crate) fn begin_updates<'a>(&mut self, names: impl Iterator<Item = &'a ServicePortName>, table: &ServiceTable) {
        for name in names {
            let Some(port) = self.ports.get(name) else { continue };
            let new = table.entries.get(name).map(|entry| &entry.service);
            if new.is_some_and(|new| Arc::ptr_eq(new, &port.exposure.service)) {
                continue;
            }
            let kept: HashSet<Frontend> =
                new.into_iter().flat_map(|new| new.frontends(name.protocol)).map(|(_, frontend)| frontend).collect();
            let frontends = port.exposure.frontends.iter().map(|plan| plan.frontend);
            let before = self.leaving.len();
            self.leaving.extend(frontends.filter(|it| !kept.contains(it)).map(|frontend| (frontend, name.clone())));
            if self.leaving.len() > before {
                self.losers.insert(name.clone());
            }
        }
    }

    /// Ends the updates that [`Planner::begin_updates`] prepared for.
    pub(crate) fn end_updates(&mut self) {
        (self.leaving, self.losers) = (HashMap::new(), HashSet::new());
    }

    /// Writes the changes of a service port: to its entry in `table`, or its removal. Returns the state for
    /// [`Planner::roll_back`], unless nothing can change.
    ///
    /// # Errors
    /// The entry cannot be planned. The service port keeps its previous plan, if it has one.
    pub(crate) fn update(
        &mut self,
        name: &ServicePortName,
        table: &ServiceTable,
        steps: &mut Steps,
    ) -> Result<Option<Undo>, PlanError> {
        let old = self.ports.remove(name);
        let new = match self.plan(name, old.as_deref(), table) {
            Ok(new) => new,
            Err(error) => {
                self.ports.extend(old.map(|old| (name.clone(), old)));
                return Err(error);
            }
        };
        if new.is_none() && table.entries.contains_key(name) {
            self.unnumbered.insert(name.clone());
        } else if !self.unnumbered.is_empty() {
            self.unnumbered.remove(name);
        }
        let is_changed = old != new;
        let mut losers = Vec::new();
        if is_changed {
            self.replace(name, old.as_deref(), new.as_deref(), Scope::All, steps);
            losers = new.as_deref().map(|new| self.take_frontends(new, steps)).unwrap_or_default();
        }
        if let Some(new) = new {
            self.ports.insert(name.clone(), new);
        }
        // If another service port has taken all frontends that this one loses, this one changes again when that is
        // rolled back.
        Ok((is_changed || self.losers.contains(name)).then(|| Undo { name: name.clone(), old, losers }))
    }

    /// Removes the frontends of a new plan from the service ports that lose them, after their elements were replaced.
    /// Returns the previous plans of these service ports.
    fn take_frontends(&mut self, new: &PortElements, steps: &mut Steps) -> Vec<(ServicePortName, Box<PortElements>)> {
        if self.leaving.is_empty() {
            return Vec::new();
        }
        let frontends = new.exposure.frontends.iter();
        let losers: BTreeSet<ServicePortName> =
            frontends.filter_map(|plan| Some(self.loser(plan.frontend)?.name.clone())).collect();
        let take = |name: ServicePortName| {
            let old = self.ports.remove(&name)?;
            let exposure = old.exposure.retain_frontends(name.protocol, |frontend| new.frontend(frontend).is_none());
            let left = Box::new(old.with_exposure(exposure));
            self.replace(&name, Some(&old), Some(&left), Scope::None, steps);
            self.ports.insert(name.clone(), left);
            Some((name, old))
        };
        losers.into_iter().filter_map(take).collect()
    }

    /// Returns the service port that loses a frontend in the current sync and has not been updated yet.
    fn loser(&self, frontend: Frontend) -> Option<FrontendView<'_>> {
        let (name, port) = self.ports.get_key_value(self.leaving.get(&frontend)?)?;
        Some(FrontendView { name, port, plan: port.frontend(frontend)? })
    }

    /// Returns the service ports that are not served because no number is left for their lists.
    pub(crate) fn unnumbered(&self) -> &BTreeSet<ServicePortName> {
        &self.unnumbered
    }

    /// Returns the written state other than elements, to be kept for [`Planner::roll_back`] before a transaction
    /// begins.
    pub(crate) fn written(&self) -> Written {
        self.shared.written()
    }

    /// Takes back the updates of a transaction that was not committed.
    pub(crate) fn roll_back(&mut self, updates: Vec<Undo>, written: Written) {
        // The table is as it was before.
        let mut unwritten = Steps::new(TableId { family: self.context.settings.family, name: TABLE });
        for Undo { name, old, losers } in updates.into_iter().rev() {
            let losers = losers.into_iter().map(|(name, old)| (name, Some(old)));
            for (name, old) in losers.rev().chain([(name, old)]) {
                let new = self.ports.remove(&name);
                self.replace(&name, new.as_deref(), old.as_deref(), Scope::None, &mut unwritten);
                if let Some(old) = old {
                    self.ports.insert(name, old);
                }
                unwritten.clear();
            }
        }
        self.finish_transaction(&mut unwritten);
        self.shared.restore(written);
    }

    /// Returns the service port that an element of a refused change belongs to.
    pub(crate) fn owner_of(&self, change: &Change) -> Option<ServicePortName> {
        let (Change::AddElement(set, element) | Change::DeleteElement(set, element)) = change else { return None };
        let has_element: &dyn Fn(&PortElements) -> bool = match SetId::from_name(set)?.key_owner() {
            KeyOwner::Frontend => {
                let frontend = frontend_from_key(&element.key)?;
                &move |port| port.frontend(frontend).is_some()
            }
            KeyOwner::List => {
                let number = list_number(&element.key)?;
                &move |port| port.number == number
            }
            KeyOwner::ClusterIp => {
                &|port| port.exposure.service.cluster_ip.map(Value::Address).as_ref() == element.key.first()
            }
            KeyOwner::Endpoint | KeyOwner::None => return None,
        };
        self.ports.iter().find(|(_, port)| has_element(port)).map(|(name, _)| name.clone())
    }

    /// Plans a service port; `None` if it has no entry or if no number is left for it.
    fn plan(
        &mut self,
        name: &ServicePortName,
        old: Option<&PortElements>,
        table: &ServiceTable,
    ) -> Result<Option<Box<PortElements>>, PlanError> {
        let Some(entry) = table.entries.get(name) else { return Ok(None) };
        let forwarding = forwarding(table, name, entry, &self.context.settings, &ModeTraits::NFTABLES);
        let exposure = Exposure::new(name, &entry.service, &self.context, old.map(|old| &old.exposure));
        let number = match old {
            Some(old) => Some(old.number),
            None => {
                let frontends = exposure.frontends.iter().map(|plan| plan.frontend);
                self.numbers.choose(self.existing.number_of(frontends))
            }
        };
        let Some(number) = number else { return Ok(None) };
        let protocol = name.protocol;
        let mut plan =
            PortElements::new(number, exposure, self.context.settings.family, &forwarding, |list| match old {
                Some(old) => old.list(list).iter().map(Some).collect(),
                None => self.existing.endpoints_of(number.list(list), protocol),
            })?;
        if plan.affinity().is_some() {
            plan.assign_slots(|list| match old {
                Some(old) => old.slots(list).into_iter().flatten().collect(),
                None => self.existing.slots_of(number.list(list), protocol),
            })?;
        }
        Ok(Some(Box::new(plan)))
    }

    /// Writes the changes that depend on all updates of a transaction. To be called once, at its end. Returns the state that is
    /// written before the elements change.
    pub(crate) fn finish_transaction(&mut self, steps: &mut Steps) -> Written {
        self.shared.write_affinity_shares(&mut steps.changes);
        self.shared.write_used(&self.context, &mut steps.before);
        let written = self.shared.written();
        self.shared.delete_unused_sets(&self.context, &mut steps.after);
        for number in std::mem::take(&mut self.released) {
            self.numbers.release(number);
        }
        written
    }

    /// Changes the context, for example after a change of the Node. All service ports have to be updated afterwards.
    pub(crate) fn set_context(&mut self, context: Context, transaction: &mut Transaction) {
        if context == self.context {
            return;
        }
        let old = std::mem::replace(&mut self.context, context);
        let chains =
            |context| [fixed_chains(context, self.shared.sets()), self.shared.written_chains(context)].concat();
        for (old, new) in chains(&old).into_iter().zip(chains(&self.context)).filter(|(old, new)| old != new) {
            transaction.replace_rules(&old.chain.name, new.rules);
        }
        let addresses = |context| node_port_addresses(context).collect();
        Difference::new(addresses(&old), addresses(&self.context)).write(transaction);
    }

    /// Returns the changes that delete elements that lead only to unused chains. They can be deleted once all previous
    /// transactions have been committed.
    pub(crate) fn unused_elements(&self) -> Vec<Change> {
        self.shared.unused_elements().map(delete).collect()
    }

    /// Marks these elements as deleted.
    pub(crate) fn unused_elements_deleted(&mut self) {
        self.shared.unused_elements_deleted();
    }

    /// Returns the unused chains, which can be deleted after these elements.
    pub(crate) fn unused_chains(&self) -> Vec<Name> {
        self.shared.unused_chains().collect()
    }

    /// Returns the deletions of the unused chains and of the elements that lead to them.
    pub(crate) fn unused_deletions(&self) -> Vec<Change> {
        self.unused_elements().into_iter().chain(self.shared.unused_chains().map(Change::DeleteChain)).collect()
    }

    /// Forgets the unused chains, after they were deleted.
    pub(crate) fn unused_deleted(&mut self) {
        self.shared.unused_deleted();
    }

    /// Returns the names of all service ports, in no particular order.
    pub(crate) fn service_ports(&self) -> impl Iterator<Item = &ServicePortName> {
        self.ports.keys()
    }

    /// Returns the plan of each service port, in no particular order.
    pub(super) fn ports(&self) -> impl Iterator<Item = (&ServicePortName, &PortElements)> {
        self.ports.iter().map(|(name, port)| (name, &**port))
    }

    /// Returns all frontends, in no particular order.
    fn views(&self) -> impl Iterator<Item = FrontendView<'_>> {
        self.ports
            .iter()
            .flat_map(|(name, port)| port.exposure.frontends.iter().map(move |plan| FrontendView { name, port, plan }))
    }

    /// Returns all sets and maps.
    pub(crate) fn sets(&self) -> Vec<Set> {
        let of_flowtable = self.flowtable().map(|_| SetId::OF_FLOWTABLE).into_iter().flatten();
        SetId::FIXED
            .into_iter()
            .chain(of_flowtable)
            .chain(self.shared.sets())
            .map(|id| id.declaration(&self.context))
            .collect()
    }

    /// Returns the flowtable without devices; `None` if there is none.
    pub(crate) fn flowtable(&self) -> Option<Flowtable> {
        self.context.flowtable_packets.map(|_| Flowtable { name: FLOWTABLE, devices: Vec::new() })
    }

    /// Returns all chains; the targets of jumps and gotos come first.
    pub(crate) fn chains(&self) -> Vec<ChainWithRules> {
        self.chains_with(iter::empty())
    }

    /// Returns all chains, with the rules for these sets in addition to those of [`Planner::sets`].
    pub(crate) fn chains_with(&self, sets: impl Iterator<Item = SetId>) -> Vec<ChainWithRules> {
        let sets: BTreeSet<SetId> = self.shared.sets().chain(sets).collect();
        [self.shared.chains(&self.context), fixed_chains(&self.context, sets.iter().copied())].concat()
    }

    /// Calls `each` with every element, in no particular order.
    pub(crate) fn for_each_element(&self, mut each: impl FnMut(SetId, Element)) {
        self.views().flat_map(|view| view.elements()).for_each(|(set, element)| each(set, element));
        for (name, port) in &self.ports {
            let elements = [port.list_elements(name.protocol), port.restriction_elements(name), port.class_elements()];
            elements.into_iter().flatten().for_each(|(set, element)| each(set, element));
        }
        let shared = self.shared.elements().chain(node_port_addresses(&self.context));
        shared.for_each(|(set, element)| each(set, element));
    }

    /// Returns the lists that the planner was created with. The planner does not need them once all service ports have
    /// been updated.
    pub(crate) fn take_existing(&mut self) -> ExistingLists {
        self.numbers.clear_reserved();
        std::mem::take(&mut self.existing)
    }

    fn replace(
        &mut self,
        name: &ServicePortName,
        old: Option<&PortElements>,
        new: Option<&PortElements>,
        frontends: Scope,
        steps: &mut Steps,
    ) {
        let Steps { changes: transaction, after, .. } = steps;
        self.shared.divide_affinity(name.service.namespace(), old, new);
        if let Some(new) = new {
            self.numbers.take(new.number);
            self.released.remove(&new.number);
            self.shared.acquire(new, name.protocol, transaction);
        }
        let lists =
            |port: Option<&PortElements>| port.map(|port| port.list_elements(name.protocol)).unwrap_or_default();
        let classes = |port: Option<&PortElements>| port.map(PortElements::class_elements).unwrap_or_default();
        let (mut lists, mut classes) =
            (Difference::new(lists(old), lists(new)), Difference::new(classes(old), classes(new)));
        // The objects that a frontend leads to are added before it, because a long transaction is split.
        transaction.changes.append(&mut lists.additions);
        transaction.changes.append(&mut classes.additions);
        if old.zip(new).is_some_and(|(old, new)| old.number == new.number && old.exposure == new.exposure) {
            // For a packet that was led to a list that became shorter, there are rules.
            transaction.changes.extend(classes.removals.into_iter().chain(lists.removals));
        } else {
            let elements =
                |port: Option<&PortElements>| port.map(|port| port.restriction_elements(name)).unwrap_or_default();
            let mut ranges = Difference::new(elements(old), elements(new));
            transaction.changes.append(&mut ranges.additions);
            if frontends == Scope::All {
                self.replace_frontends(name, old, new, transaction);
            }
            after.changes.extend(classes.removals.into_iter().chain(lists.removals).chain(ranges.removals));
        }
        let Some(old) = old else { return };
        self.shared.release(old, name.protocol, transaction);
        if new.is_none_or(|new| new.number != old.number) {
            self.released.insert(old.number);
        }
    }

    fn replace_frontends(
        &self,
        name: &ServicePortName,
        old: Option<&PortElements>,
        new: Option<&PortElements>,
        transaction: &mut Transaction,
    ) {
        let views = |port| move |plan| FrontendView { name, port, plan };
        for view in new.into_iter().flat_map(|new| new.exposure.frontends.iter().map(views(new))) {
            let frontend = view.plan.frontend;
            let old = old.and_then(|port| Some(FrontendView { name, port, plan: port.frontend(frontend)? }));
            change(old.or_else(|| self.loser(frontend)), Some(view), transaction);
        }
        let is_removed = |view: &FrontendView<'_>| new.is_none_or(|new| new.frontend(view.plan.frontend).is_none());
        for view in old.into_iter().flat_map(|old| old.exposure.frontends.iter().map(views(old))).filter(is_removed) {
            change(Some(view), None, transaction);
        }
    }
}

/// Writes the changes of a frontend.
fn change(old: Option<FrontendView<'_>>, new: Option<FrontendView<'_>>, transaction: &mut Transaction) {
    let elements = |view: Option<FrontendView<'_>>| view.map(|view| view.elements()).unwrap_or_default();
    Difference::new(elements(old), elements(new)).write(transaction);
}

fn node_port_addresses(context: &Context) -> impl Iterator<Item = SetElement> {
    let addresses = match &context.settings.node_ports {
        NodePortMatch::AnyLocal => &[][..],
        NodePortMatch::Addresses(addresses) => addresses,
    };
    addresses.iter().map(|address| (SetId::NodePortAddresses, Element::new([(*address).into()])))
}

#[cfg(test)]
mod tests;
