//! The few fields of Kubernetes objects that a service proxy reads, and how to read them from text.
//!
//! The objects are plain serde types in the API's own JSON shape, each with only the fields that decide where traffic
//! goes; everything else in an object is skipped while decoding. Their values are not checked beyond their JSON type:
//! turning text into addresses and ports is the next room's work (`ferroute-core`), because only there is known what a
//! bad value costs. What is *not* here: the kernel, rules, I/O.

mod endpoints;
pub mod labels;
pub mod manifest;
mod meta;
mod mirror;
mod node;
mod object;
mod service;
mod service_cidr;
mod slice;
mod workload;

pub use endpoints::{EndpointAddress, EndpointSubset, Endpoints};
pub use meta::ObjectMeta;
pub use mirror::mirror;
pub use node::{Node, NodeAddress, NodeSpec, NodeStatus, Taint};
pub use object::{Kind, Object};
pub use service::{
    ClientIpConfig, LoadBalancerIngress, LoadBalancerStatus, Service, ServicePort, ServiceSpec, ServiceStatus,
    SessionAffinityConfig,
};
pub use service_cidr::{ServiceCidr, ServiceCidrSpec};
pub use slice::{EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, HintRef, SliceEndpoint, TargetRef};
pub use workload::{
    Container, ContainerPort, Deployment, DeploymentSpec, LabelSelector, Pod, PodIp, PodSpec, PodStatus, PodTemplate,
};
