use std::{num::NonZeroU16, sync::Arc};

use crate::{
    Endpoint, ServicePortEntry, Hints, IpFamily, NodeView, ServicePort, ServiceTable, Eligibility, EndpointEligibility, TrafficPolicy,
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

/// Policies of the internal and of the external traffic.
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

/// What [`crate::EndpointSets`] says, in texts.
#[derive(Clone, Copy, Default)]
struct Told<'a> {
    cluster: &'a [&'a str],
    local: &'a [&'a str],
    reachable: &'a [&'a str],
    any_anywhere: bool,
}

#[track_caller]
fn assert_routes(table: &ServiceTable, entry: &ServicePortEntry, expected: Told<'_>) {
    let sets = table.endpoint_sets(entry);
    let texts = |endpoints: &[&Endpoint]| endpoints.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (cluster, local) = (texts(&sets.cluster), texts(&sets.local));
    let reachable = texts(&sets.reachable);
    let told = (cluster, local, reachable, sets.any_anywhere);
    let expected = (owned(expected.cluster), owned(expected.local), owned(expected.reachable), expected.any_anywhere);
    assert_eq!(told, expected, "cluster, local, reachable, any anywhere");
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// For a service all of whose traffic has policy Cluster.
#[track_caller]
fn assert_cluster(table: &ServiceTable, endpoints: impl IntoIterator<Item = Endpoint>, expected: &[&str]) {
    let told = Told { cluster: expected, reachable: expected, any_anywhere: !expected.is_empty(), ..Told::default() };
    assert_routes(table, &entry(cluster(), endpoints), told);
}

#[test]
fn without_endpoints_there_is_nothing() {
    let everything = with_node_port(policies(TrafficPolicy::Local, TrafficPolicy::Local));
    for service in [cluster(), everything] {
        assert_routes(&on(node("node-1")), &entry(service, []), Told::default());
    }
}

#[test]
fn cluster_traffic_goes_to_every_ready_endpoint() {
    let endpoints = [endpoint(A), local(B), unready(endpoint(C)), terminating(endpoint(D))];
    assert_cluster(&on(node("node-1")), endpoints, &[A, B]);
}

#[test]
fn ready_is_what_the_endpoint_says_even_while_it_terminates() {
    let publishes_not_ready = Endpoint { serving: false, terminating: true, ..endpoint(A) };
    assert_cluster(&on(node("node-1")), [publishes_not_ready, terminating(endpoint(B))], &[A]);
}

#[test]
fn with_nothing_ready_cluster_traffic_goes_to_what_still_serves() {
    let dying = Endpoint { serving: false, ..terminating(endpoint(C)) };
    let waking = Endpoint { ready: false, ..endpoint(D) };
    assert_cluster(&on(node("node-1")), [terminating(endpoint(A)), terminating(local(B)), dying, waking], &[A, B]);
}

#[test]
fn endpoints_of_which_none_serves_are_as_good_as_none() {
    let endpoints = || [unready(local(A)), Endpoint { serving: false, ..terminating(endpoint(B)) }];
    assert_cluster(&on(node("node-1")), endpoints(), &[]);
    let both = with_node_port(policies(TrafficPolicy::Local, TrafficPolicy::Local));
    assert_routes(&on(node("node-1")), &entry(both, endpoints()), Told::default());
}

#[test]
fn internal_policy_local_stays_on_the_node() {
    let service = policies(TrafficPolicy::Local, TrafficPolicy::Cluster);
    let told = Told { local: &[A], reachable: &[A], any_anywhere: true, ..Told::default() };
    assert_routes(&on(node("node-1")), &entry(service, [local(A), endpoint(B)]), told);
}

#[test]
fn a_policy_of_local_with_endpoints_on_other_nodes_only_is_told_apart_from_no_endpoints() {
    let service = || policies(TrafficPolicy::Local, TrafficPolicy::Cluster);
    for elsewhere in [endpoint(B), terminating(endpoint(B))] {
        let told = Told { any_anywhere: true, ..Told::default() };
        assert_routes(&on(node("node-1")), &entry(service(), [unready(local(A)), elsewhere]), told);
    }
    assert_routes(&on(node("node-1")), &entry(service(), [unready(endpoint(B))]), Told::default());
}

#[test]
fn external_policy_local_keeps_the_clusters_endpoints_for_those_inside() {
    let service = with_node_port(policies(TrafficPolicy::Cluster, TrafficPolicy::Local));
    let told = Told { cluster: &[A, B], local: &[A], reachable: &[A, B], any_anywhere: true };
    assert_routes(&on(node("node-1")), &entry(service, [local(A), endpoint(B)]), told);
}

#[test]
fn external_policy_local_means_nothing_without_an_external_address() {
    let service = policies(TrafficPolicy::Cluster, TrafficPolicy::Local);
    let told = Told { cluster: &[A, B], reachable: &[A, B], any_anywhere: true, ..Told::default() };
    assert_routes(&on(node("node-1")), &entry(service, [local(A), endpoint(B)]), told);
}

#[test]
fn every_kind_of_external_address_makes_the_external_policy_count() {
    let base = || policies(TrafficPolicy::Local, TrafficPolicy::Cluster);
    let address = || vec!["203.0.113.1".parse().unwrap()];
    for service in [
        with_node_port(base()),
        ServicePort { external_ips: address(), ..base() },
        ServicePort { load_balancer_vips: address(), ..base() },
    ] {
        let told = Told { cluster: &[A, B], local: &[A], reachable: &[A, B], any_anywhere: true };
        assert_routes(&on(node("node-1")), &entry(service, [local(A), endpoint(B)]), told);
    }
}

#[test]
fn local_and_cluster_fall_back_to_terminating_endpoints_each_for_itself() {
    let service = || with_node_port(policies(TrafficPolicy::Cluster, TrafficPolicy::Local));
    // This node's only endpoint is on its way out while another node's is ready.
    let told = Told { cluster: &[B], local: &[A], reachable: &[A, B], any_anywhere: true };
    assert_routes(&on(node("node-1")), &entry(service(), [terminating(local(A)), endpoint(B)]), told);
    // With a ready one here, the terminating one here gets nothing.
    let told = Told { cluster: &[B], local: &[B], reachable: &[B], any_anywhere: true };
    assert_routes(&on(node("node-1")), &entry(service(), [terminating(local(A)), local(B)]), told);
    // With none ready anywhere, both fall back.
    let told = Told { cluster: &[A, B], local: &[A], reachable: &[A, B], any_anywhere: true };
    assert_routes(&on(node("node-1")), &entry(service(), [terminating(local(A)), terminating(endpoint(B))]), told);
}

#[test]
fn hints_by_zone_narrow_the_choice_to_this_zone() {
    let endpoints = || [hinted(A, &["a"], &[]), hinted(B, &["b"], &[]), hinted(C, &["b", "a"], &[])];
    assert_cluster(&in_zone("a"), endpoints(), &[A, C]);
    assert_cluster(&in_zone("b"), endpoints(), &[B, C]);
}

#[test]
fn hints_by_zone_are_ignored_where_they_would_leave_nothing() {
    let endpoints = || [hinted(A, &["a"], &[]), hinted(B, &["b"], &[])];
    assert_cluster(&in_zone("c"), endpoints(), &[A, B]);
    // The only endpoint for this zone is not ready.
    assert_cluster(&in_zone("c"), [hinted(A, &["a"], &[]), unready(hinted(B, &["c"], &[]))], &[A]);
}

#[test]
fn hints_by_zone_are_ignored_on_a_node_without_zone() {
    assert_cluster(&on(node("node-1")), [hinted(A, &["a"], &[]), hinted(B, &["b"], &[])], &[A, B]);
}

#[test]
fn hints_are_ignored_unless_every_ready_endpoint_has_one() {
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
fn hints_by_node_come_before_hints_by_zone() {
    let endpoints = || [hinted(A, &["a"], &["node-1"]), hinted(B, &["a"], &["node-2"])];
    assert_cluster(&in_zone("a"), endpoints(), &[A]);
    // No hint for this node: then its zone decides.
    let elsewhere = || [hinted(A, &["b"], &["node-3"]), hinted(B, &["a"], &["node-2"])];
    assert_cluster(&in_zone("a"), elsewhere(), &[B]);
    assert_cluster(&on(node("node-1")), elsewhere(), &[A, B]);
    // One endpoint without a hint by node: the same.
    assert_cluster(&in_zone("a"), [hinted(A, &["b"], &["node-1"]), hinted(B, &["a"], &[])], &[B]);
}

#[test]
fn hints_by_node_need_no_zone() {
    assert_cluster(&on(node("node-1")), [hinted(A, &[], &["node-1"]), hinted(B, &[], &["node-2"])], &[A]);
}

#[test]
fn terminating_endpoints_are_chosen_whatever_their_hints() {
    let going = |zone| terminating(hinted(A, &[zone], &["node-2"]));
    assert_cluster(&in_zone("a"), [going("b"), terminating(endpoint(B))], &[A, B]);
    assert_cluster(&in_zone("a"), [going("a"), hinted(B, &["a"], &[])], &[B]);
}

#[test]
fn hints_say_nothing_about_local_traffic() {
    let service = with_node_port(policies(TrafficPolicy::Cluster, TrafficPolicy::Local));
    let here = Endpoint { local: true, ..hinted(A, &["b"], &[]) };
    let told = Told { cluster: &[B], local: &[A], reachable: &[A, B], any_anywhere: true };
    assert_routes(&in_zone("a"), &entry(service, [here, hinted(B, &["a"], &[])]), told);
}

#[test]
fn reachable_endpoints_keep_the_order_of_the_entry() {
    let service = with_node_port(policies(TrafficPolicy::Local, TrafficPolicy::Local));
    let endpoints = [endpoint(D), terminating(local(C)), endpoint(B), terminating(local(A))];
    let told = Told { cluster: &[B, D], local: &[A, C], reachable: &[A, B, C, D], any_anywhere: true };
    assert_routes(&on(node("node-1")), &entry(service, endpoints), told);
}

#[test]
fn each_endpoint_that_is_not_used_has_its_reason() {
    use Eligibility::*;
    let service = || with_node_port(policies(TrafficPolicy::Cluster, TrafficPolicy::Local));
    let dying = Endpoint { serving: false, ..terminating(local(C)) };
    let entry_of = |endpoints: [Endpoint; 4]| entry(service(), endpoints);
    let eligibility =
        on(node("node-1")).eligibility(&entry_of([local(A), terminating(endpoint(B)), dying, unready(local(D))]));
    let told = EndpointEligibility {
        cluster: Some(vec![Ready, Terminating, Terminated, NotReady]),
        local: Some(vec![Ready, OtherNode, Terminated, NotReady]),
    };
    assert_eq!(eligibility, told);
    let hints = [hinted(A, &["a"], &[]), hinted(B, &["b"], &[])];
    let eligibility = in_zone("a").eligibility(&entry(cluster(), hints));
    assert_eq!(eligibility, EndpointEligibility { cluster: Some(vec![Ready, HintedOtherZone]), local: None });
    let hints = [hinted(A, &[], &["node-1"]), hinted(B, &[], &["node-2"])];
    let eligibility = in_zone("a").eligibility(&entry(cluster(), hints));
    assert_eq!(eligibility, EndpointEligibility { cluster: Some(vec![Ready, HintedOtherNode]), local: None });
    let eligibility = on(node("node-1")).eligibility(&entry(service(), [terminating(local(A)), endpoint(B)]));
    assert_eq!(
        eligibility,
        EndpointEligibility { cluster: Some(vec![Terminating, Ready]), local: Some(vec![LastResort, OtherNode]) }
    );
}
