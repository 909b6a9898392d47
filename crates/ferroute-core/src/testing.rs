//! Builders and generators for tests and benches, of this crate and of others (feature `testing`).
//!
//! **Plain values** are for tests of this crate's types. Each function returns the simplest value of its type; tests
//! change fields with struct update syntax:
//!
//! ```
//! use ferroute_core::{Endpoint, IpFamily, ServicePort, TrafficPolicy, testing::*};
//!
//! let entry = entry(
//!     ServicePort { external_policy: TrafficPolicy::Local, ..service_port("10.96.0.1:80") },
//!     [endpoint("10.244.0.2:8080"), Endpoint { local: true, ..endpoint("10.244.0.3:8080") }],
//! );
//! let table = table(IpFamily::V4, node("node-1"), [(port_name("shop/web:http"), entry)]);
//! assert_eq!(table.entries.len(), 1);
//! ```
//!
//! **Clusters of API objects** pass through the parser and the tracker as in the proxy. One cluster results in the tables
//! of both families:
//!
//! ```
//! use ferroute_core::{IpFamily, testing::*};
//!
//! let cluster = Cluster::new("node-1")
//!     .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080).external_local())
//!     .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2").on("node-1")).pod("10.244.1.2"));
//! assert_eq!(cluster.table(IpFamily::V4).entries.len(), 1);
//! assert_eq!(cluster.table(IpFamily::V6).entries.len(), 0);
//! let large = Cluster::uniform(1_000, 10);
//! # assert_eq!(large.services.len(), 1_000);
//! ```
//!
//! **Generated clusters and edits** are for property tests; see [`arbitrary`]:
//!
//! ```
//! use ferroute_core::{IpFamily, testing::arbitrary};
//! use proptest::prelude::*;
//!
//! proptest! {
//!     # #![proptest_config(ProptestConfig::with_cases(8))]
//!     fn holds(mut cluster in arbitrary::cluster(), edits in arbitrary::edits(0..12)) {
//!         let mut tracker = cluster.tracker();
//!         for edit in &edits {
//!             cluster.apply(edit);
//!             edit.apply_to(&mut tracker);
//!         }
//!         tracker.update(IpFamily::V4);
//!         prop_assert_eq!(tracker.table(IpFamily::V4), &cluster.table(IpFamily::V4));
//!     }
//! }
//! # holds();
//! ```
//!
//! All functions panic on values that cannot be parsed. This module has no invalid objects (change a field of a valid
//! one), no I/O and no access to the kernel.

pub mod arbitrary;
mod cluster;
mod hostile;
mod objects;
mod values;

pub use cluster::{Cluster, Edit};
pub use hostile::{HOSTILE, assert_visible};
pub use objects::{PodBuilder, ServiceBuilder, SliceBuilder, pod, service, slice};
pub use values::{
    endpoint, entry, namespaced_name, node, port_name, replace_endpoint, service_port, table, udp_port_name,
};
