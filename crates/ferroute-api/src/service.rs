use serde::{Deserialize, Serialize};

use crate::{ObjectMeta, meta::null_default};

/// A Service (`v1`): a stable address for a changing set of endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Name, namespace and labels.
    pub metadata: ObjectMeta,
    /// Desired state.
    #[serde(deserialize_with = "null_default")]
    pub spec: ServiceSpec,
    /// Observed state: addresses of the load balancer.
    #[serde(deserialize_with = "null_default")]
    pub status: ServiceStatus,
}

/// `spec` of a [`Service`]. Omitted fields are empty; `ferroute-core` applies the API's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `ClusterIP` (the default), `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// First cluster IP; the string `None` for a headless Service.
    #[serde(rename = "clusterIP", skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<String>,
    /// All cluster IPs, at most one per IP family; the first is equal to `cluster_ip`.
    #[serde(rename = "clusterIPs", deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub cluster_ips: Vec<String>,
    /// IP families of the cluster IPs, `IPv4` and `IPv6`, the primary one first. Proxies use the cluster IPs themselves;
    /// the demo, where no API server allocates them, uses this field.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub ip_families: Vec<String>,
    /// `SingleStack`, `PreferDualStack` or `RequireDualStack`. Used by the demo only, like `ip_families`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_family_policy: Option<String>,
    /// Addresses that the network routes to the nodes, outside of Kubernetes' control.
    #[serde(rename = "externalIPs", deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub external_ips: Vec<String>,
    /// Ports of the Service.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<ServicePort>,
    /// Labels of the Service's pods. Used by the demo only, where no controller creates EndpointSlices.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub selector: std::collections::BTreeMap<String, String>,
    /// `None` (the default) or `ClientIP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_affinity: Option<String>,
    /// Timeout of session affinity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// `Cluster` (the default) or `Local`, for traffic to the cluster IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal_traffic_policy: Option<String>,
    /// `Cluster` (the default) or `Local`, for traffic to all other addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<String>,
    /// Preference for endpoints in the client's zone or on its node. The EndpointSlice controller translates it to hints,
    /// which are all that a proxy uses; this field is shown by `explain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<String>,
    /// Port on each node where load balancers check for local endpoints; 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check_node_port: Option<i32>,
    /// Source ranges that may use the load balancer addresses; empty allows all.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_source_ranges: Vec<String>,
}

/// A port of a [`Service`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Name, matched with the names of EndpointSlice ports. Optional if the Service has one port.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `TCP` (the default), `UDP` or `SCTP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Port on the Service's addresses.
    pub port: i32,
    /// Port on every node; 0 or omitted for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_port: Option<i32>,
    /// Number or name of the pods' port. Used by the demo only; proxies use the ports of EndpointSlices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_port: Option<serde_json::Value>,
}

/// `sessionAffinityConfig` of a [`Service`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionAffinityConfig {
    /// Configuration of affinity by client IP.
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

/// Configuration of session affinity by client IP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    /// Seconds from a client's last new connection until its affinity expires; 10800 by default.
    pub timeout_seconds: Option<i32>,
}

/// `status` of a [`Service`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// Addresses of the load balancer.
    #[serde(deserialize_with = "null_default")]
    pub load_balancer: LoadBalancerStatus,
}

/// The addresses of a [`Service`]'s load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// Ingress points.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<LoadBalancerIngress>,
}

/// An ingress point of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerIngress {
    /// IP address; empty if the ingress point has only a host name.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// `VIP` (the default): packets arrive with this destination address, so the proxy serves it. `Proxy`: the load
    /// balancer rewrites the destination, so the proxy must ignore the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_mode: Option<String>,
}

/// A ServiceCIDR (`networking.k8s.io/v1`): networks from which cluster IPs are allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// Name.
    pub metadata: ObjectMeta,
    /// Networks.
    #[serde(deserialize_with = "null_default")]
    pub spec: ServiceCidrSpec,
}

/// `spec` of a [`ServiceCidr`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// At most one network per IP family, as `address/prefix`.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub cidrs: Vec<String>,
}
