use serde::{Deserialize, Serialize};

use crate::{ObjectMeta, labels, meta::null_default};

/// An `EndpointSlice` (`discovery.k8s.io/v1`): some of a Service's endpoints, all of one IP family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// Name, namespace and labels; the label [`labels::SERVICE_NAME`] names the Service.
    pub metadata: ObjectMeta,
    /// `IPv4`, `IPv6` or `FQDN` (which proxies ignore).
    pub address_type: String,
    /// The ports that every endpoint of the slice has.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<EndpointPort>,
    /// The endpoints.
    #[serde(deserialize_with = "null_default")]
    pub endpoints: Vec<SliceEndpoint>,
}

impl EndpointSlice {
    /// The name of the Service that this slice belongs to, when it says so.
    pub fn service_name(&self) -> Option<&str> {
        self.metadata.labels.get(labels::SERVICE_NAME).map(String::as_str).filter(|name| !name.is_empty())
    }
}

/// A port of an [`EndpointSlice`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// Name of the Service's port.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `TCP` (also when left out), `UDP` or `SCTP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Port number; left out means «all ports», which proxies ignore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// One endpoint of an [`EndpointSlice`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceEndpoint {
    /// Its addresses; proxies use the first.
    #[serde(deserialize_with = "null_default")]
    pub addresses: Vec<String>,
    /// Whether it can take traffic.
    #[serde(deserialize_with = "null_default")]
    pub conditions: EndpointConditions,
    /// The node that it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Which zones and nodes should use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<EndpointHints>,
    /// The object that it stands for, a Pod as a rule. Decides nothing; it gives the endpoint a name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
}

/// Names the object behind a [`SliceEndpoint`]. A Pod is in the namespace of its slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetRef {
    /// Its kind: `Pod`.
    #[serde(deserialize_with = "null_default")]
    pub kind: String,
    /// Its name.
    #[serde(deserialize_with = "null_default")]
    pub name: String,
}

/// Conditions of a [`SliceEndpoint`]; what is left out is unknown and read as told at each field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// Takes new connections; unknown counts as true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Answers, even while it terminates; unknown counts as true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    /// Is on its way out; unknown counts as false.
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

/// Names a zone or a node in [`EndpointHints`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct HintRef {
    /// Its name.
    pub name: String,
}
