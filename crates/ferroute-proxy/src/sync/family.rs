//! Syncs of one IP family: rules, then stale conntrack entries.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::Context;
use ferroute_admin::history::{ServicePortCounts, UnappliedPort, UnappliedService};
use ferroute_core::{
    Changes, Dataplane, DataplaneError, Frontend, IpFamily, NamespacedName, Protocol, ProxySettings, Rejection,
    ServicePortEntry, ServicePortName, ServiceTable, StaleConntrackEntries, SyncReport, Tracker, error_chain,
};
use ferroute_host::conntrack::{self, Entry};

use super::{counts::NoLocalEndpoints, isolation::Isolation, late::LateEntries, unanswered::Unanswered};

/// The kernel's connection tracking table.
pub(crate) trait ConntrackTable: Send {
    /// Deletes all UDP entries of an IP family for which `is_stale` returns true. It is called with the original
    /// destination of the entry and the source of its replies. Returns the number of deleted entries.
    ///
    /// # Errors
    /// If the table cannot be read, or an entry cannot be deleted.
    fn delete_udp(
        &mut self,
        family: IpFamily,
        is_stale: &mut dyn FnMut(SocketAddr, SocketAddr) -> bool,
    ) -> anyhow::Result<usize>;

    /// Deletes all entries of an IP family that have no reply and for which `is_lost` returns true. Returns their number.
    ///
    /// # Errors
    /// If the table cannot be read, or an entry cannot be deleted.
    fn delete_unanswered(&mut self, family: IpFamily, is_lost: &mut dyn FnMut(&Entry) -> bool)
    -> anyhow::Result<usize>;
}

/// The connection tracking table of the calling thread's network namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelConntrack;

impl ConntrackTable for KernelConntrack {
    fn delete_udp(
        &mut self,
        family: IpFamily,
        is_stale: &mut dyn FnMut(SocketAddr, SocketAddr) -> bool,
    ) -> anyhow::Result<usize> {
        let result = conntrack::delete_if(family, Protocol::Udp, |entry| {
            is_stale(entry.original_destination, entry.reply_source)
        })
        .context("cannot delete stale UDP conntrack entries")?;
        tracing::debug!(%family, checked = result.seen, deleted = result.deleted, "checked UDP conntrack entries");
        Ok(result.deleted)
    }

    fn delete_unanswered(
        &mut self,
        family: IpFamily,
        is_lost: &mut dyn FnMut(&Entry) -> bool,
    ) -> anyhow::Result<usize> {
        let result = conntrack::delete_unanswered_if(family, |entry| is_lost(entry))
            .context("cannot check conntrack entries without a reply")?;
        Ok(result.deleted)
    }
}

/// The dataplane of one IP family and the state of its syncs.
pub(crate) struct FamilySync {
    family: IpFamily,
    dataplane: Box<dyn Dataplane>,
    settings: ProxySettings,
    /// Whether the kernel's rules may differ from the last ones written: at the start, after a failure, and after
    /// modification by another program.
    needs_resync: bool,
    /// Service ports whose rules the kernel refuses.
    isolation: Isolation,
    no_local: NoLocalEndpoints,
    /// Service ports for which the mode has no number left.
    unserved: BTreeSet<ServicePortName>,
    /// Conntrack entries to delete after the next successful sync.
    stale: StaleConntrackEntries,
    /// Whether stale entries from before the start have been deleted.
    has_deleted_stale: bool,
    late: LateEntries,
    unanswered: Unanswered,
}

/// The outcome of a successful sync of one IP family.
#[derive(Debug)]
pub struct FamilyOutcome {
    /// Report of the written rules; `None` if nothing had changed.
    pub report: Option<SyncReport>,
    /// Numbers of service ports.
    pub counts: ServicePortCounts,
    /// Services with a service port that the kernel refuses, or for which the mode has no number left.
    pub unapplied: BTreeMap<NamespacedName, UnappliedService>,
    /// Services that are not served, or not with all of their endpoints, because a limit is exceeded.
    pub limited: BTreeSet<NamespacedName>,
    /// The changes since the last sync. After a full sync, [`Changes::previous`] lacks new service ports, see
    /// [`Tracker::update_for_resync`].
    pub changes: Changes,
    /// Number of stale conntrack entries deleted.
    pub conntrack_deleted: usize,
    /// Duration of that deletion; `None` if no entry could be stale.
    pub conntrack_took: Option<Duration>,
    /// Reason why stale conntrack entries could not be deleted; the next sync retries.
    pub conntrack_error: Option<anyhow::Error>,
    /// Duration of the sync.
    pub took: Duration,
}

impl FamilySync {
    /// Creates the state of a family whose rules have not been written yet.
    pub(crate) fn new(family: IpFamily, dataplane: Box<dyn Dataplane>, settings: ProxySettings) -> Self {
        Self {
            family,
            dataplane,
            settings,
            needs_resync: true,
            isolation: Isolation::default(),
            no_local: NoLocalEndpoints::default(),
            unserved: BTreeSet::new(),
            stale: StaleConntrackEntries::default(),
            has_deleted_stale: false,
            late: LateEntries::default(),
            unanswered: Unanswered::default(),
        }
    }

    /// Returns the IP family.
    pub(crate) fn family(&self) -> IpFamily {
        self.family
    }

    /// Returns the dataplane.
    pub(crate) fn dataplane(&self) -> &dyn Dataplane {
        &*self.dataplane
    }

    /// Makes the next sync a full one, which compares all rules with the kernel's.
    pub(crate) fn mark_for_resync(&mut self) {
        self.needs_resync = true;
    }

    /// Reports whether the next sync is a full one.
    pub(crate) fn needs_resync(&self) -> bool {
        self.needs_resync || self.dataplane.is_resync_due()
    }

    /// Reports whether a service port whose rules the kernel refused must be retried, or a full sync is due.
    pub(crate) fn is_due(&self) -> bool {
        self.isolation.is_retry_due(tokio::time::Instant::now()) || self.dataplane.is_resync_due()
    }

    /// Makes the next sync delete the conntrack entries that were created by just removed rules of another mode:
    /// entries of `frontends` that no service port of `table` has, and entries to addresses that are no longer
    /// endpoints. Such entries were deleted before, but continuing flows were translated by these rules again. Returns
    /// whether there may be such entries.
    pub(crate) fn rules_were_removed(&mut self, table: &ServiceTable, frontends: &BTreeSet<Frontend>) -> bool {
        self.stale.merge(StaleConntrackEntries::from_table(table));
        self.stale.add_removed(table, frontends);
        !self.stale.is_empty()
    }

    /// Does the dataplane's periodic work, ends connections that began before the last repair and were not answered, and
    /// deletes stale conntrack entries that were added late. `table` is the state after the last sync or a later one.
    pub(crate) fn maintain(
        &mut self,
        table: &ServiceTable,
        conntrack: &mut dyn ConntrackTable,
        host_addresses: &mut dyn FnMut() -> Vec<IpAddr>,
        relay_ports: &dyn Fn(IpFamily) -> HashSet<u16>,
    ) {
        self.dataplane.maintain();
        let family = self.family;
        if let Some(stale) = self.late.due() {
            match self.delete_udp(stale, table, conntrack, &host_addresses(), &relay_ports(family)) {
                Ok(deleted) => {
                    self.late.deleted_again();
                    if deleted > 0 {
                        tracing::info!(%family, deleted, "deleted stale conntrack entries that were added while rules were replaced");
                    }
                }
                Err(error) => tracing::debug!(%family, "{error:#}"),
            }
        }
        match self.unanswered.delete(family, conntrack) {
            Ok(0) => {}
            Ok(deleted) => {
                tracing::info!(%family, deleted, "deleted conntrack entries of connections that began before rules were repaired");
            }
            Err(error) => tracing::debug!(%family, "{error:#}"),
        }
    }

    /// Returns why connections to Services fail although the rules are right.
    pub(crate) fn problem(&mut self) -> Option<&'static str> {
        self.dataplane.problem()
    }

    /// Reports whether another program may have modified the rules. Returns true if that cannot be determined: the
    /// resync then returns the error.
    pub(crate) fn was_modified_externally(&mut self) -> bool {
        self.dataplane.was_modified_externally().unwrap_or_else(|error| {
            tracing::debug!(family = %self.family, error = %error_chain(&error), "cannot check for external modifications");
            true
        })
    }

    /// Writes all changes since the last sync, then deletes the conntrack entries that they made stale.
    ///
    /// # Errors
    /// If the rules could not be written. The previous ones stay active, and the next sync is a full one.
    pub(crate) fn sync(
        &mut self,
        tracker: &mut Tracker,
        conntrack: &mut dyn ConntrackTable,
        host_addresses: &[IpAddr],
        relay_ports: &dyn Fn(IpFamily) -> HashSet<u16>,
    ) -> Result<FamilyOutcome, DataplaneError> {
        let start = Instant::now();
        let full = self.needs_resync();
        tracker.set_host_addresses(self.family, &self.settings, host_addresses);
        self.dataplane.set_host_addresses(host_addresses);
        let changes = if full { tracker.update_for_resync(self.family) } else { tracker.update(self.family) };
        let table = tracker.table(self.family);
        self.no_local.update(table, (!full).then_some(&changes));
        if !self.has_deleted_stale {
            self.stale.add_unknown();
        }
        self.stale.merge(StaleConntrackEntries::from_changes(table, &changes));
        // After a failure, the rules in the kernel are unknown.
        self.needs_resync = true;
        let report = self.write(full, table, &changes)?;
        self.needs_resync = false;
        if let Some(report) = &report {
            self.stale.add_removed(table, &report.udp_frontends_before);
            // Not only where a full sync was requested: in a sync of changes, the dataplane may find that another program
            // modified the rules, and repair them.
            if report.full || report.repaired {
                self.stale.merge(StaleConntrackEntries::from_table(table));
                if report.written + report.removed > 0 {
                    self.unanswered.rules_were_repaired();
                }
            }
        }
        let counts = ServicePortCounts {
            isolated: self.isolation.len(),
            limited: self.unserved.len() + table.excess.len(),
            no_local_internal: self.no_local.internal,
            no_local_external: self.no_local.external,
        };
        let unapplied = self.unapplied(table);
        let limited = self.unserved.iter().chain(table.excess.keys()).map(|name| name.service.clone()).collect();
        let conntrack_start = (!self.stale.is_empty() || self.unanswered.is_due()).then(Instant::now);
        let (conntrack_deleted, conntrack_error) =
            match self.delete_stale(table, conntrack, host_addresses, relay_ports) {
                Ok(deleted) => (deleted, None),
                Err(error) => (0, Some(error)),
            };
        let conntrack_took = conntrack_start.map(|start| start.elapsed());
        let took = start.elapsed();
        Ok(FamilyOutcome {
            report,
            counts,
            unapplied,
            limited,
            changes,
            conntrack_deleted,
            conntrack_took,
            conntrack_error,
            took,
        })
    }

    /// Writes the changes, except those of service ports that the kernel rejects, and retries these separately when
    /// they are due.
    fn write(
        &mut self,
        full: bool,
        table: &ServiceTable,
        changes: &Changes,
    ) -> Result<Option<SyncReport>, DataplaneError> {
        let allowed = self.isolation.filter(table, changes);
        // Changes of service ports that are set aside do not require a sync.
        let is_empty = allowed.previous.is_empty() && !allowed.node && !allowed.service_cidrs;
        let mut report = match (full, is_empty) {
            (true, _) => Some(self.resync(table, changes, None)?),
            (false, true) => None,
            (false, false) => Some(self.sync_changes(table, &allowed)?),
        };
        for (name, accepted) in self.isolation.due(tokio::time::Instant::now()) {
            let retried = self.retry(table, &name, accepted.as_ref())?;
            match &mut report {
                Some(report) => report.add(retried),
                None => report = Some(retried),
            }
        }
        if let Some(report) = &report {
            self.unserved.clone_from(&report.unserved);
        }
        Ok(report)
    }

    fn unapplied(&self, table: &ServiceTable) -> BTreeMap<NamespacedName, UnappliedService> {
        let has_rules = |name| !self.unserved.contains(name) && self.isolation.has_accepted_rules(name) != Some(false);
        let refused = self.isolation.errors().map(|(name, error)| (name, Some(error.to_owned())));
        let mut services = BTreeMap::<NamespacedName, UnappliedService>::new();
        for (name, error) in refused.chain(self.unserved.iter().map(|name| (name, None))) {
            let service = services.entry(name.service.clone()).or_insert_with(|| UnappliedService {
                has_rules: table.ports_of(&name.service).any(|(port, _)| has_rules(port)),
                ports: Vec::new(),
            });
            service.ports.push(UnappliedPort::new(name, self.family, error, has_rules(name)));
        }
        services
    }

    fn sync_changes(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError> {
        let applied = self.isolation.apply(table, None);
        match self.dataplane.sync(&applied, changes) {
            Ok(mut report) => {
                if self.set_aside(table, &report, Some(changes)) {
                    report.add(self.resync(table, changes, None)?);
                }
                Ok(report)
            }
            Err(DataplaneError::Rejected { service_port, .. }) => self.resync(table, changes, Some(service_port)),
            Err(error) => Err(error),
        }
    }

    /// Compares and writes all rules. A service port is set aside once it was rejected twice in a row, and `suspect`
    /// was rejected before: between reading and writing, another program may have removed objects that the rules refer
    /// to, and the rules are read again before the second attempt.
    fn resync(
        &mut self,
        table: &ServiceTable,
        changes: &Changes,
        mut suspect: Option<ServicePortName>,
    ) -> Result<SyncReport, DataplaneError> {
        let mut rejected = Vec::new();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let error = match self.dataplane.resync(&self.isolation.apply(table, None)) {
                Ok(mut report) => {
                    self.set_aside(table, &report, None);
                    report.rejected.append(&mut rejected);
                    return Ok(report);
                }
                Err(error) => error,
            };
            let DataplaneError::Rejected { service_port, .. } = &error else { return Err(error) };
            // The service ports that were found stay set aside, and the next sync finds more.
            if attempts == MAX_ATTEMPTS {
                return Err(error);
            }
            if suspect.as_ref() != Some(service_port) {
                suspect = Some(service_port.clone());
                continue;
            }
            let accepted = match self.isolation.has_accepted_rules(service_port) {
                // Not even without it.
                Some(false) => return Err(error),
                // Its last accepted rules are rejected now.
                Some(true) => None,
                None => changes.previous.get(service_port).and_then(Option::as_ref),
            };
            let rejection = Rejection { service_port: service_port.clone(), error: error_chain(&error) };
            self.isolation.reject(table, &rejection, accepted, tokio::time::Instant::now());
            rejected.push(rejection);
        }
    }

    /// Sets the service ports aside that a sync of these changes has rejected. A full sync compares all rules, so that
    /// no rules of these service ports remain. Returns true if the active rules have frontends that these service ports
    /// lost.
    fn set_aside(&mut self, table: &ServiceTable, report: &SyncReport, changes: Option<&Changes>) -> bool {
        let mut have_lost = false;
        for rejection in &report.rejected {
            let accepted = changes.and_then(|changes| changes.previous.get(&rejection.service_port)?.as_ref());
            have_lost |= self.isolation.reject(table, rejection, accepted, tokio::time::Instant::now());
        }
        have_lost
    }

    /// Writes the rules of a service port that was rejected.
    fn retry(
        &mut self,
        table: &ServiceTable,
        name: &ServicePortName,
        accepted: Option<&ServicePortEntry>,
    ) -> Result<SyncReport, DataplaneError> {
        let changes = Changes {
            services: [name.service.clone()].into(),
            previous: [(name.clone(), accepted.cloned())].into(),
            ..Changes::default()
        };
        let with_it = self.isolation.apply(table, Some(name));
        match self.dataplane.sync(&with_it, &changes) {
            Ok(report) => {
                match report.rejected.first() {
                    Some(Rejection { error, .. }) => {
                        let rejection = Rejection { service_port: name.clone(), error: error.clone() };
                        self.isolation.reject(table, &rejection, accepted, tokio::time::Instant::now());
                    }
                    None => {
                        tracing::info!(family = %self.family, service_port = %name, "the kernel accepts the rules again");
                        self.isolation.accept(name);
                    }
                }
                Ok(report)
            }
            Err(error @ DataplaneError::Rejected { .. }) => {
                let rejection = Rejection { service_port: name.clone(), error: error_chain(&error) };
                self.isolation.reject(table, &rejection, accepted, tokio::time::Instant::now());
                let mut report = self.dataplane.resync(&self.isolation.apply(table, None))?;
                report.rejected.push(rejection);
                Ok(report)
            }
            Err(error) => Err(error),
        }
    }

    fn delete_stale(
        &mut self,
        table: &ServiceTable,
        conntrack: &mut dyn ConntrackTable,
        host_addresses: &[IpAddr],
        relay_ports: &dyn Fn(IpFamily) -> HashSet<u16>,
    ) -> anyhow::Result<usize> {
        if self.stale.is_empty() && !self.unanswered.is_due() {
            return Ok(0);
        }
        let is_local = |address: IpAddr| address.is_loopback() || host_addresses.contains(&address);
        let relay_ports = relay_ports(self.family);
        let is_relayed = |source: SocketAddr| relay_ports.contains(&source.port()) && is_local(source.ip());
        let mut deleted = self.unanswered.observe(self.family, table, conntrack, is_local, is_relayed)?;
        deleted += self.delete_udp(&self.stale, table, conntrack, host_addresses, &relay_ports)?;
        self.late.deleted(std::mem::take(&mut self.stale));
        self.has_deleted_stale = true;
        Ok(deleted)
    }

    /// Deletes stale UDP entries.
    fn delete_udp(
        &self,
        stale: &StaleConntrackEntries,
        table: &ServiceTable,
        conntrack: &mut dyn ConntrackTable,
        host_addresses: &[IpAddr],
        relay_ports: &HashSet<u16>,
    ) -> anyhow::Result<usize> {
        let is_local = |address: IpAddr| address.is_loopback() || host_addresses.contains(&address);
        let relays = self.dataplane.relays();
        let is_relayed = |source: SocketAddr| relay_ports.contains(&source.port()) && is_local(source.ip());
        let endpoints = LazyCell::new(|| -> HashSet<IpAddr> {
            let all = table.entries.values().flat_map(|entry| entry.endpoints.iter());
            all.map(|endpoint| endpoint.socket().ip()).collect()
        });
        conntrack.delete_udp(self.family, &mut |destination, reply_source| {
            if !is_relayed(reply_source) {
                return stale.is_stale(destination, reply_source, is_local, |address| endpoints.contains(&address));
            }
            // The process that relays the flow deletes the entry when no response is outstanding, unless it continues
            // to serve the port. In that case the flow must not stay if its frontend no longer belongs to the service
            // port.
            let Some(name) = relays.get(&reply_source.port()) else { return false };
            let is_served = table.entries.get(name).is_some_and(|entry| {
                let mut frontends = entry.service.frontends(name.protocol);
                frontends.any(|(_, frontend)| frontend.matches(destination, is_local))
            });
            destination != reply_source && !is_served
        })
    }
}

/// Number of times that one sync may write all rules in order to set service ports aside. The next sync continues.
const MAX_ATTEMPTS: usize = 32;
