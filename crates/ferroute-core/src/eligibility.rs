use serde::{Deserialize, Serialize};

use crate::Endpoint;

/// Whether traffic of one policy uses an endpoint, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Eligibility {
    /// Eligible: ready.
    Ready,
    /// Eligible: serving while terminating, and no endpoint is ready.
    ServingTerminating,
    /// Not eligible: not ready.
    NotReady,
    /// Not eligible: terminating and no longer serving.
    TerminatingNotServing,
    /// Not eligible: terminating, and other endpoints are ready.
    Terminating,
    /// Not eligible: on another node, or on an unknown one.
    OtherNode,
    /// Not eligible: hinted for other nodes.
    HintedOtherNode,
    /// Not eligible: hinted for other zones.
    HintedOtherZone,
    /// Not eligible: its weight is 0.
    Drained,
    /// Not eligible: its connections failed.
    Ejected,
    /// Not eligible: the mode does not support the protocol of the service port.
    UnsupportedProtocol,
}

impl Eligibility {
    /// Reports whether new connections use the endpoint.
    pub fn is_eligible(self) -> bool {
        matches!(self, Self::Ready | Self::ServingTerminating)
    }
}

/// Endpoints that traffic may use, regardless of their conditions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    /// All endpoints.
    Cluster,
    /// Endpoints with a hint for this node.
    HintedNode(&'a str),
    /// Endpoints with a hint for this zone.
    HintedZone(&'a str),
    /// Endpoints on this node.
    Local,
}

/// The selection of endpoints for one traffic policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection<'a> {
    scope: Scope<'a>,
    any_ready: bool,
    /// Whether ejected endpoints are excluded, which requires that at least half of the endpoints remain.
    ejects: bool,
}

impl<'a> Selection<'a> {
    /// Returns the selection of ready endpoints within the scope or, if there are none, of those that are serving while
    /// terminating.
    pub(crate) fn new(endpoints: &[Endpoint], scope: Scope<'a>) -> Self {
        let within = || endpoints.iter().filter(|endpoint| scope.excludes(endpoint).is_none());
        let any_ready = within().any(Endpoint::accepts);
        // Few service ports have ejected endpoints.
        let has_ejected = endpoints.iter().any(|endpoint| endpoint.ejected);
        let ejects = has_ejected && {
            let used = || within().filter(|endpoint| if any_ready { endpoint.accepts() } else { endpoint.is_usable() });
            let (all, ejected) = (used().count(), used().filter(|endpoint| endpoint.ejected).count());
            ejected < all && ejected * 2 <= all
        };
        Self { scope, any_ready, ejects }
    }

    /// Returns the eligibility of an endpoint. If several reasons exclude it, they are checked in this order: weight,
    /// conditions, node, hints. Hints are last because they apply to ready endpoints only.
    pub(crate) fn eligibility(&self, endpoint: &Endpoint) -> Eligibility {
        if endpoint.weight == 0 {
            return Eligibility::Drained;
        }
        let eligible = match (endpoint.ready, endpoint.is_serving_terminating()) {
            (true, _) => Eligibility::Ready,
            (false, true) => Eligibility::ServingTerminating,
            (false, false) if endpoint.terminating => return Eligibility::TerminatingNotServing,
            (false, false) => return Eligibility::NotReady,
        };
        match self.scope.excludes(endpoint) {
            Some(Eligibility::OtherNode) => Eligibility::OtherNode,
            _ if eligible == Eligibility::ServingTerminating && self.any_ready => Eligibility::Terminating,
            Some(reason) => reason,
            None if self.ejects && endpoint.ejected => Eligibility::Ejected,
            None => eligible,
        }
    }

    /// Returns the eligible endpoints.
    pub(crate) fn select(&self, endpoints: &[Endpoint]) -> Vec<Endpoint> {
        endpoints.iter().filter(|endpoint| self.eligibility(endpoint).is_eligible()).cloned().collect()
    }
}

impl Scope<'_> {
    /// Returns the reason why an endpoint is not in the scope; `None` if it is.
    fn excludes(self, endpoint: &Endpoint) -> Option<Eligibility> {
        let (is_within, reason) = match self {
            Self::Cluster => return None,
            Self::HintedNode(node) => (endpoint.is_hinted_for_node(node), Eligibility::HintedOtherNode),
            Self::HintedZone(zone) => (endpoint.is_hinted_for_zone(zone), Eligibility::HintedOtherZone),
            Self::Local => (endpoint.local, Eligibility::OtherNode),
        };
        (!is_within).then_some(reason)
    }
}
