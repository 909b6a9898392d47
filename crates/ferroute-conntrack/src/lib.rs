//! Reads the kernel's connection table, and removes flows from it, because they point at endpoints that are gone.
//!
//! ```text
//!   list (one family, one protocol) ──► Flow ──► predicate ──► delete by tuple and id, many at once
//! ```
//!
//! Which flows are stale is said by the caller. The table is read as a stream, so memory does not grow with it, and flows
//! are deleted while it is being read. The kernel's own «delete by filter» is not used: kernels that do not know the
//! filter delete everything.

mod flow;
mod sweep;

pub use flow::Flow;
pub use sweep::{Error, Removed, list_flows, remove_flows};
