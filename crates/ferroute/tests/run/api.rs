//! Tests with an API server as the source.

use std::{collections::BTreeSet, net::SocketAddr, os::unix::process::CommandExt, path::Path, process::Command};

use ferroute_api::{
    Object,
    manifest::{self, Parsed},
};
use ferroute_kube::testing::FakeApiServer;
use ferroute_source::Resource;
use serde_json::{Value, json};

use crate::{
    Mode,
    cluster::{Cluster, pod_addresses},
    ejection,
    http::get,
    in_each_mode,
    proxy::{FERROUTE, Files, Proxy},
    refused::run,
    rules,
    status::{METRICS, Metrics, problems},
    traffic::{Connection, Traffic, connect},
    wait, web, web_tcp,
};

in_each_mode!(
    no_request_fails_while_the_proxy_restarts,
    no_request_fails_and_no_change_is_lost_during_api_server_outages,
    no_request_fails_while_endpoints_roll,
    rules_are_written_only_after_the_node_has_addresses,
);

/// A cluster with a proxy that watches a fake API server.
pub(crate) struct Case {
    pub(crate) proxy: Proxy,
    pub(crate) server: FakeApiServer,
    /// Runs the fake API server; dropped after it.
    _runtime: tokio::runtime::Runtime,
    files: Files,
    pub(crate) cluster: Cluster,
    mode: Mode,
}

impl Case {
    /// Starts the proxy and waits for the first sync.
    #[track_caller]
    fn new(mode: Mode, yaml: &str) -> Self {
        let mut case = Self::launch(mode, &[], |server| {
            apply(server, &Files::node_manifest(""));
            apply(server, yaml);
        });
        case.proxy.wait_synced(&case.cluster.node);
        case
    }

    /// Prepares the server, then starts the proxy with additional arguments.
    pub(crate) fn launch(mode: Mode, arguments: &[&str], prepare: impl FnOnce(&FakeApiServer)) -> Self {
        Self::launch_at("127.0.0.1", Files::new(), mode, arguments, prepare)
    }

    /// Like `launch`, with the server at this address of the node.
    pub(crate) fn launch_at(
        address: &str,
        files: Files,
        mode: Mode,
        arguments: &[&str],
        prepare: impl FnOnce(&FakeApiServer),
    ) -> Self {
        let cluster = Cluster::new();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let address = SocketAddr::new(address.parse().unwrap(), 0);
        let server = cluster.node.run(|| runtime.block_on(FakeApiServer::start_at(address)));
        prepare(&server);
        let proxy = Proxy::spawn(&cluster.node, &mut command(&server, &files, mode, arguments));
        Self { proxy, server, _runtime: runtime, files, cluster, mode }
    }

    /// Restarts the proxy under the name `kube-proxy`, with this mode in the configuration.
    fn restart_as_kube_proxy(&mut self, mode: &str) {
        let config = self.files.config_with_mode(mode);
        connect_to(&self.server, &self.files, &config);
        let mut command = Command::new(FERROUTE);
        command.arg0("kube-proxy").arg("--config").arg(config);
        self.proxy = Proxy::spawn(&self.cluster.node, &mut command);
    }

    /// Starts another proxy after the previous one has exited.
    fn start_again(&mut self) {
        self.proxy = Proxy::spawn(&self.cluster.node, &mut command(&self.server, &self.files, self.mode, &[]));
    }

    pub(crate) fn apply(&self, yaml: &str) {
        apply(&self.server, yaml);
    }

    /// Starts traffic to both TCP addresses of [`web`].
    fn traffic(&self) -> [Traffic; 2] {
        web_tcp().map(|to| Traffic::start(&self.cluster.client, to))
    }

    /// Waits until no rule contains a pod's addresses.
    #[track_caller]
    fn wait_gone(&self, pod: u8) {
        for address in pod_addresses(pod) {
            rules::wait_gone(&self.cluster.node, self.mode, &address.to_string());
        }
    }

    /// Waits until new connections reach a pod in both IP families.
    #[track_caller]
    fn wait_reaches(&self, pod: u8) {
        for to in web_tcp() {
            let reaches = || connect(&self.cluster.client, to).is_ok_and(|reached| reached == pod);
            wait(&format!("pod {pod} at {to}"), || reaches().then_some(()));
        }
    }

    /// Waits for an Event with this reason.
    #[track_caller]
    pub(crate) fn wait_event(&self, reason: &str) -> Value {
        wait(&format!("an Event {reason}"), || {
            self.server.writes().into_iter().map(|(_, body)| body).find(|body| body["reason"] == reason)
        })
    }
}

fn command(server: &FakeApiServer, files: &Files, mode: Mode, arguments: &[&str]) -> Command {
    let config = files.config(mode);
    connect_to(server, files, &config);
    let mut command = Command::new(FERROUTE);
    command.arg("run").arg("--config").arg(config).args(arguments);
    command
}

/// Adds the connection to the server to a configuration.
fn connect_to(server: &FakeApiServer, files: &Files, config: &Path) {
    let kubeconfig = files.path("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k}}}}]\n\
         clusters: [{{name: k, cluster: {{server: '{}'}}}}]\n",
        server.url()
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let connection = format!("clientConnection: {{kubeconfig: {}, qps: -1}}\n", kubeconfig.display());
    std::fs::write(config, std::fs::read_to_string(config).unwrap() + &connection).unwrap();
}

/// Applies the objects of a manifest to the server.
pub(crate) fn apply(server: &FakeApiServer, yaml: &str) {
    for parsed in manifest::read(yaml) {
        let Ok(Parsed::Object(object)) = parsed else { panic!("{parsed:?}") };
        let (resource, value) = match *object {
            Object::Service(object) => (Resource::Services, serde_json::to_value(object)),
            Object::EndpointSlice(object) => (Resource::EndpointSlices, serde_json::to_value(object)),
            Object::Node(object) => (Resource::Nodes, serde_json::to_value(object)),
            object => panic!("{object:?}"),
        };
        server.apply(resource, value.unwrap());
    }
}

fn no_request_fails_while_the_proxy_restarts(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0, 1, 2]));
    let before = rules::of_proxy(&case.cluster.node, mode);
    let traffic = case.traffic();
    assert!(case.proxy.stop("TERM").success());
    traffic.iter().for_each(Traffic::wait_for_more);
    case.start_again();
    case.proxy.wait_synced(&case.cluster.node);
    traffic.iter().for_each(Traffic::wait_for_more);
    assert_eq!(rules::of_proxy(&case.cluster.node, mode), before);
    for traffic in traffic {
        assert_eq!(traffic.assert_no_failure(), BTreeSet::from([0, 1, 2]));
    }
}

fn no_request_fails_and_no_change_is_lost_during_api_server_outages(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0, 1]));
    let traffic = case.traffic();
    let mut connections = web_tcp().map(|to| Connection::open(&case.cluster.client, to).unwrap());
    let disconnect = |case: &Case| {
        case.server.behave(|behaviour| behaviour.down = true);
        case.server.cut_watches();
    };
    disconnect(&case);
    case.proxy.wait_log("cannot reach the API server");
    let shown = problems(&case.cluster);
    assert!(shown.iter().any(|problem| problem.contains("cannot reach the API server")), "{shown:?}");
    case.apply(&web(&[2]));
    traffic.iter().for_each(Traffic::wait_for_more);
    case.server.behave(|behaviour| behaviour.down = false);
    case.wait_reaches(2);
    case.wait_gone(0);
    wait("the end of the problem", || problems(&case.cluster).is_empty().then_some(()));
    // A proxy that starts during an outage waits for the server and keeps the existing rules.
    disconnect(&case);
    case.apply(&web(&[1]));
    assert!(case.proxy.stop("TERM").success());
    case.start_again();
    case.proxy.wait_log("cannot reach the API server");
    traffic.iter().for_each(Traffic::wait_for_more);
    case.server.behave(|behaviour| behaviour.down = false);
    case.wait_reaches(1);
    case.wait_gone(2);
    for connection in &mut connections {
        connection.echo("still here").unwrap();
    }
    for traffic in traffic {
        assert_eq!(traffic.assert_no_failure(), BTreeSet::from([0, 1, 2]));
    }
}

fn no_request_fails_while_endpoints_roll(mode: Mode) {
    let case = Case::new(mode, &web(&[0]));
    let traffic = case.traffic();
    for (old, new) in [(0, 1), (1, 2), (2, 0)] {
        case.apply(&web(&[old, new]));
        for to in web_tcp() {
            wait("the new endpoint's first connection", || {
                (connect(&case.cluster.client, to).unwrap() == new).then_some(())
            });
        }
        case.apply(&web(&[new]));
        case.wait_gone(old);
        // No new connection reaches the old endpoint from here on.
        for _ in 0..20 {
            for to in web_tcp() {
                assert_eq!(connect(&case.cluster.client, to).unwrap(), new);
            }
        }
        traffic.iter().for_each(Traffic::wait_for_more);
    }
    for traffic in traffic {
        assert_eq!(traffic.assert_no_failure(), BTreeSet::from([0, 1, 2]));
    }
}

fn rules_are_written_only_after_the_node_has_addresses(mode: Mode) {
    let mut case = Case::launch(mode, &[], |server| apply(server, &web(&[0])));
    case.proxy.wait_log("waiting for the Node");
    case.apply("apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n");
    // The proxy would write rules for this if it did not wait.
    case.apply(&web(&[1]));
    assert_eq!(rules::of_proxy(&case.cluster.node, mode), [""; 0]);
    case.apply(&Files::node_manifest(""));
    case.proxy.wait_synced(&case.cluster.node);
    case.wait_reaches(1);
}

#[test]
fn startup_taint_is_removed_after_the_first_sync() {
    const KEY: &str = "example.com/services-not-ready";
    let node = Files::node_manifest(&format!("{{key: {KEY}}}, {{key: dedicated}}"));
    let mut case = Case::launch(Mode::Nftables, &["--startup-taint", KEY], |server| {
        apply(server, &node);
        // The first writes fail, so they are retried.
        server.behave(|behaviour| behaviour.failed_writes = vec![500; 2]);
    });
    case.proxy.wait_synced(&case.cluster.node);
    let taints = || case.server.objects(Resource::Nodes)[0]["spec"]["taints"].clone();
    wait("removal of the taint", || (taints() == json!([{"key": "dedicated"}])).then_some(()));
}

#[test]
fn startup_taint_stays_until_the_api_server_is_reachable() {
    const KEY: &str = "example.com/services-not-ready";
    let node = Files::node_manifest(&format!("{{key: {KEY}}}"));
    let mut case = Case::launch(Mode::Iptables, &["--startup-taint", KEY], |server| {
        apply(server, &node);
        server.behave(|behaviour| behaviour.down = true);
    });
    case.proxy.wait_log("cannot reach the API server");
    assert_eq!(case.server.objects(Resource::Nodes)[0]["spec"]["taints"], json!([{"key": KEY}]));
    case.server.behave(|behaviour| behaviour.down = false);
    wait("removal of the taint", || case.server.objects(Resource::Nodes)[0]["spec"]["taints"].is_null().then_some(()));
    case.proxy.wait_synced(&case.cluster.node);
}

#[test]
fn events_report_start_invalid_objects_and_used_node_ports() {
    let listener = |cluster: &Cluster| cluster.node.run(|| std::net::TcpListener::bind("0.0.0.0:30080").unwrap());
    let case = Case::new(Mode::Nftables, &web(&[0]));
    let starting = case.wait_event("Starting");
    assert_eq!((&starting["regarding"]["kind"], &starting["regarding"]["name"]), (&json!("Node"), &json!("node-1")));
    assert_eq!((&starting["type"], &starting["action"]), (&json!("Normal"), &json!("StartKubeProxy")));

    // One object with an invalid value, one with an invalid type.
    let invalid = |name: &str, port: Value| {
        json!({"metadata": {"namespace": "shop", "name": name},
               "spec": {"clusterIP": "10.96.0.300", "ports": [{"port": port}]}})
    };
    for (name, port, field) in
        [("bad-value", json!(80), "spec.clusterIP"), ("bad-type", json!("http"), "spec.ports.port")]
    {
        case.server.apply(Resource::Services, invalid(name, port));
        let event = wait(&format!("an Event for {name}"), || {
            let bodies = case.server.writes().into_iter().map(|(_, body)| body);
            bodies.into_iter().find(|body| body["regarding"]["name"] == name)
        });
        assert_eq!((&event["reason"], &event["regarding"]["namespace"]), (&json!("InvalidObject"), &json!("shop")));
        assert!(event["note"].as_str().unwrap().contains(field), "{event}");
        let shown = problems(&case.cluster);
        assert!(shown.iter().any(|problem| problem.contains(name) && problem.contains(field)), "{shown:?}");
    }
    assert_eq!(Metrics::read(&case.cluster.node).get("ferroute_problems{kind=\"source\"}"), 1.0);
    case.server.delete(Resource::Services, "shop", "bad-value");
    let valid = json!({"metadata": {"namespace": "shop", "name": "bad-type"},
                       "spec": {"clusterIP": "10.96.0.30", "ports": [{"port": 80}]}});
    case.server.apply(Resource::Services, valid);
    wait("the end of the problems", || problems(&case.cluster).is_empty().then_some(()));
    assert_eq!(Metrics::read(&case.cluster.node).get("ferroute_problems{kind=\"source\"}"), 0.0);

    // An invalid version of a Service that is served.
    case.server.apply(Resource::Services, invalid("bad-type", json!(80)));
    let explained = wait("the invalid version in the explanation", || {
        let (status, text, json) = run(&case.cluster, &["explain", "service", "shop/bad-type"]);
        assert_eq!(status, 0, "{text}");
        json.get("invalidUpdate").is_some().then_some((text, json))
    });
    let (text, json) = explained;
    assert_eq!(json["ports"][0]["frontends"][0]["addresses"], json!(["10.96.0.30"]), "{json}");
    assert!(json["invalidUpdate"][0].as_str().unwrap().contains("10.96.0.300"), "{json}");
    assert!(text.contains("10.96.0.300"), "{text}");

    let _listener = listener(&case.cluster);
    case.apply(
        "apiVersion: v1\nkind: Service\nmetadata: {name: busy}\nspec: {type: NodePort, clusterIP: 10.96.0.7, \
         ports: [{port: 80, nodePort: 30080}]}\n",
    );
    let event = case.wait_event("NodePortInUse");
    assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!("Service"), &json!("busy")));
    assert!(event["note"].as_str().unwrap().contains("0.0.0.0:30080"), "{event}");
}

#[test]
fn ejected_and_readmitted_endpoints_are_reported_at_their_service() {
    let case = Case::new(Mode::Nftables, &ejection::ejecting("true", &[0, 1]));
    ejection::fail(&case.cluster, 1, "drop");
    let event = |reason: &str| {
        wait(&format!("an Event {reason}"), || {
            // Connections that the dead pod does not answer; they reach the other one later.
            for to in web_tcp() {
                _ = connect(&case.cluster.client, to);
            }
            case.server.writes().into_iter().map(|(_, body)| body).find(|body| body["reason"] == reason)
        })
    };
    for (reason, kind) in [("EndpointEjected", "Warning"), ("EndpointReadmitted", "Normal")] {
        let event = event(reason);
        assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!("Service"), &json!("web")));
        assert_eq!((&event["type"], &event["action"]), (&json!(kind), &json!("Eject")));
        let note = event["note"].as_str().unwrap();
        assert!(pod_addresses(1).iter().any(|address| note.contains(&address.to_string())), "{event}");
        if reason == "EndpointEjected" {
            ejection::revive(&case.cluster);
        }
    }
}

#[test]
fn unset_mode_is_reported_under_the_name_of_kube_proxy() {
    let mut case = Case::new(Mode::Iptables, &web(&[0]));
    case.restart_as_kube_proxy("''");
    let event = case.wait_event("ProxyModeUnset");
    assert_eq!((&event["regarding"]["kind"], &event["type"]), (&json!("Node"), &json!("Warning")));
    case.proxy.wait_log("no proxy mode is configured");
    assert_eq!(get(&case.cluster.node, METRICS, "/proxyMode").unwrap().body, "iptables");
}

#[test]
fn node_port_that_another_process_has_is_reported_and_held_once_it_is_free() {
    let bind = |case: &Case, address: &str| case.cluster.node.run(|| std::net::UdpSocket::bind(address));
    let case = Case::launch(Mode::Iptables, &["--hold-node-ports"], |server| {
        apply(server, &Files::node_manifest(""));
    });
    let other = bind(&case, "192.168.0.1:30053").unwrap();
    case.apply(
        "apiVersion: v1\nkind: Service\nmetadata: {name: dns}\nspec: {type: NodePort, ipFamilies: [IPv4, IPv6], \
         clusterIP: 10.96.0.7, clusterIPs: [10.96.0.7, 'fd00:96::7'], \
         ports: [{port: 53, nodePort: 30053, protocol: UDP}]}\n",
    );
    let event = case.wait_event("NodePortInUse");
    assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!("Service"), &json!("dns")));
    // The proxy's own socket of the other family is not reported.
    assert!(event["note"].as_str().unwrap().contains("192.168.0.1:30053"), "{event}");
    wait("the port of the other family", || bind(&case, "[::]:30053").is_err().then_some(()));
    drop(other);
    wait("the free port", || bind(&case, "192.168.0.1:30053").is_err().then_some(()));
}

#[test]
fn service_port_that_userspace_mode_cannot_relay_is_reported() {
    let case = Case::new(Mode::Userspace, &web(&[0]));
    case.apply(
        "apiVersion: v1\nkind: Service\nmetadata: {name: signalling}\nspec: {clusterIP: 10.96.0.7, \
         ports: [{name: signals, port: 80, protocol: SCTP}]}\n",
    );
    let event = case.wait_event("UnsupportedProtocol");
    assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!("Service"), &json!("signalling")));
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("default/signalling:signals") && note.contains("SCTP"), "{event}");
}

#[test]
fn forbidden_events_do_not_stop_the_proxy() {
    let mut case = Case::launch(Mode::Nftables, &[], |server| {
        server.behave(|behaviour| behaviour.failed_writes = vec![403; 100]);
        apply(server, &Files::node_manifest(""));
        apply(server, &web(&[0]));
    });
    case.proxy.wait_synced(&case.cluster.node);
    let line = case.proxy.wait_log("cannot write Events");
    assert!(line.contains("verbs: [\"create\"]"), "{line}");
    case.server.apply(Resource::Services, json!({"metadata": {"name": "bad"}, "spec": {"clusterIP": "x"}}));
    case.apply(&web(&[1]));
    case.wait_reaches(1);
    assert_eq!(case.proxy.log().matches("cannot write Events").count(), 1, "logged once");
}
