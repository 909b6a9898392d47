//! The service proxy daemon as a library.
//!
//! ```text
//!   source --> Feed --> sync loop (a thread) --> kernel
//!                            `--> observers: health, metrics, Events, startup taint, recording
//! ```
//!
//! [`modes`] is the registry of proxy modes: all other code works with any mode. [`run()`] connects a source, the sync loop,
//! the dataplanes of the selected mode and the HTTP servers.
//!
//! Rules are planned by the crates of the modes. The command line is in `ferroute`, and commands that only read are in
//! `ferroute-inspect`.
//!
//! # Example
//!
//! Plan the nftables rules of a cluster without Services:
//!
//! ```
//! use ferroute_config::KubeProxyConfiguration;
//! use ferroute_core::{IpFamily, NodeView, Tracker};
//! use ferroute_proxy::modes::REGISTRY;
//!
//! let mut config = KubeProxyConfiguration::default().defaulted();
//! config.mode = "nftables".to_owned();
//! let resolved = REGISTRY.resolve(&config)?;
//!
//! let mut tracker = Tracker::new(NodeView { name: "node-1".to_owned(), ..NodeView::default() });
//! tracker.update(IpFamily::V4);
//! let mode = REGISTRY.active(resolved.mode);
//! let rules = mode.plan(&resolved, tracker.table(IpFamily::V4), &[])?;
//! assert!(rules.to_string().starts_with("add table ip ferroute"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod applied;
pub mod cleanup;
mod config_watch;
pub mod control;
mod drain;
mod events;
pub mod feed;
mod health;
mod held_node_ports;
pub mod host_setup;
mod ipsets;
pub mod kernel_rules;
pub mod logging;
pub mod modes;
mod node_wait;
pub mod observer;
pub mod recording;
mod requests;
mod run;
mod shutdown;
mod startup_taint;
mod status;
pub mod sync;
mod sync_thread;
mod tasks;
mod this_host;
mod watchdog;

pub use self::{
    applied::ServiceVersions,
    run::run,
    shutdown::Shutdown,
    this_host::{ThisHost, node_name},
};
