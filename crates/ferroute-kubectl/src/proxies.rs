//! The pods of the proxies, one on each node, and other objects in the API server.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use anyhow::{Context, bail};
use ferroute_api::{EndpointSlice, labels};
use ferroute_core::NamespacedName;
use ferroute_kube::{Cluster, PodContainer};
use serde::Deserialize;

/// Selection of the proxies that are queried.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The namespace of the proxies.
    pub namespace: String,
    /// Labels of the proxies' pods; by default, those of [`DEFAULT_PODS`] that some pod has.
    pub pods: Option<String>,
    /// The names of nodes; empty for all.
    pub nodes: Vec<String>,
    /// The labels of nodes.
    pub selector: Option<String>,
}

/// The proxy on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeProxy {
    /// The name of the node.
    pub node: String,
    /// The container that the proxy runs in.
    pub container: PodContainer,
    /// Image of the container, if the container is named like kube-proxy's: such a container may have no `ferroute`.
    pub kube_proxy_image: Option<String>,
    /// Reason why it cannot be queried.
    pub problem: Option<String>,
}

/// The labels of the pods in `deploy/kubernetes`, and of those in kubeadm's DaemonSet.
pub const DEFAULT_PODS: [&str; 2] = ["app=ferroute", "k8s-app=kube-proxy"];

impl Selection {
    /// Returns the proxies by the names of their nodes.
    ///
    /// # Errors
    /// If they cannot be listed, or if there are none.
    pub async fn proxies(&self, cluster: &Cluster) -> anyhow::Result<Vec<NodeProxy>> {
        let selectors = self.pods.as_deref().map_or(DEFAULT_PODS.to_vec(), |pods| vec![pods]);
        let mut pods = Vec::new();
        for selector in &selectors {
            pods = self.pods(cluster, selector).await?;
            if !pods.is_empty() {
                break;
            }
        }
        if pods.is_empty() {
            bail!("no pods with the labels {} in namespace {}", selectors.join(" or "), self.namespace);
        }
        let mut proxies: BTreeMap<String, NodeProxy> = BTreeMap::new();
        for proxy in pods.into_iter().filter_map(NodeProxy::new) {
            // While a pod is replaced, there are two on the node.
            let better = proxies.get(&proxy.node).is_none_or(|other| other.problem.is_some());
            if better {
                proxies.insert(proxy.node.clone(), proxy);
            }
        }
        if let Some(selector) = &self.selector {
            let names = node_names(cluster, selector).await?;
            proxies.retain(|node, _| names.contains(node));
        }
        if !self.nodes.is_empty() {
            if let Some(missing) = self.nodes.iter().find(|node| !proxies.contains_key(*node)) {
                bail!("no proxy runs on node {missing}");
            }
            proxies.retain(|node, _| self.nodes.contains(node));
        }
        if proxies.is_empty() {
            bail!("no proxy runs on the selected nodes");
        }
        Ok(proxies.into_values().collect())
    }

    pub(crate) async fn pods(&self, cluster: &Cluster, selector: &str) -> anyhow::Result<Vec<Pod>> {
        let path = format!("/api/v1/namespaces/{}/pods?labelSelector={}", encode(&self.namespace), encode(selector));
        let list: List<Pod> = cluster.get(&path).await.context("cannot list the pods of the proxies")?;
        Ok(list.items)
    }
}

async fn node_names(cluster: &Cluster, selector: &str) -> anyhow::Result<BTreeSet<String>> {
    let path = format!("/api/v1/nodes?labelSelector={}", encode(selector));
    let list: List<Named> = cluster.get(&path).await.context("cannot list nodes")?;
    Ok(list.items.into_iter().map(|node| node.metadata.name).collect())
}

/// Returns the endpoint slices of a Service.
///
/// # Errors
/// If they cannot be listed.
pub(crate) async fn slices_of(cluster: &Cluster, service: &NamespacedName) -> anyhow::Result<Vec<EndpointSlice>> {
    let namespace = encode(service.namespace());
    let selector = encode(&format!("{}={}", labels::SERVICE_NAME, service.name()));
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={selector}");
    let list: List<EndpointSlice> = cluster.get(&path).await.context("cannot list the Service's endpoint slices")?;
    Ok(list.items)
}

/// Returns the names of all pods, `namespace/name`, with their addresses, apart from pods in the host network.
///
/// # Errors
/// If they cannot be listed, for example because the user lacks permission.
pub(crate) async fn pod_names(cluster: &Cluster) -> anyhow::Result<Vec<(IpAddr, String)>> {
    let (mut names, mut next) = (Vec::new(), String::new());
    loop {
        let path = format!("/api/v1/pods?limit={PAGE}&continue={}", encode(&next));
        let list: List<Pod> = cluster.get(&path).await.context("cannot list the pods")?;
        for pod in list.items.into_iter().filter(|pod| !pod.spec.host_network) {
            let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
            let addresses = pod.status.pod_ips.iter().map(|address| &address.ip).chain(&pod.status.pod_ip);
            names.extend(addresses.filter_map(|text| Some((text.parse().ok()?, name.clone()))));
        }
        next = list.metadata.next;
        if next.is_empty() {
            return Ok(names);
        }
    }
}

impl NodeProxy {
    /// Returns the proxy of a pod; `None` if the pod has no node yet.
    pub(crate) fn new(pod: Pod) -> Option<Self> {
        let Pod { metadata, spec, status } = pod;
        let node = spec.node_name.filter(|node| !node.is_empty())?;
        let is_proxy = |container: &&Container| ["ferroute", "kube-proxy"].contains(&container.name.as_str());
        let container = spec.containers.iter().find(is_proxy).or(spec.containers.first());
        let problem = match (status.phase.as_str(), &metadata.deletion_timestamp) {
            (_, Some(_)) => Some("the pod is terminating".to_owned()),
            ("Running", None) => None,
            (phase, None) => Some(format!("the pod is {phase}")),
        };
        let kube_proxy_image = container.map(|container| container.image.clone()).filter(|image| is_kube_proxys(image));
        let container = container.map(|container| container.name.clone()).unwrap_or_default();
        let container = PodContainer { namespace: metadata.namespace, pod: metadata.name, container };
        Some(Self { node, container, kube_proxy_image, problem })
    }

    /// Returns the reason why there is no answer, with the image if that explains it.
    pub(crate) fn failure(&self, error: String) -> String {
        match &self.kube_proxy_image {
            Some(image) => format!("the pod runs the image {image}: {error}"),
            None => error,
        }
    }
}

/// Reports whether the last part of an image's name is kube-proxy's, of any registry, architecture and version.
fn is_kube_proxys(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or(image);
    name.strip_prefix("kube-proxy").is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '@', '-']))
}

/// Encodes text for a URL.
pub(crate) fn encode(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// A list of objects.
#[derive(Debug, Deserialize)]
struct List<T> {
    items: Vec<T>,
    #[serde(default)]
    metadata: ListMetadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListMetadata {
    #[serde(rename = "continue")]
    next: String,
}

#[derive(Debug, Deserialize)]
struct Named {
    metadata: Metadata,
}

/// The fields of a Pod that are read.
#[derive(Debug, Deserialize)]
pub(crate) struct Pod {
    metadata: Metadata,
    pub(crate) spec: PodSpec,
    #[serde(default)]
    pub(crate) status: PodStatus,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
    deletion_timestamp: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodSpec {
    pub(crate) node_name: Option<String>,
    #[serde(default)]
    pub(crate) host_network: bool,
    #[serde(default)]
    containers: Vec<Container>,
}

#[derive(Debug, Deserialize)]
struct Container {
    name: String,
    #[serde(default)]
    image: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    phase: String,
    #[serde(rename = "podIP")]
    pub(crate) pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodAddress>,
}

#[derive(Debug, Deserialize)]
struct PodAddress {
    ip: String,
}

/// The number of pods that are requested at once.
const PAGE: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_the_image_of_kube_proxy() {
        for (image, is_named) in [
            ("registry.k8s.io/kube-proxy:v1.37.1", true),
            ("mirror.example.org:5000/k8s/kube-proxy-amd64@sha256:00", true),
            ("kube-proxy", true),
            ("registry.example.org/ferroute:0.1.0", false),
            ("registry.example.org/kube-proxy/ferroute", false),
            ("kube-proxyless", false),
            ("", false),
        ] {
            let pod = serde_json::json!({"metadata": {"name": "a"}, "status": {"phase": "Running"},
                "spec": {"nodeName": "node-1", "containers": [{"name": "kube-proxy", "image": image}]}});
            let proxy = NodeProxy::new(serde_json::from_value(pod).expect("a pod")).expect("a proxy");
            let named = format!("the pod runs the image {image}: error");
            assert_eq!(proxy.failure("error".to_owned()), if is_named { &named } else { "error" }, "{image}");
        }
    }

    #[test]
    fn pods_that_do_not_run_have_a_problem() {
        let proxy = |pod: serde_json::Value| NodeProxy::new(serde_json::from_value(pod).expect("a pod"));
        let pod = |phase: &str| {
            serde_json::json!({"metadata": {"name": "a", "namespace": "n"}, "status": {"phase": phase},
                "spec": {"nodeName": "node-1", "containers": [{"name": "sidecar"}, {"name": "ferroute"}]}})
        };
        let running = proxy(pod("Running")).expect("a proxy");
        assert_eq!((running.problem, running.container.container.as_str()), (None, "ferroute"));
        assert_eq!(proxy(pod("Pending")).and_then(|proxy| proxy.problem).as_deref(), Some("the pod is Pending"));
        let mut unscheduled = pod("Pending");
        unscheduled["spec"]["nodeName"] = serde_json::Value::Null;
        assert_eq!(proxy(unscheduled), None);
    }
}
