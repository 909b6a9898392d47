//! Explains how the proxy handles a Service: its frontends, its policies, and its endpoints with the reason why each is used
//! or not.
//!
//! The handling of connections is determined by [`forwarding`](ferroute_core::forwarding()), which is tested against
//! the rules of all modes, and the reasons by [`ServiceTable::eligibility`], the code that selects its endpoints.
//! [`explain`] is pure; [`explain_on_host`] adds the rules, counters and connections in the kernel.

mod build;
mod explanation;
mod host;
mod kernel;
mod print;

use std::net::IpAddr;

use ferroute_admin::health::HealthCheck;
use ferroute_api as api;
use ferroute_core::{ModeTraits, ProxySettings, Tracker};

#[cfg(doc)]
use ferroute_core::ServiceTable;

pub use explanation::{
    Answer, Clients, ConnectionCount, EndpointState, ExplainedBalancing, ExplainedEndpoint, ExplainedFrontend,
    ExplainedHealthCheck, ExplainedPort, Explanation, FrontendOwner, Handling, KernelState, NodeAddresses, Outcome,
    Policies, Reason, ServiceRule, Source, UnusedSlice, Usage,
};
pub use host::{explain_object, explain_on_host, not_found, not_served};
pub use print::write_explanation_into;

/// The inputs of an explanation.
#[derive(Clone)]
pub struct Inputs<'a> {
    /// All objects, with up-to-date tables of both IP families.
    pub tracker: &'a Tracker,
    /// The settings of the proxy.
    pub settings: &'a ProxySettings,
    /// Behaviour of the proxy mode that differs from other modes.
    pub traits: &'static ModeTraits,
    /// The addresses of the host's interfaces, on which node ports may be served.
    pub addresses: &'a [IpAddr],
    /// The Service's health check, if it has a health-check node port.
    pub health_check: Option<HealthCheck>,
    /// Returns the name of the pod with an address.
    pub pod: &'a dyn Fn(IpAddr) -> Option<String>,
    /// Returns the name of the node on which the endpoint with an address runs.
    pub node: &'a dyn Fn(IpAddr) -> Option<String>,
}

/// Explains how the proxy handles `service`. [`ExplainedPort::kernel`] and [`ExplainedPort::not_applied`] are `None` for all
/// ports.
pub fn explain(service: &api::Service, inputs: &Inputs<'_>) -> Explanation {
    build::explanation(service, inputs)
}

#[cfg(test)]
mod tests;
