//! kube-proxy beside Ferroute, as upgrades of a cluster may leave it: findings that no node can make by itself.

use std::{collections::BTreeSet, fmt};

use ferroute_inspect::doctor::{Diagnosis, Finding, Severity, write_diagnosis_into};
use ferroute_kube::{Cluster, ClusterError};
use serde_json::Value;

use crate::{
    NodeProxy, Selection,
    proxies::{DEFAULT_PODS, encode},
};

/// Returns findings about kube-proxy in a cluster in which Ferroute has a DaemonSet of its own: pods on the same nodes, and
/// the ConfigMap by which kubeadm installs it again. Empty for proxies in kube-proxy's DaemonSet.
///
/// A user without the rights to read these objects gets no finding about them.
pub async fn kube_proxy_beside(cluster: &Cluster, selection: &Selection, proxies: &[NodeProxy]) -> Vec<Finding> {
    let Ok(others) = selection.pods(cluster, KUBE_PROXY).await else { return Vec::new() };
    let others: Vec<NodeProxy> = others.into_iter().filter_map(NodeProxy::new).collect();
    let is_asked = |other: &NodeProxy| proxies.iter().any(|proxy| proxy.container == other.container);
    if others.iter().any(is_asked) {
        return Vec::new();
    }
    let nodes: BTreeSet<&str> = proxies.iter().map(|proxy| proxy.node.as_str()).collect();
    let running = others.iter().filter(|other| other.problem.is_none()).map(|other| other.node.as_str());
    let both: BTreeSet<&str> = running.filter(|node| nodes.contains(node)).collect();
    if !both.is_empty() {
        return vec![two_proxies(&both)];
    }
    let namespace = encode(&selection.namespace);
    let object = |kind: &str| format!("{kind}/namespaces/{namespace}");
    let config = cluster.get::<Value>(&format!("{}/configmaps/kube-proxy", object("/api/v1"))).await;
    if config.is_err() {
        return Vec::new();
    }
    match cluster.get::<Value>(&format!("{}/daemonsets/kube-proxy", object("/apis/apps/v1"))).await {
        Err(ClusterError::Status { status, .. }) if status.as_u16() == 404 => vec![left_behind(&selection.namespace)],
        _ => Vec::new(),
    }
}

/// The labels of kube-proxy's pods.
const KUBE_PROXY: &str = DEFAULT_PODS[1];

fn two_proxies(nodes: &BTreeSet<&str>) -> Finding {
    let mut names = nodes.iter().copied().take(NAMED).collect::<Vec<_>>().join(", ");
    if nodes.len() > NAMED {
        names = format!("{names} and {} more", nodes.len() - NAMED);
    }
    Finding {
        check: CHECK.into(),
        code: "kube-proxy.beside".into(),
        values: [("nodes".into(), names.clone())].into(),
        severity: Severity::Problem,
        problem: format!("kube-proxy runs beside Ferroute on {names}"),
        effect: "both write rules; in different modes, a packet meets the rules of both".to_owned(),
        fix: "delete the DaemonSet kube-proxy, and keep the installer from writing it again (docs/rollout.md)"
            .to_owned(),
    }
}

fn left_behind(namespace: &str) -> Finding {
    Finding {
        check: CHECK.into(),
        code: "kube-proxy.left".into(),
        values: [("namespace".into(), namespace.to_owned())].into(),
        severity: Severity::Warning,
        problem: format!("the ConfigMap {namespace}/kube-proxy exists without its DaemonSet"),
        effect: "a kubeadm upgrade may start kube-proxy beside Ferroute".to_owned(),
        fix: "delete the ConfigMap, and set proxy.disabled in kubeadm's ClusterConfiguration (docs/rollout.md)"
            .to_owned(),
    }
}

const CHECK: &str = "kube-proxy";

/// How many nodes a finding names.
const NAMED: usize = 10;

/// Writes the findings.
///
/// # Errors
/// Only those of `out`.
pub fn write_findings_into(out: &mut impl fmt::Write, findings: &[Finding]) -> fmt::Result {
    write_diagnosis_into(out, &Diagnosis { findings: findings.to_vec(), ..Diagnosis::default() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ferroute_kube::{UserAccess, testing::FakeApiServer};
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: &str, (key, value): (&str, &str), phase: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "kube-system", "labels": {key: value}},
            "spec": {"nodeName": node, "containers": [{"name": value, "image": "registry.k8s.io/kube-proxy:v1.37.1"}]},
            "status": {"phase": phase},
        })
    }

    const FERROUTE: (&str, &str) = ("app", "ferroute");
    const OTHER: (&str, &str) = ("k8s-app", "kube-proxy");
    const CONFIG_MAP: &str = "/api/v1/namespaces/kube-system/configmaps/kube-proxy";
    const DAEMON_SET: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy";

    /// Returns the problems in a cluster with these pods and objects at these paths.
    async fn problems(pods: Vec<Value>, objects: &[&str]) -> Vec<String> {
        let server = FakeApiServer::start().await;
        server.set_pods(pods);
        for path in objects {
            server.set_object(path, json!({"metadata": {"name": "kube-proxy"}}));
        }
        let directory = tempfile::tempdir().expect("a directory");
        let kubeconfig = directory.path().join("config");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "fake", "cluster": {"server": format!("http://{}", server.address())}}],
            "contexts": [{"name": "test", "context": {"cluster": "fake", "user": "me"}}],
            "users": [{"name": "me", "user": {}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).expect("a file");
        let access = UserAccess { kubeconfig: Some(kubeconfig), ..UserAccess::default() };
        let cluster = Cluster::new(access, Duration::from_secs(60)).await.expect("a cluster");
        let selection =
            Selection { namespace: "kube-system".to_owned(), pods: None, nodes: Vec::new(), selector: None };
        let proxies = selection.proxies(&cluster).await.expect("proxies");
        let findings = kube_proxy_beside(&cluster, &selection, &proxies).await;
        findings.into_iter().map(|finding| format!("{}: {}", finding.severity, finding.problem)).collect()
    }

    #[tokio::test]
    async fn two_proxies_on_a_node_are_found() {
        let pods = |phase| {
            vec![
                pod("ferroute-1", "node-1", FERROUTE, "Running"),
                pod("ferroute-2", "node-2", FERROUTE, "Running"),
                pod("kube-proxy-2", "node-2", OTHER, phase),
                // A node that has not been switched yet.
                pod("kube-proxy-3", "node-3", OTHER, "Running"),
            ]
        };
        let expected = ["problem: kube-proxy runs beside Ferroute on node-2"];
        assert_eq!(problems(pods("Running"), &[CONFIG_MAP, DAEMON_SET]).await, expected);
        assert_eq!(problems(pods("Failed"), &[CONFIG_MAP, DAEMON_SET]).await, [""; 0]);
    }

    #[tokio::test]
    async fn config_map_that_lets_kubeadm_install_kube_proxy_is_found() {
        let pods = || vec![pod("ferroute-1", "node-1", FERROUTE, "Running")];
        let expected = ["warning: the ConfigMap kube-system/kube-proxy exists without its DaemonSet"];
        assert_eq!(problems(pods(), &[CONFIG_MAP]).await, expected);
        // The DaemonSet may have no pods yet.
        assert_eq!(problems(pods(), &[CONFIG_MAP, DAEMON_SET]).await, [""; 0]);
        assert_eq!(problems(pods(), &[]).await, [""; 0]);
    }

    #[tokio::test]
    async fn ferroute_in_the_daemonset_of_kube_proxy_is_not_beside_it() {
        let pods =
            vec![pod("kube-proxy-1", "node-1", OTHER, "Running"), pod("kube-proxy-2", "node-1", OTHER, "Running")];
        assert_eq!(problems(pods, &[CONFIG_MAP, DAEMON_SET]).await, [""; 0]);
    }

    #[test]
    fn finding_names_some_of_many_nodes() {
        let nodes: Vec<String> = (10..30).map(|number| format!("n{number}")).collect();
        let finding = two_proxies(&nodes.iter().map(String::as_str).collect());
        assert!(
            finding.problem.ends_with("on n10, n11, n12, n13, n14, n15, n16, n17, n18, n19 and 10 more"),
            "{finding:?}"
        );
    }
}
