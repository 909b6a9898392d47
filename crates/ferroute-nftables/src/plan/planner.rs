use std::collections::{BTreeMap, BTreeSet, HashMap};

use ferroute_core::{Affinity, NodePortMatch, ServicePortName, ServiceTable};

use super::{
    Context, Frontend, SetId,
    elements::{FrontendView, SetElement, difference},
    fixed::fixed_chains,
    kind::ListId,
    order::EndpointOrder,
    port_plan::{FrontendPlan, PortPlan},
    shared::SharedObjects,
    slots::SlotOwners,
};
use crate::model::{ChainWithRules, Change, Comment, Element, Name, Set, Transaction};

/// Computes the changes that bring a table from its current to its desired state.
///
/// The planner assumes that all its changes are applied, in order. After a failed transaction, or after another
/// program's changes, create a new planner and compare its result with the kernel's table.
#[derive(Clone, Debug)]
pub(crate) struct Planner {
    context: Context,
    /// Boxed, because a hash table allocates up to twice as many slots as it has entries.
    ports: HashMap<ServicePortName, Box<PortPlan>>,
    /// The service port that owns each frontend; ties go to the first by name.
    owners: HashMap<Frontend, ServicePortName>,
    /// Service ports that wait for a frontend of another one.
    waiting: BTreeMap<Frontend, BTreeSet<ServicePortName>>,
    /// Frontends without an owner that service ports wait for.
    vacant: BTreeSet<Frontend>,
    shared: SharedObjects,
    slot_owners: SlotOwners,
    /// The order of endpoints in the kernel, for service ports that were not planned yet.
    order: EndpointOrder,
    no_local_endpoints: NoLocalEndpoints,
}

/// Numbers of service ports without endpoints on this node although their traffic policy is Local, and with endpoints
/// on other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NoLocalEndpoints {
    /// Service ports with `internalTrafficPolicy: Local`.
    pub(crate) internal: usize,
    /// Service ports with `externalTrafficPolicy: Local`.
    pub(crate) external: usize,
}

impl Planner {
    /// Returns a planner for an empty table.
    pub(crate) fn new(context: Context) -> Self {
        let order = EndpointOrder::new(context.family);
        Self::with_order(context, order)
    }

    /// Returns a planner for an empty table that keeps endpoints in the order in which they were read from the kernel.
    pub(crate) fn with_order(context: Context, order: EndpointOrder) -> Self {
        Self {
            context,
            ports: HashMap::new(),
            owners: HashMap::new(),
            waiting: BTreeMap::new(),
            vacant: BTreeSet::new(),
            shared: SharedObjects::default(),
            slot_owners: SlotOwners::new(order.slot_owners()),
            order,
            no_local_endpoints: NoLocalEndpoints::default(),
        }
    }

    /// Returns the context.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Writes the objects that exist without any Service.
    pub(crate) fn create_table(&self, transaction: &mut Transaction) {
        transaction.push(Change::AddTable(Some(TABLE_COMMENT)));
        transaction.changes.extend(self.sets().into_iter().map(Change::AddSet));
        for chain in fixed_chains(&self.context, self.shared.timeouts()) {
            transaction.add_chain(chain);
        }
        let addresses = node_port_addresses(&self.context);
        transaction.changes.extend(addresses.map(|(set, element)| Change::AddElement(set.name(), element)));
    }

    /// Writes the changes of a service port: to its entry in `table`, or its removal.
    pub(crate) fn update(&mut self, name: &ServicePortName, table: &ServiceTable, transaction: &mut Transaction) {
        let old = self.ports.remove(name);
        let order = |frontends: &[FrontendPlan], list: ListId| match &old {
            Some(old) => old.list(list).iter().map(Some).collect(),
            None => {
                self.order.endpoints_of(frontends.iter().filter(|plan| plan.uses(list)).map(|plan| plan.frontend), list)
            }
        };
        let entry = table.entries.get(name);
        let mut new = entry.map(|entry| Box::new(PortPlan::new(name, entry, table, &self.context, order)));
        old.iter().for_each(|old| old.release_slots(&mut self.slot_owners));
        if let Some((new, affinity)) = new.as_mut().zip(entry.and_then(|entry| entry.service.affinity)) {
            self.assign_slots(name, new, affinity, old.as_deref());
        }
        if old != new {
            self.replace(name, old.as_deref(), new.as_deref(), transaction);
        }
        if let Some(new) = new {
            self.ports.insert(name.clone(), new);
        }
    }

    /// Writes the changes that depend on all updates of a transaction. To be called once, at its end.
    pub(crate) fn finish_transaction(&mut self, transaction: &mut Transaction) {
        for frontend in std::mem::take(&mut self.vacant) {
            // The waiting service ports may have been removed, and another one may own the frontend.
            if self.owners.contains_key(&frontend) {
                continue;
            }
            let Some(name) = self.waiting.get_mut(&frontend).and_then(BTreeSet::pop_first) else { continue };
            if self.waiting.get(&frontend).is_some_and(BTreeSet::is_empty) {
                self.waiting.remove(&frontend);
            }
            let view =
                view(&self.ports, &name, frontend).expect("bug: waiting service port has no plan for the frontend");
            change(&mut self.shared, &self.context, None, Some(view), transaction);
            self.owners.insert(frontend, name);
        }
        self.shared.finish_transaction(&self.context, transaction);
    }

    /// Changes the context, for example after a change of the Node. All service ports have to be updated afterwards.
    pub(crate) fn set_context(&mut self, context: Context, transaction: &mut Transaction) {
        if context == self.context {
            return;
        }
        let old = std::mem::replace(&mut self.context, context);
        let chains =
            |context| [fixed_chains(context, self.shared.timeouts()), self.shared.all_chains(context)].concat();
        for (old, new) in chains(&old).into_iter().zip(chains(&self.context)).filter(|(old, new)| old != new) {
            transaction.replace_rules(&old.chain.name, new.rules);
        }
        difference(node_port_addresses(&old).collect(), node_port_addresses(&self.context).collect(), transaction);
    }

    /// Returns the chains that can be deleted once all transactions so far have been committed.
    pub(crate) fn unused_chains(&self) -> Vec<Name> {
        self.shared.unused_chains().collect()
    }

    /// Forgets the unused chains, after they were deleted.
    pub(crate) fn unused_chains_deleted(&mut self) {
        self.shared.unused_chains_deleted();
    }

    /// Returns the names of all service ports, in no particular order.
    pub(crate) fn service_ports(&self) -> impl Iterator<Item = &ServicePortName> {
        self.ports.keys()
    }

    /// Returns the plan of each service port, in no particular order.
    pub(super) fn ports(&self) -> impl Iterator<Item = (&ServicePortName, &PortPlan)> {
        self.ports.iter().map(|(name, port)| (name, &**port))
    }

    /// Returns the service port that owns a frontend.
    pub(super) fn owner(&self, frontend: Frontend) -> Option<&ServicePortName> {
        self.owners.get(&frontend)
    }

    /// Returns all sets and maps.
    pub(crate) fn sets(&self) -> Vec<Set> {
        let sticky = self.shared.timeouts().map(SetId::Sticky);
        SetId::FIXED.into_iter().chain(sticky).map(|id| id.declaration(&self.context)).collect()
    }

    /// Returns all chains; the targets of jumps and gotos come first.
    pub(crate) fn chains(&self) -> Vec<ChainWithRules> {
        [self.shared.chains(&self.context), fixed_chains(&self.context, self.shared.timeouts())].concat()
    }

    /// Calls `each` with every element, in no particular order.
    pub(crate) fn for_each_element(&self, mut each: impl FnMut(SetId, Element)) {
        for (frontend, owner) in &self.owners {
            let view = view(&self.ports, owner, *frontend).expect("bug: owner has no plan for its frontend");
            view.elements(self.context.family).into_iter().for_each(|(set, element)| each(set, element));
        }
        let shared = self.shared.elements().chain(node_port_addresses(&self.context));
        shared.for_each(|(set, element)| each(set, element));
    }

    /// Returns the numbers of service ports without local endpoints.
    pub(crate) fn no_local_endpoints(&self) -> NoLocalEndpoints {
        self.no_local_endpoints
    }

    /// Returns the order that the planner was created with. The planner does not need it once everything was updated.
    pub(crate) fn take_order(&mut self) -> EndpointOrder {
        self.slot_owners.clear_reserved();
        std::mem::replace(&mut self.order, EndpointOrder::new(self.context.family))
    }

    /// Assigns slots to the endpoints of a service port with session affinity.
    fn assign_slots(&mut self, name: &ServicePortName, new: &mut PortPlan, affinity: Affinity, old: Option<&PortPlan>) {
        let frontends: Vec<FrontendPlan> = new.frontends.to_vec();
        let previous = |list: ListId| match old.filter(|old| old.affinity.is_some()) {
            Some(old) => old.slots(list).collect(),
            None => {
                let frontends = frontends.iter().filter(|plan| plan.uses(list)).map(|plan| plan.frontend);
                self.order.slots_of(frontends, list)
            }
        };
        new.assign_slots(name, affinity.timeout_seconds, previous, &mut self.slot_owners);
    }

    fn replace(
        &mut self,
        name: &ServicePortName,
        old: Option<&PortPlan>,
        new: Option<&PortPlan>,
        transaction: &mut Transaction,
    ) {
        if let Some(new) = new {
            self.shared.acquire_port(new, name.protocol, transaction);
            self.no_local_endpoints.internal += usize::from(new.no_local_internal);
            self.no_local_endpoints.external += usize::from(new.no_local_external);
            for plan in &new.frontends {
                self.claim(FrontendView { name, port: new, plan }, old, transaction);
            }
        }
        let Some(old) = old else { return };
        for plan in old.frontends.iter().filter(|plan| !has(new, plan.frontend)) {
            self.release(FrontendView { name, port: old, plan }, transaction);
        }
        self.shared.release_port(old, name.protocol, transaction);
        self.no_local_endpoints.internal -= usize::from(old.no_local_internal);
        self.no_local_endpoints.external -= usize::from(old.no_local_external);
    }

    /// A service port claims a frontend that it may have had before.
    fn claim(&mut self, new: FrontendView<'_>, old: Option<&PortPlan>, transaction: &mut Transaction) {
        let frontend = new.plan.frontend;
        let old_view = match self.owners.get(&frontend) {
            None if self.waiting.contains_key(&frontend) => {
                // The first of them by name is known at the end of the transaction.
                self.waiting.entry(frontend).or_default().insert(new.name.clone());
                self.vacant.insert(frontend);
                return;
            }
            None => None,
            Some(owner) if owner == new.name => {
                old.and_then(|port| Some(FrontendView { name: new.name, port, plan: plan_of(port, frontend)? }))
            }
            Some(owner) if owner < new.name => {
                self.waiting.entry(frontend).or_default().insert(new.name.clone());
                return;
            }
            Some(owner) => {
                let loser = owner.clone();
                let waiting = self.waiting.entry(frontend).or_default();
                waiting.remove(new.name);
                waiting.insert(loser.clone());
                let view = view(&self.ports, &loser, frontend);
                change(&mut self.shared, &self.context, view, Some(new), transaction);
                self.owners.insert(frontend, new.name.clone());
                return;
            }
        };
        if old_view.is_none() {
            self.owners.insert(frontend, new.name.clone());
        }
        change(&mut self.shared, &self.context, old_view, Some(new), transaction);
    }

    /// A service port releases a frontend.
    fn release(&mut self, old: FrontendView<'_>, transaction: &mut Transaction) {
        let frontend = old.plan.frontend;
        if self.owners.get(&frontend) == Some(old.name) {
            change(&mut self.shared, &self.context, Some(old), None, transaction);
            self.owners.remove(&frontend);
            if self.waiting.contains_key(&frontend) {
                self.vacant.insert(frontend);
            }
        } else if let Some(waiting) = self.waiting.get_mut(&frontend) {
            waiting.remove(old.name);
            if waiting.is_empty() {
                self.waiting.remove(&frontend);
            }
        }
    }
}

/// Writes the changes of a frontend.
fn change(
    shared: &mut SharedObjects,
    context: &Context,
    old: Option<FrontendView<'_>>,
    new: Option<FrontendView<'_>>,
    transaction: &mut Transaction,
) {
    let elements = |view: Option<FrontendView<'_>>| view.map(|view| view.elements(context.family)).unwrap_or_default();
    if let Some(new) = new {
        shared.acquire(new, context, transaction);
    }
    difference(elements(old), elements(new), transaction);
    if let Some(old) = old {
        shared.release(old, transaction);
    }
}

fn view<'a>(
    ports: &'a HashMap<ServicePortName, Box<PortPlan>>,
    name: &ServicePortName,
    frontend: Frontend,
) -> Option<FrontendView<'a>> {
    let (name, port) = ports.get_key_value(name)?;
    Some(FrontendView { name, port, plan: plan_of(port, frontend)? })
}

fn plan_of(port: &PortPlan, frontend: Frontend) -> Option<&FrontendPlan> {
    // A service port has few frontends.
    port.frontends.iter().find(|plan| plan.frontend == frontend)
}

fn has(port: Option<&PortPlan>, frontend: Frontend) -> bool {
    port.is_some_and(|port| plan_of(port, frontend).is_some())
}

fn node_port_addresses(context: &Context) -> impl Iterator<Item = SetElement> {
    let addresses = match &context.node_ports {
        NodePortMatch::AnyLocal => &[][..],
        NodePortMatch::Addresses(addresses) => addresses,
    };
    addresses.iter().map(|address| (SetId::NodePortAddresses, Element::new([(*address).into()])))
}

const TABLE_COMMENT: Comment = Comment::fixed("services, written by ferroute");
