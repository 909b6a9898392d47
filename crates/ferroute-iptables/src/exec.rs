//! Applies planned rules: the access to the rules, by the iptables programs or by netlink, and the dataplane that uses it.
//!
//! ```text
//!   ServiceTable ──► IptablesDataplane ──► Difference ──► RuleAccess ──► iptables-restore, netlink ──► kernel
//!                       ▲       ▲                             │
//!    HostAccess ────────┘       └── KernelChains ◄────────────┴───────── iptables-save, netlink ◄───── kernel
//!   (addresses, sysctls,
//!    nfacct counters)
//! ```
//!
//! All effects go through traits that tests replace: [`Exec`] runs programs; [`HostAccess`] and [`GenerationTracker`] hold
//! the interfaces to the kernel.
//!
//! This module does not determine the content of the rules (see [`crate::plan`]), the schedule of syncs, or stale
//! conntrack entries.

mod access;
mod choice;
mod cleanup;
mod dataplane;
mod executor;
mod generation;
mod group;
mod host;
mod legacy;
mod lock;
mod notifications;
mod process;
mod programs;
mod snapshot;
mod version;

pub use access::RuleAccess;
pub use choice::{AccessError, ChosenAccess, OtherBackend, existing_accesses};
pub use cleanup::{ChainMode, CleanupError, CleanupReport, CleanupScope, clean_up, detect_modes, remove_counters};
pub use dataplane::IptablesDataplane;
pub use executor::{RestoreError, SaveError};
pub use generation::GenerationTracker;
pub use group::{GroupReport, GroupWriter, RuleWriter};
pub use host::{HostAccess, HostAccessError, LegacyShapes};
pub use legacy::LegacyError;
pub use lock::LockError;
pub use process::{Exec, Exit, HostExec, Invocation, ProgramError};
pub use programs::{IptablesPrograms, Locking, ProgramsError, search_path};
pub use snapshot::{BackendSnapshot, RulesSnapshot, snapshot_rules};
pub use version::{Backend, InvalidRelease, Release};
