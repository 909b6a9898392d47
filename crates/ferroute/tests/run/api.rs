//! The same real program and packets with an API server as the source, played by a fake API server.

use std::{collections::BTreeSet, path::Path, process::Command};

use ferroute_api::{
    Object,
    manifest::{self, Parsed},
};
use ferroute_kube::testing::FakeApiServer;
use ferroute_source::Resource;
use serde_json::{Value, json};

use crate::{
    Mode, in_each_mode,
    lab::{Lab, pod_addresses},
    proxy::{FERROUTE, Files, Proxy},
    rules,
    traffic::{Connection, Traffic, connect},
    wait, web, web_tcp,
};

in_each_mode!(
    no_request_fails_while_the_proxy_restarts,
    no_request_fails_while_the_api_server_is_away_and_nothing_is_lost,
    no_request_fails_while_endpoints_roll,
    no_rule_is_written_before_the_node_has_addresses,
);

/// A lab whose proxy follows an API server.
struct Case {
    proxy: Proxy,
    server: FakeApiServer,
    /// Holds the fake API server's thread; dropped after it.
    _runtime: tokio::runtime::Runtime,
    files: Files,
    lab: Lab,
    mode: Mode,
}

impl Case {
    /// Everything is in force.
    #[track_caller]
    fn new(mode: Mode, yaml: &str) -> Self {
        let mut case = Self::launch(mode, &[], |server| {
            apply(server, &Files::node_manifest(""));
            apply(server, yaml);
        });
        case.proxy.wait_in_force(&case.lab.node);
        case
    }

    /// Starts the proxy with these further arguments once the server has been prepared.
    fn launch(mode: Mode, arguments: &[&str], prepare: impl FnOnce(&FakeApiServer)) -> Self {
        let (lab, files) = (Lab::new(), Files::new());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = lab.node.run(|| runtime.block_on(FakeApiServer::start()));
        prepare(&server);
        let proxy = Proxy::spawn(&lab.node, &mut command(&server, &files, mode, arguments));
        Self { proxy, server, _runtime: runtime, files, lab, mode }
    }

    /// Starts another proxy after the first has ended.
    fn start_again(&mut self) {
        self.proxy = Proxy::spawn(&self.lab.node, &mut command(&self.server, &self.files, self.mode, &[]));
    }

    fn apply(&self, yaml: &str) {
        apply(&self.server, yaml);
    }

    /// Traffic to both addresses of [`web`].
    fn traffic(&self) -> [Traffic; 2] {
        web_tcp().map(|to| Traffic::start(&self.lab.client, to))
    }

    /// Waits until a pod's addresses are in no rule any more.
    #[track_caller]
    fn wait_gone(&self, pod: u8) {
        for address in pod_addresses(pod) {
            rules::wait_gone(&self.lab.node, self.mode, &address.to_string());
        }
    }

    /// Waits until new connections reach a pod in both families.
    #[track_caller]
    fn wait_reaches(&self, pod: u8) {
        for to in web_tcp() {
            let reaches = || connect(&self.lab.client, to).is_ok_and(|found| found == pod);
            wait(&format!("pod {pod} at {to}"), || reaches().then_some(()));
        }
    }

    /// Waits for an Event with this reason.
    #[track_caller]
    fn wait_event(&self, reason: &str) -> Value {
        wait(&format!("an Event {reason}"), || {
            self.server.writes().into_iter().map(|(_, body)| body).find(|body| body["reason"] == reason)
        })
    }
}

fn command(server: &FakeApiServer, files: &Files, mode: Mode, arguments: &[&str]) -> Command {
    let kubeconfig = files.path("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k}}}}]\n\
         clusters: [{{name: k, cluster: {{server: '{}'}}}}]\n",
        server.url()
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let config: &Path = &files.config(mode);
    let connection = format!("clientConnection: {{kubeconfig: {}, qps: -1}}\n", kubeconfig.display());
    std::fs::write(config, std::fs::read_to_string(config).unwrap() + &connection).unwrap();
    let mut command = Command::new(FERROUTE);
    command.arg("run").arg("--config").arg(config).args(arguments);
    command
}

/// Gives the objects of a manifest to the server.
fn apply(server: &FakeApiServer, yaml: &str) {
    for found in manifest::read(yaml) {
        let Ok(Parsed::Object(object)) = found else { panic!("{found:?}") };
        let (resource, value) = match *object {
            Object::Service(object) => (Resource::Services, serde_json::to_value(object)),
            Object::EndpointSlice(object) => (Resource::EndpointSlices, serde_json::to_value(object)),
            Object::Node(object) => (Resource::Nodes, serde_json::to_value(object)),
            other => panic!("{other:?}"),
        };
        server.apply(resource, value.unwrap());
    }
}

fn no_request_fails_while_the_proxy_restarts(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0, 1, 2]));
    let before = rules::ours(&case.lab.node, mode);
    let traffic = case.traffic();
    assert!(case.proxy.end_by("TERM").success());
    traffic.iter().for_each(Traffic::go_on);
    case.start_again();
    case.proxy.wait_in_force(&case.lab.node);
    traffic.iter().for_each(Traffic::go_on);
    assert_eq!(rules::ours(&case.lab.node, mode), before);
    for traffic in traffic {
        assert_eq!(traffic.assert_no_failure(), BTreeSet::from([0, 1, 2]));
    }
}

fn no_request_fails_while_the_api_server_is_away_and_nothing_is_lost(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0, 1]));
    let traffic = case.traffic();
    let mut connections = web_tcp().map(|to| Connection::open(&case.lab.client, to).unwrap());
    let go_away = |case: &Case| {
        case.server.behave(|behaviour| behaviour.down = true);
        case.server.cut_watches();
    };
    go_away(&case);
    case.proxy.wait_log("cannot reach the API server");
    case.apply(&web(&[2]));
    traffic.iter().for_each(Traffic::go_on);
    case.server.behave(|behaviour| behaviour.down = false);
    case.wait_reaches(2);
    case.wait_gone(0);
    // A proxy that starts meanwhile waits for the server, on the rules of the one before.
    go_away(&case);
    case.apply(&web(&[1]));
    assert!(case.proxy.end_by("TERM").success());
    case.start_again();
    case.proxy.wait_log("cannot reach the API server");
    traffic.iter().for_each(Traffic::go_on);
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
                (connect(&case.lab.client, to).unwrap() == new).then_some(())
            });
        }
        case.apply(&web(&[new]));
        case.wait_gone(old);
        // From here on nothing new comes to the old one.
        for _ in 0..20 {
            for to in web_tcp() {
                assert_eq!(connect(&case.lab.client, to).unwrap(), new);
            }
        }
        traffic.iter().for_each(Traffic::go_on);
    }
    for traffic in traffic {
        assert_eq!(traffic.assert_no_failure(), BTreeSet::from([0, 1, 2]));
    }
}

fn no_rule_is_written_before_the_node_has_addresses(mode: Mode) {
    let mut case = Case::launch(mode, &[], |server| apply(server, &web(&[0])));
    case.proxy.wait_log("waiting for the Node");
    case.apply("apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n");
    // Something that it would have to write if it did not wait.
    case.apply(&web(&[1]));
    assert_eq!(rules::ours(&case.lab.node, mode), [""; 0]);
    case.apply(&Files::node_manifest(""));
    case.proxy.wait_in_force(&case.lab.node);
    case.wait_reaches(1);
}

#[test]
fn the_startup_taint_goes_once_services_work() {
    const KEY: &str = "example.com/services-not-ready";
    let node = Files::node_manifest(&format!("{{key: {KEY}}}, {{key: dedicated}}"));
    let mut case = Case::launch(Mode::Nftables, &["--startup-taint", KEY], |server| {
        apply(server, &node);
        // Somebody else writes to the Node at the same time, and the server is not well.
        server.behave(|behaviour| behaviour.failed_writes = vec![500; 2]);
    });
    case.proxy.wait_in_force(&case.lab.node);
    let taints = || case.server.objects(Resource::Nodes)[0]["spec"]["taints"].clone();
    wait("the taint's end", || (taints() == json!([{"key": "dedicated"}])).then_some(()));
    case.proxy.wait_log("removed the startup taint");
}

#[test]
fn the_startup_taint_stays_while_services_do_not_work() {
    const KEY: &str = "example.com/services-not-ready";
    let node = Files::node_manifest(&format!("{{key: {KEY}}}"));
    let mut case = Case::launch(Mode::Iptables, &["--startup-taint", KEY], |server| {
        apply(server, &node);
        server.behave(|behaviour| behaviour.down = true);
    });
    case.proxy.wait_log("cannot reach the API server");
    assert_eq!(case.server.objects(Resource::Nodes)[0]["spec"]["taints"], json!([{"key": KEY}]));
    case.server.behave(|behaviour| behaviour.down = false);
    wait("the taint's end", || case.server.objects(Resource::Nodes)[0]["spec"]["taints"].is_null().then_some(()));
    case.proxy.wait_in_force(&case.lab.node);
}

#[test]
fn people_are_told_by_events_what_is_wrong() {
    let listener = |lab: &Lab| lab.node.run(|| std::net::TcpListener::bind("0.0.0.0:30080").unwrap());
    let case = Case::new(Mode::Nftables, &web(&[0]));
    let starting = case.wait_event("Starting");
    assert_eq!((&starting["regarding"]["kind"], &starting["regarding"]["name"]), (&json!("Node"), &json!("node-1")));
    assert_eq!((&starting["type"], &starting["action"]), (&json!("Normal"), &json!("StartKubeProxy")));

    // Of its values, and of its form.
    let bad = |name: &str, port: Value| {
        json!({"metadata": {"namespace": "shop", "name": name},
               "spec": {"clusterIP": "10.96.0.300", "ports": [{"port": port}]}})
    };
    for (name, port, fault) in [("values", json!(80), "spec.clusterIP"), ("form", json!("http"), "spec.ports.port")] {
        case.server.apply(Resource::Services, bad(name, port));
        let event = wait(&format!("an Event for {name}"), || {
            let bodies = case.server.writes().into_iter().map(|(_, body)| body);
            bodies.into_iter().find(|body| body["regarding"]["name"] == name)
        });
        assert_eq!((&event["reason"], &event["regarding"]["namespace"]), (&json!("InvalidObject"), &json!("shop")));
        assert!(event["note"].as_str().unwrap().contains(fault), "{event}");
    }

    let _listener = listener(&case.lab);
    case.apply(
        "apiVersion: v1\nkind: Service\nmetadata: {name: busy}\nspec: {type: NodePort, clusterIP: 10.96.0.7, \
         ports: [{port: 80, nodePort: 30080}]}\n",
    );
    let event = case.wait_event("NodePortInUse");
    assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!("Service"), &json!("busy")));
    assert!(event["note"].as_str().unwrap().contains("0.0.0.0:30080"), "{event}");
}

#[test]
fn events_that_are_not_allowed_stop_nothing() {
    let mut case = Case::launch(Mode::Nftables, &[], |server| {
        server.behave(|behaviour| behaviour.failed_writes = vec![403; 100]);
        apply(server, &Files::node_manifest(""));
        apply(server, &web(&[0]));
    });
    case.proxy.wait_in_force(&case.lab.node);
    let line = case.proxy.wait_log("cannot write Events");
    assert!(line.contains("verbs: [\"create\"]"), "{line}");
    case.server.apply(Resource::Services, json!({"metadata": {"name": "bad"}, "spec": {"clusterIP": "x"}}));
    case.apply(&web(&[1]));
    case.wait_reaches(1);
    assert_eq!(case.proxy.log().matches("cannot write Events").count(), 1, "told once");
}
