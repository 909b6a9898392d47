//! Observations of the proxy about endpoints, for commands on this node.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use ferroute_core::{
    Share, Tracker,
    tracker::{Ejections, Shares, TrackerEvent},
};
use serde::{Deserialize, Serialize};

use crate::{observers::Observer, sync::Change};

/// An endpoint that does not get the connections of its whole weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedEndpoint {
    /// The service port, `namespace/name:port`.
    pub service_port: String,
    /// Address and port.
    pub endpoint: SocketAddr,
    /// Whether it gets no connections because it did not answer.
    pub ejected: bool,
    /// Sixteenths of its weight that are in effect; fewer than 16 if it starts slowly or has many connections.
    pub sixteenths: Share,
}

/// Keeps the last observations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed(Arc<Mutex<(Ejections, Shares)>>);

impl Observed {
    /// Returns the last observations.
    pub(crate) fn get(&self) -> Vec<ObservedEndpoint> {
        let observed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (ejections, shares) = &*observed;
        let mut endpoints = BTreeMap::new();
        for (name, endpoint) in
            ejections.iter().flat_map(|(name, all)| all.iter().map(move |endpoint| (name, endpoint)))
        {
            endpoints.insert((name, *endpoint), (true, Share::FULL));
        }
        for (name, endpoint, share) in
            shares.iter().flat_map(|(name, all)| all.iter().map(move |(at, share)| (name, at, share)))
        {
            if *share != Share::FULL {
                endpoints.entry((name, *endpoint)).or_insert((false, Share::FULL)).1 = *share;
            }
        }
        let observed = endpoints.into_iter().map(|((name, endpoint), (ejected, sixteenths))| ObservedEndpoint {
            service_port: name.to_string(),
            endpoint,
            ejected,
            sixteenths,
        });
        observed.collect()
    }
}

impl Observer for Observed {
    fn on_change(&mut self, change: &Change, _: &Tracker) {
        let mut observed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match change {
            Change::Desired(TrackerEvent::EndpointsEjected(ejections), _) => observed.0.clone_from(ejections),
            Change::Desired(TrackerEvent::SharesApplied(shares), _) => observed.1.clone_from(shares),
            _ => {}
        }
    }
}
