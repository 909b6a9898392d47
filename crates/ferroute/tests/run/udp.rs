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
    flows_without_endpoints_are_rejected_until_an_endpoint_is_added,
    flows_older_than_their_service_are_served,
);

/// Returns a second UDP Service with all pods.
fn other_service() -> String {
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
    let case = Case::new(mode, &web(&[0]));
    let flows = web_udp().map(|to| Flow::open(&case.cluster.client, to));
    flows.iter().for_each(|flow| assert_eq!(flow.pod(), 0));
    case.files.apply(&web(&[]));
    for flow in &flows {
        wait("the rejection", || (flow.request() == Reply::Rejected).then_some(()));
    }
    case.files.apply(&web(&[1]));
    flows.iter().for_each(|flow| assert_eq!(flow.pod(), 1));
}

/// A client whose first request got no reply must not stay without replies.
fn flows_older_than_their_service_are_served(mode: Mode) {
    let case = Case::new(mode, "");
    let flows = web_udp().map(|to| Flow::open(&case.cluster.client, to));
    flows.iter().for_each(|flow| assert_eq!(flow.request(), Reply::None));
    case.files.apply(&web(&[2]));
    flows.iter().for_each(|flow| assert_eq!(flow.pod(), 2));
}

/// Enough flows of each kind that random choice practically never selects the same pod for all.
const FLOWS: usize = 12;
