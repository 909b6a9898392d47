//! The applied versions of a Service and its endpoint slices, for `ferroute status --service`.
//!
//! ```text
//!   sync loop --> VersionsObserver <-- VersionRequests <-- socket <-- ferroute status --service
//!   (a thread)       |    `----- ServiceVersions ---------^
//!                 History: the ledger of applied versions
//! ```

use std::{collections::BTreeMap, sync::Arc};

use ferroute_admin::history::{Applied, History};
use ferroute_core::{NamespacedName, Tracker};
use serde::{Deserialize, Serialize};

use crate::observers::{Observer, requests::Requests};

/// The received versions of a Service and its endpoint slices, and whether they are applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceVersions {
    /// Whether rules of these versions are active in every IP family.
    pub applied: bool,
    /// Whether they are not active because the kernel refuses rules of the Service, or because a limit of the mode is
    /// exceeded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// The `resourceVersion` of the Service; `None` if the proxy has not received it or does not serve it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<u64>,
    /// The `resourceVersion` of each endpoint slice, by name.
    pub slices: BTreeMap<String, Option<u64>>,
}

/// Requests for the versions of a Service.
pub(crate) type VersionRequests = Requests<NamespacedName, ServiceVersions>;

/// Responds to requests for the versions of a Service.
#[derive(Debug)]
pub(crate) struct VersionsObserver {
    history: Arc<History>,
    requests: VersionRequests,
}

impl VersionsObserver {
    /// Creates an observer that responds from this history.
    pub(crate) fn new(history: Arc<History>) -> Self {
        Self { history, requests: VersionRequests::default() }
    }

    /// Returns the queue of requests.
    pub(crate) fn requests(&self) -> VersionRequests {
        self.requests.clone()
    }

    fn versions(&self, service: &NamespacedName, desired: &Tracker) -> ServiceVersions {
        let has_ports = desired.ports_of(service).map(|ports| [0, 1].map(|index| !ports[index].is_empty()));
        let Applied { is_applied, is_refused } = self.history.applied(service, has_ports);
        let slices = desired.slices_of(service).map(|slice| slice.name);
        ServiceVersions {
            applied: is_applied,
            refused: is_refused,
            service: has_ports.and_then(|_| self.history.service_version(service)),
            slices: slices.map(|name| (name.name().to_owned(), self.history.slice_version(&name))).collect(),
        }
    }
}

impl Drop for VersionsObserver {
    fn drop(&mut self) {
        self.requests.close();
    }
}

impl Observer for VersionsObserver {
    fn on_tick(&mut self, desired: &Tracker) {
        self.requests.respond(|service| self.versions(&service, desired));
    }
}

#[cfg(test)]
mod tests;
