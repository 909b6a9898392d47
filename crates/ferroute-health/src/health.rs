use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ferroute_core::IpFamily;

use crate::{Clock, ProxyHealth, Report};

/// [`ProxyHealth`] with a clock, to be shared between the sync loop, which tells, and the servers, which ask.
#[derive(Debug)]
pub struct Health {
    clock: Clock,
    state: Mutex<ProxyHealth>,
}

impl Health {
    /// See [`ProxyHealth::new`].
    pub fn new(timeout: Duration) -> Self {
        Self { clock: Clock::start(), state: Mutex::new(ProxyHealth::new(timeout)) }
    }

    /// See [`ProxyHealth::queued`].
    pub fn queued(&self, family: IpFamily) {
        self.state().queued(family, self.clock.now());
    }

    /// See [`ProxyHealth::updated`].
    pub fn updated(&self, family: IpFamily) {
        self.state().updated(family, self.clock.now());
    }

    /// See [`ProxyHealth::node_eligible`].
    pub fn node_eligible(&self, eligible: bool) {
        self.state().node_eligible(eligible);
    }

    /// See [`ProxyHealth::report`].
    pub fn report(&self) -> Report {
        self.state().report(self.clock.now())
    }

    /// No step under the lock can leave the state half-changed, so a panic elsewhere does not matter.
    fn state(&self) -> MutexGuard<'_, ProxyHealth> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
