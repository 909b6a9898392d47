//! The host's interfaces and routes.

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ferroute_core::{IpFamily, Protocol as Transport};
use ferroute_netlink::{Attribute, Attributes, Error, Message, Protocol, Request, Socket};

use crate::addresses::{self, IFADDRMSG_LENGTH};

/// The host's routes could not be read. Worth a retry.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// No netlink socket could be opened.
    #[error("cannot open a netlink socket for routes")]
    Open(#[source] Error),
    /// The routes could not be listed.
    #[error("cannot list the host's routes")]
    Routes(#[source] Error),
    /// The forwarding tables of tunnels could not be listed.
    #[error("cannot list the ends of the host's tunnels")]
    Tunnels(#[source] Error),
    /// The interfaces could not be listed.
    #[error("cannot list the host's interfaces")]
    Links(#[source] Error),
    /// The addresses of the interfaces could not be listed.
    #[error("cannot list the addresses of the host's interfaces")]
    Addresses(#[source] Error),
    /// A local route to `::1` could not be added or deleted.
    #[error("cannot change the local routes to ::1")]
    Localhost(#[source] Error),
    /// The kernel did not answer a route lookup.
    #[error("cannot look up the route to {destination}")]
    Lookup {
        /// The destination.
        destination: IpAddr,
        /// The cause.
        #[source]
        source: Error,
    },
}

/// A network interface with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInterface {
    /// The index.
    pub index: u32,
    /// The name.
    pub name: String,
    /// The interface that it is a port of: a bridge, a bond, or a VRF.
    pub master: Option<u32>,
    /// The kind of a virtual interface: `bridge`, `veth`, `vrf`, …
    pub kind: Option<String>,
    /// The group; 0 by default.
    pub group: u32,
    /// The addresses, in the kernel's order.
    pub addresses: Vec<InterfaceAddress>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// The length of the network's prefix.
    pub prefix_len: u8,
    /// Valid everywhere, unlike link-local and loopback addresses (`RT_SCOPE_UNIVERSE`).
    pub is_global: bool,
    /// Whether another address of the interface in the same network precedes it (`IFA_F_SECONDARY`).
    pub is_secondary: bool,
}

/// A packet whose route is looked up. Unset fields are not used in policy routing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteQuery {
    /// The destination.
    pub destination: IpAddr,
    /// The source.
    pub source: Option<IpAddr>,
    /// The index of the input interface; `None` for packets of the host itself.
    pub input: Option<u32>,
    /// The index of the output interface, if it must be this one.
    pub output: Option<u32>,
    /// The mark.
    pub mark: u32,
    /// The transport protocol, source port and destination port.
    pub transport: Option<(Transport, u16, u16)>,
}

/// The kernel's response to a [`RouteQuery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteReply {
    /// There is a route.
    Found(FoundRoute),
    /// There is no route, or the packet is refused, with the `errno`. `ENETUNREACH` stands for no route, `EHOSTUNREACH`
    /// for an `unreachable` one or disabled forwarding, `EACCES` for `prohibit`, `EINVAL` for `blackhole` or a source
    /// that may not arrive on the input interface, which older kernels report as `EXDEV`.
    Refused(i32),
}

/// A route that the kernel found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRoute {
    /// The type (`RTN_*`).
    pub kind: u8,
    /// The index of the output interface; that of a local route is of no importance.
    pub interface: u32,
    /// The next hop, unless the destination is a neighbour.
    pub gateway: Option<IpAddr>,
    /// The source address that the kernel selects for the host's own packets.
    pub source: Option<IpAddr>,
}

/// The kernel's routing of a network namespace.
#[derive(Debug)]
pub struct KernelRoutes {
    socket: Socket,
}

impl KernelRoutes {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open() -> Result<Self, RouteError> {
        Ok(Self { socket: Socket::open(Protocol::Route).map_err(RouteError::Open)? })
    }

    /// Returns all interfaces, in the kernel's order.
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn interfaces(&mut self) -> Result<Vec<HostInterface>, RouteError> {
        let mut request = Request::new(libc::RTM_GETLINK, 0, &[0; IFINFOMSG_LENGTH]);
        let mut interfaces = self.socket.collect(&mut request, parse_interface).map_err(RouteError::Links)?;
        let mut request = Request::new(libc::RTM_GETADDR, 0, &[0; IFADDRMSG_LENGTH]);
        let addresses = self.socket.collect(&mut request, parse_address).map_err(RouteError::Addresses)?;
        for (index, address) in addresses {
            if let Some(interface) = interfaces.iter_mut().find(|interface| interface.index == index) {
                interface.addresses.push(address);
            }
        }
        Ok(interfaces)
    }

    /// Returns the local, broadcast and unicast routes of all tables and both families, in the kernel's order.
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn list(&mut self) -> Result<Vec<HostRoute>, RouteError> {
        let mut request = Request::new(libc::RTM_GETROUTE, 0, &[0; RTMSG_LENGTH]);
        self.socket.collect(&mut request, parse_route).map_err(RouteError::Routes)
    }

    /// Returns the destinations of the single local routes of the table `local`: the addresses of one family at which the host accepts
    /// packets. The kernel adds one with each address of a device, but other programs can delete it.
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn local_addresses(&mut self, family: IpFamily) -> Result<HashSet<IpAddr>, RouteError> {
        let mut header = [0; RTMSG_LENGTH];
        header[0] = match family {
            IpFamily::V4 => libc::AF_INET as u8,
            IpFamily::V6 => libc::AF_INET6 as u8,
        };
        (header[RTM_TABLE], header[RTM_TYPE]) = (libc::RT_TABLE_LOCAL, libc::RTN_LOCAL);
        let mut request = Request::new(libc::RTM_GETROUTE, 0, &header);
        let bits = if family == IpFamily::V4 { 32 } else { 128 };
        let is_local = |route: &HostRoute| {
            (route.table, route.kind, route.prefix_len) == (libc::RT_TABLE_LOCAL.into(), libc::RTN_LOCAL, bits)
        };
        // Hosts can have a million routes in other tables.
        self.socket.set_strict_dumps();
        let parse = |message: Message<'_>| Ok(parse_route(message)?.filter(is_local).map(|route| route.destination));
        match self.socket.collect::<_, Error>(&mut request, parse) {
            Ok(addresses) => Ok(addresses.into_iter().collect()),
            // A network namespace without addresses has no such table.
            Err(error) if error.is_not_found() => Ok(HashSet::new()),
            Err(error) => Err(RouteError::Routes(error)),
        }
    }

    /// Returns the addresses of other hosts that packets of this one pass: the next hops of all routes, and the ends of
    /// tunnels. In clusters, most of them are other nodes.
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn next_hops(&mut self) -> Result<BTreeSet<IpAddr>, RouteError> {
        let mut request = Request::new(libc::RTM_GETROUTE, 0, &[0; RTMSG_LENGTH]);
        let of_routes = self.socket.collect(&mut request, parse_next_hops).map_err(RouteError::Routes)?;
        let mut header = [0; NDMSG_LENGTH];
        header[0] = libc::AF_BRIDGE as u8;
        let mut request = Request::new(libc::RTM_GETNEIGH, 0, &header);
        let of_tunnels = self.socket.collect(&mut request, parse_tunnel_end).map_err(RouteError::Tunnels)?;
        let mut request = Request::new(libc::RTM_GETLINK, 0, &[0; IFINFOMSG_LENGTH]);
        let of_devices = self.socket.collect(&mut request, parse_tunnel_device).map_err(RouteError::Links)?;
        let all = of_routes.into_iter().flatten().chain(of_tunnels).chain(of_devices);
        Ok(all.filter(|address| !address.is_unspecified() && !address.is_multicast()).collect())
    }

    /// Reports whether any route or policy rule gives packets a realm.
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn has_realms(&mut self) -> Result<bool, RouteError> {
        let mut request = Request::new(libc::RTM_GETROUTE, 0, &[0; RTMSG_LENGTH]);
        let of_routes = self.socket.collect(&mut request, |message| parse_realms(message, RTA_FLOW));
        if !of_routes.map_err(RouteError::Routes)?.is_empty() {
            return Ok(true);
        }
        // `struct fib_rule_hdr` has the same length.
        let mut request = Request::new(libc::RTM_GETRULE, 0, &[0; RTMSG_LENGTH]);
        let of_rules = self.socket.collect(&mut request, |message| parse_realms(message, FRA_FLOW));
        Ok(!of_rules.map_err(RouteError::Routes)?.is_empty())
    }

    /// Looks up the route of a packet.
    ///
    /// # Errors
    /// If the kernel does not respond. A refused packet is not an error.
    pub fn lookup(&mut self, query: &RouteQuery) -> Result<RouteReply, RouteError> {
        let failed = |source| RouteError::Lookup { destination: query.destination, source };
        match self.socket.get(&mut lookup_request(query, 0), parse_found) {
            Ok(Some(route)) => Ok(RouteReply::Found(route)),
            Ok(None) => Err(failed(Error::Unanswered { kind: libc::RTM_GETROUTE })),
            Err(error) => match error.refusal() {
                Some(refusal) => Ok(RouteReply::Refused(refusal.errno)),
                None => Err(failed(error)),
            },
        }
    }

    /// Returns the indices of the output interfaces of all paths of a packet's route, of which [`lookup`](Self::lookup) returns one.
    ///
    /// # Errors
    /// If the kernel does not answer, or refuses the packet.
    pub fn paths(&mut self, query: &RouteQuery) -> Result<Vec<u32>, RouteError> {
        let failed = |source| RouteError::Lookup { destination: query.destination, source };
        let paths = self.socket.get(&mut lookup_request(query, RTM_F_FIB_MATCH), parse_paths).map_err(failed)?;
        paths.ok_or_else(|| failed(Error::Unanswered { kind: libc::RTM_GETROUTE }))
    }
}

/// Returns the request for a route, with these flags (`RTM_F_*`).
fn lookup_request(query: &RouteQuery, flags: u32) -> Request {
    let (family, bits) = match IpFamily::of(query.destination) {
        IpFamily::V4 => (libc::AF_INET as u8, 32),
        IpFamily::V6 => (libc::AF_INET6 as u8, 128),
    };
    let mut header = [0; RTMSG_LENGTH];
    header[0] = family;
    header[RTM_FLAGS..].copy_from_slice(&flags.to_ne_bytes());
    header[1] = bits;
    header[2] = if query.source.is_some() { bits } else { 0 };
    let mut request = Request::new(libc::RTM_GETROUTE, 0, &header);
    let mut attributes = request.attributes();
    attributes.put_ip(libc::RTA_DST, query.destination);
    if let Some(source) = query.source {
        attributes.put_ip(libc::RTA_SRC, source);
    }
    let interfaces = [(libc::RTA_IIF, query.input), (libc::RTA_OIF, query.output)];
    for (kind, index) in interfaces.into_iter().filter_map(|(kind, index)| Some((kind, index?))) {
        attributes.put_u32_ne(kind, index);
    }
    if query.mark != 0 {
        attributes.put_u32_ne(libc::RTA_MARK, query.mark);
    }
    if let Some((protocol, source, destination)) = query.transport {
        // The kernel refuses to look up routes for SCTP, whose packets have the route of all protocols unless a policy rule names it.
        if protocol != Transport::Sctp {
            attributes.put_u8(RTA_IP_PROTO, protocol.number());
        }
        attributes.put_u16_be(RTA_SPORT, source);
        attributes.put_u16_be(RTA_DPORT, destination);
    }
    drop(attributes);
    request
}

/// A route of any table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoute {
    /// The table's number.
    pub table: u32,
    /// The type (`RTN_*`).
    pub kind: u8,
    /// The destination network's address.
    pub destination: IpAddr,
    /// The prefix length of `destination`; 0 for the default route.
    pub prefix_len: u8,
    /// The index of the outgoing interface, the first one of a multipath route; `None` for routes without one.
    pub interface: Option<u32>,
    /// The source address of the host's own packets, if the route has one.
    pub source: Option<IpAddr>,
    /// Metric; among several routes to one destination, the kernel uses the one with the lowest metric.
    pub metric: u32,
}

pub(crate) fn parse_interface(message: Message<'_>) -> Result<Option<HostInterface>, Error> {
    let (_, attributes) = message.split_header::<IFINFOMSG_LENGTH>()?;
    let Some((index, name)) = parse_link(message)? else { return Ok(None) };
    let mut interface = HostInterface { index, name, master: None, kind: None, group: 0, addresses: Vec::new() };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            libc::IFLA_MASTER => interface.master = Some(attribute.u32_ne()?),
            libc::IFLA_GROUP => interface.group = attribute.u32_ne()?,
            libc::IFLA_LINKINFO => {
                let kind = attribute.nested().first(libc::IFLA_INFO_KIND)?;
                interface.kind = kind.and_then(|kind| Some(kind.text()?.to_owned()));
            }
            _ => {}
        }
    }
    Ok(Some(interface))
}

pub(crate) fn parse_address(message: Message<'_>) -> Result<Option<(u32, InterfaceAddress)>, Error> {
    let (header, attributes) = message.split_header::<IFADDRMSG_LENGTH>()?;
    let [_, prefix_len, flags, scope, ..] = *header;
    let Some((index, address)) = addresses::parse(message)? else { return Ok(None) };
    let flags = attributes.first(libc::IFA_FLAGS)?.map_or(Ok(flags.into()), |flags| flags.u32_ne())?;
    let (is_global, is_secondary) = (scope == libc::RT_SCOPE_UNIVERSE, flags & libc::IFA_F_SECONDARY != 0);
    Ok(Some((index, InterfaceAddress { address, prefix_len, is_global, is_secondary })))
}

pub(crate) fn parse_link(message: Message<'_>) -> Result<Option<(u32, String)>, Error> {
    let (header, attributes) = message.split_header::<IFINFOMSG_LENGTH>()?;
    if message.kind != libc::RTM_NEWLINK {
        return Ok(None);
    }
    let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    let name = attributes.first(libc::IFLA_IFNAME)?;
    Ok(name.map(|name| (index, name.escaped_text().into_owned())))
}

pub(crate) fn parse_route(message: Message<'_>) -> Result<Option<HostRoute>, Error> {
    let (header, attributes) = message.split_header::<RTMSG_LENGTH>()?;
    let [family, prefix_len, _, _, table, _, _, kind, ..] = *header;
    if message.kind != libc::RTM_NEWROUTE {
        return Ok(None);
    }
    // The default route has no RTA_DST.
    let unspecified: IpAddr = match libc::c_int::from(family) {
        libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return Ok(None),
    };
    let mut route = HostRoute {
        table: table.into(),
        kind,
        destination: unspecified,
        prefix_len,
        interface: None,
        source: None,
        metric: 0,
    };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            libc::RTA_TABLE => route.table = attribute.u32_ne()?,
            libc::RTA_DST => route.destination = attribute.ip()?,
            libc::RTA_OIF => route.interface = Some(attribute.u32_ne()?),
            libc::RTA_PREFSRC => route.source = Some(attribute.ip()?),
            libc::RTA_PRIORITY => route.metric = attribute.u32_ne()?,
            libc::RTA_MULTIPATH => {
                if let Some(first) = paths(attribute.payload).next() {
                    route.interface = Some(first.interface);
                }
            }
            _ => {}
        }
    }
    Ok(Some(route))
}

/// Returns the next hops of a route.
pub(crate) fn parse_next_hops(message: Message<'_>) -> Result<Option<Vec<IpAddr>>, Error> {
    let (_, attributes) = message.split_header::<RTMSG_LENGTH>()?;
    if message.kind != libc::RTM_NEWROUTE {
        return Ok(None);
    }
    let mut next_hops = Vec::new();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            libc::RTA_MULTIPATH => {
                for attribute in paths(attribute.payload).flat_map(|path| path.attributes) {
                    next_hops.extend(next_hop(attribute?)?);
                }
            }
            _ => next_hops.extend(next_hop(attribute)?),
        }
    }
    Ok(Some(next_hops))
}

/// Returns the realms in the attribute `flow` of a route, one of its paths, or a policy rule.
fn parse_realms(message: Message<'_>, flow: u16) -> Result<Option<u32>, Error> {
    let (_, attributes) = message.split_header::<RTMSG_LENGTH>()?;
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == flow {
            return Ok(Some(attribute.u32_ne()?));
        }
        if attribute.kind == libc::RTA_MULTIPATH && message.kind == libc::RTM_NEWROUTE {
            for attribute in paths(attribute.payload).flat_map(|path| path.attributes) {
                let attribute = attribute?;
                if attribute.kind == flow {
                    return Ok(Some(attribute.u32_ne()?));
                }
            }
        }
    }
    Ok(None)
}

/// Returns the next hop in an attribute of a route.
fn next_hop(attribute: Attribute<'_>) -> Result<Option<IpAddr>, Error> {
    match attribute.kind {
        libc::RTA_GATEWAY => Ok(Some(attribute.ip()?)),
        RTA_VIA => Ok(attribute.payload.get(2..).and_then(address)),
        _ => Ok(None),
    }
}

/// Returns the other end of a tunnel whose device has only one.
pub(crate) fn parse_tunnel_device(message: Message<'_>) -> Result<Option<IpAddr>, Error> {
    let (_, attributes) = message.split_header::<IFINFOMSG_LENGTH>()?;
    let Some(info) = attributes.first(libc::IFLA_LINKINFO)? else { return Ok(None) };
    let kind = info.nested().first(libc::IFLA_INFO_KIND)?;
    let remotes: &[u16] = match kind.as_ref().and_then(Attribute::text) {
        Some("ipip" | "sit" | "ip6tnl") => &[IFLA_IPTUN_REMOTE],
        Some("gre" | "gretap" | "erspan" | "ip6gre" | "ip6gretap" | "ip6erspan") => &[IFLA_GRE_REMOTE],
        Some("vti" | "vti6") => &[IFLA_VTI_REMOTE],
        Some("geneve") => &[IFLA_GENEVE_REMOTE, IFLA_GENEVE_REMOTE6],
        // The forwarding table of VXLAN contains its remote address.
        _ => return Ok(None),
    };
    let Some(data) = info.nested().first(libc::IFLA_INFO_DATA)? else { return Ok(None) };
    for attribute in data.nested() {
        let attribute = attribute?;
        if remotes.contains(&attribute.kind) {
            return Ok(address(attribute.payload));
        }
    }
    Ok(None)
}

/// Returns the other end of a tunnel in an entry of its forwarding table.
fn parse_tunnel_end(message: Message<'_>) -> Result<Option<IpAddr>, Error> {
    let (_, attributes) = message.split_header::<NDMSG_LENGTH>()?;
    let destination = attributes.first(libc::NDA_DST)?;
    Ok(destination.filter(|_| message.kind == libc::RTM_NEWNEIGH).and_then(|attribute| address(attribute.payload)))
}

/// Returns the interfaces of the paths of a route.
fn parse_paths(message: Message<'_>) -> Result<Vec<u32>, Error> {
    let (_, attributes) = message.split_header::<RTMSG_LENGTH>()?;
    let mut interfaces = Vec::new();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            libc::RTA_OIF => interfaces.push(attribute.u32_ne()?),
            libc::RTA_MULTIPATH => interfaces.extend(paths(attribute.payload).map(|path| path.interface)),
            _ => {}
        }
    }
    Ok(interfaces)
}

/// A path in the attribute `RTA_MULTIPATH`.
struct Path<'m> {
    interface: u32,
    attributes: Attributes<'m>,
}

/// Returns the paths in the attribute `RTA_MULTIPATH`.
fn paths(mut payload: &[u8]) -> impl Iterator<Item = Path<'_>> {
    // `struct rtnexthop`: its length with its attributes, flags, hops, the interface's index.
    std::iter::from_fn(move || {
        let (header, _) = payload.split_first_chunk::<RTNEXTHOP_LENGTH>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let attributes = Attributes::new(payload.get(RTNEXTHOP_LENGTH..length)?);
        payload = payload.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Path { interface: u32::from_ne_bytes([header[4], header[5], header[6], header[7]]), attributes })
    })
}

fn parse_found(message: Message<'_>) -> Result<FoundRoute, Error> {
    let (header, attributes) = message.split_header::<RTMSG_LENGTH>()?;
    let mut found = FoundRoute { kind: header[7], interface: 0, gateway: None, source: None };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            libc::RTA_OIF => found.interface = attribute.u32_ne()?,
            libc::RTA_GATEWAY => found.gateway = Some(attribute.ip()?),
            // `struct rtvia`: the family, then an address of the other family than the destination.
            RTA_VIA => found.gateway = attribute.payload.get(2..).and_then(address),
            libc::RTA_PREFSRC => found.source = Some(attribute.ip()?),
            _ => {}
        }
    }
    Ok(found)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    v4().or_else(|_| v6()).ok()
}

/// `sizeof(struct ifinfomsg)`: interface index at offset 4.
pub(crate) const IFINFOMSG_LENGTH: usize = 16;
/// `sizeof(struct rtmsg)`: address family, destination and source prefix lengths, TOS, table, protocol, scope, type, flags.
pub(crate) const RTMSG_LENGTH: usize = 12;
/// Offsets of `rtm_table`, `rtm_protocol` and `rtm_type` in it.
pub(crate) const RTM_TABLE: usize = 4;
pub(crate) const RTM_PROTOCOL: usize = 5;
pub(crate) const RTM_TYPE: usize = 7;
/// Offset of `rtm_flags`, four bytes.
const RTM_FLAGS: usize = 8;
/// `sizeof(struct rtnexthop)`.
const RTNEXTHOP_LENGTH: usize = 8;
/// `sizeof(struct ndmsg)`: address family at offset 0.
const NDMSG_LENGTH: usize = 12;
// `include/uapi/linux/if_tunnel.h`, `if_link.h`: settings of tunnels, by kind of device.
const IFLA_IPTUN_REMOTE: u16 = 3;
const IFLA_GRE_REMOTE: u16 = 7;
const IFLA_VTI_REMOTE: u16 = 5;
const IFLA_GENEVE_REMOTE: u16 = 2;
const IFLA_GENEVE_REMOTE6: u16 = 7;
// `include/uapi/linux/rtnetlink.h`.
/// The response is the route in the table, not the one of the packet.
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTA_FLOW: u16 = 11;
const RTA_VIA: u16 = 18;
const RTA_IP_PROTO: u16 = 27;
const RTA_SPORT: u16 = 28;
const RTA_DPORT: u16 = 29;
// `include/uapi/linux/fib_rules.h`.
const FRA_FLOW: u16 = 11;

#[cfg(test)]
mod tests {
    use ferroute_netlink::{Batch, Messages};

    use super::*;

    #[test]
    fn other_ends_of_tunnels_are_settings_of_their_devices() {
        let end = |kind: &str, attribute, remote: &str| {
            let mut batch = Batch::new();
            let mut message = batch.message(libc::RTM_NEWLINK, 0, &[0; IFINFOMSG_LENGTH]);
            {
                let mut info = message.nest(libc::IFLA_LINKINFO);
                info.put_str(libc::IFLA_INFO_KIND, kind);
                let mut data = info.nest(libc::IFLA_INFO_DATA);
                data.put_u32_ne(1, 7);
                data.put_ip(attribute, remote.parse().unwrap());
            }
            drop(message);
            let message = Messages::new(batch.as_bytes().unwrap()).next().unwrap().unwrap();
            parse_tunnel_device(message).unwrap().map(|address| address.to_string())
        };
        for (kind, attribute, remote) in [
            ("ipip", IFLA_IPTUN_REMOTE, "192.0.2.9"),
            ("sit", IFLA_IPTUN_REMOTE, "192.0.2.9"),
            ("ip6tnl", IFLA_IPTUN_REMOTE, "2001:db8::9"),
            ("gretap", IFLA_GRE_REMOTE, "192.0.2.9"),
            ("ip6gre", IFLA_GRE_REMOTE, "2001:db8::9"),
            ("vti", IFLA_VTI_REMOTE, "192.0.2.9"),
            ("geneve", IFLA_GENEVE_REMOTE, "192.0.2.9"),
            ("geneve", IFLA_GENEVE_REMOTE6, "2001:db8::9"),
        ] {
            assert_eq!(end(kind, attribute, remote).as_deref(), Some(remote), "{kind}");
        }
        assert_eq!(end("bridge", IFLA_IPTUN_REMOTE, "192.0.2.9"), None);
        assert_eq!(end("ipip", 2, "192.0.2.9"), None, "its own end");
    }
}
