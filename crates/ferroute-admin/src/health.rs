//! Health of the proxy and of single Services: `/healthz`, `/livez` and health-check node ports.
//!
//! ```text
//!   sync loop ──► Health ──► HealthzHandler ────► /healthz, /livez    on the health-check address
//!                      └───► HealthCheckPorts ──► any path, per Service  on its health-check node port
//! ```
//!
//! This module neither decides when to sync nor reads the Node's taints.

mod healthz;
mod service_ports;
mod state;

pub use healthz::HealthzHandler;
pub use service_ports::{HealthCheck, HealthCheckPorts, PortError};
use state::{FamilyReport, HealthReport};
pub use state::{Health, Summary};
