//! A flight recorder for the sync loop.
//!
//! ```text
//!   changes ──► Recorder ──┐                       ┌──► Replay: the state before each sync, and what changed
//!   (what they replaced)   ├──► Bundle ──► file ───┤
//!   Tracker (what is now) ─┘   (API objects)       └──► any program that reads Services and slices
//! ```
//!
//! While a proxy runs, [`Recorder`] keeps for the last syncs what each change *replaced*, and what came of the sync. That
//! is little, whatever the size of the cluster, because what is wanted now need not be kept twice: a [`Bundle`] takes it
//! from the tracker, and goes back from there. In a bundle, and so in the file, Services and slices are Kubernetes
//! objects again ([`objects`]), which people can read and other programs too.
//!
//! What is *not* here: rules and how they are planned, the kernel, files and sockets.

mod bundle;
pub mod objects;
mod recorder;
mod replay;

pub use bundle::{Bundle, Change, FORMAT, FamilyRecord, Outcome, ReadError, State, SyncRecord};
pub use recorder::{Limits, Recorder, Snapshot};
pub use replay::{InvalidBundle, Replay};
