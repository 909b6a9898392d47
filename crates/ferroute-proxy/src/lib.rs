//! The service proxy daemon as a library.
//!
//! ```text
//!   source --> Feed --> sync loop (a thread) --> kernel
//!                            `--> observers: health, metrics, Events, startup taint, recording
//! ```
//!
//! [`modes`] is the registry of proxy modes: everything outside of it works with any mode. [`run`] puts a
//! source, the sync loop, the dataplanes of the selected mode and the HTTP servers together.
//!
//! Not here: what rules look like, the command line, commands that only inspect.

pub mod cleanup;
mod config_watch;
mod events;
pub mod feed;
mod flows;
mod health;
pub mod host_setup;
pub mod kernel_rules;
pub mod logging;
mod metrics;
pub mod modes;
mod node_wait;
pub mod observer;
pub mod recording;
mod run;
mod serving;
mod startup_taint;
mod status;
pub mod sync;

pub use run::{node_name, run};
