//! Limits of the resources that one Service may use on a node.
//!
//! An object has 1.5 MB at most, but its ports multiply with its addresses, source ranges and endpoints: a Service with
//! a thousand ports and 20,000 addresses has 20 million frontends, which would take gigabytes here and in the kernel.
//! Each limit is far above what Kubernetes is designed for (250 endpoints of a Service), and low enough that one
//! Service costs at most about as much as a large cluster. Anything beyond a limit is not used and is reported for the
//! Service; other Services are not affected.

use crate::{Method, ModeTraits, ServicePort};

/// Maximum number of addresses times ports of a Service, for each IP family. The first addresses are served: those of load
/// balancers, then external IPs. Cluster IP and node port of each port are served in any case.
///
/// In nftables mode, the kernel needs 0.1 to 0.2 s for this number, in several transactions.
pub const MAX_FRONTENDS: usize = 65_536;

/// Maximum number of load balancer source ranges times ports of a Service, for each IP family. Clients in the remaining
/// ranges have no access.
pub const MAX_SOURCE_RANGES: usize = 131_072;

/// Maximum number of endpoints of a service port; ready endpoints are preferred.
///
/// In nftables mode, the rounded number of endpoints is a part of a class, which has 12 bits: enough for 416 such
/// numbers.
pub const MAX_ENDPOINTS: usize = 131_072;

/// Maximum number of endpoints times ports of a Service, for each IP family.
pub const MAX_SERVICE_ENDPOINTS: usize = 262_144;

/// Maximum numbers of endpoints of a service port in a mode where the choice is not random; ready endpoints are
/// preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointLimits {
    /// Maximum with a method other than random.
    pub balanced: usize,
    /// Maximum with session affinity.
    pub sticky: usize,
}

impl EndpointLimits {
    /// No limits besides those of all modes.
    pub const NONE: Self = Self { balanced: MAX_ENDPOINTS, sticky: MAX_ENDPOINTS };
}

/// Returns the maximum number of endpoints of each service port of a Service with this number of ports.
pub fn max_endpoints(service: &ServicePort, ports: usize, traits: &ModeTraits) -> usize {
    let EndpointLimits { balanced, sticky } = traits.endpoint_limits;
    let max = match service.balancing.method {
        Some(method) if method != Method::Random => balanced,
        _ if service.affinity.is_some() => sticky,
        _ => MAX_ENDPOINTS,
    };
    // A Service has at least one port; each may have an endpoint.
    max.min(MAX_SERVICE_ENDPOINTS / ports.max(1)).max(1)
}
