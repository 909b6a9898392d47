use serde::{Deserialize, Serialize};

use crate::{ObjectMeta, meta::null_default};

/// A Node (`v1`); a proxy reads only its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// Pod networks and taints.
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
    /// First pod network.
    #[serde(rename = "podCIDR", skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<String>,
    /// All pod networks, at most one per IP family.
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
    /// Its key.
    pub key: String,
}

/// `status` of a [`Node`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Addresses in the order that the node's provider gave them.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NodeAddress>,
}

/// An address of a [`Node`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `Hostname` and others; the first two hold IP addresses.
    #[serde(rename = "type")]
    pub type_: String,
    /// The address.
    pub address: String,
}
