//! Generated clusters, and the features that rules depend on.

use std::collections::BTreeMap;

use ferroute_core::{
    Endpoint, Protocol, ServicePortEntry, ServicePortName, ServiceTable,
    testing::{Cluster, arbitrary},
};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

/// Clusters from one generator.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) clusters: Vec<Cluster>,
}

/// Returns the clusters that are planned under the settings with this name, and under no others; they are the same in
/// every run.
pub(crate) fn groups(setup: &str) -> [Group; 3] {
    [
        group(setup, "any", ANY, arbitrary::cluster()),
        group(setup, "contested", CONTESTED, arbitrary::contested_cluster()),
        group(setup, "adversarial", ADVERSARIAL, arbitrary::adversarial_cluster()),
    ]
}

fn group(setup: &str, name: &'static str, count: usize, strategy: impl Strategy<Value = Cluster>) -> Group {
    let mut seed = [0; 32];
    for (i, byte) in setup.bytes().enumerate() {
        seed[i % seed.len()] ^= byte;
    }
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let clusters = (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect();
    Group { name, clusters }
}

/// Returns the features that rules depend on, with the number of service ports of a table that have them.
pub(crate) fn features(table: &ServiceTable) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for (name, entry) in &table.entries {
        for (feature, is_present) in features_of(table, name, entry) {
            *counts.entry(feature).or_default() += usize::from(is_present);
        }
    }
    counts
}

fn features_of(table: &ServiceTable, name: &ServicePortName, entry: &ServicePortEntry) -> Vec<(&'static str, bool)> {
    let (service, endpoints) = (&entry.service, entry.endpoints.iter().collect::<Vec<Endpoint>>());
    let ranges = &service.load_balancer_source_ranges;
    let (internal, external) = (service.internal_local(), service.external_local());
    let any = |has: fn(&Endpoint) -> bool| endpoints.iter().any(has);
    let has_local = any(|endpoint| endpoint.ready && endpoint.local);
    let has_other = any(|endpoint| endpoint.ready && !endpoint.local);
    let has_terminating = any(|endpoint| !endpoint.ready && endpoint.serving && endpoint.terminating);
    let has_hints = any(|endpoint| endpoint.hints.is_some());
    let is_without_hints = any(|endpoint| endpoint.hints.is_none());
    vec![
        ("TCP", name.protocol == Protocol::Tcp),
        ("UDP", name.protocol == Protocol::Udp),
        ("SCTP", name.protocol == Protocol::Sctp),
        ("a lost frontend", table.lost.contains_key(name)),
        ("no cluster IP, because it is lost", service.cluster_ip.is_none()),
        ("a node port", service.node_port.is_some()),
        ("external IPs", !service.external_ips.is_empty()),
        ("load balancer IPs", !service.load_balancer_vips.is_empty()),
        ("load balancer IPs with source ranges", !service.load_balancer_vips.is_empty() && !ranges.is_empty()),
        ("a health check node port", service.health_check_node_port.is_some()),
        ("affinity", service.affinity.is_some()),
        ("internal policy Local only", internal && !external),
        ("external policy Local only", external && !internal),
        ("both policies Local", external && internal),
        ("both policies Local, endpoints elsewhere only", external && internal && has_other && !has_local),
        ("external policy Local, endpoints here and elsewhere", external && has_local && has_other),
        ("no endpoints", endpoints.is_empty()),
        ("one endpoint", endpoints.len() == 1),
        ("several endpoints", endpoints.len() > 1),
        ("dozens of endpoints", endpoints.len() > 50),
        ("endpoints that do not serve", !endpoints.is_empty() && !any(|endpoint| endpoint.ready || endpoint.serving)),
        ("terminating endpoints instead of ready ones", has_terminating && !has_local && !has_other),
        ("terminating beside ready endpoints", has_terminating && (has_local || has_other)),
        ("hints", has_hints && !is_without_hints),
        ("hints on some endpoints", has_hints && is_without_hints),
        ("an endpoint with the node's address", endpoints.iter().any(|it| table.node.addresses.contains(&it.address))),
    ]
}

const ANY: usize = 16;
const CONTESTED: usize = 4;
const ADVERSARIAL: usize = 2;
