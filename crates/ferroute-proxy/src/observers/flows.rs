//! Connections through Services for readers on this node, such as `ferroute flows`.
//!
//! ```text
//!   sync loop --> FlowsObserver --> SharedFrontends --> Hub <-- socket <-- ferroute flows
//!   (a thread)                                          `-- the kernel's events, while there are readers
//! ```

use std::net::IpAddr;

use ferroute_core::{IpFamily, ModeTraits, ProxySettings, Tracker};
use ferroute_flows::{FlowReceiver, FlowRequest, Frontends, Hub, Limits, Services, SharedFrontends, SubscribeError};

use crate::{
    observers::{FamilySynced, Observer, requests::Requests, traffic::TrafficSampler},
    process::tasks::Tasks,
};

/// Gives readers the flows of the proxy's Services.
#[derive(Clone, Debug)]
pub(crate) struct Flows {
    hub: Hub,
    /// Requests to the sync loop for the frontends.
    frontends: Requests<(), ()>,
}

/// Keeps the frontends up to date while there are readers.
#[derive(Debug)]
pub(crate) struct FlowsObserver {
    flows: Flows,
    /// The addresses of the host's interfaces at the last sync.
    host: Vec<IpAddr>,
}

/// Reason why a reader gets no flows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FlowsError {
    /// No more readers are possible.
    #[error(transparent)]
    Subscribe(#[from] SubscribeError),
    /// The sync loop has ended.
    #[error("the sync loop has ended")]
    Ended,
}

impl Flows {
    /// Creates the flows of a mode.
    pub(crate) fn new(traits: &'static ModeTraits, settings: &ProxySettings) -> Self {
        let frontends = SharedFrontends::new(Frontends::new(traits, settings.clone()));
        Self { hub: Hub::new(frontends, Services::Known, Limits::default()), frontends: Requests::default() }
    }

    /// Returns the observer of the sync loop that the flows require.
    pub(crate) fn observer(&self) -> FlowsObserver {
        FlowsObserver { flows: self.clone(), host: Vec::new() }
    }

    /// Counts the traffic of Services, if connection tracking has their endpoints.
    pub(crate) fn count_traffic(
        &self,
        sampler: &TrafficSampler,
        tasks: &Tasks,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if self.hub.frontends().lock().is_relayed() {
            return Err("a process relays connections, and has counters of its own".into());
        }
        sampler.start(self.hub.frontends().clone(), self.hub.reserve()?, tasks)
    }

    /// Adds a reader. Waits for the sync loop.
    pub(crate) async fn subscribe(&self, request: FlowRequest) -> Result<FlowReceiver, FlowsError> {
        let reservation = self.hub.reserve()?;
        self.frontends.send(()).await.map_err(|_| FlowsError::Ended)?;
        Ok(self.hub.subscribe(reservation, request)?)
    }
}

impl Observer for FlowsObserver {
    fn on_synced(&mut self, synced: &FamilySynced<'_>) {
        let Self { flows: Flows { hub, .. }, host } = self;
        if host != synced.host_addresses {
            *host = synced.host_addresses.to_vec();
        }
        if !hub.has_readers() {
            return;
        }
        let mut frontends = hub.frontends().lock();
        // After a full sync, the changes lack new service ports.
        match synced.outcome.report.as_ref().is_some_and(|report| report.full) {
            true => frontends.set(synced.table, host),
            false => frontends.update(synced.table, &synced.outcome.changes, host),
        }
    }

    fn on_tick(&mut self, desired: &Tracker) {
        let Self { flows: Flows { hub, frontends: requests }, host } = self;
        requests.respond(|()| {
            let mut frontends = hub.frontends().lock();
            IpFamily::BOTH.into_iter().for_each(|family| frontends.set(desired.table(family), host));
        });
        if !hub.has_readers() {
            hub.frontends().lock().clear();
        }
    }
}

impl Drop for FlowsObserver {
    fn drop(&mut self) {
        self.flows.frontends.close();
    }
}
