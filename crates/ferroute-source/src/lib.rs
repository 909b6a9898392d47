//! Sources of Services, EndpointSlices, Nodes and ServiceCIDRs.
//!
//! Every source reports its objects and their changes as [`Event`]s, whose documentation describes the protocol. This
//! crate contains the source that reads manifests from disk, [`Manifests`]; the API server's is in `ferroute-kube`.
//! Neither validates objects beyond what their file or server requires, nor decides when changes are applied.
//!
//! # Examples
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! use ferroute_source::{Event, Resource, read_once};
//!
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path();
//! std::fs::write(
//!     directory.join("web.yaml"),
//!     "
//! apiVersion: v1
//! kind: Service
//! metadata: {name: web}
//! spec: {clusterIP: 10.96.0.80, ports: [{port: 80}]}
//! ",
//! )?;
//! let events = read_once(directory)?;
//! assert!(matches!(&events[0], Event::ServiceApplied(service) if service.metadata.name == "web"));
//! assert!(matches!(events[1], Event::Synced(Resource::Services)));
//! # Ok(())
//! # }
//! ```

mod events;
mod manifests;
mod problem;

pub use events::{Event, Resource};
pub use manifests::{Input, Manifests, WatchError, manifest_files, read_once, read_once_where};
pub use problem::{IgnoredKind, NotReadReason, Problem};
