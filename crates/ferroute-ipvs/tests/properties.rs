//! Properties that hold for every cluster and every sequence of changes.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::net::IpAddr;

use common::{dataplane, host, host_addresses};
use ferroute_core::{
    Dataplane, IpFamily, NodePortAddresses, ProxySettings, ServiceTable,
    testing::{Cluster, arbitrary},
};
use ferroute_iptables::plan::ChainGroup;
use ferroute_ipvs::{
    kernel::KernelState,
    plan::{Entry, IpvsContext, IpvsPlan, IpvsSettings, ServerKey, SetKind},
};
use proptest::{prelude::*, sample::Index};

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

/// A change of one object by another program.
#[derive(Clone, Debug)]
enum Damage {
    DeleteServer(Index),
    /// The server has the settings of another program.
    Configure(Index, u32, u32, Option<u32>),
    DeleteRealServer(Index, Index),
    /// The real server has another weight, way of forwarding or limit.
    ChangeRealServer(Index, Index, u32, bool, bool),
    /// A real server is added, with the port of another one.
    AddRealServer(Index, u16),
    DeleteEntry(Index, Index),
    /// An entry is added that has the next port or address.
    AddEntry(Index, Index),
    Unbind(Index),
    Bind(u8),
    /// The local route of an address is deleted.
    Unroute(Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<Index>;
    prop_oneof![
        index().prop_map(Damage::DeleteServer),
        (index(), 0..8_u32, any::<u32>(), prop::option::of(1..32_u32))
            .prop_map(|(at, flags, timeout, mask)| Damage::Configure(at, flags, timeout, mask)),
        (index(), index()).prop_map(|(at, real)| Damage::DeleteRealServer(at, real)),
        (index(), index(), 0..3_u32, any::<bool>(), any::<bool>())
            .prop_map(|(at, real, weight, nat, limits)| Damage::ChangeRealServer(at, real, weight, nat, limits)),
        (index(), any::<u16>()).prop_map(|(at, port)| Damage::AddRealServer(at, port)),
        (index(), index()).prop_map(|(kind, entry)| Damage::DeleteEntry(kind, entry)),
        (index(), index()).prop_map(|(kind, entry)| Damage::AddEntry(kind, entry)),
        index().prop_map(Damage::Unbind),
        any::<u8>().prop_map(Damage::Bind),
        index().prop_map(Damage::Unroute),
    ]
}

impl Damage {
    fn apply(&self, state: &mut KernelState) {
        let nth = |state: &KernelState, at: &Index| {
            (!state.servers.is_empty()).then(|| *state.servers.keys().nth(at.index(state.servers.len())).unwrap())
        };
        let server = |state: &mut KernelState, at: &Index| nth(state, at).map(|key| state.servers[&key].clone());
        let address = |state: &KernelState, at: &Index| {
            (!state.addresses.is_empty()).then(|| *state.addresses.iter().nth(at.index(state.addresses.len())).unwrap())
        };
        match self {
            Self::DeleteServer(at) => _ = nth(state, at).map(|key| state.servers.remove(&key)),
            Self::Configure(at, flags, timeout, netmask) => {
                let Some(key) = nth(state, at) else { return };
                let config = &mut state.servers.get_mut(&key).unwrap().config;
                (config.scheduler, config.flags, config.timeout, config.netmask) =
                    ("lblc".into(), *flags, *timeout, *netmask);
            }
            Self::DeleteRealServer(at, real) | Self::ChangeRealServer(at, real, ..) => {
                let Some(mut changed) = server(state, at).filter(|server| !server.real_servers.is_empty()) else {
                    return;
                };
                let real = real.index(changed.real_servers.len());
                match self {
                    Self::ChangeRealServer(_, _, weight, is_masqueraded, has_limits) => {
                        let real = &mut changed.real_servers[real];
                        (real.weight, real.is_masqueraded, real.has_limits) = (*weight, *is_masqueraded, *has_limits);
                    }
                    _ => drop(changed.real_servers.remove(real)),
                }
                state.servers.insert(nth(state, at).unwrap(), changed);
            }
            Self::AddRealServer(at, port) => {
                let Some(mut changed) = server(state, at) else { return };
                let Some(mut other) = changed.real_servers.first().copied() else { return };
                other.real.port = *port;
                if changed.real_servers.iter().all(|server| server.real != other.real) {
                    changed.real_servers.push(other);
                    changed.real_servers.sort_by_key(|server| server.real);
                    state.servers.insert(nth(state, at).unwrap(), changed);
                }
            }
            Self::DeleteEntry(kind, entry) | Self::AddEntry(kind, entry) => {
                let entries = &mut state.entries[kind.index(SetKind::ALL.len())];
                if entries.is_empty() {
                    return;
                }
                let mut sorted: Vec<Entry> = entries.iter().copied().collect();
                sorted.sort_unstable();
                let entry = sorted[entry.index(sorted.len())];
                match self {
                    Self::AddEntry(..) => {
                        let added = next(entry);
                        // A network is in a set once, with or without the option.
                        match added {
                            Entry::ServiceExceptNetwork(of, network) => {
                                _ = entries.remove(&Entry::ServiceAndNetwork(of, network));
                            }
                            Entry::ServiceAndNetwork(of, network) => {
                                _ = entries.remove(&Entry::ServiceExceptNetwork(of, network));
                            }
                            _ => {}
                        }
                        entries.insert(added);
                    }
                    _ => _ = entries.remove(&entry),
                }
            }
            Self::Unbind(at) => {
                if let Some(address) = address(state, at) {
                    state.addresses.remove(&address);
                    state.unrouted.remove(&address);
                }
            }
            Self::Bind(last) => {
                let is_ipv6 = state.servers.keys().any(|key| key.address.is_ipv6());
                let address = if is_ipv6 { format!("2001:db8::{last}") } else { format!("203.0.113.{last}") };
                state.addresses.insert(address.parse().unwrap());
            }
            Self::Unroute(at) => {
                if let Some(address) = address(state, at) {
                    state.unrouted.insert(address);
                }
            }
        }
    }
}

/// Returns an entry of the same type.
fn next(entry: Entry) -> Entry {
    let key = |key: ServerKey| ServerKey { port: key.port.wrapping_add(1).max(1), ..key };
    match entry {
        Entry::Address(IpAddr::V4(address)) => Entry::Address(IpAddr::V4((u32::from(address) ^ 1).into())),
        Entry::Address(IpAddr::V6(address)) => Entry::Address(IpAddr::V6((u128::from(address) ^ 1).into())),
        Entry::Service(of) => Entry::Service(key(of)),
        Entry::ServiceAndAddress(of, address) => Entry::ServiceAndAddress(key(of), address),
        Entry::ServiceAndNetwork(of, network) => Entry::ServiceExceptNetwork(of, network),
        Entry::ServiceExceptNetwork(of, network) => Entry::ServiceExceptNetwork(key(of), network),
        Entry::Port(port) => Entry::Port(port.wrapping_add(1).max(1)),
    }
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

    #[test]
    fn one_start_leads_from_any_state_to_that_of_a_start_on_an_empty_kernel(
        before in prop::option::of(arbitrary::cluster()),
        cluster in arbitrary::cluster(),
        damages in prop::collection::vec(damage(), 0..12),
        settings in any_settings(),
        family in prop::sample::select(&IpFamily::BOTH),
    ) {
        let addresses = host_addresses();
        let table = |cluster: &Cluster| {
            let mut tracker = cluster.tracker();
            tracker.set_host_addresses(family, &settings.proxy, &addresses);
            tracker.update(family);
            tracker.table(family).clone()
        };
        let wanted = table(&cluster);
        let (mut found, _) = fresh(&before.map_or_else(|| wanted.clone(), |before| table(&before)), &settings, &addresses);
        damages.iter().for_each(|damage| damage.apply(&mut found));
        let mut dataplane = dataplane(family, &settings, &addresses);
        dataplane.kernel_mut().state = found.clone();
        dataplane.resync(&wanted).unwrap();
        let mut state = normal(dataplane.kernel_mut().state.clone());
        let (objects, chains) = fresh(&wanted, &settings, &addresses);
        // A virtual server without an entry or address looks like another program's, and stays.
        let is_theirs = |key: &ServerKey| {
            let is_marked = found.addresses.contains(&key.address) || !found.entries_of(*key).is_empty();
            !objects.servers.contains_key(key) && (!is_marked || addresses.contains(&key.address))
        };
        state.servers.retain(|key, server| !(is_theirs(key) && found.servers.get(key) == Some(server)));
        prop_assert_eq!(state, objects, "after {:?}", damages);
        prop_assert_eq!(&dataplane.rules_mut().0, &chains);
        prop_assert!(!dataplane.was_modified_externally().unwrap());
        dataplane.kernel_mut().take_operations();
        dataplane.resync(&wanted).unwrap();
        prop_assert_eq!(dataplane.kernel_mut().take_operations(), []);
    }
}
