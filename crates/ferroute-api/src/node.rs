use serde::{Deserialize, Serialize};

use crate::{ObjectMeta, meta::null_default};

/// A Node (`v1`). A proxy reads only the Node that it runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// Pod CIDRs and taints.
    #[serde(deserialize_with = "null_default")]
    pub spec: NodeSpec,
    /// Addresses.
    #[serde(deserialize_with = "null_default")]
    pub status: NodeStatus,
}

/// `spec` of a [`Node`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// First pod CIDR.
    #[serde(rename = "podCIDR", skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<String>,
    /// All pod CIDRs, at most one per IP family.
    #[serde(rename = "podCIDRs", deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub pod_cidrs: Vec<String>,
    /// Taints; see [`crate::labels::TO_BE_DELETED_TAINT`].
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
}

/// A taint of a [`Node`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Key.
    pub key: String,
}

/// `status` of a [`Node`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Addresses in the order in which the cloud provider or kubelet set them.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NodeAddress>,
}

/// An address of a [`Node`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `Hostname` and others; only the first two contain IP addresses.
    #[serde(rename = "type")]
    pub type_: String,
    /// The address.
    pub address: String,
}
