use std::collections::{BTreeMap, BTreeSet, HashMap};

use ferroute_core::{Affinity, NodePortMatch, ServicePortName, ServiceTable};

use super::{
    Context, Frontend, SetId,
    elements::{Placed, View, difference},
    fixed::fixed_chains,
    kind::List,
    order::Order,
    record::{Plan, Record},
    shared::Shared,
    slots::SlotOwners,
};
use crate::model::{ChainWithRules, Change, Comment, Element, Name, Set, Transaction};

/// Knows what is in force, and writes the changes that make it what it should be.
///
/// It relies on all its changes being carried out, in order. After one that was not, or after somebody else's changes,
/// make a new planner and compare what it wants with what there is.
#[derive(Clone, Debug)]
pub struct Planner {
    context: Context,
    /// Boxed, because a hash table has room for up to twice as many as there are.
    records: HashMap<ServicePortName, Box<Record>>,
    /// Whose rules a frontend has. Of several service ports that want it, the first by name gets it.
    owners: HashMap<Frontend, ServicePortName>,
    /// Those who want a frontend that another one has.
    waiting: BTreeMap<Frontend, BTreeSet<ServicePortName>>,
    /// Frontends that somebody waits for and nobody has.
    vacant: BTreeSet<Frontend>,
    shared: Shared,
    slot_owners: SlotOwners,
    /// The order of endpoints to start with.
    order: Order,
    tally: Tally,
}

/// Numbers about what is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Service ports whose internal traffic must stay on this node, where there is nothing.
    pub no_local_internal: usize,
    /// The same for external traffic.
    pub no_local_external: usize,
}

impl Planner {
    /// A planner for an empty table.
    pub fn new(context: Context) -> Self {
        let order = Order::new(context.family);
        Self::with_order(context, order)
    }

    /// A planner for an empty table that puts endpoints into the order in which somebody has seen them.
    pub fn with_order(context: Context, order: Order) -> Self {
        Self {
            context,
            records: HashMap::new(),
            owners: HashMap::new(),
            waiting: BTreeMap::new(),
            vacant: BTreeSet::new(),
            shared: Shared::default(),
            slot_owners: SlotOwners::new(order.slot_owners()),
            order,
            tally: Tally::default(),
        }
    }

    /// What rules depend on besides Services and endpoints.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Writes what is there without any Service.
    pub fn set_up(&self, transaction: &mut Transaction) {
        transaction.push(Change::AddTable(Some(TABLE_COMMENT)));
        transaction.changes.extend(self.sets().into_iter().map(Change::AddSet));
        for chain in fixed_chains(&self.context, self.shared.timeouts()) {
            transaction.add_chain(chain);
        }
        let addresses = node_port_addresses(&self.context);
        transaction.changes.extend(addresses.map(|(set, element)| Change::AddElement(set.name(), element)));
    }

    /// Writes what changes for a service port: what `table` says of it, or that it is gone.
    pub fn update(&mut self, name: &ServicePortName, table: &ServiceTable, transaction: &mut Transaction) {
        let old = self.records.remove(name);
        let order = |frontends: &[Plan], list: List| match &old {
            Some(old) => old.list(list).iter().map(Some).collect(),
            None => self.order.of_list(frontends.iter().filter(|plan| plan.uses(list)).map(|plan| plan.frontend), list),
        };
        let entry = table.entries.get(name);
        let mut new = entry.map(|entry| Box::new(Record::new(name, entry, table, &self.context, order)));
        old.iter().for_each(|old| old.release_slots(&mut self.slot_owners));
        if let Some((new, affinity)) = new.as_mut().zip(entry.and_then(|entry| entry.service.affinity)) {
            self.remember(name, new, affinity, old.as_deref());
        }
        if old != new {
            self.replace(name, old.as_deref(), new.as_deref(), transaction);
        }
        if let Some(new) = new {
            self.records.insert(name.clone(), new);
        }
    }

    /// Writes what follows from all updates together. To be called once, at the end of each transaction.
    pub fn settle(&mut self, transaction: &mut Transaction) {
        for frontend in std::mem::take(&mut self.vacant) {
            // All who waited may have gone, and somebody else have come.
            if self.owners.contains_key(&frontend) {
                continue;
            }
            let Some(name) = self.waiting.get_mut(&frontend).and_then(BTreeSet::pop_first) else { continue };
            if self.waiting.get(&frontend).is_some_and(BTreeSet::is_empty) {
                self.waiting.remove(&frontend);
            }
            let view = view(&self.records, &name, frontend).expect("bug: who waits for a frontend has plans for it");
            change(&mut self.shared, &self.context, None, Some(view), transaction);
            self.owners.insert(frontend, name);
        }
        self.shared.settle(&self.context, transaction);
    }

    /// Takes over another context, as after a change of the node. Service ports have to be updated afterwards, all of
    /// them.
    pub fn set_context(&mut self, context: Context, transaction: &mut Transaction) {
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

    /// Chains that can be removed now that all transactions so far have been carried out.
    pub fn garbage(&self) -> Vec<Name> {
        self.shared.garbage().collect()
    }

    /// They have been removed.
    pub fn garbage_is_gone(&mut self) {
        self.shared.garbage_is_gone();
    }

    /// Names of all service ports in force, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &ServicePortName> {
        self.records.keys()
    }

    /// What is in force for each service port, in no particular order.
    pub(super) fn records(&self) -> impl Iterator<Item = (&ServicePortName, &Record)> {
        self.records.iter().map(|(name, record)| (name, &**record))
    }

    /// Whose rules a frontend has.
    pub(super) fn owner(&self, frontend: Frontend) -> Option<&ServicePortName> {
        self.owners.get(&frontend)
    }

    /// All sets and maps.
    pub fn sets(&self) -> Vec<Set> {
        let sticky = self.shared.timeouts().map(SetId::Sticky);
        SetId::FIXED.into_iter().chain(sticky).map(|id| id.declare(&self.context)).collect()
    }

    /// All chains, those that others lead to first.
    pub fn chains(&self) -> Vec<ChainWithRules> {
        [self.shared.chains(&self.context), fixed_chains(&self.context, self.shared.timeouts())].concat()
    }

    /// Calls `each` with every element, in no particular order.
    pub fn for_each_element(&self, mut each: impl FnMut(SetId, Element)) {
        for (frontend, owner) in &self.owners {
            let view = view(&self.records, owner, *frontend).expect("bug: an owner has its frontend");
            view.elements(self.context.family).into_iter().for_each(|(set, element)| each(set, element));
        }
        let others = self.shared.elements().chain(node_port_addresses(&self.context));
        others.for_each(|(set, element)| each(set, element));
    }

    /// Numbers about what is in force.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Gives back the order that it was made with, which is of no use to it once everything was updated.
    pub fn take_order(&mut self) -> Order {
        self.slot_owners.forget_seen();
        std::mem::replace(&mut self.order, Order::new(self.context.family))
    }

    /// Gives slots to the endpoints of a service port with affinity.
    fn remember(&mut self, name: &ServicePortName, new: &mut Record, affinity: Affinity, old: Option<&Record>) {
        let using: Vec<Plan> = new.frontends.to_vec();
        let known = |list: List| match old.filter(|old| old.affinity.is_some()) {
            Some(old) => old.slots(list).collect(),
            None => {
                let frontends = using.iter().filter(|plan| plan.uses(list)).map(|plan| plan.frontend);
                self.order.slots_of(frontends, list)
            }
        };
        new.remember(name, affinity.timeout_seconds, known, &mut self.slot_owners);
    }

    fn replace(
        &mut self,
        name: &ServicePortName,
        old: Option<&Record>,
        new: Option<&Record>,
        transaction: &mut Transaction,
    ) {
        if let Some(new) = new {
            self.shared.acquire_record(new, name.protocol, transaction);
            self.tally.no_local_internal += usize::from(new.no_local_internal);
            self.tally.no_local_external += usize::from(new.no_local_external);
            for plan in &new.frontends {
                self.claim(View { name, record: new, plan }, old, transaction);
            }
        }
        let Some(old) = old else { return };
        for plan in old.frontends.iter().filter(|plan| !has(new, plan.frontend)) {
            self.leave(View { name, record: old, plan }, transaction);
        }
        self.shared.release_record(old, name.protocol, transaction);
        self.tally.no_local_internal -= usize::from(old.no_local_internal);
        self.tally.no_local_external -= usize::from(old.no_local_external);
    }

    /// A service port wants a frontend, as before or anew.
    fn claim(&mut self, new: View<'_>, old: Option<&Record>, transaction: &mut Transaction) {
        let frontend = new.plan.frontend;
        let old_view = match self.owners.get(&frontend) {
            None if self.waiting.contains_key(&frontend) => {
                // Who of them comes first is seen when all have spoken.
                self.waiting.entry(frontend).or_default().insert(new.name.clone());
                self.vacant.insert(frontend);
                return;
            }
            None => None,
            Some(owner) if owner == new.name => {
                old.and_then(|record| Some(View { name: new.name, record, plan: plan_of(record, frontend)? }))
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
                let view = view(&self.records, &loser, frontend);
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

    /// A service port does not want a frontend any more.
    fn leave(&mut self, old: View<'_>, transaction: &mut Transaction) {
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

/// Writes what differs for a frontend.
fn change(
    shared: &mut Shared,
    context: &Context,
    old: Option<View<'_>>,
    new: Option<View<'_>>,
    transaction: &mut Transaction,
) {
    let elements = |view: Option<View<'_>>| view.map(|view| view.elements(context.family)).unwrap_or_default();
    if let Some(new) = new {
        shared.acquire(new, context, transaction);
    }
    difference(elements(old), elements(new), transaction);
    if let Some(old) = old {
        shared.release(old, transaction);
    }
}

fn view<'a>(
    records: &'a HashMap<ServicePortName, Box<Record>>,
    name: &ServicePortName,
    frontend: Frontend,
) -> Option<View<'a>> {
    let (name, record) = records.get_key_value(name)?;
    Some(View { name, record, plan: plan_of(record, frontend)? })
}

fn plan_of(record: &Record, frontend: Frontend) -> Option<&Plan> {
    // A service port has a handful of frontends.
    record.frontends.iter().find(|plan| plan.frontend == frontend)
}

fn has(record: Option<&Record>, frontend: Frontend) -> bool {
    record.is_some_and(|record| plan_of(record, frontend).is_some())
}

fn node_port_addresses(context: &Context) -> impl Iterator<Item = Placed> {
    let addresses = match &context.node_ports {
        NodePortMatch::AnyLocal => &[][..],
        NodePortMatch::Addresses(addresses) => addresses,
    };
    addresses.iter().map(|address| (SetId::NodePortAddresses, Element::new([(*address).into()])))
}

const TABLE_COMMENT: Comment = Comment::fixed("services, written by ferroute");
