//! Objects that service ports share: chains, sets of timeouts and source ranges, addresses.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    net::{IpAddr, SocketAddr},
};

use ferroute_core::Protocol;

use super::{
    Context, List, SetId,
    affinity_shares::{AffinityShares, set_element},
    elements::SetElement,
    fixed::{fixed_chains, fixed_elements},
    kind::{Class, Selection},
    limits::limit_sets,
    port_plan::PortElements,
};
use crate::model::{ChainWithRules, Change, Element, Name, SetOrMap, Transaction, Value};

/// Shared objects with reference counts: those in use exist, and some that are not in use any more.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedObjects {
    /// Classes in use. Some are only targets of other chains.
    classes: RefCounts<Class>,
    /// Sets of timeouts, shares of the affinity map, source ranges and limits.
    sets: RefCounts<SetId>,
    cluster_ips: RefCounts<IpAddr>,
    hairpins: RefCounts<(SocketAddr, Protocol)>,
    affinity_shares: AffinityShares,
    written: Written,
}

/// Objects that exist in the kernel, besides elements that are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Sets, with the rules that refer to them.
    sets: BTreeSet<SetId>,
    /// Classes whose chains exist, with a flag that is set if their elements exist. A packet may still request one that
    /// is not in use any more, while the transaction that ends its use takes effect.
    classes: BTreeMap<Class, bool>,
}

impl SharedObjects {
    /// Adds the objects that a service port needs.
    pub(super) fn acquire(&mut self, port: &PortElements, protocol: Protocol, transaction: &mut Transaction) {
        for class in classes(port) {
            self.classes.acquire(class);
        }
        for set in sets(port) {
            self.sets.acquire(set);
        }
        if let Some(address) = port.exposure.service.cluster_ip
            && self.cluster_ips.acquire(address)
        {
            transaction.push(add(cluster_ip(address)));
        }
        for socket in port.hairpins().iter() {
            if self.hairpins.acquire((socket, protocol)) {
                transaction.push(add(hairpin(socket, protocol)));
            }
        }
    }

    /// Deletes the objects of [`SharedObjects::acquire`] that have no other user. Sets are deleted at the end of the
    /// transaction, and classes are kept.
    pub(super) fn release(&mut self, port: &PortElements, protocol: Protocol, transaction: &mut Transaction) {
        for class in classes(port) {
            self.classes.release(&class);
        }
        for set in sets(port) {
            self.sets.release(&set);
        }
        if let Some(address) = port.exposure.service.cluster_ip
            && self.cluster_ips.release(&address)
        {
            transaction.push(delete(cluster_ip(address)));
        }
        for socket in port.hairpins().iter() {
            if self.hairpins.release(&(socket, protocol)) {
                transaction.push(delete(hairpin(socket, protocol)));
            }
        }
    }

    /// Replaces the lists of a service port in the shares of the affinity map. [`SharedObjects::write_affinity_shares`]
    /// writes the elements, once for all service ports of a transaction.
    pub(super) fn divide_affinity(&mut self, namespace: &str, old: Option<&PortElements>, new: Option<&PortElements>) {
        self.affinity_shares.replace(namespace, old, new);
    }

    /// Writes the elements of the shares of the affinity map that have changed. To be called before the sets in use are
    /// written.
    pub(super) fn write_affinity_shares(&mut self, transaction: &mut Transaction) {
        let changes = self.affinity_shares.take_changes();
        for element in changes.added {
            self.sets.acquire(element.0);
            transaction.push(add(set_element(element)));
        }
        for element in changes.removed {
            self.sets.release(&element.0);
            transaction.push(delete(set_element(element)));
        }
    }

    /// Writes the objects that are in use and do not exist yet: sets with the rules that refer to them, and classes.
    pub(super) fn write_used(&mut self, context: &Context, transaction: &mut Transaction) {
        let sets: BTreeSet<SetId> = self.sets.iter().chain(&self.written.sets).copied().collect();
        let new = sets.difference(&self.written.sets);
        transaction.changes.extend(new.map(|set| Change::AddSet(set.declaration(context))));
        self.write_rules(sets, context, transaction);
        let is_new = |class: &&Class| !self.written.classes.contains_key(*class);
        let chains = ordered_chains(self.classes.iter().filter(is_new).copied(), context);
        chains.into_iter().for_each(|chain| transaction.add_chain(chain));
        let classes: BTreeSet<Class> = self.classes.iter().copied().collect();
        for class in classes {
            if !self.written.classes.insert(class, true).unwrap_or_default() {
                transaction.changes.extend(dispatch(class).map(add));
            }
        }
    }

    /// Deletes the sets that are not in use any more, with the rules that refer to them.
    pub(super) fn delete_unused_sets(&mut self, context: &Context, transaction: &mut Transaction) {
        let sets: BTreeSet<SetId> = self.sets.iter().copied().collect();
        let unused: Vec<SetId> = self.written.sets.difference(&sets).copied().collect();
        self.write_rules(sets, context, transaction);
        transaction.changes.extend(unused.into_iter().map(|set| Change::DeleteSet(set.name(), SetOrMap::Set)));
    }

    /// Replaces the rules that refer to sets by those for these sets, which must exist.
    fn write_rules(&mut self, sets: BTreeSet<SetId>, context: &Context, transaction: &mut Transaction) {
        if sets == self.written.sets {
            return;
        }
        let old = fixed_chains(context, self.sets());
        self.written.sets = sets;
        let new = fixed_chains(context, self.sets());
        let is_in = |chains: &[ChainWithRules], chain: &ChainWithRules| chains.iter().any(|it| it.chain == chain.chain);
        let added = new.iter().filter(|chain| !is_in(&old, chain));
        added.for_each(|chain| transaction.add_chain(chain.clone()));
        for old in &old {
            match new.iter().find(|new| new.chain == old.chain) {
                Some(new) if new.rules != old.rules => {
                    transaction.replace_rules(&new.chain.name, new.rules.iter().cloned());
                }
                _ => {}
            }
        }
        // Chains that go to other chains come last in the list.
        let unused = old.into_iter().rev().filter(|chain| !is_in(&new, chain));
        unused.for_each(|old| transaction.delete_chain(old.chain.name));
    }

    /// Returns the classes that are not in use any more and whose chains exist, with a flag that is set if their elements
    /// exist.
    fn unused(&self) -> impl Iterator<Item = (Class, bool)> {
        let unused = self.written.classes.iter().filter(|(class, _)| !self.classes.contains(class));
        unused.map(|(class, has_elements)| (*class, *has_elements))
    }

    /// Returns the elements of unused classes.
    pub(super) fn unused_elements(&self) -> impl Iterator<Item = SetElement> {
        self.unused().filter(|(_, has_elements)| *has_elements).flat_map(|(class, _)| dispatch(class))
    }

    /// Marks the elements of unused classes as deleted.
    pub(super) fn unused_elements_deleted(&mut self) {
        let unused = self.written.classes.iter_mut().filter(|(class, _)| !self.classes.contains(class));
        unused.for_each(|(_, has_elements)| *has_elements = false);
    }

    /// Returns the chains of unused classes, which can be deleted after their elements.
    pub(super) fn unused_chains(&self) -> impl Iterator<Item = Name> {
        self.unused().map(|(class, _)| class.chain_name())
    }

    /// Forgets the unused classes, after they were deleted.
    pub(super) fn unused_deleted(&mut self) {
        self.written.classes.retain(|class, _| self.classes.contains(class));
    }

    /// Returns the written state, for [`SharedObjects::restore`].
    pub(super) fn written(&self) -> Written {
        self.written.clone()
    }

    /// Restores the state before transactions that were not committed.
    pub(super) fn restore(&mut self, written: Written) {
        self.written = written;
    }

    /// Returns the sets that were written with their rules.
    pub(super) fn sets(&self) -> impl Iterator<Item = SetId> + Clone {
        self.written.sets.iter().copied()
    }

    /// Returns the chains in use; targets of gotos come first.
    pub(super) fn chains(&self, context: &Context) -> Vec<ChainWithRules> {
        ordered_chains(self.classes.iter().copied(), context)
    }

    /// Returns the chains of classes that exist, in use or not.
    pub(super) fn written_chains(&self, context: &Context) -> Vec<ChainWithRules> {
        ordered_chains(self.written.classes.keys().copied(), context)
    }

    /// Returns all shared elements in use.
    pub(super) fn elements(&self) -> impl Iterator<Item = SetElement> {
        let dispatch = self.classes.iter().flat_map(|class| dispatch(*class));
        let cluster_ips = self.cluster_ips.iter().map(|address| cluster_ip(*address));
        let hairpins = self.hairpins.iter().map(|(socket, protocol)| hairpin(*socket, *protocol));
        let shares = self.affinity_shares.elements().map(set_element);
        fixed_elements().chain(dispatch).chain(cluster_ips).chain(hairpins).chain(shares)
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
    pub(super) fn acquire(&mut self, item: T) -> bool {
        let count = self.counts.entry(item).or_default();
        *count += 1;
        *count == 1
    }

    /// Removes a reference. Returns true for the last one.
    pub(super) fn release(&mut self, item: &T) -> bool {
        let Some(count) = self.counts.get_mut(item) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.counts.remove(item);
        }
        last
    }

    /// Returns all referenced items.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.counts.keys()
    }

    /// Reports whether the item is referenced.
    pub(super) fn contains(&self, item: &T) -> bool {
        self.counts.contains_key(item)
    }
}

/// Returns the classes that a service port needs, targets of gotos first. Classes of empty lists always exist.
fn classes(port: &PortElements) -> BTreeSet<Class> {
    let used = port.exposure.requests.iter().map(|request| port.class(*request));
    let with_target = used.flat_map(|class| match class {
        Class::Forward(kind, choice) => kind.goto_target(choice).into_iter().chain([class]).collect(),
        Class::Reject | Class::Drop => Vec::new(),
    });
    with_target.collect()
}

/// Returns the sets of timeouts, source ranges and limits that a service port needs.
fn sets(port: &PortElements) -> BTreeSet<SetId> {
    let lists = List::ALL.into_iter().filter(|list| port.exposure.uses(*list) && !port.list(*list).is_empty());
    let timeouts = lists.filter_map(|_| port.affinity());
    let restricted = port.exposure.restricts_node_ports().then_some(SetId::RestrictedNodePorts);
    let limits = port.exposure.limits().into_iter().flat_map(limit_sets);
    timeouts
        .map(SetId::Sticky)
        .chain(port.exposure.prefix_lengths().map(SetId::SourceRanges))
        .chain(restricted)
        .chain(port.exposure.prefix_lengths().next().map(|_| SetId::Refusals))
        .chain(limits)
        .collect()
}

fn ordered_chains(classes: impl Iterator<Item = Class>, context: &Context) -> Vec<ChainWithRules> {
    let mut classes: Vec<Class> = classes.collect();
    let is_target = |class: &Class| matches!(class, Class::Forward(kind, _) if kind.selection == Selection::Pick);
    classes.sort_unstable_by_key(|class| (!is_target(class), *class));
    classes.into_iter().filter_map(|class| class.chain(context)).collect()
}

/// Returns the elements that go to the chain of a class. Rules of other chains go only to classes that choose an
/// endpoint.
fn dispatch(class: Class) -> impl Iterator<Item = SetElement> {
    let is_local = matches!(class, Class::Forward(kind, _) if kind.selection == Selection::Pick);
    let maps = [Some(SetId::Dispatch), is_local.then_some(SetId::LocalDispatch)];
    maps.into_iter().flatten().map(move |map| (map, Element::new([class.key().into()]).verdict(class.verdict())))
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

/// Returns the change that deletes an element.
pub(super) fn delete((set, element): SetElement) -> Change {
    Change::DeleteElement(set.name(), element)
}
