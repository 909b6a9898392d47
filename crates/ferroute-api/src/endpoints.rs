use serde::{Deserialize, Serialize};

use crate::{ObjectMeta, labels, meta::null_default};

/// An EndpointSlice (`discovery.k8s.io/v1`): a subset of a Service's endpoints, all of one address type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// Name, namespace and labels; the label [`labels::SERVICE_NAME`] names the Service.
    pub metadata: ObjectMeta,
    /// `IPv4`, `IPv6` or `FQDN` (which proxies ignore).
    pub address_type: String,
    /// Ports of every endpoint in the slice.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<EndpointPort>,
    /// Endpoints.
    #[serde(deserialize_with = "null_default")]
    pub endpoints: Vec<SliceEndpoint>,
}

impl EndpointSlice {
    /// Returns the name of the Service, from the label [`labels::SERVICE_NAME`].
    pub fn service_name(&self) -> Option<&str> {
        self.metadata.labels.get(labels::SERVICE_NAME).map(String::as_str).filter(|name| !name.is_empty())
    }
}

/// A port of an [`EndpointSlice`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// Name of the Service port.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `TCP` (the default), `UDP` or `SCTP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Port number. If omitted, the entry means all ports, and proxies ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// One endpoint of an [`EndpointSlice`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceEndpoint {
    /// Addresses; proxies use the first one.
    #[serde(deserialize_with = "null_default")]
    pub addresses: Vec<String>,
    /// Readiness.
    #[serde(deserialize_with = "null_default")]
    pub conditions: EndpointConditions,
    /// Name of the endpoint's node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The zone of its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Zones and nodes that should use the endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<EndpointHints>,
    /// The object behind the endpoint, usually a Pod. Shown in reports; has no effect on rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
}

/// A reference to the object behind a [`SliceEndpoint`]. Pods are in the namespace of the slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetRef {
    /// Kind, such as `Pod`.
    #[serde(deserialize_with = "null_default")]
    pub kind: String,
    /// Name.
    #[serde(deserialize_with = "null_default")]
    pub name: String,
}

/// Conditions of a [`SliceEndpoint`]. An omitted condition is unknown; its interpretation is stated at each field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// Accepts new connections. Unknown is interpreted as true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Serves connections, even while terminating. Unknown is interpreted as true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    /// Is terminating. Unknown is interpreted as false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

/// Topology hints of a [`SliceEndpoint`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    /// Zones that should use the endpoint.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub for_zones: Vec<HintRef>,
    /// Nodes that should use the endpoint.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub for_nodes: Vec<HintRef>,
}

/// A reference to a zone or node in [`EndpointHints`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct HintRef {
    /// Name.
    pub name: String,
}

/// Endpoints (`v1`): all endpoints of the Service of the same name, in the API that EndpointSlice replaced.
///
/// Proxies do not read it. [`crate::mirror`] converts it to EndpointSlices, like the mirroring controller of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Endpoints {
    /// Name (that of the Service), namespace and labels.
    pub metadata: ObjectMeta,
    /// Endpoints, grouped by their ports.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub subsets: Vec<EndpointSubset>,
}

/// A group of addresses with the same ports in [`Endpoints`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSubset {
    /// Ready addresses.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<EndpointAddress>,
    /// Addresses that are not ready.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub not_ready_addresses: Vec<EndpointAddress>,
    /// Ports of every address in the group.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<EndpointPort>,
}

/// An address of an [`EndpointSubset`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointAddress {
    /// IP address of either family.
    pub ip: String,
    /// Name of the endpoint's node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}
