//! HTTP endpoints of the proxy: health checks, metrics and status pages, with the paths and answers of kube-proxy 1.36.
//!
//! ```text
//!   sync loop ──► Health ───► HealthzHandler ───► /healthz, /livez
//!             │          └──► HealthCheckPorts ─► any path on health-check node ports
//!             ├─► Metrics ─┬► AdminHandler ─────► /metrics
//!             └─► History ─┤                      /services, /changes
//!                 Pages ───┘                      /configz, /statusz, /flagz, …
//! ```
//!
//! The sync loop reports its progress to [`Health`](health::Health), [`Metrics`](metrics::Metrics) and
//! [`History`](history::History). [`http`] answers requests from them on a separate thread, so requests never wait for
//! a sync and a sync never waits for a client.
//!
//! This crate neither decides when to sync nor reads numbers of the kernel or the process.
//!
//! # Example
//!
//! Serve the health of a proxy whose IPv4 rules have been applied:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use ferroute_admin::{
//!     health::{Health, HealthzHandler},
//!     http::{Budget, HttpThread, Limits, ListenScope, listen},
//!     metrics::Metrics,
//! };
//! use ferroute_core::IpFamily;
//!
//! let health = Arc::new(Health::new(Duration::from_secs(60)));
//! let handler = HealthzHandler::new(Arc::clone(&health), Arc::new(Metrics::new(&[])));
//! let http = HttpThread::start(Budget::default())?;
//! let listener = listen(ListenScope::Address("127.0.0.1".parse()?), 0)?;
//! let address = listener.local_addr()?;
//! let _server = http.serve(listener, Arc::new(handler), Limits::default())?;
//!
//! health.updated(IpFamily::V4);
//! # use std::io::{Read, Write};
//! # let mut client = std::net::TcpStream::connect(address)?;
//! # client.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
//! # let mut response = String::new();
//! # client.read_to_string(&mut response)?;
//! assert!(response.starts_with("HTTP/1.0 200 OK\r\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod handler;
pub mod health;
pub mod history;
pub mod http;
pub mod metrics;
mod status;
mod time;
pub mod version;

pub use handler::AdminHandler;
pub use status::Pages;
