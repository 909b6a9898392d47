//! Builders and generators for tests and benches, of this crate and of others (feature `testing`).
//!
//! There are three ways to a value, from the shortest to the most thorough.
//!
//! **Plain values**, where a test is about this crate's types alone. Each function gives the simplest value of its
//! kind; what a test is about is then said with struct update:
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
//! **Clusters of API objects**, which go through parsing and the tracker as in the real program. Both families' tables
//! come out of one cluster:
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
//! **Generated clusters and edits of them** for property tests; [`arbitrary`] tells what they hold:
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
//! All of it panics on values that cannot be parsed: such a test is wrong. What is *not* here: bad objects (take a good
//! one and spoil the field), I/O, the kernel.

pub mod arbitrary;
mod cluster;
mod objects;
mod values;

pub use cluster::{Cluster, Edit};
pub use objects::{PodBuilder, ServiceBuilder, SliceBuilder, pod, service, slice};
pub use values::{endpoint, entry, node, port_name, namespaced_name, service_port, table, udp_port_name};
