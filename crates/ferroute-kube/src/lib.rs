//! The API server as a source of events: Services, endpoint slices, this node's Node and, where the server supports them,
//! ServiceCIDRs.
//!
//! ```text
//!   kubeconfig, ──► Access ──► ApiClient ──► Splitter ──► decode ──► ObjectState ──► batches of events
//!   service account           (requests)    (one object   (own       (names and
//!                                             at a time)    types)     versions)
//! ```
//!
//! A reflector for each kind lists and watches, and lists again only if necessary. Responses are split into objects as
//! they arrive, in protobuf or JSON, and each object becomes an event at once, so that no list is ever held in memory;
//! only names and versions stay. Streaming lists are used if the server supports them, otherwise lists in pages.
//!
//! `kube-client` provides kubeconfigs, credentials and TLS. In addition, an [`ApiWriter`] writes Events and removes a
//! taint from the Node. A [`Cluster`] runs programs in pods with the rights of a user, as `kubectl exec` does. This
//! crate does not interpret objects, nor decide when to write.
//!
//! # Example
//!
//! ```
//! # #[cfg(feature = "testing")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ferroute_kube::{ApiServer, testing::FakeApiServer};
//! use ferroute_source::{Event, Resource};
//! use serde_json::json;
//!
//! let fake = FakeApiServer::start().await;
//! fake.apply(Resource::Services, json!({"metadata": {"namespace": "shop", "name": "web"}}));
//!
//! let server = ApiServer::new(&Default::default(), Some(&fake.url()), "node-1").await?;
//! let (sender, mut batches) = tokio::sync::mpsc::channel(16);
//! tokio::spawn(server.follow(sender));
//! loop {
//!     let batch = batches.recv().await.ok_or("the source has ended")?;
//!     if batch.iter().any(|event| matches!(event, Event::ServiceApplied(_))) {
//!         return Ok(());
//!     }
//! }
//! # }
//! # #[cfg(not(feature = "testing"))]
//! # fn main() {}
//! ```

mod access;
mod api_client;
mod api_server;
mod authorization;
mod body;
mod client_certificate;
mod cluster;
mod decode;
mod error;
mod exec;
mod http_client;
mod plugin;
mod protobuf;
mod proxy;
mod rate_limiter;
mod reflector;
mod resource;
mod response;
mod server_certificate;
mod split;
#[cfg(feature = "testing")]
pub mod testing;
mod writer;

pub use access::{AccessError, UserAccess};
pub use api_client::{RequestCounter, RequestResult};
pub use api_server::{ApiServer, ServerTimeError, Timing};
pub use cluster::{Cluster, ClusterError};
pub use error::{ApiError, Cause};
pub use exec::{ExecLimits, ExecOutput, PodContainer};
pub use resource::Permission;
pub use writer::{ApiWriter, EventHandle, EventType, KubeEvent, ObjectReference, WriteError};
