//! What operators look at: metrics by kube-proxy's names, receipts, and where the time of slow changes went.
//!
//! ```text
//!   sync loop ──► Metrics ──► text for Prometheus                       /metrics
//!             └─► History ──► Receipts: which version is in force        /services
//!                         └─► SlowChanges: the slowest of the last hour  /changes
//! ```
//!
//! Everything here is told the time and asks nobody. Memory is bounded: a number per metric and label, one small entry
//! per Service, a few dozen slow changes.
//!
//! What is *not* here: HTTP, reading the kernel's or the process's numbers, deciding when to sync.

mod buckets;
mod connections;
mod history;
mod make;
mod metrics;
mod own;
mod platform;
mod receipts;
mod rules;
mod slow;

pub use connections::Connections;
pub use history::{Finished, History, InForce, Now, ObjectChange, Subject};
pub use metrics::{Engine, Metrics, Probe, Sampled};
pub use own::Progress;
pub use platform::{ApiRequest, Build, Process};
pub use receipts::{Filter, ReceiptsPage};
pub use rules::{Failed, Failure, Synced};
pub use slow::ChangesPage;
