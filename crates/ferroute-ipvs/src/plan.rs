//! The planner: a pure function from a service table to kube-proxy 1.36's virtual servers, ipsets and rules.
//!
//! ```text
//!   ServiceTable ──► PortObjects (per service port) ──► IpvsPlan: virtual servers, set entries, addresses, rules
//!   Changes ───────► PortObjects, old and new ────────►   │
//!                                                       ▼
//!                                                     Delta: the objects that differ
//! ```
//!
//! Set entries that only one virtual server can need are not stored but derived from it. Other entries, and the
//! addresses of the dummy device, have a reference count. This module does not access the kernel and does not write a
//! [`Delta`] to it.

mod chains;
mod context;
mod ipvs_plan;
mod port_objects;
mod scheduler;
mod server;
mod sets;
pub(crate) mod text;

pub use context::{DEFAULT_SCHEDULER, IpvsContext, IpvsSettings};
pub use ipvs_plan::{Delta, IpvsPlan};
pub use scheduler::Scheduler;
pub(crate) use server::FLAG_HASHED;
pub use server::{
    FLAG_PERSISTENT, FLAG_SOURCE_HASH, RealServer, RealServers, Server, ServerConfig, ServerKey, ServerSettings,
};
pub use sets::{Entry, SetKind, SetType};
