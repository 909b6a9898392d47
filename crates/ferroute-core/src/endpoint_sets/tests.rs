use std::{num::NonZeroU16, sync::Arc};

use crate::{
    Eligibility, Endpoint, EndpointEligibility, Hints, IpFamily, NodeView, ServicePort, ServicePortEntry, ServiceTable,
    TrafficPolicy,
    testing::{endpoint, entry, node, service_port, table},
};

const A: &str = "10.244.0.2:80";
const B: &str = "10.244.0.3:80";
const C: &str = "10.244.1.2:80";
const D: &str = "10.244.1.3:80";

fn local(socket: &str) -> Endpoint {
    Endpoint { local: true, ..endpoint(socket) }
}

fn unready(endpoint: Endpoint) -> Endpoint {
    Endpoint { ready: false, serving: false, ..endpoint }
}

fn terminating(endpoint: Endpoint) -> Endpoint {
    Endpoint { ready: false, terminating: true, ..endpoint }
}

fn hinted(socket: &str, zones: &[&str], nodes: &[&str]) -> Endpoint {
    let names = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
    Endpoint { hints: Some(Arc::new(Hints { zones: names(zones), nodes: names(nodes) })), ..endpoint(socket) }
}

/// A service port with these policies of internal and external traffic.
fn policies(internal: TrafficPolicy, external: TrafficPolicy) -> ServicePort {
    ServicePort { internal_policy: internal, external_policy: external, ..service_port("10.96.0.1:80") }
}

fn with_node_port(service: ServicePort) -> ServicePort {
    ServicePort { node_port: NonZeroU16::new(30080), ..service }
}

fn cluster() -> ServicePort {
    policies(TrafficPolicy::Cluster, TrafficPolicy::Cluster)
}

fn on(node: NodeView) -> ServiceTable {
    table(IpFamily::V4, node, [])
}

fn in_zone(zone: &str) -> ServiceTable {
    on(NodeView { zone: Some(zone.to_owned()), ..node("node-1") })
}

/// [`crate::EndpointSets`] as text.
#[derive(Clone, Copy, Default)]
struct Sets<'a> {
    cluster: &'a [&'a str],
    local: &'a [&'a str],
    reachable: &'a [&'a str],
    has_any_endpoints: bool,
}

#[track_caller]
fn assert_sets(table: &ServiceTable, entry: &ServicePortEntry, expected: Sets<'_>) {
    let sets = table.endpoint_sets(entry);
    let texts = |endpoints: &[Endpoint]| endpoints.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (cluster, local) = (texts(&sets.cluster), texts(&sets.local));
    let reachable = texts(&sets.reachable);
    let actual = (cluster, local, reachable, sets.has_any_endpoints);
    let expected =
        (owned(expected.cluster), owned(expected.local), owned(expected.reachable), expected.has_any_endpoints);
    assert_eq!(actual, expected, "(cluster, local, reachable, has any endpoints)");
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Asserts the endpoints of a service port whose traffic has policy Cluster.
#[track_caller]
fn assert_cluster(table: &ServiceTable, endpoints: impl IntoIterator<Item = Endpoint>, expected: &[&str]) {
    let expected =
        Sets { cluster: expected, reachable: expected, has_any_endpoints: !expected.is_empty(), ..Sets::default() };
    assert_sets(table, &entry(cluster(), endpoints), expected);
}

#[test]
fn without_endpoints_all_sets_are_empty() {
    let everything = with_node_port(policies(TrafficPolicy::Local, TrafficPolicy::Local));
    for service in [cluster(), everything] {
        assert_sets(&on(node("node-1")), &entry(service, []), Sets::default());
    }
}

#[test]
fn cluster_traffic_uses_all_ready_endpoints() {
    let endpoints = [endpoint(A), local(B), unready(endpoint(C)), terminating(endpoint(D))];
    assert_cluster(&on(node("node-1")), endpoints, &[A, B]);
}

#[test]
fn ready_condition_takes_precedence_over_terminating() {
    let publishes_not_ready = Endpoint { serving: false, terminating: true, ..endpoint(A) };
    assert_cluster(&on(node("node-1")), [publishes_not_ready, terminating(endpoint(B))], &[A]);
}

#[test]
fn cluster_traffic_falls_back_to_serving_terminating_endpoints() {
    let not_serving = Endpoint { serving: false, ..terminating(endpoint(C)) };
    let starting = Endpoint { ready: false, ..endpoint(D) };
    assert_cluster(
        &on(node("node-1")),
        [terminating(endpoint(A)), terminating(local(B)), not_serving, starting],
        &[A, B],
    );
}

#[test]
fn endpoints_that_do_not_serve_are_not_used() {
    let endpoints = || [unready(local(A)), Endpoint { serving: false, ..terminating(endpoint(B)) }];
    assert_cluster(&on(node("node-1")), endpoints(), &[]);
    let both = with_node_port(policies(TrafficPolicy::Local, TrafficPolicy::Local));
    assert_sets(&on(node("node-1")), &entry(both, endpoints()), Sets::default());
}

#[test]
fn internal_policy_local_uses_local_endpoints_only() {
    let service = policies(TrafficPolicy::Local, TrafficPolicy::Cluster);
    let expected = Sets { local: &[A], reachable: &[A], has_any_endpoints: true, ..Sets::default() };
    assert_sets(&on(node("node-1")), &entry(service, [local(A), endpoint(B)]), expected);
}

#[test]
fn endpoints_on_other_nodes_only_differ_from_no_endpoints() {
    let service = || policies(TrafficPolicy::Local, TrafficPolicy::Cluster);
    for remote in [endpoint(B), terminating(endpoint(B))] {
        let expected = Sets { has_any_endpoints: true, ..Sets::default() };
        assert_sets(&on(node("node-1")), &entry(service(), [unready(local(A)), remote]), expected);
    }
    assert_sets(&on(node("node-1")), &entry(service(), [unready(endpoint(B))]), Sets::default());
}

#[test]
fn external_policy_local_uses_cluster_endpoints_for_clients_in_the_cluster() {
    let service = with_node_port(policies(TrafficPolicy::Cluster, TrafficPolicy::Local));
    let expected = Sets { cluster: &[A, B], local: &[A], reachable: &[A, B], has_any_endpoints: true };
    assert_sets(&on(node("node-1")), &entry(service, [local(A), endpoint(B)]), expected);
}

#[test]
fn external_policy_local_has_no_effect_without_external_address() {
    let service = policies(TrafficPolicy::Cluster, TrafficPolicy::Local);
    let expected = Sets { cluster: &[A, B], reachable: &[A, B], has_any_endpoints: true, ..Sets::default() };
    assert_sets(&on(node("node-1")), &entry(service, [local(A), endpoint(B)]), expected);
}

#[test]
fn external_policy_applies_to_every_kind_of_external_address() {
    let base = || policies(TrafficPolicy::Local, TrafficPolicy::Cluster);
    let address = || vec!["203.0.113.1".parse().unwrap()];
    for service in [
        with_node_port(base()),
        ServicePort { external_ips: address(), ..base() },
        ServicePort { load_balancer_vips: address(), ..base() },
    ] {
        let expected = Sets { cluster: &[A, B], local: &[A], reachable: &[A, B], has_any_endpoints: true };
        assert_sets(&on(node("node-1")), &entry(service, [local(A), endpoint(B)]), expected);
    }
}

#[test]
fn local_and_cluster_traffic_fall_back_to_terminating_endpoints_independently() {
    let service = || with_node_port(policies(TrafficPolicy::Cluster, TrafficPolicy::Local));
    // The only endpoint on this node is terminating, one on another node is ready.
    let expected = Sets { cluster: &[B], local: &[A], reachable: &[A, B], has_any_endpoints: true };
    assert_sets(&on(node("node-1")), &entry(service(), [terminating(local(A)), endpoint(B)]), expected);
    // With a ready endpoint on this node, the terminating one is not used.
    let expected = Sets { cluster: &[B], local: &[B], reachable: &[B], has_any_endpoints: true };
    assert_sets(&on(node("node-1")), &entry(service(), [terminating(local(A)), local(B)]), expected);
    // Without ready endpoints, both fall back.
    let expected = Sets { cluster: &[A, B], local: &[A], reachable: &[A, B], has_any_endpoints: true };
    assert_sets(&on(node("node-1")), &entry(service(), [terminating(local(A)), terminating(endpoint(B))]), expected);
}

#[test]
fn zone_hints_restrict_cluster_traffic_to_this_zone() {
    let endpoints = || [hinted(A, &["a"], &[]), hinted(B, &["b"], &[]), hinted(C, &["b", "a"], &[])];
    assert_cluster(&in_zone("a"), endpoints(), &[A, C]);
    assert_cluster(&in_zone("b"), endpoints(), &[B, C]);
}

#[test]
fn zone_hints_that_leave_no_endpoint_are_ignored() {
    let endpoints = || [hinted(A, &["a"], &[]), hinted(B, &["b"], &[])];
    assert_cluster(&in_zone("c"), endpoints(), &[A, B]);
    // The only endpoint for this zone is not ready.
    assert_cluster(&in_zone("c"), [hinted(A, &["a"], &[]), unready(hinted(B, &["c"], &[]))], &[A]);
}

#[test]
fn zone_hints_are_ignored_on_a_node_without_zone() {
    assert_cluster(&on(node("node-1")), [hinted(A, &["a"], &[]), hinted(B, &["b"], &[])], &[A, B]);
}

#[test]
fn hints_are_ignored_unless_all_ready_endpoints_have_them() {
    assert_cluster(&in_zone("a"), [hinted(A, &["a"], &[]), endpoint(B)], &[A, B]);
    assert_cluster(&in_zone("a"), [hinted(A, &["a"], &[]), hinted(B, &[], &["node-2"])], &[A, B]);
    let without = [unready(endpoint(B)), terminating(endpoint(C))];
    assert_cluster(
        &in_zone("a"),
        [vec![hinted(A, &["a"], &[]), hinted(D, &["b"], &[])], without.into()].concat(),
        &[A],
    );
}

#[test]
fn node_hints_take_precedence_over_zone_hints() {
    let endpoints = || [hinted(A, &["a"], &["node-1"]), hinted(B, &["a"], &["node-2"])];
    assert_cluster(&in_zone("a"), endpoints(), &[A]);
    // Without a hint for this node, zone hints apply.
    let other_nodes = || [hinted(A, &["b"], &["node-3"]), hinted(B, &["a"], &["node-2"])];
    assert_cluster(&in_zone("a"), other_nodes(), &[B]);
    assert_cluster(&on(node("node-1")), other_nodes(), &[A, B]);
    // The same applies if one endpoint has no node hint.
    assert_cluster(&in_zone("a"), [hinted(A, &["b"], &["node-1"]), hinted(B, &["a"], &[])], &[B]);
}

#[test]
fn node_hints_apply_without_zone() {
    assert_cluster(&on(node("node-1")), [hinted(A, &[], &["node-1"]), hinted(B, &[], &["node-2"])], &[A]);
}

#[test]
fn hints_of_terminating_endpoints_are_ignored() {
    let leaving = |zone| terminating(hinted(A, &[zone], &["node-2"]));
    assert_cluster(&in_zone("a"), [leaving("b"), terminating(endpoint(B))], &[A, B]);
    assert_cluster(&in_zone("a"), [leaving("a"), hinted(B, &["a"], &[])], &[B]);
}

#[test]
fn hints_do_not_apply_to_local_traffic() {
    let service = with_node_port(policies(TrafficPolicy::Cluster, TrafficPolicy::Local));
    let hinted_local = Endpoint { local: true, ..hinted(A, &["b"], &[]) };
    let expected = Sets { cluster: &[B], local: &[A], reachable: &[A, B], has_any_endpoints: true };
    assert_sets(&in_zone("a"), &entry(service, [hinted_local, hinted(B, &["a"], &[])]), expected);
}

#[test]
fn reachable_endpoints_have_the_order_of_the_entry() {
    let service = with_node_port(policies(TrafficPolicy::Local, TrafficPolicy::Local));
    let endpoints = [endpoint(D), terminating(local(C)), endpoint(B), terminating(local(A))];
    let expected = Sets { cluster: &[B, D], local: &[A, C], reachable: &[A, B, C, D], has_any_endpoints: true };
    assert_sets(&on(node("node-1")), &entry(service, endpoints), expected);
}

#[test]
fn eligibility_is_the_reason_for_each_endpoint() {
    use Eligibility::*;
    let service = || with_node_port(policies(TrafficPolicy::Cluster, TrafficPolicy::Local));
    let not_serving = Endpoint { serving: false, ..terminating(local(C)) };
    let with_endpoints = |endpoints: [Endpoint; 4]| entry(service(), endpoints);
    let eligibility = on(node("node-1")).eligibility(&with_endpoints([
        local(A),
        terminating(endpoint(B)),
        not_serving,
        unready(local(D)),
    ]));
    let expected = EndpointEligibility {
        cluster: Some(vec![Ready, Terminating, TerminatingNotServing, NotReady]),
        local: Some(vec![Ready, OtherNode, TerminatingNotServing, NotReady]),
    };
    assert_eq!(eligibility, expected);
    let hints = [hinted(A, &["a"], &[]), hinted(B, &["b"], &[])];
    let eligibility = in_zone("a").eligibility(&entry(cluster(), hints));
    assert_eq!(eligibility, EndpointEligibility { cluster: Some(vec![Ready, HintedOtherZone]), local: None });
    let hints = [hinted(A, &[], &["node-1"]), hinted(B, &[], &["node-2"])];
    let eligibility = in_zone("a").eligibility(&entry(cluster(), hints));
    assert_eq!(eligibility, EndpointEligibility { cluster: Some(vec![Ready, HintedOtherNode]), local: None });
    let eligibility = on(node("node-1")).eligibility(&entry(service(), [terminating(local(A)), endpoint(B)]));
    assert_eq!(
        eligibility,
        EndpointEligibility {
            cluster: Some(vec![Terminating, Ready]),
            local: Some(vec![ServingTerminating, OtherNode])
        }
    );
}
