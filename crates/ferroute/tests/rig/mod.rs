//! Three nodes with proxies in network namespaces, and a fake API server that runs programs in them.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    iter,
    os::unix::fs::symlink,
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use ferroute_core::testing::{Cluster, SliceBuilder, pod, service, slice};
use ferroute_kube::testing::{ExecRequest, ExecResponse, FakeApiServer};
use ferroute_source::Resource;
use ferroute_testing::{NetNs, Running};
use serde_json::{Value, json};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ferroute");

/// Failure of the exec of a node.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    Forbidden,
    Hangs,
    Garbage,
    Cut,
}

/// Three nodes and the API server, each in a network namespace.
pub(crate) struct Rig {
    pub(crate) proxies: BTreeMap<String, Running>,
    pub(crate) failures: Arc<Mutex<BTreeMap<String, Failure>>>,
    pub(crate) server: FakeApiServer,
    pub(crate) directory: tempfile::TempDir,
    /// Ends after the server.
    _runtime: tokio::runtime::Runtime,
    pub(crate) hub: NetNs,
    pub(crate) nodes: Vec<NetNs>,
}

pub(crate) const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

impl Rig {
    pub(crate) fn start() -> Self {
        let (hub, nodes) = (NetNs::new(), NODES.map(|_| NetNs::new()));
        for (number, node) in (1..).zip(&nodes) {
            let link = format!("node{number}");
            hub.link(&link, node, "eth0");
            hub.add_address(&format!("10.99.{number}.1/24"), &link);
            node.add_address(&format!("10.99.{number}.2/24"), "eth0");
            node.command("ip", &["route", "add", "default", "via", &format!("10.99.{number}.1")]);
            // The pods of the node are behind this device.
            node.command("ip", &["link", "add", "cni0", "type", "bridge"]);
            node.command("ip", &["link", "set", "cni0", "up"]);
            node.add_address(&format!("10.244.{number}.1/24"), "cni0");
            node.command("sysctl", &["-qw", "net.ipv4.ip_forward=1"]);
        }
        let (runtime, server) = hub.run(|| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let runtime = builder.worker_threads(1).enable_all().build().unwrap();
            let server = runtime.block_on(FakeApiServer::start_at("0.0.0.0:0".parse().unwrap()));
            (runtime, server)
        });
        let port = server.address().port();
        let failures = Arc::new(Mutex::new(BTreeMap::new()));
        let directory = tempfile::tempdir().unwrap();
        for name in ["kubectl-ferroute", "kubectl_complete-ferroute"] {
            symlink(PROGRAM, directory.path().join(name)).unwrap();
        }
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "fake", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
            "contexts": [{"name": "test", "context": {"cluster": "fake", "user": "me", "namespace": "shop"}}],
            "users": [{"name": "me", "user": {}}],
        });
        fs::write(directory.path().join("config"), kubeconfig.to_string()).unwrap();

        let mut pods = vec![json!({
            "metadata": {"name": "client", "namespace": "shop"}, "spec": {"nodeName": "node-1"},
            "status": {"phase": "Running", "podIP": "10.244.1.5"},
        })];
        let mut proxies = BTreeMap::new();
        for (number, name) in (1..).zip(NODES) {
            let mut node = serde_json::to_value(&Cluster::new(name).node).unwrap();
            node["status"]["addresses"] = json!([{"type": "InternalIP", "address": format!("10.99.{number}.2")}]);
            node["spec"]["podCIDRs"] = json!([format!("10.244.{number}.0/24")]);
            node["metadata"]["labels"] = json!({"pool": if number == 1 { "a" } else { "b" }});
            server.apply(Resource::Nodes, node);
            let mode = if number == 1 { "iptables" } else { "nftables" };
            let master = format!("http://10.99.{number}.1:{port}");
            let arguments = ["run", "--master", &master, "--proxy-mode", mode, "--nftables-connection-counters", "100"];
            pods.push(json!({
                "metadata": {"name": format!("ferroute-{number}"), "namespace": "kube-system", "labels": {"app": "ferroute"}},
                "spec": {"nodeName": name, "containers": [{"name": "ferroute", "args": arguments}]},
                "status": {"phase": "Running"},
            }));
            let start = || {
                let mut command = Command::new(PROGRAM);
                command.args(arguments).arg("--hostname-override").arg(name).stderr(Stdio::null()).spawn().unwrap()
            };
            proxies.insert(name.to_owned(), Running(nodes[number - 1].run(start)));
        }
        server.set_pods(pods);
        let paths: Vec<PathBuf> = nodes.iter().map(NetNs::path).collect();
        let of_exec = Arc::clone(&failures);
        server.set_exec(move |request| respond(request, &paths, &of_exec.lock().unwrap()));
        let rig = Self { proxies, failures, server, directory, _runtime: runtime, hub, nodes: nodes.into() };
        rig.publish(&["10.244.2.9"]);
        let mut tries = iter::repeat_with(|| rig.run(&["status", "--quick"])).take(600);
        let is_ready = |output: &Output| {
            output.status.success() || {
                thread::sleep(Duration::from_millis(100));
                false
            }
        };
        assert!(tries.any(|output| is_ready(&output)), "{:?}", rig.run(&["status", "--quick"]));
        rig
    }

    /// Applies a Service with these endpoints, which are on node 2.
    pub(crate) fn publish(&self, endpoints: &[&str]) {
        let web = service("shop/web").cluster_ip("10.96.0.80").port("http", 80).build();
        self.server.apply(Resource::Services, serde_json::to_value(web).unwrap());
        let slice = slice("shop/web-1", "web").port("http", 8080);
        let slice = endpoints.iter().fold(slice, |slice: SliceBuilder, address| slice.pod(pod(address).on("node-2")));
        self.server.apply(Resource::EndpointSlices, serde_json::to_value(slice.build()).unwrap());
    }

    /// Runs the plugin by its own name.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.hub.run(|| {
            let mut command = Command::new(self.directory.path().join("kubectl-ferroute"));
            command.env("KUBECONFIG", self.directory.path().join("config")).args(arguments).output().unwrap()
        })
    }

    /// Runs the plugin and returns its exit status and standard output.
    pub(crate) fn text(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap(), text + &stderr)
    }

    /// Runs the plugin and returns its exit status and the JSON that it prints.
    pub(crate) fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let output = self.run(&[arguments, &["-o", "json"]].concat());
        let value = serde_json::from_slice(&output.stdout);
        (output.status.code().unwrap(), value.unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output:?}")))
    }

    /// Starts the page of all nodes in the hub, and returns the plugin with the line that it has printed.
    pub(crate) fn start_page(&self, address: &str) -> (Running, String) {
        let mut command = Command::new(self.directory.path().join("kubectl-ferroute"));
        command
            .env("KUBECONFIG", self.directory.path().join("config"))
            .args(["ui", "--listen", address])
            .stdout(Stdio::piped());
        let mut plugin = Running(self.hub.run(|| command.spawn()).unwrap());
        let mut line = String::new();
        BufReader::new(plugin.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (plugin, line)
    }

    /// Adds an open connection of the pod `client` through the Service to the connection tracking of a node.
    pub(crate) fn track(&self, node: usize, source_port: u16) {
        let port = source_port.to_string();
        let words = "-I -p tcp -s 10.244.1.5 -d 10.96.0.80 --dport 80 --dst-nat 10.244.2.9:8080 --timeout 900 \
                     --state ESTABLISHED -u SEEN_REPLY,ASSURED --sport";
        let words: Vec<&str> = words.split_whitespace().chain([port.as_str()]).collect();
        self.nodes[node].command("conntrack", &words);
    }

    pub(crate) fn fail(&self, failures: &[(&str, Failure)]) {
        let failures = failures.iter().map(|(node, failure)| ((*node).to_owned(), failure.clone()));
        *self.failures.lock().unwrap() = failures.collect();
    }
}

/// Runs a program of a pod in the namespace of its node.
fn respond(request: &ExecRequest, nodes: &[PathBuf], failures: &BTreeMap<String, Failure>) -> ExecResponse {
    assert_eq!((request.namespace.as_str(), request.container.as_str()), ("kube-system", "ferroute"));
    let number: usize = request.pod.strip_prefix("ferroute-").and_then(|number| number.parse().ok()).unwrap();
    match failures.get(NODES[number - 1]) {
        Some(Failure::Forbidden) => return ExecResponse::Status(403),
        Some(Failure::Hangs) => return ExecResponse::Hang,
        Some(Failure::Garbage) => return ExecResponse::Print(b"<html>\x1b[2J".to_vec()),
        Some(Failure::Cut) => return ExecResponse::Cut(b"{\"node\":".to_vec()),
        None => {}
    }
    let (program, arguments) = request.command.split_first().unwrap();
    assert_eq!(program, "ferroute");
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", nodes[number - 1].display())).arg(PROGRAM).args(arguments);
    ExecResponse::Run(command)
}
