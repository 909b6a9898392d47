//! Services and endpoints as a proxy sees them.
//!
//! ```text
//!   api objects ──► Tracker ──► ServiceTable ──► Routes (which endpoints a frontend uses) ──► planners
//!                    (what        (what should
//!                     changed)     be true)
//! ```
//!
//! Everything here is a pure function of its input: no I/O, no clock, no async, no randomness, no rule syntax.

mod dataplane;
mod digest;
mod endpoint;
mod family;
mod local_traffic;
mod name;
mod node;
mod node_ports;
pub mod parse;
mod progress;
mod routes;
mod service_port;
mod settings;
mod stale_flows;
mod standing;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tracker;

pub use dataplane::{Dataplane, DataplaneError, SyncReport, TableReport};
pub use digest::{InvalidDigest, RulesDigest};
pub use endpoint::{Endpoint, Hints};
pub use family::{IpFamily, Protocol, UnknownProtocol};
pub use local_traffic::{LocalTraffic, LocalTrafficDetector};
pub use name::{ServiceName, ServicePortName};
pub use node::NodeView;
pub use node_ports::{NodePortAddresses, NodePortMatch};
pub use progress::Progress;
pub use routes::Standings;
pub use service_port::{Affinity, ServicePort, TrafficPolicy};
pub use settings::ProxySettings;
pub use stale_flows::StaleFlows;
pub use standing::Standing;
pub use table::{Changes, Entry, Routes, ServiceTable};
pub use tracker::Tracker;
