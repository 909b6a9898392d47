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
    /// Whether the proxy serves the Service: a valid version of it has been received and has ports.
    #[serde(default)]
    pub served: bool,
    /// Whether rules of these versions are active in every IP family, and the last version of the Service is valid. If the
    /// Service is not served, whether there are no rules of it.
    pub applied: bool,
    /// Whether they are not active because the kernel refuses rules of the Service.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// Whether the Service is not served, or not with all of its endpoints, because a limit is exceeded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub limited: bool,
    /// Reason why the Service is not served or not applied, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The `resourceVersion` of the Service; `None` if the proxy has not received it or does not serve it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<u64>,
    /// The `resourceVersion` of each endpoint slice, by name.
    pub slices: BTreeMap<String, Option<u64>>,
}

impl ServiceVersions {
    /// Reports whether the proxy serves the Service with the last received versions, which is the exit status of `ferroute
    /// status --service`.
    pub fn is_served_as_received(&self) -> bool {
        self.served && self.applied
    }

    /// Sets the reason why the proxy does not use the last version of the Service.
    pub(crate) fn set_unused(&mut self, reason: String) {
        self.applied &= !self.served;
        self.reason = Some(if self.served { format!("{reason}; the last valid version stays") } else { reason });
    }
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
        let Applied { is_served, is_applied, is_refused, is_limited } = self.history.applied(service, has_ports);
        let unapplied = self.history.unapplied().into_iter().filter(|port| port.is_of(service));
        let mut reasons: Vec<String> = unapplied.map(|port| port.to_string()).collect();
        if !is_served && !is_applied {
            reasons.push("it was deleted, and its rules are not removed yet".to_owned());
        } else if !is_served && has_ports.is_some() {
            reasons.push("it has no port in an IP family that is served".to_owned());
        } else if !is_served {
            reasons.push("the proxy has not received the Service".to_owned());
        }
        let slices = desired.slices_of(service).map(|slice| slice.name);
        ServiceVersions {
            served: is_served,
            applied: is_applied,
            refused: is_refused,
            limited: is_limited,
            reason: (!reasons.is_empty()).then(|| reasons.join("; ")),
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
