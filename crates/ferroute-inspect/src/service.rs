//! What a proxy makes of one Service: its frontends, its endpoints with the reason why each is used or not, and the
//! policies in force.
//!
//! The reasons come from the same code that chooses endpoints for rules ([`ServiceTable::eligibility`]); nothing is
//! decided here a second time.

mod build;
mod host;
mod kernel;
mod own;
mod print;
mod types;

use std::net::IpAddr;

use ferroute_api as api;
use ferroute_core::{ProxySettings, Tracker};

#[cfg(doc)]
use ferroute_core::ServiceTable;

pub use host::explain_on_host;
pub use own::{own_iptables_rules, own_nftables_elements};
pub use print::write_explanation_into;
pub use types::{
    Affinity, Answer, Clients, EndpointState, ExplainedEndpoint, ExplainedFrontend, ExplainedPort, Explanation,
    FlowCount, Handling, HealthCheck, InForce, Outcome, OwnRule, Policies, Source, Stray, Usage,
};

/// What an explanation is made from.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// All objects, with the tables of both families up to date.
    pub tracker: &'a Tracker,
    /// What the operator has decided.
    pub settings: &'a ProxySettings,
    /// Addresses of the host's interfaces: those that node ports can be on.
    pub addresses: &'a [IpAddr],
    /// What the Service's health-check node port tells, if it has one.
    pub health_check: Option<HealthCheck>,
    /// Name of the pod that has an address, where it is known.
    pub pod: &'a dyn Fn(IpAddr) -> Option<String>,
}

/// What the proxy makes of `service`. Of what is in the kernel nothing is told yet: [`ExplainedPort::in_force`] is `None`.
pub fn explain(service: &api::Service, facts: &Facts<'_>) -> Explanation {
    build::explanation(service, facts)
}

#[cfg(test)]
mod tests;
