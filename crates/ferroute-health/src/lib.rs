//! What load balancers and the kubelet ask a service proxy, with kube-proxy 1.36's answers.
//!
//! ```text
//!   sync loop ──► Health (ProxyHealth + clock) ──► /healthz, /livez          on the health-check address
//!             └─► HealthCheckPorts ──────────────► any path, one per Service  on its health-check node port
//! ```
//!
//! What to answer is decided by pure values ([`ProxyHealth`], [`Report`], [`HealthCheck`]) that get the time as an
//! argument. Around them is a small HTTP/1.1 server on a thread of its own ([`HttpThread`]), so that answers come while
//! a sync is busy, and which any other handler can use too ([`Handler`]).
//!
//! What is *not* here: deciding when a sync is needed, the Node's taints, metrics.

mod answer;
mod health;
mod healthz;
mod http;
mod listen;
mod service_ports;
mod state;
mod thread;
mod time;

pub use answer::{Request, Response, json, not_found, text};
pub use health::Health;
pub use healthz::HealthzHandler;
pub use http::{Handler, Limits};
pub use listen::{ListenError, ListenScope, listen};
pub use service_ports::{HealthCheck, HealthCheckPorts, PortError};
pub use state::{FamilyReport, ProxyHealth, Report};
pub use thread::{HttpThread, Server};
pub use time::{Clock, Moment, rfc3339};
