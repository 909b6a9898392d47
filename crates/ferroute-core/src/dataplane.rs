use std::{
    collections::{BTreeSet, HashMap},
    error::Error,
    net::IpAddr,
    time::Duration,
};

use crate::{Changes, Frontend, Progress, RulesDigest, ServicePortName, ServiceTable};

/// A failure of a [`Dataplane`] to read or write its rules.
///
/// The rules applied before stay active. [`Dataplane::resync`] is always a correct way to retry.
#[derive(Debug, thiserror::Error)]
pub enum DataplaneError {
    /// The active rules could not be read, so nothing was written.
    #[error("cannot read {rules}")]
    Read {
        /// The rules: `IPv4 rules`, `table ip ferroute`.
        rules: String,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// Another program kept changing the rules while they were read, so nothing was written.
    #[error("cannot read {rules}: another program keeps changing {object}")]
    ChangedWhileReading {
        /// The rules, as in [`DataplaneError::Read`].
        rules: String,
        /// Object that changed during every attempt to read it: `set cluster-ips`.
        object: String,
    },
    /// The rules could not be written.
    #[error("cannot write {rules}")]
    Write {
        /// The rules, as in [`DataplaneError::Read`].
        rules: String,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The kernel, or the program that writes rules to it, rejected a rule of one service port.
    #[error("cannot write {rules} of {service_port}")]
    Rejected {
        /// The rules, as in [`DataplaneError::Read`].
        rules: String,
        /// The service port that the rejected rule belongs to.
        service_port: ServicePortName,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// The outcome of a successful sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// All rules were compared or written, not only those that changed. True after each [`Dataplane::resync`], and after a
    /// sync of changes that had to do the same.
    pub full: bool,
    /// A sync of changes found that another program had modified the rules, and repaired them.
    pub repaired: bool,
    /// Number of rules or elements written.
    pub written: usize,
    /// Number of chains or elements removed.
    pub removed: usize,
    /// Number of active rules or elements after the sync.
    pub total: usize,
    /// The same numbers by kernel table, in modes whose tables are shared with other programs; empty in other modes.
    pub tables: Vec<TableReport>,
    /// Service ports whose rules the kernel refused. Their previous rules stay if there are any, and all other changes are
    /// applied.
    pub rejected: Vec<Rejection>,
    /// Service ports that are not served because the mode has no more numbers for them. They are retried when they
    /// change and with each full sync.
    pub unserved: BTreeSet<ServicePortName>,
    /// Service ports whose protocol the mode does not support, in the first sync that has them.
    pub unsupported: BTreeSet<ServicePortName>,
    /// Number of unused objects that the kernel refused to delete. They are harmless; deletion is retried.
    pub refused_removals: usize,
    /// UDP frontends of any proxy in the kernel's rules before a full sync; empty after other syncs. If no service port
    /// has such a frontend any more, connection tracking keeps its flows until their entries are deleted.
    pub udp_frontends_before: BTreeSet<Frontend>,
    /// Time spent in the kernel, or in the programs that write rules to it.
    pub kernel_time: Duration,
}

impl SyncReport {
    /// Adds the outcome of another sync that followed this one.
    pub fn add(&mut self, later: Self) {
        let Self {
            full,
            repaired,
            written,
            removed,
            total,
            tables,
            mut rejected,
            unserved,
            mut unsupported,
            refused_removals,
            mut udp_frontends_before,
            kernel_time,
        } = later;
        self.full |= full;
        self.repaired |= repaired;
        self.written += written;
        self.removed += removed;
        self.refused_removals += refused_removals;
        self.kernel_time += kernel_time;
        self.rejected.append(&mut rejected);
        self.unsupported.append(&mut unsupported);
        self.udp_frontends_before.append(&mut udp_frontends_before);
        (self.total, self.tables, self.unserved) = (total, tables, unserved);
    }
}

/// The rules of a service port that the kernel refused because of their contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The service port.
    pub service_port: ServicePortName,
    /// The kernel's error.
    pub error: String,
}

/// The outcome of a sync for one kernel table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableReport {
    /// Name of the table.
    pub name: &'static str,
    /// Number of rules written.
    pub written: usize,
    /// Number of Ferroute's active rules after the sync.
    pub total: usize,
}

/// Programs the rules of one IP family into the kernel. Each proxy mode implements it.
///
/// This trait separates the Kubernetes side of the proxy, which has no rules, from the kernel side, which has no
/// Kubernetes objects. If a call fails, the previous rules stay active. A long call reports progress
/// ([`Heartbeat::beat_thread`](crate::Heartbeat::beat_thread)) after each part.
pub trait Dataplane: Send {
    /// Applies `changes` since the last successful call; `table` is the state to reach.
    ///
    /// # Errors
    ///
    /// The rules could not be written. The next call must be [`Dataplane::resync`].
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError>;

    /// Compares `table` with the rules in the kernel and fixes all differences. Used for the first sync, after a failed
    /// one, and after another program modified the rules.
    ///
    /// # Errors
    ///
    /// The rules could not be read or written.
    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError>;

    /// Reports whether another program may have modified the rules, so that [`Dataplane::resync`] is needed. This check is
    /// much cheaper than a resync.
    ///
    /// # Errors
    ///
    /// The rules could not be read.
    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError>;

    /// Sets the addresses of the host's interfaces, before each sync: the same addresses by which the tracker decided
    /// the owners of node ports and of other frontends. Ignored by modes whose rules do not depend on them.
    fn set_host_addresses(&mut self, _addresses: &[IpAddr]) {}

    /// Reports whether [`Dataplane::resync`] is needed because time has passed, without a change of Services or of the host.
    fn is_resync_due(&self) -> bool {
        false
    }

    /// Returns the reason why connections to Services fail although the rules are correct. Called after each check for
    /// external modifications.
    fn problem(&mut self) -> Option<&'static str> {
        None
    }

    /// Does periodic work that is independent of changes to the desired state, such as the removal of objects that
    /// connections needed. Called about once per second; must be cheap if there is nothing to do, and logs its own
    /// errors.
    fn maintain(&mut self) {}

    /// Returns the ports of this host on which a process relays UDP flows, with the service port that each serves. Empty in
    /// modes without such a process.
    fn relays(&self) -> HashMap<u16, ServicePortName> {
        HashMap::new()
    }

    /// Returns the progress of syncs, in modes that report it.
    fn progress(&self) -> Option<Progress> {
        None
    }

    /// Returns a digest of the rules that the Services of `table`, which must be applied, result in.
    ///
    /// It costs about as much as planning all rules, so it is meant for use after a full sync. `None` if the applied
    /// rules are not known, and in modes without a digest.
    fn digest(&self, _table: &ServiceTable) -> Option<RulesDigest> {
        None
    }
}
