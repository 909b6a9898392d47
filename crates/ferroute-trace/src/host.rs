use std::{borrow::Cow, fmt, net::IpAddr, sync::Arc};

use ferroute_core::{IpFamily, Protocol};
use ipnet::IpNet;

/// The host's addresses and routes, as far as rules and routing decisions depend on them.
///
/// The host forwards packets.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The host's addresses, in the order of its interfaces. Loopback addresses (127.0.0.0/8, ::1) are local without
    /// being listed.
    pub addresses: Vec<IpAddr>,
    /// The unicast routes; the longest prefix wins. They decide if there is no `router`.
    pub routes: Vec<Route>,
    /// The sysctl `net.ipv4.conf.all.route_localnet`: packets from and to 127.0.0.0/8 may leave and enter the host.
    pub route_localnet: bool,
    /// Whether all interfaces have a local route to `::1`, without which replies to it are not delivered. Not used if
    /// there is a `router`.
    pub localhost_routes: bool,
    /// A running kernel, with all of its rules and tables.
    pub router: Option<Arc<dyn Router>>,
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

/// A running kernel that routes packets, with all its tables, policy rules and filters.
pub trait Router: fmt::Debug + Send + Sync {
    /// Looks up the route of a packet.
    fn route(&self, packet: &RoutedPacket<'_>) -> RouteDecision;

    /// Reports whether routes may have several paths, of which [`RouteDecision::Paths`] returns all.
    fn has_several_paths(&self) -> bool {
        false
    }

    /// Returns the decision about a packet as rules look it up (`fib`, `rpfilter`): its source selects the route and
    /// need not be valid, it comes from the loopback interface unless it has an input interface, and all paths of the
    /// route are returned, although the kernel takes one of them.
    fn route_for_rules(&self, packet: &RoutedPacket<'_>) -> RouteDecision {
        self.route(packet)
    }

    /// Returns the type of an address as `-m addrtype` and `fib` see it; `None` if it is unknown.
    fn address_type(&self, address: IpAddr) -> Option<AddressKind>;

    /// Returns the type of a local or broadcast address for packets that arrive on an interface: an address of another
    /// interface counts as that of another host. `None` if it is unknown.
    fn address_type_on(&self, address: IpAddr, interface: &str) -> Option<AddressKind>;

    /// Returns the source of a masqueraded packet for `destination` that leaves through `interface`, to `gateway` if
    /// there is one. `None` if the host has no such address.
    fn masquerade_source(&self, destination: IpAddr, interface: &str, gateway: Option<IpAddr>) -> Option<IpAddr>;

    /// Returns the first address of an interface; for IPv6 also a link-local one.
    fn address_of(&self, interface: &str, family: IpFamily) -> Option<IpAddr>;

    /// Returns the VRF that an interface is a port of.
    fn vrf(&self, interface: &str) -> Option<Arc<str>>;

    /// Returns the group of an interface; `None` if it is unknown.
    fn group(&self, _interface: &str) -> Option<u32> {
        None
    }

    /// Returns the ports of a bridge on which rules see that packets of an IP family arrive, as these pass netfilter on the bridge; an
    /// empty list for other interfaces.
    fn ports_seen(&self, _interface: &str, _family: IpFamily) -> Vec<String> {
        Vec::new()
    }

    /// Reports whether routes or policy rules give packets realms; `None` if it is unknown.
    fn has_realms(&self) -> Option<bool> {
        None
    }

    /// Reports whether the host encrypts or decrypts packets by IPsec; `None` if it is unknown.
    fn uses_ipsec(&self) -> Option<bool> {
        None
    }

    /// Reports whether packets that arrive on an interface can be sent back through it to the same host. A bridge whose
    /// packets pass netfilter sends them back only to ports in hairpin mode.
    fn returns_packets(&self, _interface: &str, _family: IpFamily) -> bool {
        true
    }
}

/// Inputs of a routing decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoutedPacket<'a> {
    /// The destination.
    pub destination: IpAddr,
    /// Source; `None` for a packet of the host itself whose source has not been selected yet.
    pub source: Option<IpAddr>,
    /// The input interface; `None` for packets of the host itself.
    pub input: Option<&'a str>,
    /// The mark.
    pub mark: u32,
    /// The transport protocol, source port and destination port.
    pub transport: Option<Transport>,
}

/// A transport protocol, source port and destination port.
pub type Transport = (Protocol, u16, u16);

/// The result of a route lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteDecision {
    /// The destination is the host itself (`RTN_LOCAL`).
    Local {
        /// Source that the kernel selects for the host's own packets, if it is not the destination.
        source: Option<IpAddr>,
    },
    /// The packet leaves the host (`RTN_UNICAST`).
    Unicast {
        /// The output interface.
        interface: Arc<str>,
        /// The next hop, unless the destination is a neighbour.
        gateway: Option<IpAddr>,
        /// The source that the kernel selects for the host's own packets.
        source: Option<IpAddr>,
    },
    /// The packet takes one of several paths, each with its weight, chosen by an unknown hash.
    Paths(Vec<(u32, RouteDecision)>),
    /// There is no route, or an `unreachable` one: the sender receives an ICMP error.
    Unreachable,
    /// A `prohibit` route: the sender gets an ICMP error.
    Prohibited,
    /// The packet is dropped, with the reason.
    Dropped(Cow<'static, str>),
    /// The route is unknown, with the reason.
    Unknown(String),
}

/// The type of an address (`RTN_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    /// An address of the host.
    Local,
    /// A broadcast address.
    Broadcast,
    /// A multicast address.
    Multicast,
    /// An address of another host.
    Unicast,
    /// An IPv6 address whose packets are dropped silently.
    Blackhole,
    /// An IPv6 address without a route, or with one that rejects packets.
    Unreachable,
    /// An IPv6 address whose packets are rejected as prohibited.
    Prohibit,
}

impl AddressKind {
    /// Returns the type of an IPv6 address by its route; `None` if that is unknown. Types of IPv4 addresses are those of table local.
    pub fn of_route(route: &RouteDecision) -> Option<Self> {
        match route {
            RouteDecision::Local { .. } => Some(Self::Local),
            RouteDecision::Unicast { .. } | RouteDecision::Paths(_) => Some(Self::Unicast),
            RouteDecision::Unreachable => Some(Self::Unreachable),
            RouteDecision::Prohibited => Some(Self::Prohibit),
            RouteDecision::Dropped(_) => Some(Self::Blackhole),
            RouteDecision::Unknown(_) => None,
        }
    }
}

impl Host {
    /// Reports whether `address` is one of the host's addresses.
    pub fn owns(&self, address: IpAddr) -> bool {
        address.is_loopback()
            || self.addresses.contains(&address)
            || self.router.as_ref().is_some_and(|router| router.address_type(address) == Some(AddressKind::Local))
    }

    /// Returns the route to `address` in `routes`; `None` for the host's own addresses and for unreachable ones.
    pub fn route(&self, address: IpAddr) -> Option<&Route> {
        let routes = self.routes.iter().filter(|route| route.to.contains(&address));
        routes.max_by_key(|route| route.to.prefix_len()).filter(|_| !self.owns(address))
    }

    /// Looks up the route of a packet, and takes the first of several paths.
    pub(crate) fn decide_first(&self, packet: &RoutedPacket<'_>) -> RouteDecision {
        match self.decide(packet) {
            RouteDecision::Paths(paths) => {
                paths.into_iter().next().map_or(RouteDecision::Unreachable, |(_, decision)| decision)
            }
            decision => decision,
        }
    }

    /// Returns the output interfaces of all paths that a rule finds in the routing tables for a packet: the kernel's checks of sources
    /// accept any of them. The list is empty for the host's own addresses and for unreachable ones.
    ///
    /// # Errors
    /// If the route is unknown.
    pub(crate) fn interfaces_for_rules(&self, packet: &RoutedPacket<'_>) -> Result<Vec<Arc<str>>, String> {
        let decision = match &self.router {
            Some(router) if !self.owns(packet.destination) => router.route_for_rules(packet),
            _ => self.decide(packet),
        };
        let paths = match decision {
            RouteDecision::Paths(paths) => paths.into_iter().map(|(_, path)| path).collect(),
            RouteDecision::Unknown(reason) => return Err(reason),
            decision => vec![decision],
        };
        let interface = |path| match path {
            RouteDecision::Unicast { interface, .. } => Some(interface),
            _ => None,
        };
        Ok(paths.into_iter().filter_map(interface).collect())
    }

    /// Returns the type of a packet's destination as a rule finds it, for IPv6 addresses that are not the host's; `None` if it is unknown.
    pub(crate) fn kind_for_rules(&self, packet: &RoutedPacket<'_>) -> Option<AddressKind> {
        AddressKind::of_route(&self.router.as_ref()?.route_for_rules(packet))
    }

    /// Returns the output interface and source of the host's own packets to `address`; `None` for the host's own addresses
    /// and for unreachable ones. Policy rules may match the packet's protocol and ports.
    pub fn path_to(&self, address: IpAddr, transport: Option<Transport>) -> Option<(Arc<str>, Option<IpAddr>)> {
        match self.decide_first(&own_packet(address, transport)) {
            RouteDecision::Unicast { interface, source, .. } => Some((interface, source)),
            _ => None,
        }
    }

    /// Returns the reason why the route to `address` refuses packets; `None` if it does not, or if there is none.
    pub fn refusal(&self, address: IpAddr, transport: Option<Transport>) -> Option<Cow<'static, str>> {
        match self.decide_first(&own_packet(address, transport)) {
            RouteDecision::Dropped(reason) => Some(reason),
            RouteDecision::Prohibited => Some("prohibit route".into()),
            _ => None,
        }
    }

    /// Returns the reason why the route to `address` is unknown; `None` if it is known.
    pub fn unknown_route(&self, address: IpAddr, transport: Option<Transport>) -> Option<String> {
        match self.decide_first(&own_packet(address, transport)) {
            RouteDecision::Unknown(reason) => Some(reason),
            _ => None,
        }
    }

    /// Returns the source of the host's own packets to `address`; `None` for unreachable ones. Uses the router if there
    /// is one, because the route to an address of the host may have another address as its source.
    pub fn source_to(&self, address: IpAddr, transport: Option<Transport>) -> Option<IpAddr> {
        let packet = own_packet(address, transport);
        let mut decision = match &self.router {
            Some(router) => router.route(&packet),
            None => self.decide(&packet),
        };
        if let RouteDecision::Paths(paths) = decision {
            decision = paths.into_iter().next().map_or(RouteDecision::Unreachable, |(_, decision)| decision);
        }
        match decision {
            RouteDecision::Local { source } => Some(source.unwrap_or(address)),
            RouteDecision::Unicast { source, .. } => source,
            _ => None,
        }
    }

    /// Looks up the route of a packet.
    pub(crate) fn decide(&self, packet: &RoutedPacket<'_>) -> RouteDecision {
        let destination = packet.destination;
        match &self.router {
            _ if destination.is_loopback() || self.addresses.contains(&destination) => {
                RouteDecision::Local { source: None }
            }
            Some(router) => router.route(packet),
            None => match self.route(destination) {
                Some(Route { interface, source, .. }) => RouteDecision::Unicast {
                    interface: interface.as_str().into(),
                    gateway: None,
                    source: Some(*source),
                },
                None => RouteDecision::Unreachable,
            },
        }
    }

    /// Returns the source of a masqueraded packet for `destination` that leaves through `interface`, to `gateway` if
    /// there is one.
    ///
    /// A packet for the host itself leaves through the loopback interface, which has no address of global scope. IPv4
    /// then selects the host's first address (`inet_select_addr`); IPv6 selects the best address for the destination,
    /// which is the destination itself (`ipv6_dev_get_saddr`).
    pub(crate) fn masquerade_source(
        &self,
        destination: IpAddr,
        interface: &str,
        gateway: Option<IpAddr>,
    ) -> Option<IpAddr> {
        if self.owns(destination) && IpFamily::of(destination) == IpFamily::V6 {
            return Some(destination);
        }
        if let Some(router) = &self.router {
            return router.masquerade_source(destination, interface, gateway);
        }
        if self.owns(destination) {
            return self.addresses.iter().copied().find(|address| address.is_ipv4() && !address.is_loopback());
        }
        self.route(destination).map(|route| route.source)
    }

    /// Reports whether the host's own packets from localhost may leave through `interface`, and whether their replies
    /// are delivered.
    pub(crate) fn routes_localhost(&self, family: IpFamily, interface: &str) -> bool {
        match (family, &self.router) {
            (IpFamily::V4, _) => self.route_localnet,
            (IpFamily::V6, None) => self.localhost_routes,
            (IpFamily::V6, Some(router)) => {
                let (destination, input) = (family.localhost(), Some(interface));
                let reply = RoutedPacket { destination, source: None, input, mark: 0, transport: None };
                matches!(router.route(&reply), RouteDecision::Local { .. })
            }
        }
    }

    /// Returns the group of an interface; `None` if it is unknown.
    pub(crate) fn group(&self, interface: &str) -> Option<u32> {
        self.router.as_ref()?.group(interface)
    }

    /// Returns the ports of a bridge on which rules see that packets arrive.
    pub(crate) fn ports_seen(&self, interface: &str, family: IpFamily) -> Vec<String> {
        self.router.as_ref().map(|router| router.ports_seen(interface, family)).unwrap_or_default()
    }

    /// Reports whether no packet has a realm.
    pub(crate) fn lacks_realms(&self) -> bool {
        self.router.as_ref().and_then(|router| router.has_realms()) == Some(false)
    }

    /// Reports whether no packet is encrypted or decrypted by IPsec.
    pub(crate) fn lacks_ipsec(&self) -> bool {
        self.router.as_ref().and_then(|router| router.uses_ipsec()) == Some(false)
    }

    /// Returns the first address of an interface.
    pub(crate) fn address_of(&self, interface: &str, family: IpFamily) -> Option<IpAddr> {
        if let Some(router) = &self.router {
            return router.address_of(interface, family);
        }
        let mut routes = self.routes.iter().filter(|route| route.interface == interface).map(|route| route.source);
        routes.find(|address| IpFamily::of(*address) == family)
    }

    /// Reports whether the kernel drops incoming IPv4 packets from `address` as martians, because it belongs to the
    /// host.
    pub fn is_martian_source(&self, address: IpAddr) -> bool {
        let localhost = IpAddr::from([127, 0, 0, 1]);
        address == localhost || self.addresses.contains(&address) || (address.is_loopback() && !self.route_localnet)
    }

    /// Returns the type of a local or broadcast address for packets that arrive on an interface; `None` if it is unknown.
    pub(crate) fn address_type_on(&self, address: IpAddr, interface: &str) -> Option<AddressKind> {
        if address.is_loopback() {
            return Some(if interface == "lo" { AddressKind::Local } else { AddressKind::Unicast });
        }
        self.router.as_ref()?.address_type_on(address, interface)
    }

    /// Returns the type of an address; `None` if it is unknown.
    pub(crate) fn address_type(&self, address: IpAddr) -> Option<AddressKind> {
        match &self.router {
            _ if self.owns(address) => Some(AddressKind::Local),
            _ if address.is_multicast() => Some(AddressKind::Multicast),
            Some(router) => router.address_type(address),
            None => None,
        }
    }
}

/// Returns a packet of the host itself whose source has not been selected yet.
fn own_packet(destination: IpAddr, transport: Option<Transport>) -> RoutedPacket<'static> {
    RoutedPacket { destination, source: None, input: None, mark: 0, transport }
}
