//! Guarantees of [`arbitrary`].

use std::collections::{BTreeMap, BTreeSet};

use ferroute_core::{
    Endpoint, Frontend, IpFamily, Protocol, ServicePortEntry, ServiceTable, TrafficPolicy,
    parse::{parse_node, parse_service, parse_slice},
    testing::{Cluster, arbitrary},
};
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

fn check_uniqueness(cluster: &Cluster) -> Result<(), TestCaseError> {
    prop_assert_eq!(&cluster.node.metadata.name, arbitrary::NODE);
    let mut names = BTreeSet::new();
    let services = cluster.services.iter().map(|service| ("Service", &service.metadata));
    for (kind, metadata) in services.chain(cluster.slices.iter().map(|slice| ("EndpointSlice", &slice.metadata))) {
        prop_assert!(names.insert((kind, &metadata.namespace, &metadata.name)), "duplicate {metadata:?}");
    }
    let mut health_checks = BTreeMap::new();
    for family in IpFamily::BOTH {
        let mut owners = BTreeMap::new();
        for (name, entry) in &cluster.table(family).entries {
            for (_, frontend) in entry.service.frontends(name.protocol) {
                let other = owners.insert(frontend, name.clone());
                prop_assert_eq!(other, None, "{} also belongs to {}", frontend, name);
            }
            if let Some(port) = entry.service.health_check_node_port {
                let other = health_checks.insert(port, name.service.clone());
                prop_assert!(other.is_none_or(|other| other == name.service));
                let node_port = Frontend { address: None, protocol: Protocol::Tcp, port: port.get() };
                prop_assert!(!owners.contains_key(&node_port));
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
        check_uniqueness(&cluster)?;
        for edit in &edits {
            cluster.apply(edit);
            check_uniqueness(&cluster)?;
        }
    }

    #[test]
    fn all_objects_are_valid(
        service in arbitrary::service(),
        slice in arbitrary::slice(),
        node in arbitrary::node(),
    ) {
        parse_service(&service)?;
        parse_slice(&slice, arbitrary::NODE)?;
        parse_node(&node)?;
    }
}

/// A case that proxies handle in a special way, and a check whether a table has it.
type Feature = (&'static str, fn(&ServiceTable) -> bool);

fn any_entry(table: &ServiceTable, condition: impl Fn(&ServicePortEntry) -> bool) -> bool {
    table.entries.values().any(condition)
}

fn any_endpoint(table: &ServiceTable, condition: impl Fn(&Endpoint) -> bool) -> bool {
    any_entry(table, |entry| entry.endpoints.iter().any(|endpoint| condition(&endpoint)))
}

fn any_fallback(table: &ServiceTable, local: bool) -> bool {
    any_entry(table, |entry| {
        let sets = table.endpoint_sets(entry);
        let selected = if local { sets.local } else { sets.cluster };
        selected.iter().any(|endpoint| !endpoint.ready)
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
    ("no serving endpoint", |table| {
        any_entry(table, |e| !e.endpoints.is_empty() && !table.endpoint_sets(e).has_any_endpoints)
    }),
    ("endpoints on other nodes only", |table| {
        any_entry(table, |e| {
            let sets = table.endpoint_sets(e);
            e.service.uses_local_endpoints() && sets.local.is_empty() && sets.has_any_endpoints
        })
    }),
    ("many endpoints", |table| any_entry(table, |e| e.endpoints.len() > 5)),
    ("an endpoint on this node", |table| any_endpoint(table, |e| e.local)),
    ("an endpoint on another node", |table| any_endpoint(table, |e| !e.local)),
    ("an endpoint in the host network", |table| any_endpoint(table, |e| table.node.addresses.contains(&e.address))),
    ("an endpoint that is not ready", |table| any_endpoint(table, |e| !e.ready && !e.terminating)),
    ("an endpoint that is ready while terminating", |table| any_endpoint(table, |e| e.ready && e.terminating)),
    ("a fallback for cluster traffic", |table| any_fallback(table, false)),
    ("a fallback for local traffic", |table| any_fallback(table, true)),
    ("endpoints restricted by hints", |table| {
        any_entry(table, |e| {
            let selected = table.endpoint_sets(e).cluster.len();
            e.service.uses_cluster_endpoints()
                && selected > 0
                && selected < e.endpoints.iter().filter(|e| e.ready).count()
        })
    }),
    ("hints that are ignored", |table| {
        any_entry(table, |e| {
            let hinted = e.endpoints.iter().any(|e| e.ready && e.hints.is_some());
            hinted && table.endpoint_sets(e).cluster.len() == e.endpoints.iter().filter(|e| e.ready).count()
        })
    }),
    ("two endpoints with one address", |table| {
        any_entry(table, |e| e.endpoints.iter().zip(e.endpoints.iter().skip(1)).any(|(a, b)| a.address == b.address))
    }),
];

#[test]
fn all_features_are_generated() {
    // A fixed seed, so that the result depends on the strategy only.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let mut tables = Vec::new();
    for _ in 0..200 {
        let cluster = arbitrary::cluster().new_tree(&mut runner).unwrap().current();
        tables.push(IpFamily::BOTH.map(|family| cluster.table(family)));
    }
    for family in IpFamily::BOTH {
        for (feature, has_feature) in FEATURES {
            let clusters = tables.iter().filter(|tables| has_feature(&tables[family.index()])).count();
            assert!(clusters > 0, "none of 200 clusters has {feature} in {family}");
        }
    }
}
