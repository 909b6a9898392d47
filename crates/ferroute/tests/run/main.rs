//! Tests of `ferroute run` with the real program and real packets: changes, failures, and interference of other
//! programs. Each test has a client, a node and pods in separate network namespaces.

#![expect(clippy::unwrap_used, reason = "helpers panic as tests do")]

mod cluster;
mod http;
mod leftovers;
mod programs;
mod proxy;
mod rules;
mod traffic;

mod answers;
mod api;
mod changes;
mod counts;
mod doctor;
mod drain;
mod ejection;
mod failures;
mod families;
mod firewalld;
mod flows;
mod handover;
mod hangs;
mod health;
mod held_ports;
mod manifests;
mod modes;
mod monitoring;
mod nftables;
mod node;
mod other_proxies;
mod refused;
mod reload;
mod repair;
mod replay;
mod reserved;
mod shares;
mod shutdown;
mod sources;
mod status;
mod top;
mod udp;
mod userspace;

use std::net::{IpAddr, SocketAddr};

use ferroute_testing::wait;

use self::{
    cluster::{Cluster, PORT, pod_addresses},
    proxy::{Files, Mode, Proxy},
};

/// Defines a test for each of these modes from functions with a mode as their parameter.
macro_rules! in_modes {
    ($modes:tt; $($test:ident),+) => {
        $(mod $test {
            crate::in_modes!(@ $test $modes);
        })+
    };
    (@ $test:ident [$($name:ident = $mode:ident),+]) => {
        $(#[test]
        fn $name() {
            super::$test(crate::Mode::$mode);
        })+
    };
}
use in_modes;

/// Defines tests for iptables and nftables mode.
macro_rules! in_each_mode {
    ($($test:ident),+ $(,)?) => {
        crate::in_modes!([iptables = Iptables, nftables = Nftables]; $($test),+);
    };
}
use in_each_mode;

/// Defines tests for these modes and userspace mode.
macro_rules! in_every_mode {
    ($($test:ident),+ $(,)?) => {
        crate::in_modes!([iptables = Iptables, nftables = Nftables, userspace = Userspace]; $($test),+);
    };
}
use in_every_mode;

/// A cluster with a proxy that reads manifests.
struct Case {
    proxy: Proxy,
    files: Files,
    cluster: Cluster,
    mode: Mode,
}

impl Case {
    /// Starts the proxy and waits for the first sync.
    #[track_caller]
    fn new(mode: Mode, yaml: &str) -> Self {
        Self::with_settings(mode, yaml, "")
    }

    /// Like `new`, with these fields in the configuration.
    #[track_caller]
    fn with_settings(mode: Mode, yaml: &str, settings: &str) -> Self {
        let files = Files::with_settings(settings);
        files.apply(yaml);
        Self::with_files(mode, files)
    }

    /// Like `new`, with these files.
    #[track_caller]
    fn with_files(mode: Mode, files: Files) -> Self {
        let cluster = Cluster::new();
        let proxy = Proxy::start(&cluster.node, &files, mode);
        Self { proxy, files, cluster, mode }
    }

    /// Starts another proxy after the previous one has exited.
    #[track_caller]
    fn start_again(&mut self, mode: Mode) {
        self.mode = mode;
        self.proxy = Proxy::start(&self.cluster.node, &self.files, mode);
    }

    /// Returns the rules of the proxy.
    fn rules(&self) -> Vec<String> {
        rules::of_proxy(&self.cluster.node, self.mode)
    }

    /// Opens a new connection from the client and returns the pod.
    fn connect(&self, to: SocketAddr) -> std::io::Result<u8> {
        traffic::connect(&self.cluster.client, to)
    }

    /// Waits until no rule contains a pod's addresses.
    #[track_caller]
    fn wait_gone(&self, pod: u8) {
        for address in pod_addresses(pod) {
            rules::wait_gone(&self.cluster.node, self.mode, &address.to_string());
        }
    }
}

/// Returns a dual-stack Service `web` with TCP and UDP ports and these pods.
fn web(pods: &[u8]) -> String {
    format!("{WEB}{}", slices("web", pods))
}

/// Returns a Service's EndpointSlices, one per IP family.
fn slices(service: &str, pods: &[u8]) -> String {
    let slice = |(index, family): (usize, &str)| {
        let endpoint = |pod: &u8| format!("- {{addresses: [\"{}\"], nodeName: node-1}}\n", pod_addresses(*pod)[index]);
        let endpoints: String = pods.iter().map(endpoint).collect();
        let endpoints = if pods.is_empty() { "endpoints: []\n".to_owned() } else { format!("endpoints:\n{endpoints}") };
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: {service}-{index}, labels: {{kubernetes.io/service-name: {service}}}}}\n\
             addressType: {family}\n\
             ports: [{{name: tcp, port: {PORT}}}, {{name: udp, port: {PORT}, protocol: UDP}}]\n{endpoints}"
        )
    };
    ["IPv4", "IPv6"].into_iter().enumerate().map(slice).collect()
}

/// The Service of [`web`].
const WEB: &str = r#"apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1, "fd00:96::1"]
  ipFamilies: [IPv4, IPv6]
  ports: [{name: tcp, port: 80}, {name: udp, port: 53, protocol: UDP}]
"#;

/// Returns the addresses of [`web`] for TCP.
fn web_tcp() -> [SocketAddr; 2] {
    web_at(80)
}

/// Returns the addresses of [`web`] for UDP.
fn web_udp() -> [SocketAddr; 2] {
    web_at(53)
}

fn web_at(port: u16) -> [SocketAddr; 2] {
    ["10.96.0.1", "fd00:96::1"].map(|address| SocketAddr::from((address.parse::<IpAddr>().unwrap(), port)))
}
