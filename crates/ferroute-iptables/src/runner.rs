//! Brings planned rules into force: `iptables-save`, `iptables-restore`, and what the host has to do with it.
//!
//! ```text
//!   ServiceTable ──► IptablesDataplane ──► Difference ──► Runner ──► iptables-restore ──► kernel
//!                       ▲       ▲                            │
//!          Host ────────┘       └── InForce ◄────────────────┴────── iptables-save ◄───── kernel
//!     (addresses, sysctls,
//!      counters, generation)
//! ```
//!
//! Every effect passes a seam: [`Programs`] runs the tools, [`Host`] and [`Generations`] ask the kernel. What is *not*
//! here: what the rules are (see [`crate::plan`]), when to write them, and flows that are out of date afterwards.

mod cleanup;
mod dataplane;
mod fault;
mod found;
mod generations;
mod host;
mod lock;
mod pace;
mod programs;
mod restore;
mod tools;
mod version;

pub use cleanup::{
    ChainMode, Cleanup, CleanupError, CleanupErrors, Scope, clean_up, modes_at_a_glance, remove_counters,
};
pub use dataplane::IptablesDataplane;
pub use found::{FindError, FoundRules, find_rules};
pub use generations::Generations;
pub use host::{Host, HostError};
pub use lock::LockError;
pub use programs::{Call, Exit, HostPrograms, Programs, RunError};
pub use restore::{RestoreError, SaveError};
pub use tools::{Locking, OtherBackend, Tools, Unusable, search_path};
pub use version::{Backend, Release, UnknownRelease};
