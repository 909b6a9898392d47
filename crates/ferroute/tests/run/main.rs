//! `ferroute run` as a host meets it: the real program, real packets, and what other programs, people and time do to it.
//! Every test has a client, a node and pods in network namespaces of its own.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod former;
mod http;
mod lab;
mod proxy;
mod rules;
mod traffic;

mod api;
mod changes;
mod doctor;
mod ending;
mod families;
mod firewalld;
mod health;
mod manifests;
mod modes;
mod nftables;
mod node;
mod record;
mod refusals;
mod reload;
mod repair;
mod status;
mod udp;

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use self::{
    lab::{Lab, PORT, pod_addresses},
    proxy::{Files, Mode, Proxy},
};

/// Makes a test for each mode out of functions that take one.
macro_rules! in_each_mode {
    ($($test:ident),+ $(,)?) => {
        $(mod $test {
            #[test]
            fn iptables() {
                super::$test(crate::Mode::Iptables);
            }

            #[test]
            fn nftables() {
                super::$test(crate::Mode::Nftables);
            }
        })+
    };
}
use in_each_mode;

/// A lab whose proxy follows manifests.
struct Case {
    proxy: Proxy,
    files: Files,
    lab: Lab,
    mode: Mode,
}

impl Case {
    /// Everything is in force.
    #[track_caller]
    fn new(mode: Mode, yaml: &str) -> Self {
        Self::with_settings(mode, yaml, "")
    }

    /// The same with these fields in the configuration.
    #[track_caller]
    fn with_settings(mode: Mode, yaml: &str, settings: &str) -> Self {
        let files = Files::with_settings(settings);
        files.apply(yaml);
        Self::of(mode, files)
    }

    /// The same with these files.
    #[track_caller]
    fn of(mode: Mode, files: Files) -> Self {
        let lab = Lab::new();
        let proxy = Proxy::start(&lab.node, &files, mode);
        Self { proxy, files, lab, mode }
    }

    /// Starts another proxy after the first has ended.
    #[track_caller]
    fn start_again(&mut self, mode: Mode) {
        self.mode = mode;
        self.proxy = Proxy::start(&self.lab.node, &self.files, mode);
    }

    /// Our rules.
    fn rules(&self) -> Vec<String> {
        rules::ours(&self.lab.node, self.mode)
    }

    /// A new connection of the client.
    fn connect(&self, to: SocketAddr) -> std::io::Result<u8> {
        traffic::connect(&self.lab.client, to)
    }

    /// Waits until a pod's addresses are in no rule any more.
    #[track_caller]
    fn wait_gone(&self, pod: u8) {
        for address in pod_addresses(pod) {
            rules::wait_gone(&self.lab.node, self.mode, &address.to_string());
        }
    }
}

/// A dual-stack Service `web`, of TCP and UDP, with these pods.
fn web(pods: &[u8]) -> String {
    format!("{WEB}{}", slices("web", pods))
}

/// A Service's slices, one for each family.
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

/// The addresses of [`web`] for TCP.
fn web_tcp() -> [SocketAddr; 2] {
    web_at(80)
}

/// The addresses of [`web`] for UDP.
fn web_udp() -> [SocketAddr; 2] {
    web_at(53)
}

fn web_at(port: u16) -> [SocketAddr; 2] {
    ["10.96.0.1", "fd00:96::1"].map(|address| SocketAddr::from((address.parse::<IpAddr>().unwrap(), port)))
}

/// What `look` finds, once it finds something; how long that takes is no matter of these tests.
#[track_caller]
fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: this did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}
