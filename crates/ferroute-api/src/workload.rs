use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ObjectMeta, meta::null_default};

/// A Pod (`v1`). Used by the demo, which runs Pods and creates EndpointSlices for them; proxies do not read Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, namespace and labels.
    pub metadata: ObjectMeta,
    /// Containers and node.
    #[serde(deserialize_with = "null_default")]
    pub spec: PodSpec,
    /// Addresses.
    #[serde(deserialize_with = "null_default")]
    pub status: PodStatus,
}

/// `spec` of a [`Pod`] or of the Pod template of a [`Deployment`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Containers.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Container>,
    /// Name of the node; omitted to let the scheduler choose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Uses the node's network namespace.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
}

/// A container of a [`Pod`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Container {
    /// Name, unique within the Pod.
    pub name: String,
    /// Image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Declared ports.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ContainerPort>,
}

/// A port of a [`Container`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Name that a Service's `targetPort` can refer to.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Port number.
    pub container_port: i32,
    /// `TCP` (the default), `UDP` or `SCTP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// `status` of a [`Pod`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    /// Primary IP address.
    #[serde(rename = "podIP", skip_serializing_if = "Option::is_none")]
    pub pod_ip: Option<String>,
    /// All IP addresses, at most one per IP family.
    #[serde(rename = "podIPs", deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<PodIp>,
}

/// An address of a [`Pod`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PodIp {
    /// IP address.
    pub ip: String,
}

/// A Deployment (`apps/v1`): a set of identical Pods. Used by the demo only, like [`Pod`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Deployment {
    /// Name, namespace and labels.
    pub metadata: ObjectMeta,
    /// Desired state.
    #[serde(deserialize_with = "null_default")]
    pub spec: DeploymentSpec,
}

/// `spec` of a [`Deployment`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct DeploymentSpec {
    /// Number of Pods; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Selector of the Deployment's Pods.
    #[serde(deserialize_with = "null_default")]
    pub selector: LabelSelector,
    /// Template of the Pods.
    #[serde(deserialize_with = "null_default")]
    pub template: PodTemplate,
}

/// A selector of objects by label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels that an object must have.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

/// The template of a [`Deployment`]'s Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    /// Labels.
    #[serde(deserialize_with = "null_default")]
    pub metadata: ObjectMeta,
    /// Containers and node.
    #[serde(deserialize_with = "null_default")]
    pub spec: PodSpec,
}
