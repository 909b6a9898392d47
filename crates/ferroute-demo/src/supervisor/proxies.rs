use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use ferroute_core::IpFamily;
use serde::{Deserialize, de::IgnoredAny};

use super::{ClusterSpec, child_process::ChildProcess, events::Events};
use crate::{
    http,
    instance::Instance,
    layout::{NodeId, cluster_networks},
    net::Namespace,
    state::{ProcessState, StateDirectory},
};

/// The processes of the proxies, one per node.
pub(super) struct Proxies<'a> {
    spec: &'a ClusterSpec,
    directory: StateDirectory,
    proxies: BTreeMap<NodeId, ChildProcess>,
}

impl<'a> Proxies<'a> {
    pub(super) fn new(spec: &'a ClusterSpec) -> Self {
        Self { spec, directory: StateDirectory::new(&spec.instance), proxies: BTreeMap::new() }
    }

    pub(super) fn states(&self) -> BTreeMap<NodeId, ProcessState> {
        self.proxies.iter().map(|(node, process)| (*node, process.state())).collect()
    }

    /// Starts all proxies.
    pub(super) fn start(&mut self, ipv6: bool) -> anyhow::Result<()> {
        for node in NodeId::ALL {
            self.directory
                .write(&self.directory.proxy_config(node), configuration(node, &self.spec.mode, ipv6).as_bytes())?;
            let child = self.spawn(node).with_context(|| format!("cannot start the proxy on {node}"))?;
            self.proxies.insert(node, ChildProcess::Running(child));
        }
        Ok(())
    }

    /// Waits until all proxies have programmed their rules.
    pub(super) fn wait_until_ready(&mut self, ipv6: bool, events: &mut Events) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        for node in NodeId::ALL {
            while !Health::fetch(&self.spec.instance, node).is_some_and(|health| health.is_ready(ipv6)) {
                events.wait(POLL_INTERVAL)?;
                self.restart();
                if let Some(ProcessState::Down { reason }) = self.states().remove(&node) {
                    bail!("the proxy on {node} ended: {reason}");
                }
                if Instant::now() >= deadline {
                    bail!(
                        "the proxy on {node} has not programmed its rules within {START_TIMEOUT:?}: {}",
                        self.log_tail(node)
                    );
                }
            }
        }
        Ok(())
    }

    /// Restarts proxies that have ended, after a delay. Reports whether a state changed.
    pub(super) fn restart(&mut self) -> bool {
        let mut changed = false;
        let mut proxies = std::mem::take(&mut self.proxies);
        for (node, process) in &mut proxies {
            changed |= process.has_ended(|status| format!("{status}: {}", self.log_tail(*node)));
            if process.is_restart_due() {
                *process = ChildProcess::from_spawn(self.spawn(*node));
                changed = true;
            }
        }
        self.proxies = proxies;
        changed
    }

    fn spawn(&self, node: NodeId) -> anyhow::Result<Child> {
        let mut command = Command::new(&self.spec.program);
        command.arg("run").arg("--manifests").arg(self.directory.manifests());
        command.arg("--config").arg(self.directory.proxy_config(node));
        // For `ferroute top`, `ferroute flows` and the page.
        command.args(["--nftables-connection-counters", "1000", "--count-traffic"]);
        let log = self.directory.open_log(&log_name(node))?;
        command.env("PATH", self.directory.search_path()).stdin(Stdio::null());
        command.stdout(log.try_clone().context("cannot write the proxy's log")?).stderr(log);
        let namespace = Namespace::named(self.spec.instance.namespace(node.name()));
        let spawned = namespace.run_as_machine(node.name(), || command.spawn())?;
        spawned.with_context(|| format!("cannot run {}", self.spec.program.display()))
    }

    fn log_tail(&self, node: NodeId) -> String {
        let log = self.directory.read_log(&log_name(node)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }
}

/// The fields of a proxy's `/healthz` response that the demo needs.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Health {
    /// Whether the proxy is healthy or has just started.
    pub(crate) healthy: bool,
    /// An entry for each IP family whose rules are programmed.
    #[serde(default)]
    status: BTreeMap<String, IgnoredAny>,
}

impl Health {
    /// Fetches the health of a node's proxy; `None` if it does not respond.
    pub(crate) fn fetch(instance: &Instance, node: NodeId) -> Option<Self> {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), HEALTHZ_PORT);
        let namespace = Namespace::named(instance.namespace(node.name()));
        let response = namespace.run(|| http::get(address, "/healthz", Duration::from_secs(1))).ok()?.ok()?;
        serde_json::from_slice(&response.body).ok()
    }

    /// Reports whether the rules of all IP families are programmed.
    fn is_ready(&self, ipv6: bool) -> bool {
        let families = if ipv6 { &IpFamily::BOTH[..] } else { &[IpFamily::V4] };
        self.healthy && families.iter().all(|family| self.status.contains_key(family.as_str()))
    }
}

fn log_name(node: NodeId) -> String {
    format!("proxy-{node}")
}

/// Returns a configuration like kubeadm's. The limits of connection tracking are disabled because only the initial network
/// namespace can change them.
fn configuration(node: NodeId, mode: &str, ipv6: bool) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {}
hostnameOverride: {node}
clusterCIDR: \"{}\"
detectLocalMode: ClusterCIDR
healthzBindAddress: 0.0.0.0:{HEALTHZ_PORT}
metricsBindAddress: 127.0.0.1:10249
conntrack:
  maxPerCore: 0
  tcpEstablishedTimeout: 0s
  tcpCloseWaitTimeout: 0s
",
        mode,
        cluster_networks(ipv6)
    )
}

const HEALTHZ_PORT: u16 = 10256;

/// The time to program the first rules, also on a slow machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The number of log lines in an error.
const LAST_LINES: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_is_ready_once_all_families_are_programmed() {
        let health = |text| serde_json::from_str::<Health>(text).unwrap();
        let starting = health(r#"{"lastUpdated":"t","currentTime":"t","nodeEligible":true,"healthy":true}"#);
        assert!(!starting.is_ready(false));
        let ipv4_only = health(r#"{"healthy":true,"status":{"IPv4":{"lastUpdated":"t","healthy":true}}}"#);
        assert!(ipv4_only.is_ready(false) && !ipv4_only.is_ready(true));
        let both = health(r#"{"healthy":true,"status":{"IPv4":{},"IPv6":{}}}"#);
        assert!(both.is_ready(true));
        let unhealthy = health(r#"{"healthy":false,"status":{"IPv4":{},"IPv6":{}}}"#);
        assert!(!unhealthy.is_ready(true));
    }

    #[test]
    fn proxy_configuration() {
        insta::assert_snapshot!(configuration(NodeId::Node2, "nftables", true));
    }
}
