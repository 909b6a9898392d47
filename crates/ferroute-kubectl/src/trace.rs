//! `kubectl ferroute trace`: traces a packet on the node of its source, and on the nodes of the endpoints that it may
//! reach.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context, bail};
use ferroute_core::{Escaped, NamespacedName, Protocol};
use ferroute_inspect::{desired::service_name, report::Versioned, trace::TraceReport};
use ferroute_trace::Verdict;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Fleet, NodeProxy,
    answer::{ask_command, write_printed_into},
    proxies::{Pod, encode, slices_of},
};

/// A packet to trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceQuery {
    /// Namespace and name of the pod that sends it.
    pub from: (String, String),
    /// The destination: `ADDRESS:PORT`, or a Service as for [`service_name`] with `:PORT` if it has several.
    pub to: String,
    /// Namespace of a Service that is given without one.
    pub namespace: String,
    /// The transport protocol; by default, that of the Service's port, or TCP.
    pub protocol: Option<String>,
    /// Whether the rules in the kernel are used, rather than those that the proxy would write.
    pub kernel: bool,
}

/// The trace of a packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterTrace {
    /// The trace on each node: first that of the source, then those of endpoints on other nodes.
    pub hops: Vec<Hop>,
    /// Whether all endpoints that it may reach receive it, as far as all nodes answer.
    pub delivered: bool,
}

/// The trace on a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hop {
    /// The node.
    pub node: String,
    /// The source of the packet there.
    pub from: IpAddr,
    /// Destination on this node.
    pub to: String,
    /// The trace, as JSON or a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Value>,
    /// Reason why there is no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the packet leaves the node for a pod, or reaches a process there, in all cases.
    pub delivered: bool,
    #[serde(skip)]
    reached: BTreeSet<(SocketAddr, IpAddr)>,
    /// The protocol of the packet, if the trace shows it.
    #[serde(skip)]
    protocol: Option<Protocol>,
}

/// Parses the name of a pod: `NAME` or `NAMESPACE/NAME`, also after `pod/`.
///
/// # Errors
/// If it has another form, such as the name of a node.
pub fn parse_source(text: &str, namespace: &str) -> Result<(String, String), String> {
    let words: Vec<&str> = text.split('/').collect();
    match words.as_slice() {
        words if words.contains(&"") => Err(format!("invalid source {text:?}: must be POD or NAMESPACE/POD")),
        ["pod" | "pods" | "po", name] | [name] => Ok((namespace.to_owned(), (*name).to_owned())),
        ["node" | "nodes" | "no" | "service" | "services" | "svc", ..] => {
            Err(format!("invalid source {text:?}: must be a pod"))
        }
        ["pod" | "pods" | "po", namespace, name] | [namespace, name] => {
            Ok(((*namespace).to_owned(), (*name).to_owned()))
        }
        _ => Err(format!("invalid source {text:?}: must be POD or NAMESPACE/POD")),
    }
}

/// Traces a packet through the nodes that it passes. `json` selects the form of [`Hop::trace`].
///
/// # Errors
/// If the objects in the query cannot be read, or no proxy runs on the node of the pod.
pub async fn trace(
    fleet: &Fleet,
    proxies: &[NodeProxy],
    query: &TraceQuery,
    json: bool,
) -> anyhow::Result<ClusterTrace> {
    let (namespace, name) = &query.from;
    let path = format!("/api/v1/namespaces/{}/pods/{}", encode(namespace), encode(name));
    let pod: Pod = fleet.cluster.get(&path).await.context("cannot read the pod")?;
    let (Some(node), Some(address)) = (pod.spec.node_name, pod.status.pod_ip) else {
        bail!("pod {namespace}/{name} is on no node, or has no address yet");
    };
    let from: IpAddr = address.parse().with_context(|| format!("invalid address of pod {namespace}/{name}"))?;
    let proxy_on = |node: &str| proxies.iter().find(|proxy| proxy.node == node);
    let first = proxy_on(&node).with_context(|| format!("no proxy runs on node {node}"))?;
    let destination = Destination::new(query).map_err(anyhow::Error::msg)?;
    let nodes = destination.nodes(fleet).await?;
    let hop = trace_on(fleet, first, query, from, &destination.text, pod.spec.host_network, json).await;
    // The endpoints on other nodes, one for each: rules do not depend on the endpoint there.
    let mut next: BTreeMap<&str, (SocketAddr, IpAddr)> = BTreeMap::new();
    for (to, from) in &hop.reached {
        if let Some(other) = nodes.get(&to.ip()).filter(|other| **other != node) {
            next.entry(other).or_insert((*to, *from));
        }
    }
    let protocol = hop.protocol.map(|protocol| protocol.to_string());
    let followed: Vec<NodeProxy> = next.keys().filter_map(|node| proxy_on(node).cloned()).collect();
    let answers = fleet.ask(&followed, |fleet, proxy| {
        let (to, from) = next[proxy.node.as_str()];
        let query = TraceQuery { protocol: protocol.clone(), ..query.clone() };
        async move { Ok(trace_on(&fleet, &proxy, &query, from, &to.to_string(), false, json).await) }
    });
    let mut hops = vec![hop];
    for answer in answers.await {
        let (to, from) = next[answer.proxy.node.as_str()];
        let failed = |error| Hop::failed(answer.proxy.node.clone(), from, to.to_string(), error);
        hops.push(answer.result.unwrap_or_else(failed));
    }
    for (node, (to, from)) in &next {
        if proxy_on(node).is_none() {
            hops.push(Hop::failed((*node).to_owned(), *from, to.to_string(), "no proxy runs there".to_owned()));
        }
    }
    let delivered = hops.iter().all(|hop| hop.delivered);
    Ok(ClusterTrace { hops, delivered })
}

async fn trace_on(
    fleet: &Fleet,
    proxy: &NodeProxy,
    query: &TraceQuery,
    from: IpAddr,
    to: &str,
    local: bool,
    json: bool,
) -> Hop {
    let failed = |error| Hop::failed(proxy.node.clone(), from, to.to_owned(), error);
    let source = from.to_string();
    let mut arguments = vec!["trace", "--to", to, "--from", &source];
    if let Some(protocol) = &query.protocol {
        arguments.extend(["--proto", protocol]);
    }
    if local {
        arguments.push("--local");
    }
    if query.kernel {
        arguments.push("--kernel");
    }
    let ask = async || {
        let (value, _) = ask_command(fleet, proxy, &arguments, true).await?;
        let report = Versioned::<TraceReport>::deserialize(&value);
        let report = report.map_err(|error| format!("invalid answer of the node: {error}"))?.report;
        let trace = if json { value } else { ask_command(fleet, proxy, &arguments, false).await?.0 };
        Ok((report, trace))
    };
    let (report, trace) = match ask().await {
        Ok(answer) => answer,
        Err(error) => return failed(error),
    };
    let mut reached = BTreeSet::new();
    let mut delivered = !report.branches.is_empty();
    for branch in &report.branches {
        reached.extend(branch.choices.iter().map(|choice| (choice.to, choice.from)));
        match &branch.verdict {
            Verdict::Delivered { to, from, .. } => _ = reached.insert((*to, *from)),
            _ => delivered = false,
        }
    }
    Hop {
        node: proxy.node.clone(),
        from,
        to: to.to_owned(),
        trace: Some(trace),
        error: None,
        delivered,
        reached,
        protocol: Some(report.packet.protocol),
    }
}

impl Hop {
    fn failed(node: String, from: IpAddr, to: String, error: String) -> Self {
        Self {
            node,
            from,
            to,
            trace: None,
            error: Some(error),
            delivered: false,
            reached: BTreeSet::new(),
            protocol: None,
        }
    }
}

/// The destination, as `ferroute trace` accepts it.
struct Destination {
    text: String,
    service: Option<NamespacedName>,
}

impl Destination {
    fn new(query: &TraceQuery) -> Result<Self, String> {
        if query.to.parse::<SocketAddr>().is_ok() {
            return Ok(Self { text: query.to.clone(), service: None });
        }
        let (name, port) = match query.to.rsplit_once(':') {
            Some((name, port)) => (name, format!(":{port}")),
            None => (query.to.as_str(), String::new()),
        };
        let service = service_name(name, &query.namespace)?;
        Ok(Self { text: format!("{service}{port}"), service: Some(service) })
    }

    /// Returns the nodes of the Service's endpoints.
    async fn nodes(&self, fleet: &Fleet) -> anyhow::Result<BTreeMap<IpAddr, String>> {
        let Some(service) = &self.service else { return Ok(BTreeMap::new()) };
        let mut nodes = BTreeMap::new();
        for endpoint in slices_of(&fleet.cluster, service).await?.into_iter().flat_map(|slice| slice.endpoints) {
            let address = endpoint.addresses.first().and_then(|address| address.parse().ok());
            nodes.extend(address.zip(endpoint.node_name));
        }
        Ok(nodes)
    }
}

/// Writes the traces in the order of the packet's path.
///
/// # Errors
/// Only errors of `out`.
pub fn write_trace_into(out: &mut impl fmt::Write, trace: &ClusterTrace) -> fmt::Result {
    for (index, hop) in trace.hops.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        writeln!(out, "== {}: from {} to {}", Escaped(&hop.node), hop.from, Escaped(&hop.to))?;
        write_printed_into(out, hop.trace.as_ref(), hop.error.as_deref())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_pods() {
        let parse = |text| parse_source(text, "shop").ok();
        let name = |namespace: &str, name: &str| Some((namespace.to_owned(), name.to_owned()));
        assert_eq!(parse("pod/a"), name("shop", "a"));
        assert_eq!(parse("pod/b/a"), name("b", "a"));
        assert_eq!([parse("a"), parse("b/a")], [name("shop", "a"), name("b", "a")]);
        for other in ["", "pod/", "/a", "service/a", "node/a", "a/b/c"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn destinations_are_services_or_addresses() {
        let destination = |to: &str| {
            let query = TraceQuery {
                from: ("shop".into(), "a".into()),
                to: to.into(),
                namespace: "shop".into(),
                protocol: None,
                kernel: true,
            };
            Destination::new(&query).map(|destination| destination.text).ok()
        };
        assert_eq!(destination("service/web:80").as_deref(), Some("shop/web:80"));
        assert_eq!(destination("service/other/web").as_deref(), Some("other/web"));
        assert_eq!(destination("[fd00::1]:80").as_deref(), Some("[fd00::1]:80"));
        assert_eq!(destination("web:80").as_deref(), Some("shop/web:80"));
    }
}
