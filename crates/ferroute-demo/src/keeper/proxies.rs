use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use ferroute_core::IpFamily;
use serde::{Deserialize, de::IgnoredAny};

use super::{ProxyMode, Task, events::Events, worker::Worker};
use crate::{
    http,
    instance::Instance,
    layout::{NodeId, cluster_networks},
    net::{Namespace, search_path},
    state::{Run, StateDirectory},
};

/// The proxies, one on each node.
pub(super) struct Proxies<'a> {
    task: &'a Task,
    directory: StateDirectory,
    proxies: BTreeMap<NodeId, Worker>,
}

impl<'a> Proxies<'a> {
    pub(super) fn new(task: &'a Task) -> Self {
        Self { task, directory: StateDirectory::of(&task.instance), proxies: BTreeMap::new() }
    }

    pub(super) fn runs(&self) -> BTreeMap<NodeId, Run> {
        self.proxies.iter().map(|(node, worker)| (*node, worker.run())).collect()
    }

    /// Starts them all.
    pub(super) fn start(&mut self, ipv6: bool) -> anyhow::Result<()> {
        for node in NodeId::ALL {
            self.directory
                .write(&self.directory.proxy_config(node), configuration(node, self.task.mode, ipv6).as_bytes())?;
            let child = self.spawn(node).with_context(|| format!("cannot start the proxy on {node}"))?;
            self.proxies.insert(node, Worker::Running(child));
        }
        Ok(())
    }

    /// Waits until each has written its rules.
    pub(super) fn wait_until_at_work(&mut self, ipv6: bool, events: &mut Events) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for node in NodeId::ALL {
            while !Health::ask(&self.task.instance, node).is_some_and(|health| health.is_at_work(ipv6)) {
                events.pause(PAUSE)?;
                self.look_after();
                if let Some(Run::Down { reason }) = self.runs().remove(&node) {
                    bail!("the proxy on {node} has ended: {reason}");
                }
                if Instant::now() >= deadline {
                    bail!("the proxy on {node} has no rules in force after {PATIENCE:?}: {}", self.last_words(node));
                }
            }
        }
        Ok(())
    }

    /// Notices proxies that have ended, and starts them again after a while. True when something changed.
    pub(super) fn look_after(&mut self) -> bool {
        let mut changed = false;
        let mut proxies = std::mem::take(&mut self.proxies);
        for (node, worker) in &mut proxies {
            changed |= worker.notice_end(|status| format!("{status}: {}", self.last_words(*node)));
            if worker.is_due() {
                *worker = Worker::from_start(self.spawn(*node));
                changed = true;
            }
        }
        self.proxies = proxies;
        changed
    }

    fn spawn(&self, node: NodeId) -> anyhow::Result<Child> {
        let mut command = Command::new(&self.task.program);
        command.arg("run").arg("--manifests").arg(self.directory.manifests());
        command.arg("--config").arg(self.directory.proxy_config(node));
        let log = self.directory.open_log(&log_name(node))?;
        command.env("PATH", search_path()).stdin(Stdio::null());
        command.stdout(log.try_clone().context("cannot write the proxy's log")?).stderr(log);
        let namespace = Namespace::named(self.task.instance.namespace(node.name()));
        let spawned = namespace.run_as_machine(node.name(), || command.spawn())?;
        spawned.with_context(|| format!("cannot run {}", self.task.program.display()))
    }

    fn last_words(&self, node: NodeId) -> String {
        let log = self.directory.read_log(&log_name(node)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }
}

/// What a proxy says of itself on `/healthz`: the fields of kube-proxy's answer that matter here.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Health {
    /// All is well, or it has only just started.
    pub(crate) healthy: bool,
    /// An entry for each family that has had its rules written.
    #[serde(default)]
    status: BTreeMap<String, IgnoredAny>,
}

impl Health {
    /// Asks the proxy of a node; `None` when it does not answer.
    pub(crate) fn ask(instance: &Instance, node: NodeId) -> Option<Self> {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), HEALTHZ_PORT);
        let namespace = Namespace::named(instance.namespace(node.name()));
        let answer = namespace.run(|| http::get(address, "/healthz", Duration::from_secs(1))).ok()?.ok()?;
        serde_json::from_slice(&answer.body).ok()
    }

    /// Its rules are in force.
    fn is_at_work(&self, ipv6: bool) -> bool {
        let families = if ipv6 { &IpFamily::BOTH[..] } else { &[IpFamily::V4] };
        self.healthy && families.iter().all(|family| self.status.contains_key(family.as_str()))
    }
}

fn log_name(node: NodeId) -> String {
    format!("proxy-{node}")
}

/// Much as kubeadm writes it. A network namespace may not change the machine's limits of connection tracking.
fn configuration(node: NodeId, mode: ProxyMode, ipv6: bool) -> String {
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
        mode.as_str(),
        cluster_networks(ipv6)
    )
}

const HEALTHZ_PORT: u16 = 10256;

/// How long the first rules may take, on a slow machine too.
const PATIENCE: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(50);

/// How much of a proxy's log an error shows.
const LAST_LINES: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_at_work_once_every_family_has_its_rules() {
        let health = |text| serde_json::from_str::<Health>(text).unwrap();
        let starting = health(r#"{"lastUpdated":"t","currentTime":"t","nodeEligible":true,"healthy":true}"#);
        assert!(!starting.is_at_work(false));
        let half = health(r#"{"healthy":true,"status":{"IPv4":{"lastUpdated":"t","healthy":true}}}"#);
        assert!(half.is_at_work(false) && !half.is_at_work(true));
        let whole = health(r#"{"healthy":true,"status":{"IPv4":{},"IPv6":{}}}"#);
        assert!(whole.is_at_work(true));
        let ill = health(r#"{"healthy":false,"status":{"IPv4":{},"IPv6":{}}}"#);
        assert!(!ill.is_at_work(true));
    }

    #[test]
    fn the_configuration_is_one() {
        insta::assert_snapshot!(configuration(NodeId::Node2, ProxyMode::Nftables, true));
    }
}
