//! The service proxy daemon as a library.
//!
//! ```text
//!   source --> Feed --> sync loop (a thread) --> kernel
//!                            `--> observers: health, metrics, Events, startup taint, recording
//! ```
//!
//! [`run()`] connects a source, the sync loop, the dataplanes of the selected mode and the HTTP servers.
//!
//! | module | contents |
//! | --- | --- |
//! | [`feed`] | events of a source become changes of the desired state |
//! | [`sync`] | when to sync, and the steps of a sync |
//! | [`observers`] | what the daemon reports: health, metrics, Events, applied versions, logs |
//! | [`recording`] | the flight recorder, and the format of its bundles |
//! | [`control`] | the socket that commands on this node use |
//! | [`host_setup`] | sysctls that the configuration requires |
//! | `process` | threads and tasks, the end by a signal, the restart with a changed configuration |
//!
//! The modes are in `ferroute-modes`, and their rules are planned by a crate for each. The command line is in `ferroute`, and
//! commands that only read are in `ferroute-inspect`.

pub mod control;
pub mod feed;
pub mod host_setup;
pub mod observers;
mod process;
pub mod recording;
mod run;
pub mod sync;
mod this_host;

pub use self::{
    observers::{
        applied::ServiceVersions,
        other_proxies::{ProxyProcess, proxy_processes},
    },
    process::shutdown::Shutdown,
    run::run,
    this_host::{ThisHost, node_name},
};
