use serde::{Deserialize, Serialize};

use crate::{ObjectMeta, meta::null_default};

/// A Service (`v1`): a stable address for a changing set of endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Name, namespace and labels.
    pub metadata: ObjectMeta,
    /// What is asked for.
    #[serde(deserialize_with = "null_default")]
    pub spec: ServiceSpec,
    /// What a load balancer has given.
    #[serde(deserialize_with = "null_default")]
    pub status: ServiceStatus,
}

/// `spec` of a [`Service`]. Fields that are left out are empty here; the defaults are the reader's to apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `ClusterIP` (also when left out), `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// First cluster IP; `None` says headless.
    #[serde(rename = "clusterIP", skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<String>,
    /// All cluster IPs, at most one per IP family; the first repeats `cluster_ip`.
    #[serde(rename = "clusterIPs", deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub cluster_ips: Vec<String>,
    /// Families of the cluster IPs, `IPv4` and `IPv6`, first one first. Proxies read the cluster IPs themselves; the
    /// demo, which has no API server to assign them, needs it.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub ip_families: Vec<String>,
    /// `SingleStack`, `PreferDualStack` or `RequireDualStack`; read only by the demo, like `ip_families`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_family_policy: Option<String>,
    /// Addresses that others route to this node.
    #[serde(rename = "externalIPs", deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub external_ips: Vec<String>,
    /// The ports that the Service listens on.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<ServicePort>,
    /// Labels of the pods behind it; read only by the demo, which has no controller to make slices.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub selector: std::collections::BTreeMap<String, String>,
    /// `None` (also when left out) or `ClientIP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_affinity: Option<String>,
    /// How long affinity lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// `Cluster` (also when left out) or `Local`, for traffic to the cluster IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal_traffic_policy: Option<String>,
    /// `Cluster` (also when left out) or `Local`, for traffic to every other address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<String>,
    /// Which endpoints clients should prefer, by zone or node. Whoever makes slices turns it into hints, which alone count
    /// for a proxy; here it is for those who explain a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<String>,
    /// Port on each node that tells load balancers whether the node has endpoints of its own; 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check_node_port: Option<i32>,
    /// Sources that may use the load-balancer addresses; empty for all.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_source_ranges: Vec<String>,
}

/// One port of a [`Service`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Name, which ties it to the slices' ports; may be left out when there is one port only.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `TCP` (also when left out), `UDP` or `SCTP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The port of the Service's addresses.
    pub port: i32,
    /// The port on every node; 0 or left out for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_port: Option<i32>,
    /// Port number or name on the pods. Proxies read the slices' ports in its place; the demo needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_port: Option<serde_json::Value>,
}

/// `sessionAffinityConfig` of a [`Service`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionAffinityConfig {
    /// For affinity by client address.
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

/// Settings of client-IP affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    /// Seconds after its last new connection that a client is remembered; 10800 when left out.
    pub timeout_seconds: Option<i32>,
}

/// `status` of a [`Service`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// What the load balancer has given.
    #[serde(deserialize_with = "null_default")]
    pub load_balancer: LoadBalancerStatus,
}

/// The addresses of a [`Service`]'s load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// One entry per point of entry.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<LoadBalancerIngress>,
}

/// One point of entry of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerIngress {
    /// Its address; empty where it has a host name only.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// `VIP` (also when left out): packets arrive with this address as destination, so the proxy serves it.
    /// `Proxy`: the balancer rewrites the destination, so the proxy must leave the address alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_mode: Option<String>,
}
