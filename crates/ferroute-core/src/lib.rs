//! Domain types of a Kubernetes service proxy: Services and endpoints as rules need them.
//!
//! ```text
//!   API objects ──► parse ──► Tracker ──► ServiceTable ──► EndpointSets ──► planners of the modes
//!                              │  changes   desired state   endpoints of a
//!                              │            of a family     service port
//!                              └──► Changes ──► StaleConntrackEntries
//! ```
//!
//! [`parse`] validates API objects, [`Tracker`] computes the desired state and what changed in it, and
//! [`ServiceTable::endpoint_sets`] applies traffic policies and topology hints. [`Dataplane`] is the interface of the
//! proxy modes, each of which turns tables into kernel rules.
//!
//! All functions are pure functions of their input: no I/O, no clock, no async, no randomness, no rule syntax.
//!
//! # Example
//!
//! ```
//! use ferroute_core::{IpFamily, NodeView, Tracker, tracker::TrackerEvent};
//! # use ferroute_core::testing::{pod, service as service_builder, slice as slice_builder};
//! # let service = service_builder("shop/web").cluster_ip("10.96.0.1").port("http", 80).build();
//! # let slice = slice_builder("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2").on("node-1")).build();
//!
//! let mut tracker = Tracker::new(NodeView { name: "node-1".into(), ..NodeView::default() });
//! tracker.apply(TrackerEvent::from_service(&service)?);
//! tracker.apply(TrackerEvent::from_slice(&slice, "node-1")?);
//!
//! let changes = tracker.update(IpFamily::V4);
//! assert_eq!(changes.services.iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["shop/web"]);
//!
//! let table = tracker.table(IpFamily::V4);
//! for (name, entry) in &table.entries {
//!     assert_eq!(name.to_string(), "shop/web:http");
//!     for (kind, frontend) in entry.service.frontends(name.protocol) {
//!         assert_eq!(format!("{kind} {frontend}"), "cluster IP 10.96.0.1:80/tcp");
//!     }
//!     assert_eq!(table.endpoint_sets(entry).cluster[0].to_string(), "10.244.0.2:8080");
//! }
//! # Ok::<(), ferroute_core::parse::InvalidObject>(())
//! ```

mod backoff;
mod balancing;
mod claim;
mod connection_limits;
mod dataplane;
mod digest;
mod eligibility;
mod endpoint;
mod endpoint_sets;
mod endpoints;
mod error_chain;
mod escape;
mod family;
mod family_settings;
mod file_format;
mod forwarding;
mod frontend;
mod heartbeat;
mod host_state;
mod interface_pattern;
pub mod limits;
mod local_traffic;
mod mode_traits;
mod name;
mod node;
mod node_ports;
mod parallel;
pub mod parse;
mod progress;
mod reservation;
pub mod rfc3339;
mod service_port;
mod settings;
mod stale_conntrack;
mod style;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod throttle;
mod token_bucket;
pub mod tracker;
mod unsupported;

pub use backoff::Backoff;
pub use balancing::{Balancing, BalancingDefaults, Ejection, Method, Share, TableSize};
pub use claim::{Claim, CreationTime, FrontendOwner, LostFrontend, LostFrontends};
pub use connection_limits::{ConnectionLimits, ConnectionRate, LimitKind, OverLimit};
pub use dataplane::{Dataplane, DataplaneError, Rejection, SyncReport, TableReport};
pub use digest::{InvalidDigest, RulesDigest};
pub use eligibility::Eligibility;
pub use endpoint::{Endpoint, Hints};
pub use endpoint_sets::{EndpointEligibility, EndpointSets};
pub use endpoints::Endpoints;
pub use error_chain::error_chain;
pub use escape::{Escaped, EscapedLines};
pub use family::{IpFamily, Protocol, UnknownProtocol, networks};
pub use family_settings::FamilySettings;
pub use file_format::FileFormat;
pub use forwarding::{Client, Connection, Outcome, PortForwarding, Refusal, Route, Routes, SourceAddress, forwarding};
pub use frontend::{Frontend, FrontendKind};
pub use heartbeat::Heartbeat;
pub use host_state::{HostState, NfacctCounters};
pub use interface_pattern::{InterfacePattern, InvalidInterfacePattern};
pub use local_traffic::{LocalTraffic, LocalTrafficDetector};
pub use mode_traits::{
    ConfiguredMode, Hairpin, ModeTrait, ModeTraits, NodePortsByDefault, Sources, Unserved, WithoutLocalEndpoints,
};
pub use name::{NamespacedName, ServicePortName};
pub use node::NodeView;
pub use node_ports::{DEFAULT_NODE_PORTS, NodePortAddresses, NodePortMatch};
pub use parallel::map_parts;
pub use progress::Progress;
pub use reservation::{OtherHosts, Reservation};
pub use service_port::{Affinity, ServicePort, SourceRangesScope, TrafficPolicy};
pub use settings::{FlowtableSettings, ProxySettings};
pub use stale_conntrack::StaleConntrackEntries;
pub use style::Style;
pub use table::{Changes, ServicePortEntry, ServiceTable};
pub use throttle::Throttle;
pub use token_bucket::TokenBucket;
pub use tracker::Tracker;
pub use unsupported::UnsupportedSetting;
