//! Division of a namespace's share of the affinity map among its lists.
//!
//! A flood of clients, possibly with spoofed addresses, must not fill the map for the Services of other namespaces.
//! Users who may create Services in a namespace may give them many ports, so each namespace has a share, and its lists
//! have equal parts of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{List, SetId, elements::SetElement, port_plan::PortElements};
use crate::model::{ClassId, Element};

/// The lists with session affinity of one namespace, with their timeouts in seconds.
type Lists = BTreeMap<ClassId, u32>;

/// The lists with session affinity of all namespaces.
#[derive(Clone, Debug, Default)]
pub(super) struct AffinityShares {
    namespaces: HashMap<Box<str>, Lists>,
    /// Lists, before the current transaction, of the namespaces that it changed.
    before: BTreeMap<Box<str>, Lists>,
}

/// The elements that a transaction adds and removes.
#[derive(Debug, Default)]
pub(super) struct ShareChanges {
    pub(super) added: BTreeSet<ShareElement>,
    pub(super) removed: BTreeSet<ShareElement>,
}

/// The element of a list, with its set.
pub(super) type ShareElement = (SetId, ClassId);

impl AffinityShares {
    /// Replaces the lists of a service port.
    pub(super) fn replace(&mut self, namespace: &str, old: Option<&PortElements>, new: Option<&PortElements>) {
        let (old, new) = (old.map(lists).unwrap_or_default(), new.map(lists).unwrap_or_default());
        if old == new {
            return;
        }
        let lists = self.namespaces.entry(namespace.into()).or_default();
        if !self.before.contains_key(namespace) {
            self.before.insert(namespace.into(), lists.clone());
        }
        for list in old.keys() {
            lists.remove(list);
        }
        lists.extend(new);
        if lists.is_empty() {
            self.namespaces.remove(namespace);
        }
    }

    /// Returns the changes since the last call.
    pub(super) fn take_changes(&mut self) -> ShareChanges {
        let mut changes = ShareChanges::default();
        let none = Lists::new();
        for (namespace, before) in std::mem::take(&mut self.before) {
            let now = self.namespaces.get(&namespace).unwrap_or(&none);
            let [before, now] = [&before, now].map(|lists| elements(lists).collect::<BTreeSet<_>>());
            changes.added.extend(now.difference(&before));
            changes.removed.extend(before.difference(&now));
        }
        changes
    }

    /// Returns all elements.
    pub(super) fn elements(&self) -> impl Iterator<Item = ShareElement> + '_ {
        self.namespaces.values().flat_map(elements)
    }
}

/// Returns the lists of a service port, including those without endpoints, because parts should not change as often as
/// endpoints do.
fn lists(port: &PortElements) -> Lists {
    let timeout = port.affinity();
    let used = List::ALL.into_iter().filter(|list| port.exposure.uses(*list));
    used.filter_map(|list| Some((port.number.list(list), timeout?))).collect()
}

fn elements(lists: &Lists) -> impl Iterator<Item = ShareElement> + '_ {
    // Rounded, so that an additional Service rarely changes the elements of all other lists.
    let parts = u32::try_from(lists.len()).unwrap_or(u32::MAX).checked_next_power_of_two().unwrap_or(u32::MAX);
    lists.iter().map(move |(list, seconds)| (SetId::NewClients { seconds: *seconds, parts }, *list))
}

/// Returns the element of a list in the set that all lists with the same timeout and parts share.
pub(super) fn set_element((set, list): ShareElement) -> SetElement {
    (set, Element::new([list.into()]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::Limit,
        plan::sets::{NAMESPACE_SHARE, new_clients},
    };

    #[test]
    fn lists_of_a_namespace_have_its_share_at_most_together() {
        for (count, seconds) in
            [1, 2, 3, 34, 1_000, 60_000].into_iter().flat_map(|n| [1, 10_800, 86_400].map(|s| (n, s)))
        {
            let lists: Lists = (0..count).map(|list| (ClassId(list), seconds)).collect();
            let clients = elements(&lists).map(|(set, _)| {
                let SetId::NewClients { seconds, parts } = set else { panic!("{set:?}") };
                let Limit::Rate { per_day, burst, .. } = new_clients(seconds, parts) else { panic!("a rate") };
                u64::from(burst) + per_day * u64::from(seconds) / 86_400
            });
            let clients: u64 = clients.sum();
            let share = u64::from(NAMESPACE_SHARE);
            assert!(clients <= share && clients > share / 4, "{count} lists of {seconds} s: {clients}");
        }
    }
}
