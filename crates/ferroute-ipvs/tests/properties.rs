//! Properties that hold for every cluster and every sequence of changes.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::net::IpAddr;

use common::{dataplane, host, host_addresses};
use ferroute_core::{Dataplane, IpFamily, NodePortAddresses, ProxySettings, ServiceTable, testing::arbitrary};
use ferroute_iptables::plan::ChainGroup;
use ferroute_ipvs::{
    kernel::KernelState,
    plan::{IpvsContext, IpvsPlan, IpvsSettings},
};
use proptest::prelude::*;

fn any_settings() -> impl Strategy<Value = IpvsSettings> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(masquerade_all, primary, mh)| IpvsSettings {
        proxy: ProxySettings {
            masquerade_all,
            localhost_node_ports: false,
            node_port_addresses: if primary { NodePortAddresses::Primary } else { NodePortAddresses::All },
            ..ProxySettings::default()
        },
        scheduler: if mh { "mh".to_owned() } else { String::new() },
        ..IpvsSettings::default()
    })
}

/// Returns the objects that a fresh start would write.
fn fresh(table: &ServiceTable, settings: &IpvsSettings, addresses: &[IpAddr]) -> (KernelState, ChainGroup) {
    let mut dataplane = dataplane(table.family, settings, addresses);
    dataplane.resync(table).unwrap();
    let state = IpvsPlan::new(table, IpvsContext::new(settings, table, &host(addresses)));
    assert_eq!(dataplane.rules_mut().0, state.chains());
    (normal(dataplane.kernel_mut().state.clone()), state.chains())
}

/// Sorts lists whose order does not matter.
fn normal(mut state: KernelState) -> KernelState {
    state.servers.values_mut().for_each(|server| server.real_servers.sort_by_key(|server| server.real));
    state
}

proptest! {
    // A case is slow, because a cluster has many objects.
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn incremental_changes_lead_to_the_state_of_a_fresh_start(
        cluster in arbitrary::cluster(),
        edits in arbitrary::edits(1..12),
        settings in any_settings(),
        moves in any::<u16>(),
    ) {
        for family in IpFamily::BOTH {
            let mut addresses = host_addresses();
            let mut tracker = cluster.tracker();
            tracker.set_host_addresses(family, &settings.proxy, &addresses);
            tracker.update(family);
            let mut dataplane = dataplane(family, &settings, &addresses);
            dataplane.resync(tracker.table(family)).unwrap();
            for (n, edit) in edits.iter().enumerate() {
                edit.apply_to(&mut tracker);
                if moves >> (n % 16) & 1 == 1 {
                    // The node gets an address or loses it.
                    let moving: IpAddr = "198.51.100.7".parse().unwrap();
                    match addresses.iter().position(|address| *address == moving) {
                        Some(index) => _ = addresses.remove(index),
                        None => addresses.push(moving),
                    }
                }
                tracker.set_host_addresses(family, &settings.proxy, &addresses);
                dataplane.set_host_addresses(&addresses);
                let changes = tracker.update(family);
                dataplane.sync(tracker.table(family), &changes).unwrap();
                let (objects, chains) = fresh(tracker.table(family), &settings, &addresses);
                prop_assert_eq!(normal(dataplane.kernel_mut().state.clone()), objects);
                prop_assert_eq!(&dataplane.rules_mut().0, &chains);
                prop_assert!(!dataplane.was_modified_externally().unwrap());
            }
            // All objects are known, and nothing remains without Services.
            dataplane.kernel_mut().take_operations();
            dataplane.resync(tracker.table(family)).unwrap();
            prop_assert_eq!(dataplane.kernel_mut().take_operations(), []);
            let empty = ServiceTable::new(family, tracker.table(family).node.clone());
            dataplane.resync(&empty).unwrap();
            prop_assert_eq!(dataplane.kernel_mut().state.clone(), KernelState::default());
        }
    }
}
