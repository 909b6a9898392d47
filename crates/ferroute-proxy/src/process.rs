//! The process of the daemon: its threads and tasks, its termination by a signal, and its restart with a changed
//! configuration.

pub(crate) mod config_watch;
pub(crate) mod shutdown;
pub(crate) mod tasks;
