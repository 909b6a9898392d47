//! Properties of the owners of frontends that several service ports claim.

#![expect(clippy::unwrap_used, reason = "test helpers fail like tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ferroute_api::Service;
use ferroute_core::{
    Frontend, FrontendKind, IpFamily, OtherHosts, Protocol, ProxySettings, ServicePortEntry, ServicePortName,
    ServiceTable, Tracker,
    testing::{Cluster, Edit, arbitrary, entry, namespaced_name, node, port_name, service_port, table},
    tracker::TrackerEvent,
};
use proptest::{collection::vec, prelude::*, sample::select};

#[derive(Clone, Debug)]
enum Step {
    Edit(Box<Edit>),
    Host(Vec<IpAddr>),
    Others(OtherHosts),
    Update,
}

fn step() -> impl Strategy<Value = Step> {
    let host = vec(select(arbitrary::CONTESTED_ADDRESSES.to_vec()), 0..3);
    prop_oneof![
        5 => contested_service().prop_map(|service| Step::Edit(Box::new(Edit::SetService(Box::new(service))))),
        2 => (0..arbitrary::CONTESTED).prop_map(|number| Step::Edit(Box::new(Edit::RemoveService(namespaced_name(&arbitrary::contested_name(number)))))),
        1 => host.prop_map(|host| Step::Host(host.into_iter().map(|text| text.parse().unwrap()).collect())),
        1 => others().prop_map(Step::Others),
        2 => Just(Step::Update),
    ]
}

/// Generates a contested Service, some with health checks at ports that others claim.
fn contested_service() -> impl Strategy<Value = Service> {
    let checked = proptest::option::weighted(0.2, select(vec![80, 30_080, 30_081]));
    (arbitrary::contested_service(), checked).prop_map(|(mut service, checked)| {
        if checked.is_some() {
            service.spec.type_ = Some("LoadBalancer".to_owned());
            service.spec.external_traffic_policy = Some("Local".to_owned());
            service.spec.health_check_node_port = checked;
        }
        service
    })
}

/// Generates other hosts at the addresses that Services claim.
fn others() -> impl Strategy<Value = OtherHosts> {
    let address = || select(arbitrary::CONTESTED_ADDRESSES.to_vec()).prop_map(|text| text.parse::<IpAddr>().unwrap());
    let api_server = vec((address(), select(vec![80, 81, 30_080])).prop_map(SocketAddr::from), 0..3);
    let addresses = proptest::option::of(vec(address(), 0..2));
    (api_server, addresses).prop_map(|(api_server, addresses)| OtherHosts { api_server, addresses })
}

/// Reports whether a frontend is reserved for another host, or for an API server on this one.
fn is_reserved(frontend: &Frontend, others: &OtherHosts, host: &[IpAddr]) -> bool {
    let is_port = |socket: &&SocketAddr| socket.port() == frontend.port && frontend.protocol == Protocol::Tcp;
    let mut api_server = others.api_server.iter().filter(is_port).map(SocketAddr::ip);
    let Some(address) = frontend.address else { return api_server.any(|address| host.contains(&address)) };
    let is_other_host = others.addresses.as_ref().is_some_and(|addresses| {
        let has_address = addresses.contains(&address) || others.api_server.iter().any(|api| api.ip() == address);
        has_address && !host.contains(&address)
    });
    api_server.any(|other| other == address) || is_other_host
}

/// Reports whether a frontend takes the connections to a health-check node port.
fn is_health_check(frontend: &Frontend, claimed: &ServiceTable, host: &[IpAddr]) -> bool {
    let mut ports = claimed.entries.values().filter_map(|entry| entry.service.health_check_node_port);
    frontend.protocol == Protocol::Tcp
        && frontend.address.is_none_or(|address| host.contains(&address))
        && ports.any(|port| port.get() == frontend.port)
}

/// Returns the owner of each frontend by the definition: from all claims at once.
fn owners(claimed: &ServiceTable, host: &[IpAddr], others: &OtherHosts) -> BTreeMap<Frontend, ServicePortName> {
    type Rank<'a> = (u8, String, &'a ServicePortName);
    let mut best: BTreeMap<Frontend, Rank<'_>> = BTreeMap::new();
    for name in claimed.entries.keys() {
        let port = claimed.claimed(name).unwrap();
        for (kind, frontend) in port.frontends(name.protocol) {
            let kind = match kind {
                FrontendKind::ClusterIp | FrontendKind::NodePort => 0,
                FrontendKind::LoadBalancer => 1,
                FrontendKind::ExternalIp => 2,
            };
            // Later than all times.
            let created = port.created.to_rfc3339().unwrap_or_else(|| "unknown".to_owned());
            let claim = (kind, created, name);
            best.entry(frontend).and_modify(|best| *best = claim.clone().min(best.clone())).or_insert(claim);
        }
    }
    let owner = |(frontend, (kind, _, name)): (&Frontend, &Rank<'_>)| {
        let is_local = frontend.address.is_some_and(|address| host.contains(&address));
        let node_port = best.get(&Frontend { address: None, ..*frontend }).filter(|_| is_local && *kind > 0);
        let owner = node_port.map_or(*name, |(_, _, name)| name);
        let is_reserved = is_reserved(frontend, others, host) || is_health_check(frontend, claimed, host);
        if (*kind > 0 || frontend.address.is_none()) && is_reserved {
            return None;
        }
        // A node port does not become a frontend with an address.
        let claims = claimed.claimed(owner).unwrap().frontends(owner.protocol).any(|(_, other)| other == *frontend);
        claims.then(|| (*frontend, owner.clone()))
    };
    best.iter().filter_map(owner).collect()
}

/// Returns the service port with each frontend. Fails if two service ports have the same frontend.
fn served(table: &ServiceTable) -> Result<BTreeMap<Frontend, ServicePortName>, TestCaseError> {
    let mut served = BTreeMap::new();
    for (name, entry) in &table.entries {
        for frontend in entry.service.frontends(name.protocol).map(|(_, frontend)| frontend).collect::<BTreeSet<_>>() {
            let other = served.insert(frontend, name.clone());
            prop_assert!(other.is_none(), "{frontend} is served by {other:?} and {name}");
        }
    }
    prop_assert_eq!(table.shared_frontend(), None);
    Ok(served)
}

proptest! {
    #[test]
    fn every_frontend_has_the_owner_with_the_best_claim(steps in vec(step(), 1..24)) {
        let (family, settings) = (IpFamily::V4, ProxySettings::default());
        let mut cluster = Cluster::new("node-1");
        let mut tracker = Tracker::new(node("node-1"));
        let (mut host, mut others) = (Vec::new(), OtherHosts::default());
        let mut replayed: BTreeMap<ServicePortName, ServicePortEntry> = BTreeMap::new();
        for step in steps.into_iter().chain([Step::Update]) {
            match step {
                Step::Edit(edit) => {
                    cluster.apply(&edit);
                    edit.apply_to(&mut tracker);
                }
                Step::Host(addresses) => host = addresses,
                Step::Others(hosts) => {
                    tracker.apply(TrackerEvent::OtherHostsApplied(hosts.clone()));
                    others = hosts;
                }
                Step::Update => {
                    tracker.set_host_addresses(family, &settings, &host);
                    let changes = tracker.update(family);
                    let table = tracker.table(family);
                    for name in changes.previous.keys() {
                        match table.entries.get(name) {
                            Some(entry) => replayed.insert(name.clone(), entry.clone()),
                            None => replayed.remove(name),
                        };
                    }
                    prop_assert_eq!(&replayed, &table.entries, "changes name every entry that differs");
                    prop_assert_eq!(served(table)?, owners(table, &host, &others));
                    let mut fresh = cluster.tracker();
                    fresh.apply(TrackerEvent::OtherHostsApplied(others.clone()));
                    fresh.set_host_addresses(family, &settings, &host);
                    fresh.update(family);
                    prop_assert_eq!(&fresh.table(family).lost, &table.lost);
                    prop_assert_eq!(&fresh.table(family).entries, &table.entries);
                    prop_assert!(!tracker.has_pending_changes(family));
                }
            }
        }
    }
}

#[test]
fn shared_frontend_of_a_table_is_found() {
    let entry = |address: &str| entry(service_port(address), []);
    let entries = [("shop/a:http", entry("10.96.0.1:80")), ("shop/b:http", entry("10.96.0.1:81"))];
    let mut table = table(IpFamily::V4, node("node-1"), entries.map(|(name, entry)| (port_name(name), entry)));
    assert_eq!(table.shared_frontend(), None);
    table.entries.insert(port_name("shop/c:http"), entry("10.96.0.1:81"));
    assert_eq!(table.shared_frontend().map(|frontend| frontend.to_string()), Some("10.96.0.1:81/tcp".to_owned()));
}
