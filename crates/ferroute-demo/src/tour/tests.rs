use std::time::Duration;

use ferroute_core::Style;

use super::{
    flows::{Client, Flow, Frontend, required_connections, service_flows},
    measure::Tally,
    report,
};
use crate::plan::{ClusterPlan, Objects};

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

/// Returns `client to kind address: pods` of each flow.
fn show(plan: &ClusterPlan) -> Vec<String> {
    let flows = plan.services.iter().flat_map(|service| service_flows(plan, service));
    flows.map(|flow| format!("{}: {}", report::title(&flow), flow.pods.join(" "))).collect()
}

#[test]
fn all_clients_connect_to_all_addresses() {
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
fn external_policy_local_applies_to_external_clients() {
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
fn internal_policy_local_applies_to_cluster_ips() {
    let flows = show(&spread("clusterIP: 10.96.0.7, internalTrafficPolicy: Local, ports: [{port: 80}]"));
    assert!(flows.iter().all(|flow| flow.ends_with(": near-1 near-2")), "{flows:?}");
}

#[test]
fn load_balancer_and_external_ips_are_included() {
    let plan = spread("type: LoadBalancer, externalIPs: [203.0.113.9], ports: [{port: 80}]");
    let destinations = |frontend| {
        let flows = service_flows(&plan, &plan.services[0]);
        flows
            .into_iter()
            .filter(|flow| flow.frontend == frontend)
            .map(|flow| flow.destination.to_string())
            .collect::<Vec<_>>()
    };
    let vip = &plan.services[0].status.load_balancer.ingress[0].ip;
    assert_eq!(destinations(Frontend::LoadBalancer), vec![format!("{vip}:80"); 3]);
    assert_eq!(destinations(Frontend::External), ["203.0.113.9:80"; 3]);
    let closed = spread("type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/8], ports: [{port: 80}]");
    assert!(service_flows(&closed, &closed.services[0]).iter().all(|flow| flow.frontend != Frontend::LoadBalancer));
}

#[test]
fn dual_stack_services_have_flows_of_both_ip_families() {
    let plan = spread("ipFamilyPolicy: RequireDualStack, ports: [{port: 53, protocol: UDP}]");
    let flows = service_flows(&plan, &plan.services[0]);
    assert_eq!(flows.len(), 6);
    assert!(flows.iter().all(|flow| flow.source.is_ipv4() == flow.destination.is_ipv4()));
}

#[test]
fn headless_and_sctp_services_have_no_flows() {
    assert_eq!(show(&spread("clusterIP: None, ports: [{port: 80}]")), Vec::<String>::new());
    assert_eq!(show(&spread("ports: [{port: 80, protocol: SCTP}]")), Vec::<String>::new());
}

#[test]
fn required_connections_reach_every_pod_almost_certainly() {
    for pods in 1..200_u16 {
        let (k, n) = (f64::from(pods), required_connections(pods.into()));
        let missed = k * (1.0 - 1.0 / k).powf(n as f64);
        assert!(missed < 1e-6, "{pods} pods, {n} connections");
    }
}

fn flow(pods: &[&str], has_affinity: bool) -> Flow {
    Flow {
        client: Client::Outside,
        source: [192, 168, 49, 100].into(),
        frontend: Frontend::NodePort,
        destination: "192.168.49.2:31628".parse().unwrap(),
        protocol: ferroute_core::Protocol::Tcp,
        pods: pods.iter().map(ToString::to_string).collect(),
        has_affinity,
    }
}

fn tally(pods: &[(&str, usize)], failures: &[(&str, usize)]) -> Tally {
    let named = |counts: &[(&str, usize)]| counts.iter().map(|(name, count)| (name.to_string(), *count)).collect();
    let answered: usize = pods.iter().map(|(_, count)| count).sum();
    let failed: usize = failures.iter().map(|(_, count)| count).sum();
    let sources = if answered > 0 { [([172, 17, 0, 1].into(), answered)].into() } else { Default::default() };
    Tally { total: answered + failed, pods: named(pods), sources, failures: named(failures) }
}

#[test]
fn expected_tally_has_no_problems() {
    let good = |flow: Flow, tally: Tally| assert_eq!(report::problems(&flow, &tally), Vec::<String>::new());
    good(flow(&["a", "b"], false), tally(&[("a", 90), ("b", 10)], &[]));
    good(flow(&["a", "b"], true), tally(&[("b", 100)], &[]));
    good(flow(&[], false), tally(&[], &[("refused", 3)]));
    // Not enough connections to reach every pod.
    good(flow(&["a", "b"], false), tally(&[("a", 5)], &[]));
}

#[test]
fn unexpected_tallies_are_problems() {
    let problem = |flow: Flow, tally: Tally| report::problems(&flow, &tally).join("; ");
    assert_eq!(
        problem(flow(&["a", "b"], false), tally(&[("a", 60), ("b", 37)], &[("refused", 1), ("no reply", 2)])),
        "3 of 100 connections failed: 2 no reply, 1 refused"
    );
    assert_eq!(problem(flow(&["a", "b"], false), tally(&[("a", 100)], &[])), "b got none of 100 connections");
    assert_eq!(problem(flow(&["a"], false), tally(&[("a", 50), ("c", 50)], &[])), "c answered, but is not an endpoint");
    assert_eq!(
        problem(flow(&["a", "b"], true), tally(&[("a", 99), ("b", 1)], &[])),
        "2 pods answered one client despite session affinity"
    );
    assert_eq!(problem(flow(&[], false), tally(&[("a", 3)], &[])), "a pod answered, but none is expected to");
    assert_eq!(problem(flow(&["a"], false), tally(&[], &[("refused", 3)])), "3 of 3 connections failed: 3 refused");
}

#[test]
fn flow_shows_shares_and_sources() {
    let pods = ["nginx-deployment-1", "nginx-deployment-2", "nginx-deployment-3"];
    let (flow, tally) = (flow(&pods, false), tally(&[(pods[0], 30), (pods[1], 45), (pods[2], 25)], &[]));
    let text = report::flow(&flow, &tally, &nginx(), &[], Style::Plain)
        + &report::path(&["KUBE-SERVICES".into(), "KUBE-NODEPORTS".into()], Style::Plain);
    insta::assert_snapshot!(text);
}

#[test]
fn flow_shows_failures() {
    let (flow, tally) = (flow(&["nginx-deployment-1"], false), tally(&[("nginx-deployment-1", 1)], &[("refused", 2)]));
    let problems = report::problems(&flow, &tally);
    insta::assert_snapshot!(report::flow(&flow, &tally, &nginx(), &problems, Style::Plain));
    insta::assert_snapshot!(report::summary(3, &problems, Duration::from_millis(120), Style::Plain));
}

#[test]
fn summary_without_problems() {
    insta::assert_snapshot!(report::summary(600, &[], Duration::from_millis(120), Style::Plain));
}
