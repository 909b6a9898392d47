//! What is wrong with a host for a service proxy, or may become wrong.
//!
//! ```text
//!   host, kernel, API server ──► Facts ──► examine ──► Examination ──► text or JSON
//!      (looked at elsewhere)                (checks)
//! ```
//!
//! Each check is a pure function of [`Facts`]. What could not be looked at is a fact too, so a check that cannot tell says
//! so and why, and never that all is well. What is *not* here: looking at anything.

mod checks;
mod examination;
mod facts;
mod host;
mod print;

pub use examination::{Examination, Finding, Severity, Unknown, examine};
pub use facts::{
    BackendRules, Clock, Conntrack, EndpointProbe, Facts, FamilyFacts, Listener, Looked, NodePort, Process, Reached,
};
pub use host::{facts, has_api_server};
pub use print::write_examination_into;
