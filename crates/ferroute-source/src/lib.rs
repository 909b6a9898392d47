//! Where Services, endpoint slices and Nodes come from.
//!
//! Every source tells what there is and what changes by the same [`Event`]s, so that who takes them need not know where
//! they come from. The source here is manifests on disk ([`Manifests`]). What is *not* here: what the objects mean, and
//! when to act on them.

mod events;
mod manifests;
mod problem;

pub use events::{Event, ObjectName, Resource};
pub use manifests::{FollowError, Manifests, manifest_files, read_once};
pub use problem::{IgnoredKind, Problem};
