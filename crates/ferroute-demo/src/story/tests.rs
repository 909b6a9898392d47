use std::time::Duration;

use super::{
    flows::{Client, Flow, Frontend, enough_for, flows_of},
    measure::Tally,
    report,
};
use crate::{
    plan::{ClusterPlan, Objects},
    text::Style,
};

fn plan(yaml: &str) -> ClusterPlan {
    ClusterPlan::new(&Objects::parse(yaml).unwrap(), None, true).unwrap()
}

fn nginx() -> ClusterPlan {
    plan(include_str!("../../../../examples/nginx.yaml"))
}

/// Two pods on the first node, one on the second, and a Service of them.
fn spread(spec: &str) -> ClusterPlan {
    let pod = |name: &str, node: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{app: web}}}}, spec: {{nodeName: {node}}}}}\n---\n"
        )
    };
    let service = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: web}}, spec: {{selector: {{app: web}}, {spec}}}}}\n"
    );
    plan(&[pod("near-1", "node"), pod("near-2", "node"), pod("far", "node2"), service].concat())
}

/// `client to what address: pods` of each flow.
fn show(plan: &ClusterPlan) -> Vec<String> {
    let flows = plan.services.iter().flat_map(|service| flows_of(plan, service));
    flows.map(|flow| format!("{}: {}", report::title(&flow), flow.pods.join(" "))).collect()
}

#[test]
fn nginx_is_called_from_everywhere_at_every_address() {
    let all = ": nginx-deployment-1 nginx-deployment-2 nginx-deployment-3";
    let expected = [
        "web-server to cluster IP 10.111.175.78:80/tcp",
        "node to cluster IP 10.111.175.78:80/tcp",
        "outside to cluster IP 10.111.175.78:80/tcp",
        "web-server to node port 192.168.49.2:31628/tcp",
        "node to node port 192.168.49.2:31628/tcp",
        "outside to node port 192.168.49.2:31628/tcp",
    ];
    assert_eq!(show(&nginx()), expected.map(|title| format!("{title}{all}")));
}

#[test]
fn what_comes_from_outside_stays_on_the_node_where_the_policy_says_so() {
    let flows = show(&spread(
        "type: NodePort, clusterIP: 10.96.0.7, externalTrafficPolicy: Local, ports: [{port: 80, nodePort: 30080}]",
    ));
    assert_eq!(
        flows,
        [
            "near-1 to cluster IP 10.96.0.7:80/tcp: near-1 near-2 far",
            "node to cluster IP 10.96.0.7:80/tcp: near-1 near-2 far",
            "outside to cluster IP 10.96.0.7:80/tcp: near-1 near-2 far",
            "near-1 to node port 192.168.49.2:30080/tcp: near-1 near-2 far",
            "node to node port 192.168.49.2:30080/tcp: near-1 near-2 far",
            "outside to node port 192.168.49.2:30080/tcp: near-1 near-2",
        ]
    );
}

#[test]
fn what_calls_the_cluster_ip_stays_on_the_node_where_the_policy_says_so() {
    let flows = show(&spread("clusterIP: 10.96.0.7, internalTrafficPolicy: Local, ports: [{port: 80}]"));
    assert!(flows.iter().all(|flow| flow.ends_with(": near-1 near-2")), "{flows:?}");
}

#[test]
fn load_balancers_and_external_addresses_are_called_too() {
    let plan = spread("type: LoadBalancer, externalIPs: [203.0.113.9], ports: [{port: 80}]");
    let of = |frontend| {
        let flows = flows_of(&plan, &plan.services[0]);
        flows
            .into_iter()
            .filter(|flow| flow.frontend == frontend)
            .map(|flow| flow.destination.to_string())
            .collect::<Vec<_>>()
    };
    let vip = &plan.services[0].status.load_balancer.ingress[0].ip;
    assert_eq!(of(Frontend::LoadBalancer), vec![format!("{vip}:80"); 3]);
    assert_eq!(of(Frontend::External), ["203.0.113.9:80"; 3]);
    let closed = spread("type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/8], ports: [{port: 80}]");
    assert!(flows_of(&closed, &closed.services[0]).iter().all(|flow| flow.frontend != Frontend::LoadBalancer));
}

#[test]
fn both_families_are_called_where_the_service_has_both() {
    let plan = spread("ipFamilyPolicy: RequireDualStack, ports: [{port: 53, protocol: UDP}]");
    let flows = flows_of(&plan, &plan.services[0]);
    assert_eq!(flows.len(), 6);
    assert!(flows.iter().all(|flow| flow.source.is_ipv4() == flow.destination.is_ipv4()));
}

#[test]
fn services_that_cannot_be_called_are_not() {
    assert_eq!(show(&spread("clusterIP: None, ports: [{port: 80}]")), Vec::<String>::new());
    assert_eq!(show(&spread("ports: [{port: 80, protocol: SCTP}]")), Vec::<String>::new());
}

#[test]
fn there_are_enough_connections_to_miss_no_pod_by_chance() {
    for pods in 1..200_u16 {
        let (k, n) = (f64::from(pods), enough_for(pods.into()));
        let missed = k * (1.0 - 1.0 / k).powf(n as f64);
        assert!(missed < 1e-6, "{pods} pods, {n} connections");
    }
}

fn flow(pods: &[&str], sticks: bool) -> Flow {
    Flow {
        client: Client::Outside,
        source: [192, 168, 49, 100].into(),
        frontend: Frontend::NodePort,
        destination: "192.168.49.2:31628".parse().unwrap(),
        protocol: ferroute_core::Protocol::Tcp,
        pods: pods.iter().map(ToString::to_string).collect(),
        sticks,
    }
}

fn tally(pods: &[(&str, usize)], failures: &[(&str, usize)]) -> Tally {
    let named = |counts: &[(&str, usize)]| counts.iter().map(|(name, count)| (name.to_string(), *count)).collect();
    let answered: usize = pods.iter().map(|(_, count)| count).sum();
    let failed: usize = failures.iter().map(|(_, count)| count).sum();
    let sources = if answered > 0 { [([172, 17, 0, 1].into(), answered)].into() } else { Default::default() };
    Tally { tried: answered + failed, pods: named(pods), sources, failures: named(failures) }
}

#[test]
fn a_good_tally_has_no_problems() {
    let good = |flow: Flow, tally: Tally| assert_eq!(report::problems(&flow, &tally), Vec::<String>::new());
    good(flow(&["a", "b"], false), tally(&[("a", 90), ("b", 10)], &[]));
    good(flow(&["a", "b"], true), tally(&[("b", 100)], &[]));
    good(flow(&[], false), tally(&[], &[("refused", 3)]));
    // Too few to tell.
    good(flow(&["a", "b"], false), tally(&[("a", 5)], &[]));
}

#[test]
fn every_kind_of_wrong_tally_is_told() {
    let problem = |flow: Flow, tally: Tally| report::problems(&flow, &tally).join("; ");
    assert_eq!(
        problem(flow(&["a", "b"], false), tally(&[("a", 60), ("b", 37)], &[("refused", 1), ("no answer", 2)])),
        "3 of 100 connections failed: 2 no answer, 1 refused"
    );
    assert_eq!(problem(flow(&["a", "b"], false), tally(&[("a", 100)], &[])), "b got none of 100 connections");
    assert_eq!(problem(flow(&["a"], false), tally(&[("a", 50), ("c", 50)], &[])), "c answered, which is not behind it");
    assert_eq!(
        problem(flow(&["a", "b"], true), tally(&[("a", 99), ("b", 1)], &[])),
        "2 pods answered one client, which should keep its pod"
    );
    assert_eq!(problem(flow(&[], false), tally(&[("a", 3)], &[])), "was answered although no pod may");
    assert_eq!(problem(flow(&["a"], false), tally(&[], &[("refused", 3)])), "3 of 3 connections failed: 3 refused");
}

#[test]
fn a_flow_is_shown_with_counts_shares_and_what_pods_saw() {
    let pods = ["nginx-deployment-1", "nginx-deployment-2", "nginx-deployment-3"];
    let (flow, tally) = (flow(&pods, false), tally(&[(pods[0], 30), (pods[1], 45), (pods[2], 25)], &[]));
    let text = report::flow(&flow, &tally, &nginx(), &[], Style::Plain)
        + &report::way(&["KUBE-SERVICES".into(), "KUBE-NODEPORTS".into()], Style::Plain);
    insta::assert_snapshot!(text);
}

#[test]
fn failures_are_shown() {
    let (flow, tally) = (flow(&["nginx-deployment-1"], false), tally(&[("nginx-deployment-1", 1)], &[("refused", 2)]));
    let problems = report::problems(&flow, &tally);
    insta::assert_snapshot!(report::flow(&flow, &tally, &nginx(), &problems, Style::Plain));
    insta::assert_snapshot!(report::end(3, &problems, Duration::from_millis(120), Style::Plain));
}

#[test]
fn the_end_says_that_all_went_well() {
    insta::assert_snapshot!(report::end(600, &[], Duration::from_millis(120), Style::Plain));
}
