//! A small cluster of network namespaces on one machine: a node with a bridge and pods, a second node, a client outside.
//!
//! ```text
//!   command ──► session ──leash──► keeper ──► net (namespaces, wires)
//!      │                             │  └───► pods, proxies (processes of this same program)
//!      └──► story ──► connections    └── plan (pure: YAML ──► pods, Services, slices, Nodes)
//! ```
//!
//! Whoever asks for a cluster starts a keeper and holds it by a leash; what the keeper made goes with it. The plan is
//! pure and of use without a cluster too, to see what would be. What is *not* here: rules. The proxies on the nodes are
//! `ferroute run`, fed with manifests like any other.

mod command;
mod http;
mod instance;
mod keeper;
pub mod layout;
mod net;
mod overview;
pub mod plan;
mod pod;
mod process;
mod session;
mod state;
mod story;
mod text;

pub use command::{DemoArgs, run};
pub use story::{FlowSpec, PathTeller};
