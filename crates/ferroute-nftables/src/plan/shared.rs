//! Objects that frontends or service ports share: chains, affinity timeouts, addresses.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    net::{IpAddr, SocketAddr},
};

use ferroute_core::Protocol;

use super::{
    Context, SetId,
    elements::{FrontendView, SetElement},
    fixed::fixed_chains,
    kind::Kind,
    port_plan::PortPlan,
};
use crate::model::{ChainWithRules, Change, ClassId, Element, Name, SetOrMap, Transaction, Value, Verdict};

/// Shared objects with reference counts: the first user adds an object, the last one deletes it.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedObjects {
    /// Class ids with the verdict map that dispatches them.
    classes: RefCounts<(SetId, ClassId)>,
    /// Chains by the class id that they are named after. Some are only targets of other chains.
    chains: RefCounts<ClassId>,
    timeouts: RefCounts<u32>,
    cluster_ips: RefCounts<IpAddr>,
    hairpins: RefCounts<(SocketAddr, Protocol)>,
    /// Affinity timeouts whose sets and rules were written.
    declared: BTreeSet<u32>,
    /// Chains that are not referenced any more but may still exist.
    unused_chains: BTreeSet<ClassId>,
}

impl SharedObjects {
    /// Adds the objects that a frontend needs.
    pub(super) fn acquire(&mut self, view: FrontendView<'_>, context: &Context, transaction: &mut Transaction) {
        for (map, class) in dispatch_entries(view) {
            if !self.classes.acquire((map, class)) {
                continue;
            }
            for chain in required_chains(class) {
                // An unused chain that was not deleted yet is reused.
                if self.chains.acquire(chain) && !self.unused_chains.remove(&chain) {
                    transaction.add_chain(chain_for(chain, context));
                }
            }
            transaction.push(add((map, dispatch(class))));
        }
        if let Some(seconds) = view.affinity()
            && self.timeouts.acquire(seconds)
            && !self.declared.contains(&seconds)
        {
            // Its elements follow in the same transaction, and rules that refer to it at the end.
            transaction.push(Change::AddSet(SetId::Sticky(seconds).declaration(context)));
        }
    }

    /// Deletes the objects of [`SharedObjects::acquire`] that have no other user.
    pub(super) fn release(&mut self, view: FrontendView<'_>, transaction: &mut Transaction) {
        for (map, class) in dispatch_entries(view) {
            if !self.classes.release(&(map, class)) {
                continue;
            }
            transaction.push(delete((map, dispatch(class))));
            for chain in required_chains(class) {
                if self.chains.release(&chain) {
                    self.unused_chains.insert(chain);
                }
            }
        }
        if let Some(seconds) = view.affinity()
            && self.timeouts.release(&seconds)
            && !self.declared.contains(&seconds)
        {
            transaction.push(Change::DeleteSet(SetId::Sticky(seconds).name(), SetOrMap::Set));
        }
    }

    /// Adds the objects that a service port needs.
    pub(super) fn acquire_port(&mut self, port: &PortPlan, protocol: Protocol, transaction: &mut Transaction) {
        if let Some(address) = port.cluster_ip
            && self.cluster_ips.acquire(address)
        {
            transaction.push(add(cluster_ip(address)));
        }
        for socket in port.on_node.iter() {
            if self.hairpins.acquire((socket, protocol)) {
                transaction.push(add(hairpin(socket, protocol)));
            }
        }
    }

    /// Deletes the objects of [`SharedObjects::acquire_port`] that have no other user.
    pub(super) fn release_port(&mut self, port: &PortPlan, protocol: Protocol, transaction: &mut Transaction) {
        if let Some(address) = port.cluster_ip
            && self.cluster_ips.release(&address)
        {
            transaction.push(delete(cluster_ip(address)));
        }
        for socket in port.on_node.iter() {
            if self.hairpins.release(&(socket, protocol)) {
                transaction.push(delete(hairpin(socket, protocol)));
            }
        }
    }

    /// Updates the affinity rules to the timeouts in use. To be called at the end of each transaction.
    pub(super) fn finish_transaction(&mut self, context: &Context, transaction: &mut Transaction) {
        let timeouts: BTreeSet<u32> = self.timeouts.iter().copied().collect();
        if timeouts == self.declared {
            return;
        }
        let removed: Vec<u32> = self.declared.difference(&timeouts).copied().collect();
        let old = fixed_chains(context, self.declared.iter().copied());
        self.declared = timeouts;
        let new = fixed_chains(context, self.declared.iter().copied());
        for (old, new) in old.into_iter().zip(new).filter(|(old, new)| old != new) {
            transaction.replace_rules(&old.chain.name, new.rules);
        }
        transaction
            .changes
            .extend(removed.into_iter().map(|seconds| Change::DeleteSet(SetId::Sticky(seconds).name(), SetOrMap::Set)));
    }

    /// Returns the chains that can be deleted once all transactions so far have been committed.
    pub(super) fn unused_chains(&self) -> impl Iterator<Item = Name> {
        self.unused_chains.iter().map(|class| chain_name(*class))
    }

    /// Forgets the unused chains, after they were deleted.
    pub(super) fn unused_chains_deleted(&mut self) {
        self.unused_chains.clear();
    }

    /// Returns the affinity timeouts whose sets and rules were written, in seconds.
    pub(super) fn timeouts(&self) -> impl Iterator<Item = u32> + Clone {
        self.declared.iter().copied()
    }

    /// Returns the chains in use; targets of gotos come first.
    pub(super) fn chains(&self, context: &Context) -> Vec<ChainWithRules> {
        ordered_chains(self.chains.iter().copied(), context)
    }

    /// Returns the chains in use and the unused ones, which may be reused.
    pub(super) fn all_chains(&self, context: &Context) -> Vec<ChainWithRules> {
        ordered_chains(self.chains.iter().chain(&self.unused_chains).copied(), context)
    }

    /// Returns all shared elements.
    pub(super) fn elements(&self) -> impl Iterator<Item = SetElement> {
        let dispatch = self.classes.iter().map(|(map, class)| (*map, dispatch(*class)));
        let cluster_ips = self.cluster_ips.iter().map(|address| cluster_ip(*address));
        let hairpins = self.hairpins.iter().map(|(socket, protocol)| hairpin(*socket, *protocol));
        dispatch.chain(cluster_ips).chain(hairpins)
    }
}

/// Reference counts.
#[derive(Clone, Debug)]
pub(super) struct RefCounts<T> {
    counts: HashMap<T, u32>,
}

impl<T> Default for RefCounts<T> {
    fn default() -> Self {
        Self { counts: HashMap::new() }
    }
}

impl<T: Eq + Hash> RefCounts<T> {
    /// Adds a reference. Returns true for the first one.
    #[must_use = "the first user adds the object"]
    pub(super) fn acquire(&mut self, item: T) -> bool {
        let count = self.counts.entry(item).or_default();
        *count += 1;
        *count == 1
    }

    /// Removes a reference. Returns true for the last one.
    #[must_use = "the last user deletes the object"]
    pub(super) fn release(&mut self, item: &T) -> bool {
        let Some(count) = self.counts.get_mut(item) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.counts.remove(item);
        }
        last
    }

    /// Reports whether the item is referenced.
    pub(super) fn contains(&self, item: &T) -> bool {
        self.counts.contains_key(item)
    }

    /// Returns all referenced items.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.counts.keys()
    }
}

/// Returns the class ids of a frontend, each with the verdict map that dispatches it.
fn dispatch_entries(view: FrontendView<'_>) -> impl Iterator<Item = (SetId, ClassId)> {
    let (main, local) = view.classes();
    let main = main.map(|class| (SetId::Dispatch, class));
    main.into_iter().chain(local.map(|class| (SetId::LocalDispatch, class)))
}

fn ordered_chains(classes: impl Iterator<Item = ClassId>, context: &Context) -> Vec<ChainWithRules> {
    let mut classes: Vec<ClassId> = classes.collect();
    classes.sort_unstable_by_key(|class| (goto_target(*class).is_some(), *class));
    classes.into_iter().map(|class| chain_for(class, context)).collect()
}

fn kind_from_class_id(class: ClassId) -> (Kind, usize) {
    Kind::from_class_id(class).expect("bug: class id without a kind")
}

/// Returns the class id of the chain that a class id's chain goes to.
fn goto_target(class: ClassId) -> Option<ClassId> {
    let (kind, endpoints) = kind_from_class_id(class);
    kind.goto_target().map(|kind| kind.class(endpoints))
}

/// Returns the chains that a class id needs, targets first.
fn required_chains(class: ClassId) -> impl Iterator<Item = ClassId> {
    goto_target(class).into_iter().chain([class])
}

fn chain_for(class: ClassId, context: &Context) -> ChainWithRules {
    let (kind, endpoints) = kind_from_class_id(class);
    kind.chain(endpoints, context)
}

fn chain_name(class: ClassId) -> Name {
    let (kind, endpoints) = kind_from_class_id(class);
    kind.chain_name(endpoints)
}

fn dispatch(class: ClassId) -> Element {
    Element::new([class.into()]).verdict(Verdict::Goto(chain_name(class)))
}

fn cluster_ip(address: IpAddr) -> SetElement {
    (SetId::ClusterIps, Element::new([address.into()]))
}

fn hairpin(socket: SocketAddr, protocol: Protocol) -> SetElement {
    let address = socket.ip().into();
    (SetId::Hairpin, Element::new([address, address, Value::protocol(protocol), Value::Port(socket.port())]))
}

fn add((set, element): SetElement) -> Change {
    Change::AddElement(set.name(), element)
}

fn delete((set, element): SetElement) -> Change {
    Change::DeleteElement(set.name(), element)
}
