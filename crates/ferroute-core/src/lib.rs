//! Services and endpoints as a proxy sees them.
//!
//! ```text
//!   api objects ──► Tracker ──► ServiceTable ──► EndpointSets (which endpoints a frontend uses) ──► planners
//!                    (what        (what should
//!                     changed)     be true)
//! ```
//!
//! Everything here is a pure function of its input: no I/O, no clock, no async, no randomness, no rule syntax.

mod backoff;
mod dataplane;
mod digest;
mod endpoint;
mod family;
mod frontend;
mod host_state;
mod local_traffic;
mod name;
mod node;
mod node_ports;
pub mod parse;
mod progress;
pub mod rfc3339;
mod endpoint_sets;
mod service_port;
mod settings;
mod stale_conntrack;
mod style;
mod eligibility;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod token_bucket;
pub mod tracker;

pub use backoff::Backoff;
pub use dataplane::{Dataplane, DataplaneError, SyncReport, TableReport};
pub use digest::{InvalidDigest, RulesDigest};
pub use endpoint::{Endpoint, Hints};
pub use family::{IpFamily, Protocol, UnknownProtocol};
pub use frontend::{Frontend, FrontendKind};
pub use host_state::{HostState, NfacctCounters};
pub use local_traffic::{LocalTraffic, LocalTrafficDetector};
pub use name::{NamespacedName, ServicePortName};
pub use node::NodeView;
pub use node_ports::{NodePortAddresses, NodePortMatch};
pub use progress::Progress;
pub use endpoint_sets::EndpointEligibility;
pub use service_port::{Affinity, ServicePort, TrafficPolicy};
pub use settings::ProxySettings;
pub use stale_conntrack::StaleConntrackEntries;
pub use style::Style;
pub use eligibility::Eligibility;
pub use table::{Changes, ServicePortEntry, EndpointSets, ServiceTable};
pub use token_bucket::TokenBucket;
pub use tracker::Tracker;
