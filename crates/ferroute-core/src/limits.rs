//! How much of the node one Service may use.
//!
//! An object has 1.5 MB at most, but its ports multiply with its addresses, source ranges and endpoints: a Service with a
//! thousand ports and 20,000 addresses has 20 million frontends, which would take gigabytes here and in the kernel. Each
//! limit is far above what Kubernetes is designed for (250 endpoints of a Service), and low enough that one Service costs
//! at most about as much as a large cluster. What exceeds a limit is not used; it is reported for the Service, and
//! no other Service is affected.

use crate::{Method, ServicePort};

/// Maximum number of addresses times ports of a Service, for each IP family. The first addresses are served: those of load
/// balancers, then external IPs. Cluster IP and node port of each port are served in any case.
///
/// Takes the kernel 0.1 to 0.2 s in nftables mode, in several transactions.
pub const MAX_FRONTENDS: usize = 65_536;

/// Maximum number of load balancer source ranges times ports of a Service, for each IP family. Clients in further ranges
/// have no access.
pub const MAX_SOURCE_RANGES: usize = 131_072;

/// Maximum number of endpoints of a service port; those that are ready come first.
///
/// In nftables mode, the number of endpoints is a part of a class, which has 12 bits.
pub const MAX_ENDPOINTS: usize = 65_536;

/// Maximum number of endpoints of a service port with session affinity; those that are ready come first.
///
/// In nftables mode, the kernel remembers a client's endpoint as a number of 12 bits that is not zero.
pub const MAX_STICKY_ENDPOINTS: usize = 4_095;

/// Maximum number of endpoints times ports of a Service, for each IP family.
pub const MAX_SERVICE_ENDPOINTS: usize = 262_144;

/// Maximum number of endpoints of a service port whose method is not random; those that are ready come first.
///
/// In nftables mode, the time to fill a hash table is proportional to its size and to the number of endpoints.
pub const MAX_BALANCED_ENDPOINTS: usize = 2_048;

/// Returns how many endpoints a service port may have of a Service with this number of ports.
pub fn max_endpoints(service: &ServicePort, ports: usize) -> usize {
    let max = match service.balancing.method {
        Some(method) if method != Method::Random => MAX_BALANCED_ENDPOINTS,
        _ if service.affinity.is_some() => MAX_STICKY_ENDPOINTS,
        _ => MAX_ENDPOINTS,
    };
    // A Service has at least one port; each may have an endpoint.
    max.min(MAX_SERVICE_ENDPOINTS / ports.max(1)).max(1)
}
