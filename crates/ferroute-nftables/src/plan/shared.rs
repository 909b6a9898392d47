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
    fixed::{firewall_chains, fixed_chains, fixed_elements},
    kind::{Class, Selection},
    limits::limit_sets,
    port_plan::PortElements,
};
use crate::model::{ChainWithRules, Change, Element, Name, SetOrMap, Transaction, Value};

/// Shared objects with reference counts: the first user adds an object, the last one deletes it.
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

/// State that has been sent to the kernel, besides elements that are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Sets that were written with the rules that refer to them.
    sets: BTreeSet<SetId>,
    /// Classes that are no longer in use but whose chains still exist, with a flag that is set if their elements exist.
    /// A packet may still request them while the transaction that ends their use takes effect.
    unused: BTreeMap<Class, bool>,
}

impl SharedObjects {
    /// Adds the objects that a service port needs.
    pub(super) fn acquire(
        &mut self,
        port: &PortElements,
        protocol: Protocol,
        context: &Context,
        transaction: &mut Transaction,
    ) {
        for class in classes(port) {
            if !self.classes.acquire(class) {
                continue;
            }
            // An unused class that was not deleted yet is reused.
            let (has_chain, has_elements) = match self.written.unused.remove(&class) {
                Some(has_elements) => (true, has_elements),
                None => (false, false),
            };
            let missing = class.chain(context).filter(|_| !has_chain);
            missing.into_iter().for_each(|chain| transaction.add_chain(chain));
            if !has_elements {
                transaction.changes.extend(dispatch(class).map(add));
            }
        }
        for set in sets(port) {
            if self.sets.acquire(set) && !self.written.sets.contains(&set) {
                // Its elements follow in the same transaction, and rules that refer to it come last.
                transaction.push(Change::AddSet(set.declaration(context)));
                if self.is_first_source_ranges(set) {
                    // Before any frontend with source ranges: a long transaction is split.
                    firewall_chains().into_iter().for_each(|chain| transaction.add_chain(chain));
                }
            }
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

    /// Deletes the objects of [`SharedObjects::acquire`] that have no other user.
    pub(super) fn release(&mut self, port: &PortElements, protocol: Protocol, transaction: &mut Transaction) {
        for class in classes(port) {
            if self.classes.release(&class) {
                self.written.unused.insert(class, true);
            }
        }
        for set in sets(port) {
            if self.sets.release(&set) && !self.written.sets.contains(&set) {
                if self.is_first_source_ranges(set) {
                    firewall_chains().into_iter().for_each(|chain| transaction.delete_chain(chain.chain.name));
                }
                transaction.push(Change::DeleteSet(set.name(), SetOrMap::Set));
            }
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

    /// Replaces the lists of a service port in the shares of the affinity map. [`SharedObjects::write_rules`] writes
    /// the elements, once for all service ports of a transaction.
    pub(super) fn divide_affinity(&mut self, namespace: &str, old: Option<&PortElements>, new: Option<&PortElements>) {
        self.affinity_shares.replace(namespace, old, new);
    }

    fn write_affinity_shares(&mut self, context: &Context, transaction: &mut Transaction) {
        let changes = self.affinity_shares.take_changes();
        for element in changes.added {
            let (set, _) = element;
            if self.sets.acquire(set) && !self.written.sets.contains(&set) {
                transaction.push(Change::AddSet(set.declaration(context)));
            }
            transaction.push(add(set_element(element)));
        }
        for element in changes.removed {
            // The set is deleted with the rules that refer to it.
            let _: bool = self.sets.release(&element.0);
            transaction.push(delete(set_element(element)));
        }
    }

    /// Updates the rules for the sets in use, and the shares of the affinity map. To be called at the end of each
    /// transaction.
    pub(super) fn write_rules(&mut self, context: &Context, transaction: &mut Transaction) {
        self.write_affinity_shares(context, transaction);
        if self.sets.len() == self.written.sets.len() && self.sets.iter().all(|set| self.written.sets.contains(set)) {
            return;
        }
        let sets: BTreeSet<SetId> = self.sets.iter().copied().collect();
        let removed: Vec<SetId> = self.written.sets.difference(&sets).copied().collect();
        let old = fixed_chains(context, self.sets());
        self.written.sets = sets;
        let new = fixed_chains(context, self.sets());
        let is_in = |chains: &[ChainWithRules], chain: &ChainWithRules| chains.iter().any(|it| it.chain == chain.chain);
        // Base chains were added with the first set.
        let added = new.iter().filter(|chain| chain.chain.base.is_none() && !is_in(&old, chain));
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
        transaction.changes.extend(removed.into_iter().map(|set| Change::DeleteSet(set.name(), SetOrMap::Set)));
    }

    /// Reports whether this set, which is not written, would be the only one with source ranges.
    fn is_first_source_ranges(&self, set: SetId) -> bool {
        let mut others = self.written.sets.iter().chain(self.sets.iter()).filter(|other| **other != set);
        set.is_source_ranges() && !others.any(|other| other.is_source_ranges())
    }

    /// Returns the elements of unused classes.
    pub(super) fn unused_elements(&self) -> impl Iterator<Item = SetElement> {
        self.written.unused.iter().filter(|(_, has_elements)| **has_elements).flat_map(|(class, _)| dispatch(*class))
    }

    /// Marks the elements of unused classes as deleted.
    pub(super) fn unused_elements_deleted(&mut self) {
        self.written.unused.values_mut().for_each(|has_elements| *has_elements = false);
    }

    /// Returns the chains of unused classes, which can be deleted after their elements.
    pub(super) fn unused_chains(&self) -> impl Iterator<Item = Name> {
        self.written.unused.keys().map(|class| class.chain_name())
    }

    /// Forgets the unused classes, after they were deleted.
    pub(super) fn unused_deleted(&mut self) {
        self.written.unused.clear();
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

    /// Returns the chains in use and the unused ones, which may be reused.
    pub(super) fn all_chains(&self, context: &Context) -> Vec<ChainWithRules> {
        ordered_chains(self.classes.iter().chain(self.written.unused.keys()).copied(), context)
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

    /// Returns all referenced items.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.counts.keys()
    }

    /// Returns the number of referenced items.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
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
