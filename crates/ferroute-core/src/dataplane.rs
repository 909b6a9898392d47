use crate::{Changes, Progress, RulesDigest, ServiceTable};

/// Why rules could not be written. Old rules are still in force; trying again in full is always right.
#[derive(Debug, thiserror::Error)]
#[error("{attempt}")]
pub struct DataplaneError {
    /// What was attempted, and on what.
    pub attempt: String,
    /// What came in its way.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// What a sync has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Everything was written anew, not only the difference.
    pub full: bool,
    /// Rules or elements written.
    pub written: usize,
    /// Chains or elements removed.
    pub removed: usize,
    /// Rules or elements in force afterwards.
    pub total: usize,
    /// The same by table, in modes that share tables with others; empty in the others.
    pub tables: Vec<TableReport>,
    /// Removals of what is not used any more that the kernel has refused for now; harmless, and tried again.
    pub refused_removals: usize,
    /// Service ports without an endpoint on this node although the policy of their internal traffic asks for one.
    pub no_local_internal: usize,
    /// The same for external traffic.
    pub no_local_external: usize,
    /// Time that the kernel, or the program that talks to it, took.
    pub kernel_time: std::time::Duration,
}

/// What a sync has done to one table of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableReport {
    /// The table's name.
    pub name: &'static str,
    /// Rules written.
    pub written: usize,
    /// Rules of ours in force afterwards.
    pub total: usize,
}

/// Brings one IP family's table into force in the kernel. There is one implementation per mode.
///
/// Left of it nobody knows rules; right of it nobody knows Kubernetes. A failed call leaves the old rules in force.
pub trait Dataplane: Send {
    /// Writes what `changes` says has changed since the last successful call; `table` is the state to reach.
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError>;

    /// Compares with what the kernel really holds and repairs it; for the first sync, after a failure, and when
    /// somebody else changed our rules.
    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError>;

    /// Cheap look whether our rules are still there; true when [`Dataplane::resync`] is needed.
    fn was_disturbed(&mut self) -> Result<bool, DataplaneError>;

    /// How far a sync is, in modes that can tell on the way.
    fn progress(&self) -> Option<Progress> {
        None
    }

    /// Stands for the rules that the Services of `table` come to, which is in force; for records of what was decided.
    /// It costs about what planning all of them costs, so it is for after a sync that has done so anyway. `None` while
    /// it is not known what is in force, and in modes that cannot tell.
    fn digest(&self, _table: &ServiceTable) -> Option<RulesDigest> {
        None
    }

    /// Removes every trace of this mode and nothing else.
    fn cleanup(&mut self) -> Result<(), DataplaneError>;
}
