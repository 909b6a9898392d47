use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use ferroute_core::{Heartbeat, IpFamily};

use ferroute_host::Moment;

/// Health of the proxy, shared between the sync loop and the HTTP thread: whether rules are applied in time.
///
/// An IP family is unhealthy while a change has been waiting for longer than the timeout. The age of the last sync does
/// not matter. A family that has never been synced is starting up, which is healthy as long as its first sync makes
/// progress: a large cluster takes a while. It is late if its first sync hangs or has failed. (kube-proxy reports such a
/// family as healthy for ever.)
///
/// Changes count from the moment when they are sent to the sync thread, so a thread that hangs anywhere makes the proxy
/// unhealthy.
#[derive(Debug)]
pub struct Health {
    state: Mutex<SyncProgress>,
    /// The heartbeat of the sync thread.
    heartbeat: Heartbeat,
}

/// [`Health`] without lock and clock.
#[derive(Debug)]
struct SyncProgress {
    /// Changes that have waited for this long are late.
    timeout: Duration,
    node_eligible: bool,
    /// Times at which batches of changes were sent that the sync thread has not received yet, oldest first.
    sent: VecDeque<Instant>,
    /// Indexed by [`IpFamily::index`].
    families: [FamilyState; 2],
}

/// Health at one point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HealthReport {
    /// Time of the report.
    pub(super) now: SystemTime,
    /// Whether every family is healthy.
    pub(super) healthy: bool,
    /// Whether load balancers may send new connections to this node.
    pub(super) node_eligible: bool,
    /// The families that have been synced at least once, IPv4 first.
    pub(super) families: Vec<FamilyReport>,
}

/// Health of the proxy, without the details of its families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Whether every family is healthy.
    pub healthy: bool,
    /// Whether load balancers may send new connections to this node.
    pub node_eligible: bool,
    /// Whether no family has been synced, or the first sync of a family is pending.
    pub is_starting: bool,
    /// Time of the last successful sync of any family.
    pub last_updated: Option<SystemTime>,
    /// Time for which the oldest change has been waiting to be applied; zero if no change is waiting.
    pub waiting: Duration,
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
    /// Whether a sync has failed since the last successful one.
    has_failed: bool,
    /// Whether connections fail although the rules are applied.
    is_broken: bool,
}

impl Health {
    /// Creates the state of a starting proxy on an eligible node. kube-proxy's timeout is twice the sync period.
    pub fn new(timeout: Duration) -> Self {
        Self { state: Mutex::new(SyncProgress::new(timeout)), heartbeat: Heartbeat::default() }
    }

    /// Uses the heartbeat of the sync thread. Without it, a first sync always counts as hanging.
    pub fn with_heartbeat(self, heartbeat: Heartbeat) -> Self {
        Self { heartbeat, ..self }
    }

    /// Records that a batch of changes was sent to the sync thread. Called by the thread that sends it.
    pub fn sent(&self) {
        self.lock().sent.push_back(Instant::now());
    }

    /// Records that the sync thread has received this many batches, and has called [`Health::queued`] for the families that
    /// they concern.
    pub fn received(&self, batches: usize) {
        let mut state = self.lock();
        let count = batches.min(state.sent.len());
        state.sent.drain(..count);
    }

    /// Records whether connections of a family fail although its rules are applied.
    pub fn set_broken(&self, family: IpFamily, is_broken: bool) {
        self.lock().families[family.index()].is_broken = is_broken;
    }

    /// Records that a sync has failed.
    pub fn failed(&self, family: IpFamily) {
        self.lock().families[family.index()].has_failed = true;
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
    pub(super) fn report(&self) -> HealthReport {
        self.lock().report(Moment::now(), self.heartbeat.silence())
    }

    /// Returns a summary of the current health.
    pub fn summary(&self) -> Summary {
        let (now, state) = (Moment::now(), self.lock());
        let report = state.report(now, self.heartbeat.silence());
        let waiting =
            state.families.iter().filter_map(|family| family.waiting_since).chain(state.sent.front().copied());
        Summary {
            healthy: report.healthy,
            node_eligible: report.node_eligible,
            is_starting: report.families.is_empty() || state.families.iter().any(FamilyState::awaits_first_sync),
            last_updated: report.last_updated(),
            waiting: waiting.min().map(|since| now.instant.saturating_duration_since(since)).unwrap_or_default(),
        }
    }

    /// Locks the state. No operation under the lock leaves an inconsistent state behind when it panics.
    fn lock(&self) -> MutexGuard<'_, SyncProgress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FamilyState {
    fn awaits_first_sync(&self) -> bool {
        self.last_updated.is_none() && self.waiting_since.is_some()
    }
}

impl SyncProgress {
    fn new(timeout: Duration) -> Self {
        Self { timeout, node_eligible: true, sent: VecDeque::new(), families: [FamilyState::default(); 2] }
    }

    fn queued(&mut self, family: IpFamily, now: Moment) {
        self.families[family.index()].waiting_since.get_or_insert(now.instant);
    }

    fn updated(&mut self, family: IpFamily, now: Moment) {
        let state = &mut self.families[family.index()];
        *state = FamilyState { last_updated: Some(now.wall), is_broken: state.is_broken, ..FamilyState::default() };
    }

    /// Returns the health at a time when the sync thread has made no progress for `silence`.
    fn report(&self, now: Moment, silence: Duration) -> HealthReport {
        let is_late = |since: Instant| now.instant.saturating_duration_since(since) >= self.timeout;
        let is_waiting = |state: &FamilyState| state.waiting_since.is_some_and(is_late);
        let is_starting = |state: &FamilyState| state.last_updated.is_none();
        let first_sync_advances = self.families.iter().all(|state| !state.has_failed) && silence < self.timeout;
        let is_healthy = |state: &FamilyState| {
            !state.is_broken && (!is_waiting(state) || (is_starting(state) && first_sync_advances))
        };
        let families = IpFamily::BOTH.into_iter().filter_map(|family| {
            let state = &self.families[family.index()];
            Some(FamilyReport { family, last_updated: state.last_updated?, healthy: is_healthy(state) })
        });
        // Changes wait unseen during a sync.
        let is_first_sync = self.families.iter().any(FamilyState::awaits_first_sync);
        let receives =
            !self.sent.front().is_some_and(|since| is_late(*since)) || (is_first_sync && first_sync_advances);
        HealthReport {
            now: now.wall,
            healthy: receives && self.families.iter().all(is_healthy),
            node_eligible: self.node_eligible,
            families: families.collect(),
        }
    }
}

impl HealthReport {
    /// Returns the time of the latest successful sync of any family.
    pub(super) fn last_updated(&self) -> Option<SystemTime> {
        self.families.iter().map(|family| family.last_updated).max()
    }
}

#[cfg(test)]
mod tests;
