//! Tests of commands with an API server as the source.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    iter,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::symlink,
    process::{Command, Stdio},
    thread,
    time::{Duration, SystemTime},
};

use ferroute_api::{TargetRef, labels};
use ferroute_core::{
    IpFamily, rfc3339,
    testing::{Cluster, pod, service, slice},
};
use ferroute_iptables::{
    HostExec,
    exec::{search_path, snapshot_rules},
};
use ferroute_kube::testing::FakeApiServer;
use ferroute_source::Resource;
use ferroute_testing::{NetNs, Running};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

/// Starts the proxy in the calling thread's network namespace.
fn start_proxy(server: &FakeApiServer) -> Running {
    let arguments = ["run", "--master", &server.url(), "--hostname-override", "node-1", "--proxy-mode", "iptables"];
    let arguments = arguments.into_iter().chain(["--enable-service-status"]);
    Running(Command::new(env!("CARGO_BIN_EXE_ferroute")).args(arguments).spawn().unwrap())
}

/// Applies a cluster's objects to the server.
fn publish(server: &FakeApiServer, cluster: &Cluster) {
    server.apply(Resource::Nodes, serde_json::to_value(&cluster.node).unwrap());
    for object in &cluster.services {
        server.apply(Resource::Services, serde_json::to_value(object).unwrap());
    }
    for object in &cluster.slices {
        server.apply(Resource::EndpointSlices, serde_json::to_value(object).unwrap());
    }
}

fn shop(endpoint: &str) -> Cluster {
    Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.80").port("http", 80))
        .slice(slice("shop/web-1", "web").port("http", 8080).pod(pod(endpoint).on("node-1")))
}

/// Waits until the kernel has a rule with this text.
fn wait_for_rule(rule: &str) {
    for _ in 0..600 {
        let snapshot = snapshot_rules(IpFamily::V4, &HostExec, &search_path()).unwrap();
        if snapshot.backends.iter().any(|backend| backend.saved.rules.to_string().contains(rule)) {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("timeout: no rule with {rule}");
}

fn in_namespace(test: impl FnOnce(FakeApiServer, &tokio::runtime::Runtime) + Send) {
    let namespace = NetNs::new();
    namespace.command("ip", &["link", "set", "lo", "up"]);
    namespace.run(|| {
        // The test blocks its thread, so the server needs another one.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime.block_on(FakeApiServer::start());
        test(server, &runtime);
    });
}

#[test]
fn objects_of_the_api_server_and_changes_are_applied() {
    in_namespace(|server, _| {
        publish(&server, &shop("10.244.1.5"));
        let _proxy = start_proxy(&server);
        wait_for_rule("--to-destination 10.244.1.5:8080");
        publish(&server, &shop("10.244.1.6"));
        wait_for_rule("--to-destination 10.244.1.6:8080");
    });
}

#[test]
fn rules_stay_during_an_api_server_outage_and_changes_are_applied_afterwards() {
    in_namespace(|server, runtime| {
        publish(&server, &shop("10.244.1.5"));
        let _proxy = start_proxy(&server);
        wait_for_rule("--to-destination 10.244.1.5:8080");
        let address = server.address();
        drop(server);
        thread::sleep(Duration::from_secs(1));
        wait_for_rule("--to-destination 10.244.1.5:8080");
        let server = runtime.block_on(FakeApiServer::start_at(address));
        // The new server's resource versions restart from the beginning, unlike those of a real server, so they must
        // catch up first.
        (0..8).for_each(|_| publish(&server, &shop("10.244.1.5")));
        publish(&server, &shop("10.244.1.7"));
        wait_for_rule("--to-destination 10.244.1.7:8080");
    });
}

#[test]
fn invalid_objects_are_skipped() {
    in_namespace(|server, _| {
        publish(&server, &shop("10.244.1.5"));
        let invalid: Value = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "bad", "namespace": "shop"},
            "spec": {"clusterIP": "10.96.0.300", "ports": [{"port": "http"}]},
        });
        server.apply(Resource::Services, invalid);
        let _proxy = start_proxy(&server);
        wait_for_rule("--to-destination 10.244.1.5:8080");
    });
}

/// Requests a page at the default address of metrics and returns the body.
fn request(path: &str) -> String {
    let mut stream = TcpStream::connect("127.0.0.1:10249").unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn programming_latency_of_changes_is_measured() {
    in_namespace(|server, _| {
        publish(&server, &shop("10.244.1.5"));
        let _proxy = start_proxy(&server);
        wait_for_rule("--to-destination 10.244.1.5:8080");
        let mut changed = shop("10.244.1.6");
        let trigger = rfc3339::format_exact(SystemTime::now()).unwrap();
        let annotations = &mut changed.slices[0].metadata.annotations;
        annotations.insert(labels::LAST_CHANGE_TRIGGER_TIME.to_owned(), trigger.clone());
        publish(&server, &changed);
        wait_for_rule("--to-destination 10.244.1.6:8080");

        let count = "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"} 1\n";
        // The metric is updated after the sync.
        let mut tries = iter::repeat_with(|| request("/metrics")).take(600);
        let is_counted = |metrics: &String| {
            metrics.contains(count) || {
                thread::sleep(Duration::from_millis(20));
                false
            }
        };
        let metrics = tries.find(is_counted).expect("the change in the histogram");
        let counter =
            format!("rest_client_requests_total{{code=\"200\",host=\"{}\",method=\"GET\"}}", server.address());
        assert!(metrics.contains(&counter), "{metrics}");

        let changes: Value = serde_json::from_str(&request("/changes")).unwrap();
        let is_the_slice =
            |change: &&Value| change["kind"] == "EndpointSlice" && change["triggered"] == trigger.as_str();
        let slice = changes["changes"].as_array().unwrap().iter().find(is_the_slice).unwrap();
        let versions = server.objects(Resource::EndpointSlices);
        assert_eq!(slice["resourceVersion"], versions[0]["metadata"]["resourceVersion"], "{changes}");
        assert!(slice["seconds"]["watch"].is_f64(), "{changes}");

        // The Service was updated, too, maybe in a later sync.
        let version = server.objects(Resource::Services)[0]["metadata"]["resourceVersion"].clone();
        let is_synced = |receipts: &Value| {
            let is_synced = receipts["services"][0]["families"]["IPv4"]["applied"]["resourceVersion"] == version;
            if !is_synced {
                thread::sleep(Duration::from_millis(20));
            }
            is_synced
        };
        let mut tries = iter::repeat_with(|| serde_json::from_str(&request("/services?name=web")).unwrap()).take(600);
        tries.find(is_synced).expect("the receipt of the Service");
    });
}

/// Program name, arguments, configuration and kubeconfig are those of kubeadm's DaemonSet, except for paths.
#[test]
fn kubeadm_daemonset_works_unchanged() {
    in_namespace(|server, _| {
        publish(&server, &shop("10.244.1.5"));
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        symlink(env!("CARGO_BIN_EXE_ferroute"), path("kube-proxy")).unwrap();
        fs::write(path("token"), "of-the-pod").unwrap();
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- cluster:\n    server: {}\n  name: default\ncontexts:\n- \
             context:\n    cluster: default\n    namespace: default\n    user: default\n  name: default\n\
             current-context: default\nusers:\n- name: default\n  user:\n    tokenFile: {}\n",
            server.url(),
            path("token").display(),
        );
        fs::write(path("kubeconfig.conf"), kubeconfig).unwrap();
        let config = include_str!("../../ferroute-config/src/decode/tests/kubeadm.yaml");
        let config = config.replace("/var/lib/kube-proxy/", &format!("{}/", directory.path().display()));
        fs::write(path("config.conf"), config).unwrap();

        let mut command = Command::new(path("kube-proxy"));
        command.arg(format!("--config={}", path("config.conf").display())).arg("--hostname-override=node-1");
        let _proxy = Running(command.spawn().unwrap());
        wait_for_rule("--to-destination 10.244.1.5:8080");
        // The rule uses the configured detection of local traffic.
        wait_for_rule("! -s 10.244.0.0/16 -d 10.96.0.80/32");
    });
}

#[test]
fn render_reads_from_the_api_server() {
    in_namespace(|server, _| {
        publish(&server, &shop("10.244.1.5"));
        let arguments = ["render", "--master", &server.url(), "--hostname-override", "node-1"];
        let output = Command::new(env!("CARGO_BIN_EXE_ferroute")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(r#"--comment "shop/web:http -> 10.244.1.5:8080""#), "{text}");
    });
}

#[test]
fn flows_name_clients_where_the_user_may_list_pods() {
    in_namespace(|server, _| {
        publish(&server, &shop("10.244.1.5"));
        let _proxy = start_proxy(&server);
        wait_for_rule("10.244.1.5:8080");
        let network =
            ["address add 10.244.1.9/32 dev lo", "address add 10.244.1.5/32 dev lo", "route add 10.96.0.0/16 dev lo"];
        for arguments in network {
            assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success());
        }
        let listener = TcpListener::bind("10.244.1.5:8080").unwrap();
        let flows = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
            command.args(["flows", "--for", "15s", "--names", "-o", "json"]);
            let mut reader = Running(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
            let mut lines = BufReader::new(reader.0.stdout.take().unwrap()).lines().map(Result::unwrap);
            assert!(lines.next().unwrap().contains("start"));
            let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            client.bind(&"10.244.1.9:0".parse::<SocketAddr>().unwrap().into()).unwrap();
            client.connect(&"10.96.0.80:80".parse::<SocketAddr>().unwrap().into()).unwrap();
            drop(listener.accept().unwrap());
            lines.find(|line| line.contains("10.96.0.80")).unwrap()
        };
        assert!(flows().contains(r#""client":{"address":"10.244.1.9","#));
        server.set_pods(vec![json!({
            "metadata": {"namespace": "shop", "name": "browser-1"},
            "spec": {"nodeName": "node-1"}, "status": {"podIP": "10.244.1.9"}})]);
        let text = flows();
        assert!(text.contains(r#""name":"shop/browser-1""#), "{text}");
    });
}

#[test]
fn trace_uses_pod_names_of_the_api_server() {
    in_namespace(|server, _| {
        let mut cluster = shop("10.244.1.5");
        let target = TargetRef { kind: "Pod".to_owned(), name: "web-7".to_owned() };
        cluster.slices[0].endpoints[0].target_ref = Some(target);
        publish(&server, &cluster);
        let trace = |arguments: &str| {
            let url = server.url();
            let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
            command.args(["trace", "--master", &url, "--hostname-override", "node-1"]);
            command.args(arguments.split(' ')).output().unwrap()
        };
        let output = trace("--from 10.244.1.9 --in cni0 --to shop/web:http");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("planned from the API server\n"), "{text}");
        assert!(text.contains("DNAT 10.96.0.80:80 to 10.244.1.5:8080 (pod shop/web-7)\n"), "{text}");
        let output = trace("--from shop/web-7 --in cni0 --to shop/web:http");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("\ntcp from 10.244.1.5:50000 (pod shop/web-7) to "), "{text}");
    });
}
