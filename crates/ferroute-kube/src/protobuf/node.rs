//! Nodes of `k8s.io.api.core.v1`.

use ferroute_api as api;

use super::{convert_all, meta::ObjectMeta, non_empty};

/// A Node.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Node {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<NodeSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<NodeStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NodeSpec {
    #[prost(string, tag = "1")]
    pod_cidr: String,
    #[prost(message, repeated, tag = "5")]
    taints: Vec<Taint>,
    #[prost(string, repeated, tag = "7")]
    pod_cidrs: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Taint {
    #[prost(string, tag = "1")]
    key: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NodeStatus {
    #[prost(message, repeated, tag = "5")]
    addresses: Vec<NodeAddress>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NodeAddress {
    #[prost(string, tag = "1")]
    r#type: String,
    #[prost(string, tag = "2")]
    address: String,
}

impl From<Node> for api::Node {
    fn from(node: Node) -> Self {
        let spec = node.spec.unwrap_or_default();
        Self {
            metadata: node.metadata.unwrap_or_default().into(),
            spec: api::NodeSpec {
                pod_cidr: non_empty(spec.pod_cidr),
                pod_cidrs: spec.pod_cidrs,
                taints: convert_all(spec.taints),
            },
            status: api::NodeStatus { addresses: convert_all(node.status.unwrap_or_default().addresses) },
        }
    }
}

impl From<Taint> for api::Taint {
    fn from(taint: Taint) -> Self {
        Self { key: taint.key }
    }
}

impl From<NodeAddress> for api::NodeAddress {
    fn from(address: NodeAddress) -> Self {
        Self { type_: address.r#type, address: address.address }
    }
}
