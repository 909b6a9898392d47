//! `ferroute run` with an API server as its source, played by a double.

#![expect(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::{
    process::{Child, Command},
    thread,
    time::Duration,
};

use ferroute_core::testing::{Cluster, pod, service, slice};
use ferroute_kube::testing::ApiDouble;
use ferroute_source::Resource;
use ferroute_testing::NetNs;
use serde_json::{Value, json};

/// A proxy that ends with the test.
struct Proxy(Child);

impl Proxy {
    /// Starts in the calling thread's network namespace.
    fn start(double: &ApiDouble) -> Self {
        let arguments = ["run", "--master", &double.url(), "--hostname-override", "node-1", "--proxy-mode", "iptables"];
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

/// Gives a cluster's objects to the double, which lists them as the API server does.
fn publish(double: &ApiDouble, cluster: &Cluster) {
    double.apply(Resource::Nodes, serde_json::to_value(&cluster.node).unwrap());
    for object in &cluster.services {
        double.apply(Resource::Services, serde_json::to_value(object).unwrap());
    }
    for object in &cluster.slices {
        double.apply(Resource::EndpointSlices, serde_json::to_value(object).unwrap());
    }
}

fn shop(endpoint: &str) -> Cluster {
    Cluster::of_node("node-1")
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

fn in_a_namespace(test: impl FnOnce(ApiDouble, &tokio::runtime::Runtime) + Send) {
    let namespace = NetNs::new();
    namespace.command("ip", &["link", "set", "lo", "up"]);
    namespace.run(|| {
        // One thread would do, but it is busy waiting for the kernel while the double has to answer.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let double = runtime.block_on(ApiDouble::start());
        test(double, &runtime);
    });
}

#[test]
fn what_the_api_server_tells_is_in_force_and_so_is_every_change() {
    in_a_namespace(|double, _| {
        publish(&double, &shop("10.244.1.5"));
        let _proxy = Proxy::start(&double);
        wait_for("--to-destination 10.244.1.5:8080");
        publish(&double, &shop("10.244.1.6"));
        wait_for("--to-destination 10.244.1.6:8080");
    });
}

#[test]
fn rules_stay_while_the_api_server_is_away_and_nothing_is_lost_when_it_is_back() {
    in_a_namespace(|double, runtime| {
        publish(&double, &shop("10.244.1.5"));
        let _proxy = Proxy::start(&double);
        wait_for("--to-destination 10.244.1.5:8080");
        let address = double.address();
        drop(double);
        thread::sleep(Duration::from_secs(1));
        wait_for("--to-destination 10.244.1.5:8080");
        let double = runtime.block_on(ApiDouble::start_at(address));
        // A new double counts versions from the start, where a server that was away goes on; so let it catch up.
        (0..8).for_each(|_| publish(&double, &shop("10.244.1.5")));
        publish(&double, &shop("10.244.1.7"));
        wait_for("--to-destination 10.244.1.7:8080");
    });
}

#[test]
fn an_object_that_is_wrong_is_passed_over_and_the_others_are_served() {
    in_a_namespace(|double, _| {
        publish(&double, &shop("10.244.1.5"));
        let bad: Value = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "bad", "namespace": "shop"},
            "spec": {"clusterIP": "10.96.0.300", "ports": [{"port": "http"}]},
        });
        double.apply(Resource::Services, bad);
        let _proxy = Proxy::start(&double);
        wait_for("--to-destination 10.244.1.5:8080");
    });
}

#[test]
fn render_shows_what_the_api_server_lists() {
    in_a_namespace(|double, _| {
        publish(&double, &shop("10.244.1.5"));
        let arguments = ["render", "--master", &double.url(), "--hostname-override", "node-1"];
        let output = Command::new(env!("CARGO_BIN_EXE_ferroute")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(r#"--comment "shop/web:http -> 10.244.1.5:8080""#), "{text}");
    });
}
