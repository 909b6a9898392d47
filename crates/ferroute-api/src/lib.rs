//! The few fields of Kubernetes objects that a service proxy reads.
//!
//! These are plain serde types in the API's own JSON shape, each with only the fields that decide where traffic goes;
//! everything else in an object is skipped while decoding. Nothing here is checked beyond its JSON type: turning text
//! into addresses and ports is the next room's work (`ferroute-core`), because only there is known what a bad value
//! costs. What is *not* here: the kernel, rules, I/O.

pub mod labels;
mod meta;
mod node;
mod service;
mod slice;

pub use meta::ObjectMeta;
pub use node::{Node, NodeAddress, NodeSpec, NodeStatus, Taint};
pub use service::{
    ClientIpConfig, LoadBalancerIngress, LoadBalancerStatus, Service, ServicePort, ServiceSpec, ServiceStatus,
    SessionAffinityConfig,
};
pub use slice::{EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, HintRef, SliceEndpoint};
