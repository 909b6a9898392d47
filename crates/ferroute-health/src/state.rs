use std::time::{Duration, SystemTime};

use ferroute_core::IpFamily;

use crate::Moment;

/// Whether the rules keep up with what is wanted, per IP family.
///
/// A family is unhealthy while something has waited to be written for too long; how long ago anything was written does
/// not matter. Until its first successful sync it counts as starting up, which is healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHealth {
    /// A change that has waited for this long is late.
    timeout: Duration,
    node_eligible: bool,
    /// By [`IpFamily::index`].
    families: [FamilyState; 2],
}

/// What is known at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The moment, by the clock on the wall.
    pub now: SystemTime,
    /// No family is unhealthy.
    pub healthy: bool,
    /// Load balancers may send new connections to this node.
    pub node_eligible: bool,
    /// The families that have been synced at least once, IPv4 first.
    pub families: Vec<FamilyReport>,
}

/// What is known of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyReport {
    /// The family.
    pub family: IpFamily,
    /// When it was last synced.
    pub last_updated: SystemTime,
    /// No change has waited for too long.
    pub healthy: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FamilyState {
    /// By the wall.
    last_updated: Option<SystemTime>,
    /// Since when a change has been waiting, as [`Moment::elapsed`].
    waiting_since: Option<Duration>,
}

impl ProxyHealth {
    /// Starts with no family synced and the node eligible. kube-proxy's `timeout` is twice the sync period.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, node_eligible: true, families: [FamilyState::default(); 2] }
    }

    /// There is something to write. Only the first of several calls before [`ProxyHealth::updated`] counts.
    pub fn queued(&mut self, family: IpFamily, now: Moment) {
        self.families[family.index()].waiting_since.get_or_insert(now.elapsed);
    }

    /// Everything is written.
    pub fn updated(&mut self, family: IpFamily, now: Moment) {
        self.families[family.index()] = FamilyState { last_updated: Some(now.wall), waiting_since: None };
    }

    /// Whether load balancers may send new connections to this node.
    pub fn node_eligible(&mut self, eligible: bool) {
        self.node_eligible = eligible;
    }

    /// What is known at this moment.
    pub fn report(&self, now: Moment) -> Report {
        let families: Vec<FamilyReport> = IpFamily::BOTH
            .into_iter()
            .filter_map(|family| {
                let state = self.families[family.index()];
                let is_late = |since| now.elapsed.saturating_sub(since) >= self.timeout;
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
    /// When any family was last synced.
    pub fn last_updated(&self) -> Option<SystemTime> {
        self.families.iter().map(|family| family.last_updated).max()
    }
}

#[cfg(test)]
mod tests;
