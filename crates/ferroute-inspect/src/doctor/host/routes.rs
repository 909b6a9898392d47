//! Routes to the addresses of Services.

use std::net::{IpAddr, SocketAddr};

use ferroute_core::{Protocol, error_chain};
use ferroute_host::{KernelRoutes, RouteQuery, RouteReply};
use ferroute_trace::{Host, RouteDecision, RoutedPacket};

use super::destinations::CLIENT_PORT;
use crate::doctor::{Reading, Unrouted, UnroutedPod};

/// Returns the first of these addresses to which the kernel sends no packets of the host itself. It looks up the route before
/// any rule translates the destination.
pub(crate) fn unrouted(addresses: impl IntoIterator<Item = IpAddr>) -> Reading<Option<Unrouted>> {
    let find = || {
        let mut routes = KernelRoutes::open()?;
        for destination in addresses.into_iter().take(MAX_ADDRESSES) {
            let query = RouteQuery { destination, source: None, input: None, output: None, mark: 0, transport: None };
            if let RouteReply::Refused(errno) = routes.lookup(&query)? {
                return Ok(Some(Unrouted { address: destination, is_refused: errno != libc::ENETUNREACH }));
            }
        }
        Ok(None)
    };
    find().map_err(|error: ferroute_host::RouteError| error_chain(&error))
}

/// Returns the first connection of a pod on this node to an endpoint elsewhere that a routing table of the kernel refuses,
/// which a policy rule may select.
pub(super) fn unrouted_pod(
    pods: &[IpAddr],
    endpoints: impl Iterator<Item = SocketAddr>,
    host: &Host,
) -> Option<UnroutedPod> {
    let router = host.router.as_deref()?;
    let refused = |(pod, endpoint): (IpAddr, SocketAddr)| {
        let (interface, _) = host.path_to(pod, None)?;
        let transport = Some((Protocol::Tcp, CLIENT_PORT, endpoint.port()));
        let packet =
            RoutedPacket { destination: endpoint.ip(), source: Some(pod), input: Some(&interface), mark: 0, transport };
        let reason = match router.route(&packet) {
            RouteDecision::Unreachable => "no route, or one of type unreachable".to_owned(),
            RouteDecision::Prohibited => "route of type prohibit".to_owned(),
            RouteDecision::Dropped(reason) => reason.into_owned(),
            _ => return None,
        };
        Some(UnroutedPod { pod, endpoint: endpoint.ip(), reason })
    };
    endpoints.flat_map(|endpoint| pods.iter().map(move |pod| (*pod, endpoint))).find_map(refused)
}

/// Maximum number of addresses to look up. All are in one range, or in a few.
const MAX_ADDRESSES: usize = 1000;

#[cfg(test)]
mod tests {
    use ferroute_testing::NetNs;

    use super::*;

    #[test]
    fn addresses_without_route_are_found() {
        let host = NetNs::new();
        for command in [
            "link set lo up",
            "link add eth0 type veth peer name eth1",
            "link set eth1 up",
            "link set eth0 up",
            "addr add 192.0.2.1/24 dev eth0",
        ] {
            host.command("ip", &command.split(' ').collect::<Vec<_>>());
        }
        let addresses = ["10.96.0.1", "10.96.0.2"].map(|address| address.parse().unwrap());
        let unrouted = || host.run(|| unrouted(addresses)).unwrap();
        let without = |address| Some(Unrouted { address, is_refused: false });
        assert_eq!(unrouted(), without(addresses[0]));
        host.command("ip", &["route", "add", "10.96.0.1/32", "dev", "eth0"]);
        assert_eq!(unrouted(), without(addresses[1]));
        for kind in ["blackhole", "unreachable", "prohibit"] {
            host.command("ip", &["route", "add", kind, "10.96.0.0/16"]);
            assert_eq!(unrouted(), Some(Unrouted { address: addresses[1], is_refused: true }));
            host.command("ip", &["route", "del", kind, "10.96.0.0/16"]);
        }
        for route in ["default", "10.96.0.0/16"] {
            host.command("ip", &["route", "add", route, "dev", "eth0"]);
            assert_eq!(unrouted(), None);
            host.command("ip", &["route", "del", route, "dev", "eth0"]);
        }
        let address = "fd00::1".parse().unwrap();
        assert_eq!(host.run(|| super::unrouted([address])).unwrap(), without(address));
    }
}
