//! The measured programs.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use ferroute_testing::{Running, anonymous_memory};
use serde_json::json;

use crate::{
    common::cluster::{CLUSTER_CIDR, NODE},
    control_plane::{self, ControlPlane, Server, TOKEN},
    node::Node,
};

/// A measured program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Ferroute,
    KubeProxy,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ferroute => "Ferroute",
            Self::KubeProxy => "kube-proxy",
        })
    }
}

/// A process of a program, which ends when this value is dropped. Its rules stay.
pub(crate) struct Proxy(Running);

impl Proxy {
    /// Starts a program on a node, with kubeadm's configuration.
    pub(crate) fn start(program: Program, mode: &str, control_plane: &ControlPlane, node: &Node) -> Self {
        let directory = control_plane.directory();
        let kubeconfig = directory.join("proxy.kubeconfig");
        fs::write(&kubeconfig, kubeconfig_text(&control_plane.url())).unwrap();
        let config = directory.join("proxy.yaml");
        fs::write(&config, configuration(mode, &kubeconfig)).unwrap();
        let config = config.display().to_string();
        let log = directory.join(format!("{program}.log"));
        node.node.run(|| {
            Self(match (program, &control_plane.server) {
                (Program::KubeProxy, Server::Kubernetes { kube_proxy, .. }) => {
                    control_plane::start(kube_proxy, &log, &["--config", &config])
                }
                _ => {
                    let other = std::env::var_os("FERROUTE").map(PathBuf::from);
                    let program = other.unwrap_or_else(|| env!("CARGO_BIN_EXE_ferroute").into());
                    control_plane::start(&program, &log, &["run", "--config", &config])
                }
            })
        })
    }

    /// Returns the anonymous memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        anonymous_memory(self.0.0.id())
    }

    /// Returns the processor time so far, including that of programs that it has run. See `proc_pid_stat(5)`.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.0.id())).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let ticks: u32 =
            fields.split_ascii_whitespace().skip(11).take(4).map(|field| field.parse::<u32>().unwrap()).sum();
        Duration::from_secs_f64(f64::from(ticks) / TICKS_PER_SECOND)
    }

    /// Ends the process as a supervisor does.
    pub(crate) fn stop(mut self) {
        let child = &mut self.0.0;
        Command::new("kill").arg(child.id().to_string()).status().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn kubeconfig_text(server: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    })
    .to_string()
}

/// Returns a configuration in which all periods are the default.
fn configuration(mode: &str, kubeconfig: &Path) -> String {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": mode,
        "hostnameOverride": NODE, "clusterCIDR": CLUSTER_CIDR, "clientConnection": {"kubeconfig": kubeconfig},
        // The size of the connection tracking table is the machine's.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    })
    .to_string()
}

/// `USER_HZ`, which is 100 on all architectures that Kubernetes supports.
const TICKS_PER_SECOND: f64 = 100.0;
