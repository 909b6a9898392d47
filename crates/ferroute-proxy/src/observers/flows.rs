//! Connections through Services for readers on this node, such as `ferroute flows`.
//!
//! ```text
//!   sync loop --> FlowsObserver --> SharedFrontends --> Hub <-- socket <-- ferroute flows
//!   (a thread)                                          `-- the kernel's events, while there are readers
//! ```

use ferroute_core::{IpFamily, ModeTraits, Sources, Tracker};
use ferroute_flows::{FlowReceiver, FlowRequest, Frontends, Hub, Limits, Services, SharedFrontends, SubscribeError};

use crate::observers::{FamilySynced, Observer, requests::Requests};

/// Gives readers the flows of the proxy's Services.
#[derive(Clone, Debug)]
pub(crate) struct Flows {
    hub: Hub,
    /// Requests to the sync loop for the frontends.
    frontends: Requests<(), ()>,
}

/// Keeps the frontends up to date while there are readers.
#[derive(Debug)]
pub(crate) struct FlowsObserver(Flows);

/// Why a reader gets no flows.
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
    pub(crate) fn new(traits: &ModeTraits) -> Self {
        let frontends = SharedFrontends::new(Frontends::new(traits.sources == Sources::Node));
        Self { hub: Hub::new(frontends, Services::Known, Limits::default()), frontends: Requests::default() }
    }

    /// Returns the observer of the sync loop that the flows require.
    pub(crate) fn observer(&self) -> FlowsObserver {
        FlowsObserver(self.clone())
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
        let Self(Flows { hub, .. }) = self;
        if !hub.has_readers() {
            return;
        }
        let mut frontends = hub.frontends().lock();
        // After a full sync, the changes lack new service ports.
        match synced.outcome.report.as_ref().is_some_and(|report| report.full) {
            true => frontends.set(synced.table),
            false => frontends.update(synced.table, &synced.outcome.changes),
        }
    }

    fn on_tick(&mut self, desired: &Tracker) {
        let Self(Flows { hub, frontends: requests }) = self;
        requests.respond(|()| {
            let mut frontends = hub.frontends().lock();
            IpFamily::BOTH.into_iter().for_each(|family| frontends.set(desired.table(family)));
        });
        if !hub.has_readers() {
            hub.frontends().lock().clear();
        }
    }
}

impl Drop for FlowsObserver {
    fn drop(&mut self) {
        self.0.frontends.close();
    }
}
