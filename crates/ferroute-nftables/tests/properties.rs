//! What must hold for every cluster and every sequence of changes.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::{collections::BTreeSet, net::IpAddr, num::NonZeroU16, sync::Arc};

use common::{Host, SharedKernel, meaning, settings, table_id};
use ferroute_core::{
    Changes, Dataplane, Entry, IpFamily, NodePortAddresses, ServicePort, ServicePortName, ServiceTable, Tracker,
    testing::{arbitrary, endpoint, node, port_name, service_port},
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
    (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(masquerade_all, localhost, all, counters)| {
            let mut settings = settings();
            settings.proxy.masquerade_all = masquerade_all;
            settings.proxy.localhost_node_ports = localhost;
            if all {
                settings.proxy.node_port_addresses = NodePortAddresses::All;
            }
            settings.counters = counters;
            settings
        },
    )
}

/// Lets the cluster tell some of the networks that it takes cluster IPs from.
fn tell_networks(tracker: &mut Tracker, told: [bool; 2]) {
    let networks = ["10.96.0.0/12", "fd00:96::/108"].into_iter().zip(told).filter(|(_, told)| *told);
    tracker.set_service_cidrs(networks.map(|(net, _)| net.parse().unwrap()));
}

/// A kernel that holds what `render` prints.
fn written_anew(table: &ServiceTable, settings: &NftablesSettings) -> Result<MemoryKernel, TestCaseError> {
    let mut kernel = MemoryKernel::new();
    kernel
        .commit(&render(table, settings, &Host::default().0))
        .map_err(|error| TestCaseError::fail(error.to_string()))?;
    Ok(kernel)
}

proptest! {
    // A cluster has many parts, so a case is a lot of work.
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn changes_one_by_one_lead_to_the_same_as_writing_everything_anew(
        mut cluster in arbitrary::cluster(),
        edits in arbitrary::edits(1..12),
        networks in vec(any::<[bool; 2]>(), 12),
        settings in any_settings(),
    ) {
        for family in IpFamily::BOTH {
            let mut tracker = cluster.tracker();
            let mut dataplane = dataplane(MemoryKernel::new(), family, settings.clone());
            dataplane.resync(tracker.table(family)).unwrap();
            for (edit, told) in edits.iter().zip(&networks) {
                edit.apply_to(&mut tracker);
                tell_networks(&mut tracker, *told);
                let changes = tracker.update(family);
                dataplane.sync(tracker.table(family), &changes).unwrap();
                let wanted = written_anew(tracker.table(family), &settings)?;
                let id = table_id(family);
                prop_assert_eq!(
                    meaning(dataplane.kernel().table(&id).unwrap(), family),
                    meaning(wanted.table(&id).unwrap(), family)
                );
                prop_assert!(!dataplane.was_disturbed().unwrap());
            }
            let mut anew = self::dataplane(MemoryKernel::new(), family, settings.clone());
            anew.resync(tracker.table(family)).unwrap();
            prop_assert_eq!(dataplane.digest(tracker.table(family)), anew.digest(tracker.table(family)));
        }
        for edit in &edits {
            cluster.apply(edit);
        }
    }

    #[test]
    fn a_restart_changes_nothing(
        cluster in arbitrary::cluster(),
        edits in arbitrary::edits(0..12),
        told in any::<[bool; 2]>(),
        settings in any_settings(),
    ) {
        for family in IpFamily::BOTH {
            let mut tracker = cluster.tracker();
            tell_networks(&mut tracker, told);
            tracker.update(family);
            let mut before = dataplane(MemoryKernel::new(), family, settings.clone());
            before.resync(tracker.table(family)).unwrap();
            for edit in &edits {
                edit.apply_to(&mut tracker);
                let changes = tracker.update(family);
                before.sync(tracker.table(family), &changes).unwrap();
            }
            let id = table_id(family);
            let wanted = meaning(before.kernel().table(&id).unwrap(), family);
            let mut after = dataplane(before.kernel().clone(), family, settings.clone());
            let report = after.resync(tracker.table(family)).unwrap();
            prop_assert_eq!((report.written, report.full), (0, false), "only unused chains may go");
            prop_assert_eq!(&meaning(after.kernel().table(&id).unwrap(), family), &wanted);
            let tidy = after.kernel().dump();
            let report = after.resync(tracker.table(family)).unwrap();
            prop_assert_eq!((report.written, report.removed, report.full), (0, 0, false));
            prop_assert_eq!(after.kernel().dump(), tidy);
        }
    }

    #[test]
    fn whatever_somebody_else_does_to_the_table_is_noticed_and_mended(
        cluster in arbitrary::cluster(),
        other in arbitrary::cluster(),
        harm in vec((any::<bool>(), any::<Index>()), 1..6),
        settings in any_settings(),
    ) {
        let family = IpFamily::V4;
        let (wanted, id, kernel) = (cluster.table(family), table_id(family), SharedKernel::default());
        let mut dataplane = dataplane(kernel.clone(), family, settings.clone());
        dataplane.resync(&wanted).unwrap();
        let intact = meaning(kernel.lock().table(&id).unwrap(), family);
        // What this cluster has goes, and what another one would have comes.
        let own = render(&wanted, &settings, &Host::default().0).changes;
        let foreign = render(&other.table(family), &settings, &Host::default().0).changes;
        for (removes, index) in &harm {
            let change = match (removes, index.get(&own).clone(), index.get(&foreign).clone()) {
                (true, Change::AddElement(set, element), _) => Change::DeleteElement(set, element),
                (true, Change::AddRule(chain, _), _) => Change::FlushChain(chain),
                (true, Change::AddTable(_), _) => Change::DeleteTable,
                (_, _, change) => change,
            };
            // What the kernel refuses does no harm.
            _ = kernel.lock().commit(&Transaction { table: id.clone(), changes: vec![change] });
        }
        let harmed = kernel.lock().table(&id).map(|table| meaning(table, family));
        // Elements are counted, not compared: that takes too long to be done each second.
        let visibly = harmed.is_none_or(|harmed| harmed.counts() != intact.counts());
        prop_assert!(dataplane.was_disturbed().unwrap() || !visibly);
        dataplane.resync(&wanted).unwrap();
        prop_assert_eq!(&meaning(kernel.lock().table(&id).unwrap(), family), &intact);
        prop_assert!(!dataplane.was_disturbed().unwrap());
    }

    #[test]
    fn after_a_failure_the_next_sync_brings_everything_into_force(
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
            let wanted = written_anew(tracker.table(family), &settings)?;
            prop_assert_eq!(
                meaning(kernel.lock().table(&id).unwrap(), family),
                meaning(wanted.table(&id).unwrap(), family)
            );
        }
    }

    #[test]
    fn chains_do_not_multiply_with_services(cluster in arbitrary::cluster(), settings in any_settings()) {
        for family in IpFamily::BOTH {
            let kernel = written_anew(&cluster.table(family), &settings)?;
            let table = kernel.table(&table_id(family)).unwrap();
            let numbers: BTreeSet<&str> = table.chains().filter_map(|chain| count_in(&chain.chain.name)).collect();
            let fixed = table.chains().filter(|chain| count_in(&chain.chain.name).is_none()).count();
            prop_assert_eq!(fixed, 18);
            prop_assert!(table.chains().count() - fixed <= KINDS * numbers.len());
        }
    }
}

/// Services that fight for the same few addresses and ports, which an API server would not let them.
fn contested() -> impl Strategy<Value = Vec<(ServicePortName, Option<Entry>)>> {
    let address = |number: u8| IpAddr::from([203, 0, 113, number]);
    let entry = (0..2_u8, vec(0..3_u8, 0..3), vec(0..3_u8, 0..2), option::of(0..2_u16), 0..3_u8).prop_map(
        move |(cluster_ip, external, balancers, node_port, endpoints)| Entry {
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
    fn whoever_fights_for_a_frontend_the_first_by_name_gets_it(rounds in vec(contested(), 1..6)) {
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
            let (wanted, id) = (written_anew(&table, &settings())?, table_id(family));
            prop_assert_eq!(
                meaning(dataplane.kernel().table(&id).unwrap(), family),
                meaning(wanted.table(&id).unwrap(), family)
            );
        }
    }
}

fn count_in(chain: &Name) -> Option<&str> {
    let (_, count) = chain.as_str().rsplit_once('-')?;
    count.parse::<usize>().is_ok().then_some(count)
}

/// Kinds of chains per number of endpoints: four ways, with affinity or without, for node ports or not.
const KINDS: usize = 16;
