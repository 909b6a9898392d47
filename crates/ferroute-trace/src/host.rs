use std::net::IpAddr;

use ferroute_core::IpFamily;
use ipnet::IpNet;

/// What rules and routing ask about the host: which addresses are its own, and where others are.
///
/// This is no more of a routing table than is needed to tell apart what a packet can meet: the host itself, or the
/// next interface with the address that masquerading takes. The host forwards. Policy routing, reverse-path filters and
/// broadcasts are not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The host's own addresses, in the order of its interfaces. Those of loopback (127.0.0.0/8, ::1) are its own
    /// without being listed.
    pub addresses: Vec<IpAddr>,
    /// Where the others are; the longest prefix counts.
    pub routes: Vec<Route>,
    /// Packets to and from 127.0.0.0/8 may leave and enter the host (`route_localnet`). IPv6 has no such thing.
    pub route_localnet: bool,
}

/// A way to a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network; length 0 for the default route.
    pub to: IpNet,
    /// The interface that packets leave through.
    pub interface: String,
    /// The host's address there: what the host's own packets have as their source, and what masquerading gives.
    pub source: IpAddr,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way<'a> {
    /// To the host itself.
    Here,
    /// Elsewhere.
    Through(&'a Route),
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

    /// The way to `address`; `None` if nobody knows it.
    pub(crate) fn way(&self, address: IpAddr) -> Option<Way<'_>> {
        if self.owns(address) { Some(Way::Here) } else { self.route(address).map(Way::Through) }
    }

    /// What masquerading gives to a packet that leaves for `destination`.
    ///
    /// A packet to the host itself leaves through the loopback interface, which has no address that others could use.
    /// IPv4 then takes the host's first one (`inet_select_addr`); IPv6 takes the best for the destination, which is the
    /// destination (`ipv6_dev_get_saddr`).
    pub(crate) fn masquerade_source(&self, destination: IpAddr) -> Option<IpAddr> {
        match self.way(destination)? {
            Way::Through(route) => Some(route.source),
            Way::Here if IpFamily::of(destination) == IpFamily::V6 => Some(destination),
            Way::Here => self.addresses.iter().copied().find(|own| own.is_ipv4() && !own.is_loopback()),
        }
    }

    /// Whether the kernel takes `address` for forged as the source of an IPv4 packet from outside: it is ours.
    pub(crate) fn is_forged(&self, address: IpAddr) -> bool {
        let localhost = IpAddr::from([127, 0, 0, 1]);
        address == localhost || self.addresses.contains(&address) || (address.is_loopback() && !self.route_localnet)
    }
}
