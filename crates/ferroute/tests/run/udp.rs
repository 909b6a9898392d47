//! Stale conntrack entries of UDP flows.
//!
//! The kernel cannot detect the end of a UDP flow, so the proxy deletes the entries of removed endpoints.

use std::net::SocketAddr;

use crate::{
    Case, Mode,
    cluster::{PORT, pod_addresses},
    in_each_mode, in_every_mode, slices,
    traffic::{Connection, Flow, Reply},
    wait, web, web_tcp, web_udp,
};

in_each_mode!(flows_of_removed_endpoints_move_and_others_stay);
in_every_mode!(
    flows_of_service_deleted_while_no_proxy_runs_end,
    flows_without_endpoints_are_rejected_until_an_endpoint_is_added,
    flows_older_than_their_service_are_served,
);

/// Returns a second UDP Service with all pods.
pub(crate) fn other_service() -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: other}}\n\
         spec: {{clusterIP: 10.96.0.2, ports: [{{name: udp, port: 53, protocol: UDP}}]}}\n{}",
        slices("other", &[0, 1, 2])
    )
}

fn flows_of_removed_endpoints_move_and_others_stay(mode: Mode) {
    let case = Case::new(mode, &format!("{}{}", web(&[0, 1]), other_service()));
    let client = &case.cluster.client;
    let other: SocketAddr = "10.96.0.2:53".parse().unwrap();
    let with_pod = |flow: Flow| (flow.pod(), flow);
    let flows: Vec<_> =
        web_udp().into_iter().flat_map(|to| (0..FLOWS).map(move |_| with_pod(Flow::open(client, to)))).collect();
    let others: Vec<_> = (0..FLOWS).map(|_| with_pod(Flow::open(client, other))).collect();
    let direct = pod_addresses(0).map(|address| Flow::open(client, SocketAddr::from((address, PORT))));
    direct.iter().for_each(|flow| assert_eq!(flow.pod(), 0));
    let entries = |destination: &str| {
        let listed = case.cluster.node.command("conntrack", &["-L", "-p", "udp", "--orig-dst", destination]);
        listed.lines().map(|line| line.split_whitespace().skip(3).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let direct_entries = entries("10.244.0.2");
    assert_eq!(direct_entries.len(), 1);
    let mut connections: Vec<_> = (0..8).map(|_| Connection::open(client, web_tcp()[0]).unwrap()).collect();

    case.files.apply(&format!("{}{}", web(&[1, 2]), other_service()));
    for (before, flow) in &flows {
        match before {
            0 => wait("a reply from another pod", || matches!(flow.request(), Reply::Pod(1 | 2)).then_some(())),
            _ => assert_eq!(flow.pod(), *before),
        }
    }
    for (before, flow) in &others {
        assert_eq!(flow.pod(), *before);
    }
    assert_eq!(entries("10.244.0.2"), direct_entries);
    for connection in &mut connections {
        connection.echo("also to the removed endpoint").unwrap();
    }
}

fn flows_without_endpoints_are_rejected_until_an_endpoint_is_added(mode: Mode) {
    let with_node_port = |pods: &[u8]| {
        let web = web(pods).replace("spec:\n  clusterIP:", "spec:\n  type: NodePort\n  clusterIP:");
        web.replace("{name: udp, port: 53,", "{name: udp, port: 53, nodePort: 30053,")
    };
    let networks = "nodePortAddresses: [192.168.0.0/24, \"fd00:168::/64\"]\n";
    let case = Case::with_settings(mode, &with_node_port(&[0]), networks);
    let node_ports = ["192.168.0.1:30053", "[fd00:168::1]:30053"].map(|at| at.parse().unwrap());
    let flows: Vec<_> =
        web_udp().into_iter().chain(node_ports).map(|to| Flow::open(&case.cluster.client, to)).collect();
    flows.iter().for_each(|flow| assert_eq!(flow.pod(), 0));
    case.files.apply(&with_node_port(&[]));
    for flow in &flows {
        wait("the rejection", || (flow.request() == Reply::Rejected).then_some(()));
    }
    case.files.apply(&with_node_port(&[1]));
    flows.iter().for_each(|flow| assert_eq!(flow.pod(), 1));
}

/// A client whose first request got no reply must get replies later.
fn flows_older_than_their_service_are_served(mode: Mode) {
    let case = Case::new(mode, "");
    let flows = web_udp().map(|to| Flow::open(&case.cluster.client, to));
    flows.iter().for_each(|flow| assert_eq!(flow.request(), Reply::None));
    case.files.apply(&web(&[2]));
    flows.iter().for_each(|flow| assert_eq!(flow.pod(), 2));
}

/// Any mode may start next: it replaces the rules of the old mode, or removes them as leftovers.
fn flows_of_service_deleted_while_no_proxy_runs_end(mode: Mode) {
    for next in [mode, mode.other()] {
        let mut case = Case::new(mode, &format!("{}{}", deleted(), other_service()));
        let client = &case.cluster.client;
        // The Service's frontends, and an address that no Service has, for comparison.
        let addresses = [
            "10.96.0.3:53",
            "[fd00:96::3]:53",
            "203.0.113.3:53",
            "[2001:db8::3]:53",
            "198.51.100.3:53",
            "[2001:db8:1::3]:53",
            "192.168.0.1:30053",
            "[fd00:168::1]:30053",
        ];
        let flows = addresses.map(|to| Flow::open(client, to.parse().unwrap()));
        flows.iter().for_each(|flow| assert_eq!(flow.pod(), 0));
        let other = Flow::open(client, "10.96.0.2:53".parse().unwrap());
        let other_pod = other.pod();
        assert!(case.proxy.stop("TERM").success());
        case.files.apply(&other_service());
        case.start_again(next);
        for (flow, to) in flows.iter().zip(addresses) {
            let what = format!("the end of the flow to {to} after {mode:?} and {next:?} mode");
            wait(&what, || matches!(flow.request(), Reply::Rejected | Reply::None).then_some(()));
        }
        let pod = other.pod();
        // A flow that a process relayed moves once the process has handed it over.
        assert!(mode == Mode::Userspace || pod == other_pod, "{pod} after {other_pod}");
    }
}

/// Returns a UDP Service with frontends of all kinds in both IP families, and pod 0.
fn deleted() -> String {
    let service = r#"---
apiVersion: v1
kind: Service
metadata: {name: deleted}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.3
  clusterIPs: [10.96.0.3, "fd00:96::3"]
  ipFamilies: [IPv4, IPv6]
  externalIPs: [203.0.113.3, "2001:db8::3"]
  ports: [{name: udp, port: 53, protocol: UDP, nodePort: 30053}]
status: {loadBalancer: {ingress: [{ip: 198.51.100.3}, {ip: "2001:db8:1::3"}]}}
"#;
    format!("{service}{}", slices("deleted", &[0]))
}

/// Enough flows of each kind that random choice practically never selects the same pod for all.
const FLOWS: usize = 12;
