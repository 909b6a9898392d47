//! Connections that rules of Services refuse, and the rules that show them.

mod table;

use ferroute_core::{Client, Frontend, FrontendKind, Outcome, OverLimit, PortForwarding, Refusal};
use ipnet::IpNet;

pub(crate) use self::table::{Logged, Watched, table};
use crate::FlowState;

/// The connections to a frontend that rules reject or drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusals {
    /// Results for clients that may use the frontend, in the order of [`Client::ALL`]; `None` if they are not refused.
    permitted: [Option<Refused>; 3],
    /// Results for other clients, if only some sources may use the frontend.
    restricted: Option<Restricted>,
}

/// Result of a refused connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// [`FlowState::Rejected`] or [`FlowState::Dropped`].
    pub(crate) state: FlowState,
    /// Why.
    pub(crate) reason: Reason,
}

/// Reason why a rule refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The Service cannot serve it.
    Service(Refusal),
    /// It is beyond a limit of the Service.
    Limit,
    /// The Service of the cluster IP has no such port.
    UnknownPort,
    /// The address is in a network of cluster IPs, but no Service has it.
    UnassignedAddress,
}

/// The clients that may not use a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Restricted {
    /// The sources that may.
    sources: Vec<IpNet>,
    refused: [Option<Refused>; 3],
}

impl Refusals {
    /// Returns the refused connections to a frontend; `None` if there are none.
    pub(crate) fn new(port: &PortForwarding<'_>, kind: FrontendKind, frontend: Frontend) -> Option<Self> {
        let refusals = Self {
            permitted: Client::ALL.map(|client| Refused::of(port.outcome(kind, client))),
            restricted: port.is_restricted(kind, frontend).then(|| Restricted {
                sources: port.permitted_sources(frontend.address.as_slice()),
                refused: Client::ALL.map(|client| Refused::of(port.outcome_outside_source_ranges(kind, client))),
            }),
        };
        let has_any = refusals.restricted.is_some() || refusals.permitted.iter().any(Option::is_some);
        has_any.then_some(refusals)
    }

    /// Returns the result for a connection of a class of clients; `is_permitted` reports whether the source may use the
    /// frontend. `None` if the connection is not refused.
    pub(crate) fn of(&self, client: Client, is_permitted: bool) -> Option<Refused> {
        let refused = match (&self.restricted, is_permitted) {
            (Some(restricted), false) => &restricted.refused,
            _ => &self.permitted,
        };
        refused[client as usize]
    }

    /// Returns the sources that may use the frontend; `None` for all.
    pub(crate) fn sources(&self) -> Option<&[IpNet]> {
        self.restricted.as_ref().map(|restricted| &restricted.sources[..])
    }
}

impl Refused {
    /// Returns the result beyond a limit.
    pub(crate) fn over_limit(over_limit: OverLimit) -> Self {
        let state = match over_limit {
            OverLimit::Reject => FlowState::Rejected,
            OverLimit::Drop => FlowState::Dropped,
        };
        Self { state, reason: Reason::Limit }
    }

    fn of(outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Forward(_) | Outcome::NotOurs => None,
            Outcome::Reject(refusal) => Some(Self { state: FlowState::Rejected, reason: Reason::Service(refusal) }),
            Outcome::Drop(refusal) => Some(Self { state: FlowState::Dropped, reason: Reason::Service(refusal) }),
        }
    }
}

impl Reason {
    /// Returns the reason as a word, as in the JSON of `ferroute explain`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Service(Refusal::NoEndpoints) => "noEndpoints",
            Self::Service(Refusal::NoLocalEndpoints) => "noLocalEndpoints",
            Self::Service(Refusal::UnsupportedProtocol) => "unsupportedProtocol",
            Self::Service(Refusal::SourceRanges) => "sourceRanges",
            Self::Limit => "limit",
            Self::UnknownPort => "unknownPort",
            Self::UnassignedAddress => "unassignedAddress",
        }
    }
}
