//! `k8s.io.api.discovery.v1`.

use ferroute_api as api;

use super::{convert_all, meta::ObjectMeta};

/// An endpoint slice.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EndpointSlice {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, repeated, tag = "2")]
    endpoints: Vec<Endpoint>,
    #[prost(message, repeated, tag = "3")]
    ports: Vec<EndpointPort>,
    #[prost(string, tag = "4")]
    address_type: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Endpoint {
    #[prost(string, repeated, tag = "1")]
    addresses: Vec<String>,
    #[prost(message, optional, tag = "2")]
    conditions: Option<EndpointConditions>,
    #[prost(message, optional, tag = "4")]
    target_ref: Option<ObjectReference>,
    #[prost(string, optional, tag = "6")]
    node_name: Option<String>,
    #[prost(string, optional, tag = "7")]
    zone: Option<String>,
    #[prost(message, optional, tag = "8")]
    hints: Option<EndpointHints>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct EndpointConditions {
    #[prost(bool, optional, tag = "1")]
    ready: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    serving: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    terminating: Option<bool>,
}

/// `k8s.io.api.core.v1.ObjectReference`.
#[derive(Clone, PartialEq, prost::Message)]
struct ObjectReference {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EndpointHints {
    #[prost(message, repeated, tag = "1")]
    for_zones: Vec<Named>,
    #[prost(message, repeated, tag = "2")]
    for_nodes: Vec<Named>,
}

/// `ForZone` and `ForNode`, which have the same fields.
#[derive(Clone, PartialEq, prost::Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EndpointPort {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    protocol: Option<String>,
    #[prost(int32, optional, tag = "3")]
    port: Option<i32>,
}

impl From<EndpointSlice> for api::EndpointSlice {
    fn from(slice: EndpointSlice) -> Self {
        Self {
            metadata: slice.metadata.unwrap_or_default().into(),
            address_type: slice.address_type,
            ports: convert_all(slice.ports),
            endpoints: convert_all(slice.endpoints),
        }
    }
}

impl From<EndpointPort> for api::EndpointPort {
    fn from(port: EndpointPort) -> Self {
        Self { name: port.name.unwrap_or_default(), protocol: port.protocol, port: port.port }
    }
}

impl From<Endpoint> for api::SliceEndpoint {
    fn from(endpoint: Endpoint) -> Self {
        let EndpointConditions { ready, serving, terminating } = endpoint.conditions.unwrap_or_default();
        let target = |target: ObjectReference| api::TargetRef { kind: target.kind, name: target.name };
        Self {
            addresses: endpoint.addresses,
            conditions: api::EndpointConditions { ready, serving, terminating },
            node_name: endpoint.node_name,
            zone: endpoint.zone,
            hints: endpoint.hints.map(Into::into),
            target_ref: endpoint.target_ref.map(target),
        }
    }
}

impl From<EndpointHints> for api::EndpointHints {
    fn from(hints: EndpointHints) -> Self {
        Self { for_zones: convert_all(hints.for_zones), for_nodes: convert_all(hints.for_nodes) }
    }
}

impl From<Named> for api::HintRef {
    fn from(named: Named) -> Self {
        Self { name: named.name }
    }
}
