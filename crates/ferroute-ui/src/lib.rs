//! A node in a browser: its Services, the path of a packet, and changes.
//!
//! ```text
//!   Source (manifests, API server, running proxy, bundle, demo)
//!      │ load, again when it changes
//!      ▼
//!   View (desired state, rows of all Services) ──► api ──► JSON ──► page (web/, embedded)
//!      ▲                                            │
//!   Watcher: changes, counters, syncs ──► events ───┘ (server-sent events)
//! ```
//!
//! [`ClusterPage`] serves one page for all nodes of a cluster: it gets the data of each node from [`serve_stdio`], in
//! the pod of the node's proxy.
//!
//! `ferroute-inspect` provides the answers, as for the command line; this crate only converts them to JSON. The API is
//! documented in `docs/ui.md`. Only the demo's actions change any state, and they require a token.

mod api;
mod assets;
mod cluster;
mod compression;
mod demo;
mod differences;
mod flows;
mod history;
mod security;
mod server;
mod source;
mod stdio;
mod timeline;
mod view;
mod watch;

pub use cluster::ClusterPage;
pub use server::serve;
pub use source::Source;
pub use stdio::serve_stdio;

#[cfg(test)]
mod tests;
