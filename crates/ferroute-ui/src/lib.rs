//! A node in a browser: what is there, what happens to a packet, what changed.
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
//! [`ClusterPage`] serves one page for all nodes of a cluster: it gets what each node shows from [`serve_stdio`], in the pod of the node's
//! proxy.
//!
//! Questions are answered by `ferroute-inspect`, as they are on the command line; this crate only turns them into JSON. The API
//! is documented in `docs/ui.md`. Nothing but the demo's actions changes anything, and those require a token.

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
