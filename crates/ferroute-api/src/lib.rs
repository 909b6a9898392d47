//! The subset of Kubernetes API objects that a service proxy reads, and a reader for manifests in YAML and JSON.
//!
//! Objects are plain serde types in the API's JSON form. They contain only the fields that affect where traffic goes;
//! all other fields are skipped while decoding. Decoding checks JSON types and nothing else: `ferroute-core` parses
//! addresses, ports and other text, because the effect of an invalid value depends on its use.
//!
//! [`manifest`] reads text. [`mirror`] converts [`Endpoints`] to [`EndpointSlice`]s.
//!
//! This crate contains no I/O, no rules and no kernel interfaces.
//!
//! # Examples
//!
//! ```
//! use ferroute_api::{Object, manifest::{self, Parsed}};
//!
//! let text = "
//! apiVersion: v1
//! kind: Service
//! metadata: {name: web, namespace: shop}
//! spec: {clusterIP: 10.96.0.80, ports: [{port: http}]}
//! ---
//! apiVersion: v1
//! kind: Node
//! metadata: {name: node-1}
//! ";
//! let [Err(error), Ok(Parsed::Object(node))] = &manifest::read(text)[..] else { panic!() };
//! assert_eq!(error.to_string(), "document 1, line 5: Service shop/web: spec.ports[0].port");
//! assert_eq!(error.cause.to_string(), "got string \"http\", want a number");
//! assert!(matches!(&**node, Object::Node(node) if node.metadata.name == "node-1"));
//! ```

mod endpoints;
pub mod labels;
pub mod manifest;
mod meta;
mod mirror;
mod node;
mod object;
mod service;
pub mod spelling;
mod workload;

pub use endpoints::{
    EndpointAddress, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, EndpointSubset, Endpoints,
    HintRef, SliceEndpoint, TargetRef,
};
pub use meta::ObjectMeta;
pub use mirror::{MirrorSkipReason, mirror};
pub use node::{Node, NodeAddress, NodeSpec, NodeStatus, Taint};
pub use object::{Kind, Object};
pub use service::{
    ClientIpConfig, LoadBalancerIngress, LoadBalancerStatus, Service, ServiceCidr, ServiceCidrSpec, ServicePort,
    ServiceSpec, ServiceStatus, SessionAffinityConfig,
};
pub use workload::{
    Container, ContainerPort, Deployment, DeploymentSpec, LabelSelector, Pod, PodIp, PodSpec, PodStatus, PodTemplate,
};
