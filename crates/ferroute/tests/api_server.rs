//! `ferroute run` with an API server as its source, played by a server.

#![expect(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::{
    fs,
    io::{Read, Write},
    iter,
    net::TcpStream,
    os::unix::fs::symlink,
    process::{Child, Command},
    thread,
    time::{Duration, SystemTime},
};

use ferroute_api::{TargetRef, labels};
use ferroute_core::testing::{Cluster, pod, service, slice};
use ferroute_health::rfc3339;
use ferroute_kube::testing::FakeApiServer;
use ferroute_source::Resource;
use ferroute_testing::NetNs;
use serde_json::{Value, json};

/// A proxy that ends with the test.
struct Proxy(Child);

impl Proxy {
    /// Starts in the calling thread's network namespace.
    fn start(server: &FakeApiServer) -> Self {
        let arguments = ["run", "--master", &server.url(), "--hostname-override", "node-1", "--proxy-mode", "iptables"];
        Self(Command::new(env!("CARGO_BIN_EXE_ferroute")).args(arguments).spawn().unwrap())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Gives a cluster's objects to the server, which lists them as the API server does.
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

/// Waits until the kernel's rules hold `wanted`.
fn wait_for(wanted: &str) {
    for _ in 0..600 {
        let output = Command::new("iptables-save").args(["-t", "nat"]).output().unwrap();
        if String::from_utf8_lossy(&output.stdout).contains(wanted) {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("no rule with {wanted}");
}

fn in_a_namespace(test: impl FnOnce(FakeApiServer, &tokio::runtime::Runtime) + Send) {
    let namespace = NetNs::new();
    namespace.command("ip", &["link", "set", "lo", "up"]);
    namespace.run(|| {
        // One thread would do, but it is busy waiting for the kernel while the server has to answer.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime.block_on(FakeApiServer::start());
        test(server, &runtime);
    });
}

#[test]
fn what_the_api_server_tells_is_in_force_and_so_is_every_change() {
    in_a_namespace(|server, _| {
        publish(&server, &shop("10.244.1.5"));
        let _proxy = Proxy::start(&server);
        wait_for("--to-destination 10.244.1.5:8080");
        publish(&server, &shop("10.244.1.6"));
        wait_for("--to-destination 10.244.1.6:8080");
    });
}

#[test]
fn rules_stay_while_the_api_server_is_away_and_nothing_is_lost_when_it_is_back() {
    in_a_namespace(|server, runtime| {
        publish(&server, &shop("10.244.1.5"));
        let _proxy = Proxy::start(&server);
        wait_for("--to-destination 10.244.1.5:8080");
        let address = server.address();
        drop(server);
        thread::sleep(Duration::from_secs(1));
        wait_for("--to-destination 10.244.1.5:8080");
        let server = runtime.block_on(FakeApiServer::start_at(address));
        // A new server counts versions from the start, where a server that was away goes on; so let it catch up.
        (0..8).for_each(|_| publish(&server, &shop("10.244.1.5")));
        publish(&server, &shop("10.244.1.7"));
        wait_for("--to-destination 10.244.1.7:8080");
    });
}

#[test]
fn an_object_that_is_wrong_is_passed_over_and_the_others_are_served() {
    in_a_namespace(|server, _| {
        publish(&server, &shop("10.244.1.5"));
        let bad: Value = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "bad", "namespace": "shop"},
            "spec": {"clusterIP": "10.96.0.300", "ports": [{"port": "http"}]},
        });
        server.apply(Resource::Services, bad);
        let _proxy = Proxy::start(&server);
        wait_for("--to-destination 10.244.1.5:8080");
    });
}

/// The body of an answer on the address for metrics.
fn ask(path: &str) -> String {
    let mut stream = TcpStream::connect("127.0.0.1:10249").unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn the_time_from_a_change_in_the_cluster_to_its_rule_is_told() {
    in_a_namespace(|server, _| {
        publish(&server, &shop("10.244.1.5"));
        let _proxy = Proxy::start(&server);
        wait_for("--to-destination 10.244.1.5:8080");
        let mut changed = shop("10.244.1.6");
        let trigger = rfc3339(Some(SystemTime::now()));
        let annotations = &mut changed.slices[0].metadata.annotations;
        annotations.insert(labels::LAST_CHANGE_TRIGGER_TIME.to_owned(), trigger.clone());
        publish(&server, &changed);
        wait_for("--to-destination 10.244.1.6:8080");

        let count = "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"} 1\n";
        // It is told right after the rule is in force.
        let mut tries = iter::repeat_with(|| ask("/metrics")).take(600);
        let is_told = |metrics: &String| {
            metrics.contains(count) || {
                thread::sleep(Duration::from_millis(20));
                false
            }
        };
        let metrics = tries.find(is_told).expect("the change in the histogram");
        let requests =
            format!("rest_client_requests_total{{code=\"200\",host=\"{}\",method=\"GET\"}}", server.address());
        assert!(metrics.contains(&requests), "{metrics}");

        let changes: Value = serde_json::from_str(&ask("/changes")).unwrap();
        let is_the_slice =
            |change: &&Value| change["kind"] == "EndpointSlice" && change["triggered"] == trigger.as_str();
        let slice = changes["changes"].as_array().unwrap().iter().find(is_the_slice).unwrap();
        let versions = server.objects(Resource::EndpointSlices);
        assert_eq!(slice["resourceVersion"], versions[0]["metadata"]["resourceVersion"], "{changes}");
        assert!(slice["seconds"]["watch"].is_f64(), "{changes}");

        // The Service was published anew too, and may come with a later sync.
        let version = server.objects(Resource::Services)[0]["metadata"]["resourceVersion"].clone();
        let is_in_force = |receipts: &Value| {
            let told = receipts["services"][0]["families"]["IPv4"]["inForce"]["resourceVersion"] == version;
            if !told {
                thread::sleep(Duration::from_millis(20));
            }
            told
        };
        let mut tries = iter::repeat_with(|| serde_json::from_str(&ask("/services?name=web")).unwrap()).take(600);
        tries.find(is_in_force).expect("the receipt of the Service");
    });
}

/// As in the DaemonSet of kubeadm: the name, the command, the configuration and the kubeconfig, but for where they are.
#[test]
fn in_kubeadms_daemonset_everything_works_as_it_is() {
    in_a_namespace(|server, _| {
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
        let _proxy = Proxy(command.spawn().unwrap());
        wait_for("--to-destination 10.244.1.5:8080");
        // Chains as kube-proxy has them, also with its detection of local traffic.
        wait_for("! -s 10.244.0.0/16 -d 10.96.0.80/32");
    });
}

#[test]
fn render_shows_what_the_api_server_lists() {
    in_a_namespace(|server, _| {
        publish(&server, &shop("10.244.1.5"));
        let arguments = ["render", "--master", &server.url(), "--hostname-override", "node-1"];
        let output = Command::new(env!("CARGO_BIN_EXE_ferroute")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(r#"--comment "shop/web:http -> 10.244.1.5:8080""#), "{text}");
    });
}

#[test]
fn a_trace_names_the_pods_that_the_api_server_tells_of() {
    in_a_namespace(|server, _| {
        let mut cluster = shop("10.244.1.5");
        let target = TargetRef { kind: "Pod".to_owned(), name: "web-7".to_owned() };
        cluster.slices[0].endpoints[0].target_ref = Some(target);
        publish(&server, &cluster);
        let traced = |arguments: &str| {
            let url = server.url();
            let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
            command.args(["trace", "--master", &url, "--hostname-override", "node-1"]);
            command.args(arguments.split(' ')).output().unwrap()
        };
        let output = traced("--from 10.244.1.9 --in cni0 --to shop/web:http");
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.contains("planned from what the API server tells\n"), "{told}");
        assert!(told.contains("DNAT 10.96.0.80:80 to 10.244.1.5:8080 (pod shop/web-7)\n"), "{told}");
        let output = traced("--from shop/web-7 --in cni0 --to shop/web:http");
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.starts_with("tcp from 10.244.1.5:50000 (pod shop/web-7) to "), "{told}");
    });
}
