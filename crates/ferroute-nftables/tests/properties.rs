//! Properties that hold for every cluster and every sequence of changes.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::{collections::BTreeSet, net::IpAddr, num::NonZeroU16, sync::Arc};

use common::{Host, SharedKernel, contents, settings, table_id};
use ferroute_core::{
    Changes, Dataplane, FlowtableSettings, IpFamily, NodePortAddresses, ServicePort, ServicePortEntry, ServicePortName,
    ServiceTable, Tracker,
    testing::{arbitrary, endpoint, node, port_name, service_port},
    tracker::TrackerEvent,
};
use ferroute_nftables::{
    NftablesDataplane,
    kernel::{Kernel, MemoryKernel},
    model::{Change, Name, Transaction},
    plan::{NftablesSettings, render},
};
use proptest::{collection::vec, option, prelude::*, sample::Index};

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
    // A case is slow, because a cluster has many parts.
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
            prop_assert_eq!((report.written, report.full), (0, false), "only unused chains may go");
            prop_assert_eq!(&contents(after.kernel().table(&id).unwrap(), family), &expected);
            let tidy = after.kernel().dump();
            let report = after.resync(tracker.table(family)).unwrap();
            prop_assert_eq!((report.written, report.removed, report.full), (0, 0, false));
            prop_assert_eq!(after.kernel().dump(), tidy);
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
        // Elements are counted, not compared, which would take too long for a check every second.
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

/// Services that claim the same few addresses and ports, which an API server would not allow.
fn contested() -> impl Strategy<Value = Vec<(ServicePortName, Option<ServicePortEntry>)>> {
    let address = |number: u8| IpAddr::from([203, 0, 113, number]);
    let entry = (0..2_u8, vec(0..3_u8, 0..3), vec(0..3_u8, 0..2), option::of(0..2_u16), 0..3_u8).prop_map(
        move |(cluster_ip, external, balancers, node_port, endpoints)| ServicePortEntry {
            service: Arc::new(ServicePort {
                external_ips: external.into_iter().map(address).collect(),
                load_balancer_vips: balancers.into_iter().map(address).collect(),
                load_balancer_source_ranges: ["10.0.0.0/8".parse().unwrap()].into(),
                node_port: node_port.and_then(|port| NonZeroU16::new(30_000 + port)),
                ..service_port(&format!("10.96.0.{}:80", 1 + cluster_ip))
            }),
            endpoints: (0..endpoints).map(|number| endpoint(&format!("10.244.0.{}:8080", 2 + number))).collect(),
        },
    );
    let name = (0..4_u8).prop_map(|number| port_name(&format!("shop/web-{number}:http")));
    vec((name, option::weighted(0.7, entry)), 1..12)
}

proptest! {
    #[test]
    fn contested_frontend_belongs_to_the_first_service_port_by_name(rounds in vec(contested(), 1..6)) {
        let family = IpFamily::V4;
        let mut table = ServiceTable::new(family, Arc::new(node("node-1")));
        let mut dataplane = dataplane(MemoryKernel::new(), family, settings());
        dataplane.resync(&table).unwrap();
        for round in rounds {
            let mut changes = Changes::default();
            for (name, entry) in round {
                let old = match entry {
                    Some(entry) => table.entries.insert(name.clone(), entry),
                    None => table.entries.remove(&name),
                };
                changes.previous.entry(name).or_insert(old);
            }
            dataplane.sync(&table, &changes).unwrap();
            let (expected, id) = (rendered(&table, &settings())?, table_id(family));
            prop_assert_eq!(
                contents(dataplane.kernel().table(&id).unwrap(), family),
                contents(expected.table(&id).unwrap(), family)
            );
        }
    }
}

fn count_in(chain: &Name) -> Option<&str> {
    let (_, count) = chain.as_str().rsplit_once('-')?;
    count.parse::<usize>().is_ok().then_some(count)
}

/// The number of chain kinds per number of endpoints: three selections, with affinity or without.
const KINDS: usize = 6;
