use std::net::IpAddr;

use ipnet::IpNet;

/// What rules and routing ask about the host: which addresses are its own, and where others are.
///
/// This is no more of a routing table than is needed to tell apart what a packet can meet: the host itself, or the
/// next interface with the address that masquerading takes. Policy routing and reverse-path filters are not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The host's own addresses. Those of loopback (127.0.0.0/8, ::1) are its own without being listed.
    pub addresses: Vec<IpAddr>,
    /// Where the others are; the longest prefix counts.
    pub routes: Vec<Route>,
    /// Packets to and from 127.0.0.0/8 may leave and enter the host (`route_localnet`).
    pub route_localnet: bool,
}

/// A way to a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network; length 0 for the default route.
    pub to: IpNet,
    /// The interface that packets leave through.
    pub interface: String,
    /// The address that the host uses for itself there.
    pub source: IpAddr,
}

impl Host {
    /// Whether `address` is one of the host's own.
    pub fn owns(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }

    /// The way to `address`, unless it is the host's own or nobody knows it.
    pub fn route(&self, address: IpAddr) -> Option<&Route> {
        let ways = self.routes.iter().filter(|route| route.to.contains(&address));
        ways.max_by_key(|route| route.to.prefix_len()).filter(|_| !self.owns(address))
    }
}
