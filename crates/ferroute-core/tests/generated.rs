//! What [`arbitrary`] promises to those who build on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ferroute_core::{
    Endpoint, ServicePortEntry, IpFamily, Protocol, ServicePortName, ServiceTable, TrafficPolicy,
    parse::{parse_node, parse_service, parse_slice},
    testing::{Cluster, arbitrary},
};
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

fn frontends<'a>(
    (name, entry): (&'a ServicePortName, &'a ServicePortEntry),
) -> impl Iterator<Item = (Option<IpAddr>, u16, Protocol)> + 'a {
    let service = &entry.service;
    let addresses = [service.cluster_ip].into_iter().chain(service.external_ips.iter().copied());
    let addresses = addresses.chain(service.load_balancer_vips.iter().copied());
    let by_address = addresses.map(|address| (Some(address), service.port, name.protocol));
    by_address.chain(service.node_port.map(|port| (None, port.get(), name.protocol)))
}

fn assert_sound(cluster: &Cluster) -> Result<(), TestCaseError> {
    prop_assert_eq!(&cluster.node.metadata.name, arbitrary::NODE);
    let mut names = BTreeSet::new();
    let services = cluster.services.iter().map(|service| ("Service", &service.metadata));
    for (kind, metadata) in services.chain(cluster.slices.iter().map(|slice| ("EndpointSlice", &slice.metadata))) {
        prop_assert!(names.insert((kind, &metadata.namespace, &metadata.name)), "{metadata:?} is there twice");
    }
    let mut health_checks = BTreeMap::new();
    for family in IpFamily::BOTH {
        let mut taken = BTreeMap::new();
        for entry in &cluster.table(family).entries {
            for frontend in frontends(entry) {
                let other = taken.insert(frontend, entry.0.clone());
                prop_assert_eq!(other, None, "{:?} is also that of {}", frontend, entry.0);
            }
            if let Some(port) = entry.1.service.health_check_node_port {
                let other = health_checks.insert(port, entry.0.service.clone());
                prop_assert!(other.is_none_or(|other| other == entry.0.service));
                prop_assert!(!taken.contains_key(&(None, port.get(), Protocol::Tcp)));
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn names_and_frontends_are_unique_after_every_edit(
        mut cluster in arbitrary::cluster(),
        edits in arbitrary::edits(0..16),
    ) {
        assert_sound(&cluster)?;
        for edit in &edits {
            cluster.apply(edit);
            assert_sound(&cluster)?;
        }
    }

    #[test]
    fn every_object_is_good(
        service in arbitrary::service(),
        slice in arbitrary::slice(),
        node in arbitrary::node(),
    ) {
        parse_service(&service)?;
        parse_slice(&slice, arbitrary::NODE)?;
        parse_node(&node)?;
    }
}

/// Whether something that proxies treat in its own way is somewhere in a table.
type Feature = (&'static str, fn(&ServiceTable) -> bool);

fn any_entry(table: &ServiceTable, wanted: impl Fn(&ServicePortEntry) -> bool) -> bool {
    table.entries.values().any(wanted)
}

fn any_endpoint(table: &ServiceTable, wanted: impl Fn(&Endpoint) -> bool) -> bool {
    any_entry(table, |entry| entry.endpoints.iter().any(&wanted))
}

fn any_fallback(table: &ServiceTable, local: bool) -> bool {
    any_entry(table, |entry| {
        let sets = table.endpoint_sets(entry);
        let chosen = if local { sets.local } else { sets.cluster };
        chosen.iter().any(|endpoint| !endpoint.ready)
    })
}

const FEATURES: [Feature; 30] = [
    ("TCP", |table| table.entries.keys().any(|name| name.protocol == Protocol::Tcp)),
    ("UDP", |table| table.entries.keys().any(|name| name.protocol == Protocol::Udp)),
    ("SCTP", |table| table.entries.keys().any(|name| name.protocol == Protocol::Sctp)),
    ("a port without name", |table| table.entries.keys().any(|name| name.port.is_empty())),
    ("a node port", |table| any_entry(table, |e| e.service.node_port.is_some())),
    ("an external IP", |table| any_entry(table, |e| !e.service.external_ips.is_empty())),
    ("a load balancer", |table| any_entry(table, |e| !e.service.load_balancer_vips.is_empty())),
    ("a load balancer without node port", |table| {
        any_entry(table, |e| !e.service.load_balancer_vips.is_empty() && e.service.node_port.is_none())
    }),
    ("a source range", |table| {
        any_entry(table, |e| {
            !e.service.load_balancer_source_ranges.is_empty() && !e.service.load_balancer_vips.is_empty()
        })
    }),
    ("a health-check node port", |table| any_entry(table, |e| e.service.health_check_node_port.is_some())),
    ("affinity", |table| any_entry(table, |e| e.service.affinity.is_some())),
    ("internal policy Local", |table| any_entry(table, |e| e.service.internal_policy == TrafficPolicy::Local)),
    ("external policy Local", |table| any_entry(table, |e| e.service.external_policy == TrafficPolicy::Local)),
    ("both policies Local", |table| {
        any_entry(table, |e| e.service.internal_local() && e.service.external_local() && e.service.node_port.is_some())
    }),
    ("cluster endpoints only", |table| any_entry(table, |e| !e.service.uses_local_endpoints())),
    ("local endpoints only", |table| any_entry(table, |e| !e.service.uses_cluster_endpoints())),
    ("no endpoints", |table| any_entry(table, |e| e.endpoints.is_empty())),
    ("no endpoint that serves", |table| any_entry(table, |e| !e.endpoints.is_empty() && !table.endpoint_sets(e).has_any_endpoints)),
    ("endpoints elsewhere only", |table| {
        any_entry(table, |e| {
            let sets = table.endpoint_sets(e);
            e.service.uses_local_endpoints() && sets.local.is_empty() && sets.has_any_endpoints
        })
    }),
    ("many endpoints", |table| any_entry(table, |e| e.endpoints.len() > 5)),
    ("an endpoint here", |table| any_endpoint(table, |e| e.local)),
    ("an endpoint elsewhere", |table| any_endpoint(table, |e| !e.local)),
    ("an endpoint in the host's network", |table| any_endpoint(table, |e| table.node.addresses.contains(&e.address))),
    ("an endpoint that is not ready", |table| any_endpoint(table, |e| !e.ready && !e.terminating)),
    ("ready while it terminates", |table| any_endpoint(table, |e| e.ready && e.terminating)),
    ("a fallback for cluster traffic", |table| any_fallback(table, false)),
    ("a fallback for local traffic", |table| any_fallback(table, true)),
    ("a choice narrowed by hints", |table| {
        any_entry(table, |e| {
            let chosen = table.endpoint_sets(e).cluster.len();
            e.service.uses_cluster_endpoints() && chosen > 0 && chosen < e.endpoints.iter().filter(|e| e.ready).count()
        })
    }),
    ("hints that are ignored", |table| {
        any_entry(table, |e| {
            let hinted = e.endpoints.iter().any(|e| e.ready && e.hints.is_some());
            hinted && table.endpoint_sets(e).cluster.len() == e.endpoints.iter().filter(|e| e.ready).count()
        })
    }),
    ("two targets on one address", |table| {
        any_entry(table, |e| e.endpoints.windows(2).any(|pair| pair[0].address == pair[1].address))
    }),
];

#[test]
fn everything_that_a_proxy_treats_in_its_own_way_is_generated() {
    // A fixed seed: this is about the strategy, not about one run's luck.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let mut tables = Vec::new();
    for _ in 0..200 {
        let cluster = arbitrary::cluster().new_tree(&mut runner).unwrap().current();
        tables.push(IpFamily::BOTH.map(|family| cluster.table(family)));
    }
    for family in IpFamily::BOTH {
        for (what, is_there) in FEATURES {
            let clusters = tables.iter().filter(|tables| is_there(&tables[family.index()])).count();
            assert!(clusters > 0, "none of 200 clusters has, in {family}, {what}");
        }
    }
}
