use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ObjectMeta, meta::null_default};

/// A Pod (`v1`). Proxies do not read pods; the demo does, to run them and to make slices, since it has no controllers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, namespace and labels.
    pub metadata: ObjectMeta,
    /// What runs in it, and where.
    #[serde(deserialize_with = "null_default")]
    pub spec: PodSpec,
    /// Its addresses.
    #[serde(deserialize_with = "null_default")]
    pub status: PodStatus,
}

/// `spec` of a [`Pod`], and of the pods that a [`Deployment`] makes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The programs in the pod.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Container>,
    /// The node to run on; left out where a scheduler is to choose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Uses the node's own network and addresses.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
}

/// One program of a [`Pod`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Container {
    /// Name within the pod.
    pub name: String,
    /// What it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The ports that it listens on, as far as it says so.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ContainerPort>,
}

/// A port of a [`Container`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Name that a Service's `targetPort` can use.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The port number.
    pub container_port: i32,
    /// `TCP` (also when left out), `UDP` or `SCTP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// `status` of a [`Pod`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    /// Its first address.
    #[serde(rename = "podIP", skip_serializing_if = "Option::is_none")]
    pub pod_ip: Option<String>,
    /// All its addresses, at most one per IP family.
    #[serde(rename = "podIPs", deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<PodIp>,
}

/// An address of a [`Pod`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PodIp {
    /// The address.
    pub ip: String,
}

/// A Deployment (`apps/v1`): keeps a number of like pods running. Read by the demo only, like [`Pod`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Deployment {
    /// Name, namespace and labels.
    pub metadata: ObjectMeta,
    /// What is asked for.
    #[serde(deserialize_with = "null_default")]
    pub spec: DeploymentSpec,
}

/// `spec` of a [`Deployment`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct DeploymentSpec {
    /// How many pods; 1 when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Which pods count as its own.
    #[serde(deserialize_with = "null_default")]
    pub selector: LabelSelector,
    /// What the pods look like.
    #[serde(deserialize_with = "null_default")]
    pub template: PodTemplate,
}

/// Which objects a [`Deployment`] means.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Those that have all of these labels.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

/// The pods that a [`Deployment`] makes; they get names of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    /// Labels.
    #[serde(deserialize_with = "null_default")]
    pub metadata: ObjectMeta,
    /// What runs in them.
    #[serde(deserialize_with = "null_default")]
    pub spec: PodSpec,
}
