//! kube-proxy running beside Ferroute, as upgrades of a cluster may leave it: findings that no single node can make.

use std::{collections::BTreeSet, fmt};

use ferroute_inspect::doctor::{Diagnosis, Finding, Severity, write_diagnosis_into};
use ferroute_kube::{Cluster, ClusterError};
use serde_json::Value;

use crate::{NodeProxy, Selection, proxies::DEFAULT_PODS};

/// Returns findings about kube-proxy in a cluster in which Ferroute has a separate DaemonSet: pods on the same nodes,
/// and the objects by which kubeadm installs kube-proxy again. Empty for proxies in kube-proxy's DaemonSet.
///
/// A user without permission to read these objects gets no findings about them.
pub async fn kube_proxy_beside(cluster: &Cluster, selection: &Selection, proxies: &[NodeProxy]) -> Vec<Finding> {
    let there = Selection { namespace: NAMESPACE.to_owned(), ..selection.clone() };
    let Ok(others) = there.pods(cluster, KUBE_PROXY).await else { return Vec::new() };
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
    let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/kube-proxy");
    match cluster.get::<Value>(&path).await {
        Err(ClusterError::Status { status, .. }) if status.as_u16() == 404 => {}
        _ => return Vec::new(),
    }
    let config_map =
        async |name| cluster.get::<Value>(&format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{name}")).await;
    if config_map("kube-proxy").await.is_ok() {
        return vec![left_behind()];
    }
    match config_map("kubeadm-config").await {
        Ok(config) if !is_disabled(&config) => vec![not_disabled()],
        _ => Vec::new(),
    }
}

/// Reports whether kubeadm's `ClusterConfiguration` in this ConfigMap states that the cluster has no kube-proxy.
fn is_disabled(kubeadm_config: &Value) -> bool {
    let text = kubeadm_config.pointer("/data/ClusterConfiguration").and_then(Value::as_str).unwrap_or_default();
    let configuration: Result<Value, _> = serde_saphyr::from_str(text);
    configuration.is_ok_and(|value| value.pointer("/proxy/disabled") == Some(&Value::Bool(true)))
}

/// The namespace of kube-proxy, and of kubeadm's configuration.
const NAMESPACE: &str = "kube-system";

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

fn left_behind() -> Finding {
    may_return(
        "kube-proxy.left",
        format!("the ConfigMap {NAMESPACE}/kube-proxy exists without its DaemonSet"),
        "delete the ConfigMap, and ",
    )
}

fn not_disabled() -> Finding {
    may_return(
        "kube-proxy.enabled",
        format!("the ConfigMap {NAMESPACE}/kubeadm-config does not disable kube-proxy"),
        "",
    )
}

/// A warning that an upgrade of the cluster may bring kube-proxy back. `first` precedes the remedy.
fn may_return(code: &'static str, problem: String, first: &str) -> Finding {
    Finding {
        check: CHECK.into(),
        code: code.into(),
        values: [("namespace".into(), NAMESPACE.to_owned())].into(),
        severity: Severity::Warning,
        problem,
        effect: "a kubeadm upgrade may start kube-proxy beside Ferroute".to_owned(),
        fix: format!("{first}set proxy.disabled in kubeadm's ClusterConfiguration (docs/rollout.md)"),
    }
}

const CHECK: &str = "kube-proxy";

/// Maximum number of nodes that a finding names.
const NAMED: usize = 10;

/// Writes the findings.
///
/// # Errors
/// Only errors of `out`.
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
        let namespace = if value == "ferroute" { FERROUTE_NAMESPACE } else { NAMESPACE };
        json!({
            "metadata": {"name": name, "namespace": namespace, "labels": {key: value}},
            "spec": {"nodeName": node, "containers": [{"name": value, "image": "registry.k8s.io/kube-proxy:v1.37.1"}]},
            "status": {"phase": phase},
        })
    }

    /// That of a chart, say.
    const FERROUTE_NAMESPACE: &str = "network";
    const FERROUTE: (&str, &str) = ("app", "ferroute");
    const OTHER: (&str, &str) = ("k8s-app", "kube-proxy");
    const CONFIG_MAP: &str = "/api/v1/namespaces/kube-system/configmaps/kube-proxy";
    const DAEMON_SET: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy";

    /// kube-proxy's object at a path.
    fn object(path: &str) -> (&str, Value) {
        (path, json!({"metadata": {"name": "kube-proxy"}}))
    }

    fn kubeadm(configuration: &str) -> (&'static str, Value) {
        (
            "/api/v1/namespaces/kube-system/configmaps/kubeadm-config",
            json!({"data": {"ClusterConfiguration": configuration}}),
        )
    }

    /// Returns the problems in a cluster with these pods and objects at these paths.
    async fn problems(namespace: &str, pods: Vec<Value>, objects: &[(&str, Value)]) -> Vec<String> {
        let server = FakeApiServer::start().await;
        server.set_pods(pods);
        for (path, object) in objects {
            server.set_object(path, object.clone());
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
        let selection = Selection { namespace: namespace.to_owned(), pods: None, nodes: Vec::new(), selector: None };
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
        let objects = [object(CONFIG_MAP), object(DAEMON_SET)];
        assert_eq!(problems(FERROUTE_NAMESPACE, pods("Running"), &objects).await, expected);
        assert_eq!(problems(FERROUTE_NAMESPACE, pods("Failed"), &objects).await, [""; 0]);
    }

    #[tokio::test]
    async fn objects_by_which_kubeadm_installs_kube_proxy_are_found() {
        let left = "warning: the ConfigMap kube-system/kube-proxy exists without its DaemonSet";
        let enabled = "warning: the ConfigMap kube-system/kubeadm-config does not disable kube-proxy";
        let disabled = || kubeadm("apiVersion: kubeadm.k8s.io/v1beta4\nproxy:\n  disabled: true\n");
        let cases = [
            (vec![], None),
            (vec![object(CONFIG_MAP)], Some(left)),
            (vec![object(CONFIG_MAP), kubeadm("proxy: {}")], Some(left)),
            // The DaemonSet may have no pods yet.
            (vec![object(CONFIG_MAP), object(DAEMON_SET), kubeadm("proxy: {}")], None),
            // kubeadm 1.32 and newer need no other object of kube-proxy.
            (vec![kubeadm("proxy: {}")], Some(enabled)),
            (vec![kubeadm("proxy: {disabled: false}")], Some(enabled)),
            (vec![kubeadm("kubernetesVersion: v1.30.0")], Some(enabled)),
            (vec![disabled()], None),
            (vec![object(CONFIG_MAP), disabled()], Some(left)),
        ];
        for (objects, expected) in cases {
            let pods = vec![pod("ferroute-1", "node-1", FERROUTE, "Running")];
            let found = problems(FERROUTE_NAMESPACE, pods, &objects).await;
            assert_eq!(found, Vec::from_iter(expected), "{objects:?}");
        }
    }

    #[tokio::test]
    async fn ferroute_in_the_daemonset_of_kube_proxy_is_not_beside_it() {
        let pods =
            vec![pod("kube-proxy-1", "node-1", OTHER, "Running"), pod("kube-proxy-2", "node-1", OTHER, "Running")];
        assert_eq!(problems(NAMESPACE, pods, &[object(CONFIG_MAP), kubeadm("proxy: {}")]).await, [""; 0]);
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
