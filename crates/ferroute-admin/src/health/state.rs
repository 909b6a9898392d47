use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use ferroute_core::IpFamily;

use crate::Moment;

/// Health of the proxy, shared between the sync loop and the HTTP thread: whether rules are applied in time.
///
/// An IP family is unhealthy while a change has been waiting for longer than the timeout. The age of the last sync does
/// not matter. Until its first successful sync a family counts as starting up, which is healthy.
#[derive(Debug)]
pub struct Health(Mutex<State>);

/// [`Health`] without lock and clock.
#[derive(Debug)]
struct State {
    /// Changes that have waited for this long are late.
    timeout: Duration,
    node_eligible: bool,
    /// Indexed by [`IpFamily::index`].
    families: [FamilyState; 2],
}

/// Health at one point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// Time of the report.
    pub(super) now: SystemTime,
    /// Whether every family is healthy.
    pub(super) healthy: bool,
    /// Whether load balancers may send new connections to this node.
    pub(super) node_eligible: bool,
    /// The families that have been synced at least once, IPv4 first.
    pub(super) families: Vec<FamilyReport>,
}

/// Health of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FamilyReport {
    /// IP family.
    pub(super) family: IpFamily,
    /// Time of the last successful sync.
    pub(super) last_updated: SystemTime,
    /// Whether no change has been waiting for too long.
    pub(super) healthy: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FamilyState {
    last_updated: Option<SystemTime>,
    /// Start of the longest wait of a change.
    waiting_since: Option<Instant>,
}

impl Health {
    /// Creates the state of a starting proxy on an eligible node. kube-proxy's timeout is twice the sync period.
    pub fn new(timeout: Duration) -> Self {
        Self(Mutex::new(State::new(timeout)))
    }

    /// Records that a change waits to be applied. Further calls before [`Health::updated`] have no effect.
    pub fn queued(&self, family: IpFamily) {
        self.lock().queued(family, Moment::now());
    }

    /// Records that all changes have been applied.
    pub fn updated(&self, family: IpFamily) {
        self.lock().updated(family, Moment::now());
    }

    /// Sets whether load balancers may send new connections to this node.
    pub fn set_node_eligible(&self, eligible: bool) {
        self.lock().node_eligible = eligible;
    }

    /// Returns the current health.
    pub(super) fn report(&self) -> Report {
        self.lock().report(Moment::now())
    }

    /// No operation under the lock leaves an inconsistent state behind when it panics.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(timeout: Duration) -> Self {
        Self { timeout, node_eligible: true, families: [FamilyState::default(); 2] }
    }

    fn queued(&mut self, family: IpFamily, now: Moment) {
        self.families[family.index()].waiting_since.get_or_insert(now.instant);
    }

    fn updated(&mut self, family: IpFamily, now: Moment) {
        self.families[family.index()] = FamilyState { last_updated: Some(now.wall), waiting_since: None };
    }

    fn report(&self, now: Moment) -> Report {
        let families: Vec<FamilyReport> = IpFamily::BOTH
            .into_iter()
            .filter_map(|family| {
                let state = self.families[family.index()];
                let is_late = |since| now.instant.saturating_duration_since(since) >= self.timeout;
                let healthy = !state.waiting_since.is_some_and(is_late);
                Some(FamilyReport { family, last_updated: state.last_updated?, healthy })
            })
            .collect();
        Report {
            now: now.wall,
            healthy: families.iter().all(|family| family.healthy),
            node_eligible: self.node_eligible,
            families,
        }
    }
}

impl Report {
    /// Returns the time of the latest successful sync of any family.
    pub(super) fn last_updated(&self) -> Option<SystemTime> {
        self.families.iter().map(|family| family.last_updated).max()
    }
}

#[cfg(test)]
mod tests;
