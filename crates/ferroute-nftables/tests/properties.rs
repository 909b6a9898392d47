//! Properties that hold for every cluster and every sequence of changes.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use common::{Host, SharedKernel, contents, settings, table_id};
use ferroute_core::{
    Dataplane, FlowtableSettings, Frontend, IpFamily, NodePortAddresses, ServiceTable, Tracker,
    testing::{Cluster, Edit, arbitrary, namespaced_name},
    tracker::TrackerEvent,
};
use ferroute_nftables::{
    NftablesDataplane,
    kernel::{InterceptedKernel, Kernel, MemoryKernel, MemoryTable},
    model::{Change, Name, Transaction},
    plan::{NftablesSettings, SetId, frontend_from_key, render},
};
use proptest::{collection::vec, prelude::*, sample::Index};

fn dataplane<K: Kernel>(kernel: K, family: IpFamily, settings: NftablesSettings) -> NftablesDataplane<K> {
    NftablesDataplane::with_kernel(kernel, family, settings, Box::new(Host::default()))
}

fn any_settings() -> impl Strategy<Value = NftablesSettings> {
    any::<[bool; 5]>().prop_map(|[masquerade_all, localhost, all, counters, flowtable]| {
        let mut settings = settings();
        settings.proxy.masquerade_all = masquerade_all;
        settings.proxy.localhost_node_ports = localhost;
        if all {
            settings.proxy.node_port_addresses = NodePortAddresses::All;
        }
        settings.counters = counters;
        settings.flowtable = flowtable.then(|| FlowtableSettings { devices: Vec::new(), packets: 20 });
        settings
    })
}

/// Sets some of the cluster's service CIDRs.
fn set_service_cidrs(tracker: &mut Tracker, present: [bool; 2]) {
    let networks = ["10.96.0.0/12", "fd00:96::/108"].into_iter().zip(present).filter(|(_, present)| *present);
    let cidrs = networks.map(|(net, _)| net.parse().unwrap()).collect();
    tracker.apply(TrackerEvent::ServiceCidrsApplied(cidrs));
}

/// Returns a kernel with the rendered table.
fn rendered(table: &ServiceTable, settings: &NftablesSettings) -> Result<MemoryKernel, TestCaseError> {
    let mut kernel = MemoryKernel::new();
    kernel
        .commit(&render(table, settings, &Host::default().0))
        .map_err(|error| TestCaseError::fail(error.to_string()))?;
    Ok(kernel)
}

proptest! {
    // A case is slow, because a cluster has many objects.
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn incremental_changes_lead_to_the_rendered_table(
        mut cluster in arbitrary::cluster(),
        edits in arbitrary::edits(1..12),
        networks in vec(any::<[bool; 2]>(), 12),
        settings in any_settings(),
    ) {
        for family in IpFamily::BOTH {
            let mut tracker = cluster.tracker();
            let mut dataplane = dataplane(MemoryKernel::new(), family, settings.clone());
            dataplane.resync(tracker.table(family)).unwrap();
            for (edit, present) in edits.iter().zip(&networks) {
                edit.apply_to(&mut tracker);
                set_service_cidrs(&mut tracker, *present);
                let changes = tracker.update(family);
                dataplane.sync(tracker.table(family), &changes).unwrap();
                let expected = rendered(tracker.table(family), &settings)?;
                let id = table_id(family);
                prop_assert_eq!(
                    contents(dataplane.kernel().table(&id).unwrap(), family),
                    contents(expected.table(&id).unwrap(), family)
                );
                prop_assert!(!dataplane.was_modified_externally().unwrap());
            }
            let mut fresh = self::dataplane(MemoryKernel::new(), family, settings.clone());
            fresh.resync(tracker.table(family)).unwrap();
            prop_assert_eq!(dataplane.digest(tracker.table(family)), fresh.digest(tracker.table(family)));
        }
        for edit in &edits {
            cluster.apply(edit);
        }
    }

    #[test]
    fn restart_changes_nothing(
        cluster in arbitrary::cluster(),
        edits in arbitrary::edits(0..12),
        networks in any::<[bool; 2]>(),
        settings in any_settings(),
    ) {
        for family in IpFamily::BOTH {
            let mut tracker = cluster.tracker();
            set_service_cidrs(&mut tracker, networks);
            tracker.update(family);
            let mut before = dataplane(MemoryKernel::new(), family, settings.clone());
            before.resync(tracker.table(family)).unwrap();
            for edit in &edits {
                edit.apply_to(&mut tracker);
                let changes = tracker.update(family);
                before.sync(tracker.table(family), &changes).unwrap();
            }
            let id = table_id(family);
            let expected = contents(before.kernel().table(&id).unwrap(), family);
            let mut after = dataplane(before.kernel().clone(), family, settings.clone());
            let report = after.resync(tracker.table(family)).unwrap();
            prop_assert_eq!(report.written, 0, "only unused chains may go");
            prop_assert_eq!(&contents(after.kernel().table(&id).unwrap(), family), &expected);
            let tidy = after.kernel().dump();
            let report = after.resync(tracker.table(family)).unwrap();
            prop_assert_eq!((report.written, report.removed), (0, 0));
            prop_assert_eq!(&after.kernel().dump(), &tidy);
            // A dataplane that has kept unused chains knows that they are its own.
            let report = before.resync(tracker.table(family)).unwrap();
            prop_assert_eq!((report.written, report.removed), (0, 0));
            prop_assert_eq!(before.kernel().dump(), tidy);
        }
    }

    #[test]
    fn external_modifications_are_detected_and_repaired(
        cluster in arbitrary::cluster(),
        other in arbitrary::cluster(),
        modifications in vec((any::<bool>(), any::<Index>()), 1..6),
        settings in any_settings(),
    ) {
        let family = IpFamily::V4;
        let (expected, id, kernel) = (cluster.table(family), table_id(family), SharedKernel::default());
        let mut dataplane = dataplane(kernel.clone(), family, settings.clone());
        dataplane.resync(&expected).unwrap();
        let intact = contents(kernel.lock().table(&id).unwrap(), family);
        // Objects of this cluster are removed, and objects of another one added.
        let own = render(&expected, &settings, &Host::default().0).changes;
        let foreign = render(&other.table(family), &settings, &Host::default().0).changes;
        for (removes, index) in &modifications {
            let change = match (removes, index.get(&own).clone(), index.get(&foreign).clone()) {
                (true, Change::AddElement(set, element), _) => Change::DeleteElement(set, element),
                (true, Change::AddRule(chain, _), _) => Change::FlushChain(chain),
                (true, Change::AddTable(_), _) => Change::DeleteTable,
                (_, _, change) => change,
            };
            // The kernel may refuse the modification.
            _ = kernel.lock().commit(&Transaction { table: id.clone(), changes: vec![change] });
        }
        let modified = kernel.lock().table(&id).map(|table| contents(table, family));
        // Elements are counted, not compared, because a comparison takes too long for a check every second.
        let is_visible = modified.is_none_or(|modified| modified.with_counts() != intact.with_counts());
        prop_assert!(dataplane.was_modified_externally().unwrap() || !is_visible);
        dataplane.resync(&expected).unwrap();
        prop_assert_eq!(&contents(kernel.lock().table(&id).unwrap(), family), &intact);
        prop_assert!(!dataplane.was_modified_externally().unwrap());
    }

    #[test]
    fn resync_after_a_failure_applies_everything(
        cluster in arbitrary::cluster(),
        edits in arbitrary::edits(1..12),
        fails in vec(any::<bool>(), 12),
        settings in any_settings(),
    ) {
        let family = IpFamily::V4;
        let (kernel, mut tracker, id) = (SharedKernel::default(), cluster.tracker(), table_id(family));
        let mut dataplane = dataplane(kernel.clone(), family, settings.clone());
        dataplane.resync(tracker.table(family)).unwrap();
        for (edit, fails) in edits.iter().zip(fails) {
            let before = kernel.lock().dump();
            kernel.refuse(fails);
            edit.apply_to(&mut tracker);
            let changes = tracker.update(family);
            if dataplane.sync(tracker.table(family), &changes).is_err() {
                prop_assert!(fails);
                prop_assert_eq!(&kernel.lock().dump(), &before);
                kernel.refuse(false);
                dataplane.resync(tracker.table(family)).unwrap();
            }
            let expected = rendered(tracker.table(family), &settings)?;
            prop_assert_eq!(
                contents(kernel.lock().table(&id).unwrap(), family),
                contents(expected.table(&id).unwrap(), family)
            );
        }
    }

    #[test]
    fn chains_do_not_multiply_with_services(cluster in arbitrary::cluster(), settings in any_settings()) {
        for family in IpFamily::BOTH {
            let kernel = rendered(&cluster.table(family), &settings)?;
            let table = kernel.table(&table_id(family)).unwrap();
            let numbers: BTreeSet<&str> = table.chains().filter_map(|chain| count_in(&chain.chain.name)).collect();
            let fixed = table.chains().filter(|chain| count_in(&chain.chain.name).is_none()).count();
            prop_assert!((14..=18).contains(&fixed), "{fixed}");
            prop_assert!(table.chains().count() - fixed <= KINDS * numbers.len());
        }
    }
}

/// Returns the frontends in the maps of a table.
fn frontends(table: &MemoryTable) -> BTreeSet<Frontend> {
    let maps = [SetId::Services.name(), SetId::NodePorts.name()];
    let elements = maps.iter().flat_map(|map| table.elements(map));
    elements.filter_map(|element| frontend_from_key(&element.key)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Several service ports change in one sync, and frontends move between them in any order of their names.
    #[test]
    fn frontends_move_without_a_gap(clusters in vec(arbitrary::contested_cluster(), 2..6)) {
        let (family, id) = (IpFamily::V4, table_id(IpFamily::V4));
        let lost = Arc::new(Mutex::new((BTreeSet::new(), BTreeSet::new())));
        let (required, id_of_commit) = (lost.clone(), id.clone());
        let kernel = InterceptedKernel::new(MemoryKernel::new(), move |kernel: &mut MemoryKernel, transaction: &Transaction| {
            kernel.commit(transaction)?;
            let (required, missing) = &mut *required.lock().unwrap();
            let frontends = kernel.table(&id_of_commit).map(frontends).unwrap_or_default();
            missing.extend(required.difference(&frontends).copied());
            Ok(())
        });
        let mut tracker = Cluster::new(arbitrary::NODE).tracker();
        tracker.update(family);
        let mut dataplane = dataplane(kernel, family, settings());
        dataplane.resync(tracker.table(family)).unwrap();
        let mut previous = Cluster::new(arbitrary::NODE);
        for cluster in clusters {
            let removed = previous.services.iter().map(|service| namespaced_name(&format!("shop/{}", service.metadata.name)));
            let removed = removed.filter(|name| !cluster.services.iter().any(|service| name.name() == service.metadata.name));
            let edits = removed.map(Edit::RemoveService).collect::<Vec<_>>().into_iter();
            let edits = edits.chain(cluster.services.iter().cloned().map(|service| Edit::SetService(Box::new(service))));
            edits.chain(cluster.slices.iter().cloned().map(Edit::SetSlice)).for_each(|edit| edit.apply_to(&mut tracker));
            let before = served(tracker.table(family));
            let changes = tracker.update(family);
            let table = tracker.table(family);
            lost.lock().unwrap().0 = before.intersection(&served(table)).copied().collect();
            dataplane.sync(table, &changes).unwrap();
            prop_assert_eq!(&lost.lock().unwrap().1, &BTreeSet::new());
            let expected = rendered(table, &settings())?;
            prop_assert_eq!(
                contents(dataplane.kernel().as_ref().table(&id).unwrap(), family),
                contents(expected.table(&id).unwrap(), family)
            );
            previous = cluster;
        }
    }
}

/// Returns all frontends of a table.
fn served(table: &ServiceTable) -> BTreeSet<Frontend> {
    let entries = table.entries.iter();
    entries.flat_map(|(name, entry)| entry.service.frontends(name.protocol)).map(|(_, frontend)| frontend).collect()
}

fn count_in(chain: &Name) -> Option<&str> {
    let (_, count) = chain.as_str().rsplit_once('-')?;
    count.parse::<usize>().is_ok().then_some(count)
}

/// The number of chain kinds per number of endpoints: three selections, with affinity or without.
const KINDS: usize = 6;
