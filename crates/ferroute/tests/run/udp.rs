//! UDP flows have no end that the kernel could see, so the proxy has to end those to endpoints that are gone.

use std::net::SocketAddr;

use crate::{
    Case, Mode, in_each_mode,
    lab::{PORT, pod_addresses},
    slices,
    traffic::{Answer, Connection, Flow},
    wait, web, web_tcp, web_udp,
};

in_each_mode!(
    a_udp_flow_moves_on_when_its_endpoint_goes_and_others_stay,
    a_udp_flow_is_refused_once_the_last_endpoint_is_gone_and_served_when_one_comes,
    a_udp_flow_that_began_before_its_service_is_served,
);

/// A second Service of UDP with all pods.
fn other_service() -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: other}}\n\
         spec: {{clusterIP: 10.96.0.2, ports: [{{name: udp, port: 53, protocol: UDP}}]}}\n{}",
        slices("other", &[0, 1, 2])
    )
}

fn a_udp_flow_moves_on_when_its_endpoint_goes_and_others_stay(mode: Mode) {
    let case = Case::new(mode, &format!("{}{}", web(&[0, 1]), other_service()));
    let client = &case.lab.client;
    let other: SocketAddr = "10.96.0.2:53".parse().unwrap();
    let with_pod = |flow: Flow| (flow.pod(), flow);
    let flows: Vec<_> =
        web_udp().into_iter().flat_map(|to| (0..FLOWS).map(move |_| with_pod(Flow::open(client, to)))).collect();
    let others: Vec<_> = (0..FLOWS).map(|_| with_pod(Flow::open(client, other))).collect();
    let direct = pod_addresses(0).map(|address| Flow::open(client, SocketAddr::from((address, PORT))));
    direct.iter().for_each(|flow| assert_eq!(flow.pod(), 0));
    let entries = |destination: &str| {
        let listed = case.lab.node.command("conntrack", &["-L", "-p", "udp", "--orig-dst", destination]);
        listed.lines().map(|line| line.split_whitespace().skip(3).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let direct_entries = entries("10.244.0.2");
    assert_eq!(direct_entries.len(), 1);
    let mut connections: Vec<_> = (0..8).map(|_| Connection::open(client, web_tcp()[0]).unwrap()).collect();

    case.files.apply(&format!("{}{}", web(&[1, 2]), other_service()));
    for (before, flow) in &flows {
        match before {
            0 => wait("the flow's move", || matches!(flow.ask(), Answer::Pod(1 | 2)).then_some(())),
            _ => assert_eq!(flow.pod(), *before),
        }
    }
    for (before, flow) in &others {
        assert_eq!(flow.pod(), *before);
    }
    assert_eq!(entries("10.244.0.2"), direct_entries);
    for connection in &mut connections {
        connection.echo("also to the pod that is no endpoint any more").unwrap();
    }
}

fn a_udp_flow_is_refused_once_the_last_endpoint_is_gone_and_served_when_one_comes(mode: Mode) {
    let case = Case::new(mode, &web(&[0]));
    let flows = web_udp().map(|to| Flow::open(&case.lab.client, to));
    flows.iter().for_each(|flow| assert_eq!(flow.pod(), 0));
    case.files.apply(&web(&[]));
    for flow in &flows {
        wait("the refusal", || (flow.ask() == Answer::Refused).then_some(()));
    }
    case.files.apply(&web(&[1]));
    flows.iter().for_each(|flow| assert_eq!(flow.pod(), 1));
}

/// A resolver that was asked in vain must not be asked in vain for ever.
fn a_udp_flow_that_began_before_its_service_is_served(mode: Mode) {
    let case = Case::new(mode, "");
    let flows = web_udp().map(|to| Flow::open(&case.lab.client, to));
    flows.iter().for_each(|flow| assert_eq!(flow.ask(), Answer::Silence));
    case.files.apply(&web(&[2]));
    flows.iter().for_each(|flow| assert_eq!(flow.pod(), 2));
}

/// Flows of each kind: so many that not all have the same pod, and that none keeps its pod by chance.
const FLOWS: usize = 12;
