//! The host's routes.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ferroute_netlink::{Error, Message, Protocol, Request, Socket};

use crate::addresses::{self, IFADDRMSG_LENGTH};

/// The host's routes could not be listed. Worth a retry.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// No netlink socket could be opened.
    #[error("cannot open a netlink socket for routes")]
    Open(#[source] Error),
    /// The routes could not be listed.
    #[error("cannot list the host's routes")]
    Routes(#[source] Error),
    /// The interfaces could not be listed.
    #[error("cannot list the host's interfaces")]
    Links(#[source] Error),
    /// The addresses of the interfaces could not be listed.
    #[error("cannot list the addresses of the host's interfaces")]
    Addresses(#[source] Error),
}

/// A unicast route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoute {
    /// The destination network's address.
    pub destination: IpAddr,
    /// The prefix length of `destination`; 0 for the default route.
    pub prefix_len: u8,
    /// The outgoing interface; the first one of a multipath route.
    pub interface: String,
    /// The source address of the host's own packets on this route.
    pub source: IpAddr,
    /// The metric; of several routes to one destination, the kernel uses the one with the lowest metric.
    pub metric: u32,
}

/// Returns the routes of both families in the main table of the calling thread's network namespace, in the kernel's
/// order. Omits routes without a usable source address and those without an interface (`unreachable`, `blackhole`).
///
/// # Errors
/// See [`RouteError`].
pub fn routes() -> Result<Vec<HostRoute>, RouteError> {
    let mut socket = Socket::open(Protocol::Route).map_err(RouteError::Open)?;
    let mut request = Request::new(libc::RTM_GETLINK, 0, &[0; IFINFOMSG_LENGTH]);
    let links: BTreeMap<u32, String> =
        socket.collect(&mut request, parse_link).map_err(RouteError::Links)?.into_iter().collect();
    let mut request = Request::new(libc::RTM_GETADDR, 0, &[0; IFADDRMSG_LENGTH]);
    let addresses = socket.collect(&mut request, addresses::parse).map_err(RouteError::Addresses)?;
    let mut request = Request::new(libc::RTM_GETROUTE, 0, &[0; RTMSG_LENGTH]);
    let routes = socket.collect(&mut request, parse_route).map_err(RouteError::Routes)?;

    let default_source = |index: u32, destination: IpAddr| {
        // Link-local addresses are valid on their own link only.
        let is_usable = |address: &IpAddr| match address {
            IpAddr::V4(_) => true,
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        };
        let candidates = addresses.iter().filter(|(link, ip)| *link == index && ip.is_ipv4() == destination.is_ipv4());
        candidates.map(|(_, ip)| *ip).find(is_usable)
    };
    let complete = |RawRoute { destination, prefix_len, link, source, metric }: RawRoute| {
        let source = source.or_else(|| default_source(link, destination))?;
        Some(HostRoute { destination, prefix_len, interface: links.get(&link)?.clone(), source, metric })
    };
    Ok(routes.into_iter().filter_map(complete).collect())
}

/// A route as listed by the kernel.
pub(crate) struct RawRoute {
    destination: IpAddr,
    prefix_len: u8,
    link: u32,
    source: Option<IpAddr>,
    metric: u32,
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

pub(crate) fn parse_route(message: Message<'_>) -> Result<Option<RawRoute>, Error> {
    let (header, attributes) = message.split_header::<RTMSG_LENGTH>()?;
    let [family, prefix_len, _, _, table, _, _, kind, ..] = *header;
    if message.kind != libc::RTM_NEWROUTE || table != libc::RT_TABLE_MAIN || kind != libc::RTN_UNICAST {
        return Ok(None);
    }
    // The default route has no RTA_DST.
    let unspecified: IpAddr = match libc::c_int::from(family) {
        libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return Ok(None),
    };
    let mut route = RawRoute { destination: unspecified, prefix_len, link: 0, source: None, metric: 0 };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            libc::RTA_DST => route.destination = attribute.ip()?,
            libc::RTA_OIF => route.link = attribute.u32_ne()?,
            libc::RTA_PREFSRC => route.source = Some(attribute.ip()?),
            libc::RTA_PRIORITY => route.metric = attribute.u32_ne()?,
            // Take the first next hop: `rtnh_ifindex` is at offset 4 of `struct rtnexthop`.
            libc::RTA_MULTIPATH => {
                if let Some(index) = attribute.payload.get(4..8).and_then(|bytes| bytes.try_into().ok()) {
                    route.link = u32::from_ne_bytes(index);
                }
            }
            _ => {}
        }
    }
    Ok(Some(route))
}

/// `sizeof(struct ifinfomsg)`: interface index at offset 4.
pub(crate) const IFINFOMSG_LENGTH: usize = 16;
/// `sizeof(struct rtmsg)`: address family, destination and source prefix lengths, TOS, table, protocol, scope, type, flags.
const RTMSG_LENGTH: usize = 12;
