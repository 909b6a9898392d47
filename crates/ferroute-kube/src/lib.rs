//! The API server as a source: Services, endpoint slices, this node's Node and, where the server has them, ServiceCIDRs,
//! as they are and as they change.
//!
//! ```text
//!   kubeconfig, ──► Access ──► Server ──► Splitter ──► decode ──► Known ──► batches of events
//!   service account         (one request  (objects    (our own   (what is
//!                            at a time)    one by one)  types)     news)
//! ```
//!
//! One follower for each kind lists and then watches, and lists again only when it must. What comes is cut
//! into objects while it comes in and told object by object, so that no list is ever held in memory, here or as text;
//! what stays are names and versions. That holds for both forms that servers are read in, protobuf and JSON. Streaming lists are used where the server has them, lists in pages elsewhere.
//!
//! The library `kube-client` does the rest: kubeconfig, credentials, TLS. Beside that an [`ApiWriter`] takes a taint from
//! the Node and writes Events. What is *not* here: what objects mean, and when to write.

mod access;
mod answer;
mod api_server;
mod backoff;
mod client;
mod clock;
mod complaints;
mod decode;
mod follower;
mod kinds;
mod known;
mod ledger;
mod outlet;
mod permission;
mod protobuf;
mod proxy;
mod requests;
mod server;
mod split;
#[cfg(feature = "testing")]
pub mod testing;
mod throttle;
mod timing;
mod trouble;
mod writer;

pub use access::AccessError;
pub use api_server::ApiServer;
pub use clock::ClockError;
pub use permission::Permission;
pub use requests::{RequestCounter, RequestEnd};
pub use timing::Timing;
pub use trouble::{Cause, Trouble};
pub use writer::{ApiWriter, Regarding, Report, Reported, Severity, WriteError};
