//! Services that claim addresses and ports which the node itself needs.

use std::net::SocketAddr;

use ferroute_source::Resource;
use ferroute_testing::wait;
use serde_json::json;

use crate::{Mode, api::Case, in_every_mode, proxy::Files, rules, slices, traffic::connect, web, web_tcp};

in_every_mode!(
    service_cannot_take_over_the_api_server_that_the_proxy_connects_to,
    service_at_a_port_of_the_node_is_reported,
    protected_ports_of_the_node_are_refused,
    ports_of_the_proxy_itself_are_refused,
);

/// An address of the node.
const NODE: &str = "192.168.0.1";

/// Returns a Service with pod 0 and an external IP at ports that are called `tcp`.
fn external(port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: evil}}\nspec:\n  clusterIP: 10.96.0.66\n  externalIPs: [{NODE}]\n  \
         ports: [{{name: tcp, port: {port}}}]\n---\n{}",
        slices("evil", &[0])
    )
}

fn launch(mode: Mode, arguments: &[&str]) -> Case {
    let files = Files::with_settings("metricsBindAddress: 0.0.0.0:10249\n");
    let mut case = Case::launch_at(NODE, files, mode, arguments, |server| {
        crate::api::apply(server, &Files::node_manifest(""));
        crate::api::apply(server, &web(&[0]));
    });
    case.proxy.wait_synced(&case.cluster.node);
    case
}

/// Waits until the Service's cluster IP is served.
#[track_caller]
fn wait_applied(case: &Case, port: u16) {
    let to = SocketAddr::new("10.96.0.66".parse().unwrap(), port);
    wait("the Service", || connect(&case.cluster.client, to).ok());
}

/// The fake API server has an address that `default/kubernetes` does not have, like the load balancer in a kubeconfig.
fn service_cannot_take_over_the_api_server_that_the_proxy_connects_to(mode: Mode) {
    let case = launch(mode, &[]);
    let port = case.server.address().port();
    case.apply(&external(port));
    let event = case.wait_event("AddressConflict");
    assert_eq!(event["regarding"]["name"], "evil");
    assert!(event["note"].as_str().unwrap().contains("is reserved for the API server"), "{event}");
    wait_applied(&case, port);
    // New connections of the proxy reach the server still.
    case.server.cut_watches();
    assert!(case.server.delete(Resource::Services, "default", "evil"));
    rules::wait_gone(&case.cluster.node, mode, "10.96.0.66");
}

fn service_at_a_port_of_the_node_is_reported(mode: Mode) {
    let case = launch(mode, &[]);
    let _listener = case.cluster.node.run(|| std::net::TcpListener::bind("0.0.0.0:22").unwrap());
    case.apply(&external(22));
    let event = case.wait_event("NodeAddressInUse");
    assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!("Service"), &json!("evil")));
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("0.0.0.0:22") && note.contains("--protect-node-ports"), "{note}");
    wait_applied(&case, 22);
    assert_eq!(connect(&case.cluster.client, format!("{NODE}:22").parse().unwrap()).unwrap(), 0, "as in kube-proxy");
}

fn protected_ports_of_the_node_are_refused(mode: Mode) {
    let case = launch(mode, &["--protect-node-ports=22,10250-10259"]);
    let listener = case.cluster.node.run(|| std::net::TcpListener::bind("0.0.0.0:22").unwrap());
    case.apply(&external(22));
    let event = case.wait_event("AddressConflict");
    assert!(event["note"].as_str().unwrap().contains("by --protect-node-ports"), "{event}");
    wait_applied(&case, 22);
    let (node, client) = (&case.cluster.node, &case.cluster.client);
    let open = client.run(|| std::net::TcpStream::connect(format!("{NODE}:22")).unwrap());
    assert_eq!(listener.accept().unwrap().1, open.local_addr().unwrap(), "the node's process has the connection");
    // Other ports are not reserved.
    case.apply(&external(443));
    wait("the pod", || connect(client, format!("{NODE}:443").parse().unwrap()).ok().filter(|pod| *pod == 0));
    assert_eq!(connect(node, web_tcp()[0]).unwrap(), 0);
}

fn ports_of_the_proxy_itself_are_refused(mode: Mode) {
    let case = launch(mode, &[]);
    case.apply(&external(10249));
    let event = case.wait_event("AddressConflict");
    assert!(event["note"].as_str().unwrap().contains("health checks and metrics"), "{event}");
    wait_applied(&case, 10249);
    let response = case.cluster.client.run(|| {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(format!("{NODE}:10249")).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    });
    assert!(response.starts_with("HTTP/1.0 200"), "{response}");
}
