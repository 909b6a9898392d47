//! A small cluster of network namespaces on one machine: two nodes with pods behind a bridge, and an external client.
//!
//! ```text
//!   command ──► session ──stdin──► supervisor ──► net (namespaces, veth pairs)
//!      │                               │   └────► pods, proxies (processes of the same program)
//!      └──► tour ──► connections       └── plan (pure: YAML ──► pods, Services, EndpointSlices, Nodes)
//! ```
//!
//! A command that needs a cluster starts a supervisor process and holds the other end of its standard input. When this
//! end closes, the supervisor removes all objects that it created. The plan is a pure function and can be used
//! separately.
//!
//! This crate does not use rules. The proxies on the nodes are `ferroute run --manifests`, and the caller of [`run`]
//! provides the description of a connection's path through the rules.
//!
//! # Example
//!
//! ```
//! use ferroute_demo::plan::{ClusterPlan, Objects};
//!
//! let objects = Objects::parse("{apiVersion: v1, kind: Pod, metadata: {name: web}}")?;
//! let plan = ClusterPlan::new(&objects, None, false)?;
//! assert_eq!(plan.pods[0].addresses.to_string(), "172.17.0.4");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod cluster;
mod command;
mod http;
mod instance;
pub mod layout;
mod net;
mod overview;
pub mod plan;
mod pod;
mod process;
mod session;
mod state;
mod supervisor;
mod text;
mod tour;

pub use command::{DEFAULT_LISTEN, DemoArgs, PageServer, run};
pub use tour::{Connection, TracePath};
