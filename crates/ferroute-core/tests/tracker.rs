//! Properties of the tracker, for any sequence of events.

use ferroute_core::{
    Changes, IpFamily, ServicePortEntry, ServicePortName, ServiceTable, Tracker,
    testing::{Cluster, Edit, arbitrary, namespaced_name, node},
};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Returns the edits that change `current` back to `original`.
fn reverting_edits(original: &Cluster, current: &Cluster) -> Vec<Edit> {
    let names = |cluster: &Cluster| -> BTreeSet<String> {
        let services = cluster.services.iter().map(|service| &service.metadata);
        let slices = cluster.slices.iter().map(|slice| &slice.metadata);
        services.chain(slices).map(|metadata| format!("{}/{}", metadata.namespace, metadata.name)).collect()
    };
    let removed = names(current).into_iter().filter(|name| !names(original).contains(name));
    // No Service has the name of a slice, so one of the two edits has no effect.
    let removals = removed
        .flat_map(|name| [Edit::RemoveService(namespaced_name(&name)), Edit::RemoveSlice(namespaced_name(&name))]);
    removals.chain(original.edits()).collect()
}

/// Applies the changes to the old table.
fn replay(old: &ServiceTable, changes: &Changes, new: &ServiceTable) -> ServiceTable {
    let mut replayed = old.clone();
    for name in changes.previous.keys() {
        match new.entries.get(name) {
            Some(entry) => replayed.entries.insert(name.clone(), entry.clone()),
            None => replayed.entries.remove(name),
        };
    }
    for name in &changes.lost {
        match new.lost.get(name) {
            Some(lost) => replayed.lost.insert(name.clone(), lost.clone()),
            None => replayed.lost.remove(name),
        };
    }
    for name in &changes.excess {
        match new.excess.get(name) {
            Some(excess) => replayed.excess.insert(name.clone(), *excess),
            None => replayed.excess.remove(name),
        };
    }
    if changes.node {
        replayed.node = new.node.clone();
    }
    replayed
}

fn differing<'a>(old: &'a ServiceTable, new: &'a ServiceTable) -> BTreeSet<&'a ServicePortName> {
    let names = old.entries.keys().chain(new.entries.keys());
    names.filter(|name| old.entries.get(*name) != new.entries.get(*name)).collect()
}

proptest! {
    #[test]
    fn table_depends_only_on_the_current_objects(
        mut cluster in arbitrary::cluster(),
        edits in arbitrary::edits(0..16),
        updates in prop::collection::vec(any::<Option<bool>>(), 32),
    ) {
        let mut tracker = cluster.tracker();
        for (edit, update) in edits.iter().zip(updates.iter().cycle()) {
            cluster.apply(edit);
            edit.apply_to(&mut tracker);
            if let Some(second) = update {
                tracker.update(IpFamily::BOTH[usize::from(*second)]);
            }
        }
        for family in IpFamily::BOTH {
            tracker.update(family);
            prop_assert_eq!(tracker.table(family), &cluster.table(family));
        }
    }

    #[test]
    fn objects_may_be_applied_in_any_order(
        (cluster, shuffled) in arbitrary::cluster().prop_flat_map(|cluster| {
            let edits = Just(cluster.edits().collect::<Vec<_>>()).prop_shuffle();
            (Just(cluster), edits)
        }),
    ) {
        let mut tracker = Tracker::new(node(arbitrary::NODE));
        for edit in &shuffled {
            edit.apply_to(&mut tracker);
        }
        for family in IpFamily::BOTH {
            tracker.update(family);
            prop_assert_eq!(tracker.table(family), &cluster.table(family));
        }
    }

    #[test]
    fn changes_contain_exactly_the_previous_entries_that_differ(
        cluster in arbitrary::cluster(),
        edits in arbitrary::edits(0..8),
    ) {
        let mut tracker = cluster.tracker();
        for edit in &edits {
            edit.apply_to(&mut tracker);
        }
        for family in IpFamily::BOTH {
            let old = tracker.table(family).clone();
            let changes = tracker.update(family);
            let new = tracker.table(family);
            prop_assert_eq!(&replay(&old, &changes, new), new);
            prop_assert_eq!(changes.previous.keys().collect::<BTreeSet<_>>(), differing(&old, new));
            for (name, previous) in &changes.previous {
                prop_assert_eq!(previous.as_ref(), old.entries.get(name));
            }
            let services: BTreeSet<_> = changes.previous.keys().map(|name| name.service.clone()).collect();
            prop_assert_eq!(&changes.services, &services);
            prop_assert_eq!(changes.node, old.node != new.node);
            prop_assert!(!tracker.has_pending_changes(family));
        }
    }

    #[test]
    fn reverted_edits_are_no_changes(cluster in arbitrary::cluster(), edits in arbitrary::edits(1..8)) {
        let mut tracker = cluster.tracker();
        let mut edited = cluster.clone();
        for edit in &edits {
            edited.apply(edit);
            edit.apply_to(&mut tracker);
        }
        for edit in reverting_edits(&cluster, &edited) {
            edit.apply_to(&mut tracker);
        }
        for family in IpFamily::BOTH {
            prop_assert_eq!(tracker.update(family), Changes::default());
        }
    }

    #[test]
    fn addresses_are_of_the_tables_family_and_endpoints_are_sorted_and_distinct(
        cluster in arbitrary::cluster(),
    ) {
        for family in IpFamily::BOTH {
            let table = cluster.table(family);
            for ServicePortEntry { service, endpoints } in table.entries.values() {
                let outside = service.external_ips.iter().chain(&service.load_balancer_vips);
                let addresses = outside.chain(&service.cluster_ip).copied().chain(endpoints.iter().map(|e| e.address));
                let ranges = service.load_balancer_source_ranges.iter().map(|net| net.addr());
                for address in addresses.chain(ranges) {
                    prop_assert_eq!(IpFamily::of(address), family);
                }
                let texts: Vec<String> = endpoints.iter().map(|endpoint| endpoint.to_string()).collect();
                prop_assert!(texts.is_sorted_by(|a, b| a < b), "{texts:?}");
            }
        }
    }
}
