//! Tests of `ferroute explain` and `ferroute top`.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    process::{Command, Output},
    sync::atomic::{AtomicBool, Ordering},
};

use ferroute_testing::NetNs;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ferroute");

fn nginx() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/nginx.yaml").to_owned()
}

fn ferroute(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

/// Writes manifests of a Service with one ready and one unready endpoint.
fn shop() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    file.write_all(
        br#"
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [10.244.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{name: http, port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-a, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [10.244.0.2], nodeName: node-1, conditions: {ready: true}}
- {addresses: [10.244.0.3], nodeName: node-1, conditions: {ready: false, serving: false}}
"#,
    )
    .unwrap();
    file
}

#[test]
fn demo_manifests_are_explained_without_a_cluster() {
    let output = ferroute(&["explain", "service", "default/nginx-service", "--manifests", &nginx()]);
    let text = stdout(&output);
    for line in [
        "Service default/nginx-service, type NodePort, on node node",
        "    cluster IP  10.111.175.78:80             3 endpoints (policy Cluster), masqueraded except from pods",
        "    node port   31628 on all node addresses  3 endpoints (policy Cluster), masqueraded",
        "    172.17.0.4:80  nginx-deployment-1  ready, this node  used",
    ] {
        assert!(text.lines().any(|printed| printed == line), "{line:?}\nis missing in\n{text}");
    }
}

#[test]
fn health_check_of_the_service_alone_is_explained_for_both_families() {
    let mut file = shop();
    file.write_all(
        br#"---
apiVersion: v1
kind: Service
metadata: {name: dual, namespace: shop}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.0.11, "fd00::11"]
  ipFamilies: [IPv4, IPv6]
  externalTrafficPolicy: Local
  healthCheckNodePort: 30500
  ports: [{name: http, port: 80}]
status: {loadBalancer: {ingress: [{ip: 198.51.100.1}, {ip: "2001:db8::1"}]}}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.12
  externalTrafficPolicy: Local
  healthCheckNodePort: 30501
  ports: [{name: http, port: 80}]
"#,
    )
    .unwrap();
    let path = file.path().to_str().unwrap();
    let check = |service| {
        let arguments =
            ["explain", "service", service, "--manifests", path, "--hostname-override", "node-1", "-o", "json"];
        let explanation: Value = serde_json::from_str(stdout(&ferroute(&arguments))).unwrap();
        let check = &explanation["policies"]["healthCheck"];
        (check["port"].clone(), check["loadBalancerAddresses"].clone())
    };
    let addresses = serde_json::json!(["198.51.100.1", "2001:db8::1"]);
    assert_eq!(check("shop/dual"), (30500.into(), addresses));
    assert_eq!(check("shop/other"), (30501.into(), Value::Null));
    assert_eq!(check("shop/web"), (Value::Null, Value::Null));
}

#[test]
fn service_is_named_as_clients_name_it() {
    let file = shop();
    let explain = |service: &str| {
        ferroute(&["explain", service, "--manifests", file.path().to_str().unwrap(), "--hostname-override", "node-1"])
    };
    let expected = explain("shop/web");
    for name in ["web.shop", "svc/web.shop.svc", "web.shop.svc.cluster.local.", "web.shop.svc:http", "shop/web:80"] {
        assert_eq!(stdout(&explain(name)), stdout(&expected), "{name}");
    }
    let output = explain("shop/web:81");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("no port 81 (it has 80/tcp)"), "{text}");
}

#[test]
fn unknown_service_is_an_error_with_a_suggestion() {
    let output = ferroute(&["explain", "service", "default/nginx-servise", "--manifests", &nginx()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "ferroute: Service default/nginx-servise not found (did you mean default/nginx-service?)\n"
    );
    let output = ferroute(&["explain", "service", "nginx", "--manifests", &nginx()]);
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("Service default/nginx not found (did you mean default/nginx-service?)")
    );
    let output = ferroute(&["explain", "service", "a/b/c", "--manifests", &nginx()]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("NAMESPACE/NAME"));
}

/// A node with rules from `ferroute render`.
struct Node {
    host: NetNs,
    _outside: NetNs,
    manifests: tempfile::NamedTempFile,
    mode: &'static str,
}

impl Node {
    fn new(mode: &'static str) -> Self {
        let [host, outside] = [NetNs::new(), NetNs::new()];
        host.link("eth0", &outside, "eth0");
        host.add_address("192.168.0.1/24", "eth0");
        host.add_address("10.244.0.2/32", "lo");
        host.command("ip", &["route", "add", "default", "dev", "eth0"]);
        let node = Self { host, _outside: outside, manifests: shop(), mode };
        let rendered = ferroute(&node.with_settings(&["render", "--family", "ipv4"]));
        match mode {
            "nftables" => _ = node.host.feed("nft", &["-f", "-"], stdout(&rendered)),
            _ => {
                // Packet counters of nfacct do not exist in the namespace.
                let lines: Vec<&str> = stdout(&rendered).lines().filter(|line| !line.contains("nfacct")).collect();
                node.host.feed("iptables-restore", &[], &(lines.join("\n") + "\n"));
            }
        }
        node
    }

    fn with_settings<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let path = self.manifests.path().to_str().unwrap();
        [arguments, &["--manifests", path, "--hostname-override", "node-1", "--proxy-mode", self.mode]].concat()
    }
}

/// Opens a connection and explains the Service, including the state of the kernel.
fn explain_with_kernel(mode: &'static str) -> Value {
    let node = Node::new(mode);
    let (_listener, _client) = node.host.run(|| {
        let listener = TcpListener::bind("10.244.0.2:8080").unwrap();
        (listener, TcpStream::connect("10.96.0.10:80").unwrap())
    });
    let arguments = node.with_settings(&["explain", "service", "shop/web", "-o", "json"]);
    serde_json::from_str(&node.host.command(PROGRAM, &arguments)).unwrap()
}

fn assert_kernel_state(explanation: &Value, expected: (&str, &str)) {
    assert_eq!(explanation.get("kernelError"), None, "{explanation:#}");
    let state = &explanation["ports"][0]["applied"];
    let flow = serde_json::json!([
        {"endpoint": "10.244.0.2:8080", "connections": 1, "open": 1, "current": true, "terminating": false}
    ]);
    assert_eq!(state["connections"], flow, "{state:#}");
    let rules = state["rules"].as_array().unwrap();
    let (place, text) = expected;
    let is_expected = |rule: &&Value| {
        rule["location"].as_str().unwrap().starts_with(place) && rule["text"].as_str().unwrap().contains(text)
    };
    let rule = rules.iter().find(is_expected);
    assert!(rule.is_some(), "{expected:?} is missing in {state:#}");
    let not_ready = rules.iter().filter(|rule| rule["text"].as_str().unwrap().contains("10.244.0.3"));
    assert_eq!(not_ready.count(), 0);
}

#[test]
fn iptables_rules_are_listed_with_counters_and_connections() {
    let explanation = explain_with_kernel("iptables");
    assert_kernel_state(&explanation, ("nat KUBE-SEP-", "--to-destination 10.244.0.2:8080"));
    let rules = explanation["ports"][0]["applied"]["rules"].as_array().unwrap();
    let dispatch = rules.iter().find(|rule| rule["text"].as_str().unwrap().starts_with("-d 10.96.0.10/32")).unwrap();
    assert_eq!((&dispatch["location"], &dispatch["packets"]), (&"nat KUBE-SERVICES".into(), &1.into()));
}

#[test]
fn nftables_elements_are_listed_with_connections() {
    let explanation = explain_with_kernel("nftables");
    assert_kernel_state(&explanation, ("@tcp-endpoints", "1:1 . 1 : 10.244.0.2 . 8080"));
}

#[test]
fn top_reads_counters_of_iptables_rules() {
    let node = Node::new("iptables");
    let done = AtomicBool::new(false);
    let text = std::thread::scope(|scope| {
        scope.spawn(|| {
            node.host.run(|| {
                let listener = TcpListener::bind("10.244.0.2:8080").unwrap();
                while !done.load(Ordering::Relaxed) {
                    drop(TcpStream::connect("10.96.0.10:80").unwrap());
                    drop(listener.accept().unwrap());
                }
            });
        });
        let output = node.host.try_command(PROGRAM, &["top", "--once", "--interval", "200ms"]);
        done.store(true, Ordering::Relaxed);
        stdout(&output).to_owned()
    });
    let line = text.lines().nth(2).unwrap();
    let columns: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(columns[1..], ["shop/web:http", "10.244.0.2:8080", "100", "%"], "{text}");
    assert!(columns[0].parse::<f64>().unwrap() > 0.0, "{text}");
}

#[test]
fn top_without_counters_is_an_error_with_the_flag_to_use() {
    let node = Node::new("nftables");
    let output = node.host.try_command(PROGRAM, &["top", "--once"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("--nftables-connection-counters COUNT"), "{text}");
    let empty = NetNs::new().try_command(PROGRAM, &["top", "--once"]);
    assert!(String::from_utf8(empty.stderr).unwrap().contains("no rules of a service proxy"));
}

#[test]
fn credentials_that_cannot_be_used_are_an_error_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let (key, kubeconfig) = (directory.path().join("key.pem"), directory.path().join("kubeconfig"));
    // Of an unknown kind, with which nothing can be signed.
    std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n").unwrap();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1'}}}}]\n\
         users: [{{name: u, user: {{client-certificate: {key}, client-key: {key}}}}}]\n",
        key = key.display()
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let output = ferroute(&["explain", "service", "shop/web", "--kubeconfig", kubeconfig.to_str().unwrap()]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot prepare requests") && error.contains("key.pem"), "{error}");
    assert!(!error.contains("waiting for the API server"), "{error}");
}

#[test]
fn missing_route_of_the_node_is_named() {
    let node = Node::new("nftables");
    let explain = || {
        let arguments = node.with_settings(&["explain", "service", "shop/web", "-o", "json"]);
        serde_json::from_str::<Value>(&node.host.command(PROGRAM, &arguments)).unwrap()
    };
    assert_eq!(explain().get("unroutedAddresses"), None);
    node.host.command("ip", &["route", "del", "default"]);
    assert_eq!(explain()["unroutedAddresses"], serde_json::json!(["10.96.0.10"]));
}
