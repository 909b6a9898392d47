//! `ferroute ui` and `ferroute demo --ui` as processes, with real connections and rules; the page itself is tested in a browser by
//! `make test-ui`.

#![expect(clippy::unwrap_used, reason = "helpers panic as tests do")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Command, Stdio},
};

use ferroute_testing::{NetNs, Running, wait};
use serde_json::{Value, json};

const FERROUTE: &str = env!("CARGO_BIN_EXE_ferroute");

/// A process that serves a page.
struct Ui {
    child: Running,
    address: SocketAddr,
    token: Option<String>,
    /// Network namespace in which the page is reachable; `None` for this machine.
    namespace: Option<NetNs>,
}

impl Ui {
    fn start(command: &mut Command) -> Self {
        let mut child = Running(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("open http://").unwrap_or_else(|| panic!("no URL: {line:?}"));
        let (address, fragment) = url.split_once('/').unwrap();
        let token = fragment.strip_prefix("#token=").map(str::to_owned);
        Self { child, address: address.parse().unwrap(), token, namespace: None }
    }

    /// Starts `ferroute ui` in a network namespace.
    fn in_namespace(namespace: NetNs, arguments: &[&str]) -> Self {
        let mut command = Command::new(FERROUTE);
        command.args(["ui", "--listen", "127.0.0.1:0"]).args(arguments);
        let mut ui = namespace.run(|| Self::start(&mut command));
        ui.namespace = Some(namespace);
        ui
    }

    fn get(&self, path: &str) -> Value {
        self.request(&format!("GET /api/v1/{path} HTTP/1.0\r\nHost: localhost\r\n\r\n")).1
    }

    fn post(&self, action: &str, token: &str, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        self.request(&format!(
            "POST /api/v1/demo/{action} HTTP/1.0\r\nHost: localhost\r\nX-Ferroute-Token: {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    fn act(&self, action: &str, body: &Value) -> Value {
        let (status, answer) = self.post(action, self.token.as_deref().unwrap(), body);
        assert_eq!(status, 200, "{action} {body}: {answer}");
        answer
    }

    fn request(&self, request: &str) -> (u16, Value) {
        let connect = || TcpStream::connect(self.address);
        let mut stream = self.namespace.as_ref().map_or_else(connect, |namespace| namespace.run(connect)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {response}")))
    }
}

fn names(value: &Value, field: &str) -> Vec<String> {
    value.as_array().unwrap().iter().map(|item| item[field].as_str().unwrap().to_owned()).collect()
}

/// Ends `ferroute demo --ui` like Ctrl-C, and removes the remains if that fails.
struct Demo {
    ui: Ui,
    instance: String,
}

impl Demo {
    fn start(mode: &str) -> Self {
        let instance = format!("ui{mode}{}", std::process::id());
        let mut command = Command::new(FERROUTE);
        command.args(["demo", "--instance", &instance, "--ui", "--listen", "127.0.0.1:0", "--proxy-mode", mode]);
        Self { ui: Ui::start(&mut command), instance }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        Command::new(FERROUTE).args(["demo", "--instance", &self.instance, "down"]).output().unwrap();
    }
}

/// Checks the content and the actions of the demo's page, in one mode.
fn check_demo(mode: &str) {
    let mut demo = Demo::start(mode);
    let ui = &demo.ui;
    let overview = ui.get("overview");
    assert_eq!((&overview["source"], &overview["mode"]), (&json!("demo"), &json!(mode)));
    let service = &ui.get("services")["services"][0];
    let address = format!("{}:80", service["frontends"][0]["address"].as_str().unwrap());
    let connect = |from: &str| ui.act("connect", &json!({ "from": from, "to": address, "count": 60 }));

    // Connections reach every pod of the Service, from anywhere.
    for from in ["web-server", "node", "node2", "outside"] {
        let made = connect(from);
        assert_eq!(made["failed"], json!([]), "{from}: {made}");
        assert_eq!(names(&made["results"], "pod").len(), 3, "{from}: {made}");
    }

    // Another pod, and one that is no longer ready.
    ui.act("scale", &json!({ "deployment": "default/nginx-deployment", "replicas": 4 }));
    ui.act("ready", &json!({ "pod": "default/nginx-deployment-1", "ready": false }));
    wait("the endpoints have changed", || {
        let service = &ui.get("services")["services"][0];
        (service["endpoints"] == 4 && service["used"] == 3).then_some(())
    });
    wait("connections use them", || {
        let pods = names(&connect("node")["results"], "pod");
        let wanted = [2, 3, 4].map(|n| format!("nginx-deployment-{n}"));
        (pods == wanted).then_some(())
    });
    ui.act("ready", &json!({ "pod": "default/nginx-deployment-1", "ready": true }));
    wait("the pod is ready again", || (ui.get("overview")["counts"]["used"] == 4).then_some(()));

    // The kernel's rules and the planned ones lead to the same end.
    for rules in ["planned", "kernel"] {
        let trace = ui.get(&format!("trace?from=default/web-server&to={address}&rules={rules}"));
        assert_eq!((&trace["outcome"], &trace["mode"]), (&json!("delivered"), &json!(mode)), "{trace}");
    }
    wait("the rules are those of the objects", || (ui.get("diff")["report"]["conclusion"] == "equal").then_some(()));
    let doctor = ui.get("doctor");
    assert_eq!(doctor["available"], true, "{doctor}");
    assert!(!names(&doctor["diagnosis"]["findings"], "check").contains(&"other-proxies".to_owned()), "{doctor}");

    // Deleted rules are repaired, and the timeline shows it.
    ui.act("break", &json!({}));
    wait("a repair", || {
        let timeline = ui.get("timeline");
        let syncs = timeline["syncs"].as_array().unwrap().clone();
        syncs.iter().any(|sync| sync["repaired"].as_u64() > Some(0)).then_some(())
    });
    assert_eq!(connect("node")["failed"], json!([]));

    // Invalid requests change nothing.
    let wrong = "0".repeat(32);
    assert_eq!(ui.post("scale", &wrong, &json!({ "deployment": "default/nginx-deployment", "replicas": 1 })).0, 403);
    let token = ui.token.clone().unwrap();
    for (action, body) in [
        ("scale", json!({ "deployment": "default/nginx-deployment", "replicas": 100_000 })),
        ("scale", json!({ "deployment": "default/none", "replicas": 1 })),
        ("ready", json!({ "pod": "default/none", "ready": false })),
        ("connect", json!({ "from": "../node", "to": address })),
        ("connect", json!({ "from": "node", "to": address, "protocol": "sctp" })),
    ] {
        let (status, answer) = ui.post(action, &token, &body);
        assert_eq!(status, 400, "{action} {body}: {answer}");
    }
    assert_eq!(ui.get("overview")["demo"]["deployments"][0]["replicas"], 4);

    // Ctrl-C removes the cluster.
    let pid = demo.ui.child.0.id().to_string();
    Command::new("kill").args(["-INT", &pid]).status().unwrap();
    demo.ui.child.0.wait().unwrap();
    assert!(!Path::new(&format!("/run/ferroute-demo@{}", demo.instance)).exists());
}

#[test]
fn demo_acts_in_iptables_mode() {
    check_demo("iptables");
}

#[test]
fn demo_acts_in_nftables_mode() {
    check_demo("nftables");
}

const CLUSTER: &str = "
{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.96.0.80, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
 metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}, ports: [{port: 8080}],
 endpoints: [{addresses: [10.244.1.5]}]}
";

/// The page of a running proxy needs no flags: it queries the proxy, also for changes.
#[test]
fn running_proxy_is_shown() {
    let files = tempfile::tempdir().unwrap();
    let manifests = files.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    let write = |text: &str| {
        fs::write(files.path().join("new"), text).unwrap();
        fs::rename(files.path().join("new"), manifests.join("cluster.yaml")).unwrap();
    };
    write(CLUSTER);
    let node = NetNs::new();
    let outside = NetNs::new();
    node.link("eth0", &outside, "eth0");
    node.add_address("192.0.2.1/24", "eth0");
    node.command("ip", &["route", "add", "default", "via", "192.0.2.2"]);
    let mut proxy = Command::new(FERROUTE);
    proxy.args(["run", "--proxy-mode", "nftables", "--hostname-override", "node-1", "--manifests"]).arg(&manifests);
    proxy.args(["--healthz-bind-address", "127.0.0.1:10256", "--metrics-bind-address", "127.0.0.1:10249"]);
    proxy.stderr(Stdio::null());
    let _proxy = Running(node.run(|| proxy.spawn()).unwrap());
    let is_recording = || {
        let bundle = node.run(|| Command::new(FERROUTE).arg("bundle").output()).unwrap();
        bundle.status.success().then_some(())
    };
    wait("the proxy answers", is_recording);

    let ui = Ui::in_namespace(node, &[]);
    let overview = ui.get("overview");
    assert_eq!((&overview["source"], &overview["mode"]), (&json!("node"), &json!("nftables")));
    assert_eq!((&overview["node"], &overview["counts"]["services"]), (&json!("node-1"), &json!(1)));
    let trace = ui.get("trace?from=node-1&to=shop/web&rules=kernel");
    assert_eq!(trace["frontend"]["service"], "web", "{trace}");
    wait("the rules are those of the objects", || (ui.get("diff")["report"]["conclusion"] == "equal").then_some(()));

    write(&CLUSTER.replace("10.244.1.5", "10.244.1.6"));
    wait("the change is in the timeline", || {
        let timeline = ui.get("timeline");
        let syncs = timeline["syncs"].as_array()?.clone();
        syncs.iter().any(|sync| sync["changes"][0]["service"] == "shop/web").then_some(())
    });
    // No page is open, so the state is loaded again only once one is.
    let connect = || TcpStream::connect(ui.address);
    let mut events = ui.namespace.as_ref().unwrap().run(connect).unwrap();
    events.write_all(b"GET /api/v1/events HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    wait("the page has the new endpoint", || {
        let endpoints = ui.get("services")["services"][0]["search"].clone();
        (endpoints == json!(["10.244.1.6"])).then_some(())
    });
}
