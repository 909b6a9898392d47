use std::net::IpAddr;

use ferroute_core::IpFamily;
use ipnet::IpNet;

/// The host's addresses and routes, as far as rules and routing decisions depend on them.
///
/// The host forwards packets. Policy routing, reverse-path filters and broadcasts are not modelled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The host's addresses, in the order of its interfaces. Loopback addresses (127.0.0.0/8, ::1) are local without
    /// being listed.
    pub addresses: Vec<IpAddr>,
    /// The unicast routes; the longest prefix wins.
    pub routes: Vec<Route>,
    /// The sysctl `net.ipv4.conf.all.route_localnet`: packets from and to 127.0.0.0/8 may leave and enter the host. There
    /// is no such setting for IPv6.
    pub route_localnet: bool,
}

/// A unicast route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination network; length 0 for the default route.
    pub to: IpNet,
    /// The output interface.
    pub interface: String,
    /// The host's address on that interface: the source of the host's own packets and of masqueraded ones.
    pub source: IpAddr,
}

/// The result of a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup<'a> {
    /// The destination is the host itself (`RTN_LOCAL`).
    Local,
    /// The packet leaves the host (`RTN_UNICAST`).
    Unicast(&'a Route),
}

impl Host {
    /// Reports whether `address` is one of the host's addresses.
    pub fn owns(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }

    /// Returns the route to `address`; `None` for the host's own addresses and for unreachable ones.
    pub fn route(&self, address: IpAddr) -> Option<&Route> {
        let routes = self.routes.iter().filter(|route| route.to.contains(&address));
        routes.max_by_key(|route| route.to.prefix_len()).filter(|_| !self.owns(address))
    }

    /// Looks up the route to `address`; `None` if it is unreachable.
    pub(crate) fn lookup(&self, address: IpAddr) -> Option<Lookup<'_>> {
        if self.owns(address) { Some(Lookup::Local) } else { self.route(address).map(Lookup::Unicast) }
    }

    /// Returns the source that masquerading gives to a packet for `destination`.
    ///
    /// A packet for the host itself leaves through the loopback interface, which has no address of global scope. IPv4 then
    /// selects the host's first one (`inet_select_addr`); IPv6 selects the best one for the destination, which is the
    /// destination itself (`ipv6_dev_get_saddr`).
    pub(crate) fn masquerade_source(&self, destination: IpAddr) -> Option<IpAddr> {
        match self.lookup(destination)? {
            Lookup::Unicast(route) => Some(route.source),
            Lookup::Local if IpFamily::of(destination) == IpFamily::V6 => Some(destination),
            Lookup::Local => self.addresses.iter().copied().find(|address| address.is_ipv4() && !address.is_loopback()),
        }
    }

    /// Reports whether the kernel drops incoming IPv4 packets from `address` as martians: it is the host's own.
    pub fn is_martian_source(&self, address: IpAddr) -> bool {
        let localhost = IpAddr::from([127, 0, 0, 1]);
        address == localhost || self.addresses.contains(&address) || (address.is_loopback() && !self.route_localnet)
    }
}
