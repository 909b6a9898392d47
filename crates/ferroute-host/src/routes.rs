//! The host's routes.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ferroute_netlink::{Error, Message, Protocol, Request, Socket};

/// The routes could not be told. Worth another try.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// There is no way to ask for them.
    #[error("cannot ask the kernel for the host's routes")]
    Open(#[source] Error),
    /// They could not be listed.
    #[error("cannot list the host's routes")]
    Routes(#[source] Error),
    /// The interfaces that they lead through could not be listed.
    #[error("cannot list the host's interfaces")]
    Links(#[source] Error),
    /// The addresses of these interfaces could not be listed.
    #[error("cannot list the addresses of the host's interfaces")]
    Addresses(#[source] Error),
}

/// A route of the main table that leads out of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoute {
    /// The network.
    pub to: IpAddr,
    /// Bits of `to` that count, 0 for the default route.
    pub prefix_len: u8,
    /// The interface that packets leave through; of several, the first.
    pub interface: String,
    /// What the host's own packets have as their source there.
    pub source: IpAddr,
    /// Which of two routes to one network is taken: the lower one.
    pub metric: u32,
}

/// The routes in the main table of the calling thread's network namespace, both families', in the kernel's order.
/// Routes with no usable source address are left out, and so are those that lead nowhere.
///
/// # Errors
/// See [`RouteError`].
pub fn routes() -> Result<Vec<HostRoute>, RouteError> {
    let mut socket = Socket::open(Protocol::Route).map_err(RouteError::Open)?;
    let mut request = Request::new(libc::RTM_GETLINK, 0, &[0; LINK_HEADER]);
    let links: BTreeMap<u32, String> =
        socket.collect(&mut request, link).map_err(RouteError::Links)?.into_iter().collect();
    let mut request = Request::new(libc::RTM_GETADDR, 0, &[0; ADDRESS_HEADER]);
    let addresses = socket.collect(&mut request, address).map_err(RouteError::Addresses)?;
    let mut request = Request::new(libc::RTM_GETROUTE, 0, &[0; ROUTE_HEADER]);
    let found = socket.collect(&mut request, route).map_err(RouteError::Routes)?;
    let source_at = |index: u32, like: IpAddr| {
        // Link-local addresses are of use on their own link alone.
        let usable = |address: &IpAddr| match address {
            IpAddr::V4(_) => true,
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        };
        let own = addresses.iter().filter(|(link, ip)| *link == index && ip.is_ipv4() == like.is_ipv4());
        own.map(|(_, ip)| *ip).find(usable)
    };
    let complete = |Found { to, prefix_len, link, source, metric }: Found| {
        let source = source.or_else(|| source_at(link, to))?;
        Some(HostRoute { to, prefix_len, interface: links.get(&link)?.clone(), source, metric })
    };
    Ok(found.into_iter().filter_map(complete).collect())
}

/// A route as the kernel tells it.
struct Found {
    to: IpAddr,
    prefix_len: u8,
    link: u32,
    source: Option<IpAddr>,
    metric: u32,
}

fn link(message: Message<'_>) -> Result<Option<(u32, String)>, Error> {
    let (header, attributes) = message.split_header::<LINK_HEADER>()?;
    if message.kind != libc::RTM_NEWLINK {
        return Ok(None);
    }
    let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == libc::IFLA_IFNAME {
            return Ok(Some((index, attribute.str()?.to_owned())));
        }
    }
    Ok(None)
}

fn address(message: Message<'_>) -> Result<Option<(u32, IpAddr)>, Error> {
    let (header, attributes) = message.split_header::<ADDRESS_HEADER>()?;
    if message.kind != libc::RTM_NEWADDR || !is_ip(header[0]) {
        return Ok(None);
    }
    let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    let (mut local, mut address) = (None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            libc::IFA_LOCAL => local = Some(attribute.ip()?),
            libc::IFA_ADDRESS => address = Some(attribute.ip()?),
            _ => {}
        }
    }
    Ok(local.or(address).map(|ip| (index, ip)))
}

fn route(message: Message<'_>) -> Result<Option<Found>, Error> {
    let (header, attributes) = message.split_header::<ROUTE_HEADER>()?;
    let [family, prefix_len, _, _, table, _, _, kind, ..] = *header;
    if message.kind != libc::RTM_NEWROUTE || !is_ip(family) || table != libc::RT_TABLE_MAIN || kind != libc::RTN_UNICAST
    {
        return Ok(None);
    }
    let nowhere: IpAddr = match libc::c_int::from(family) {
        libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut found = Found { to: nowhere, prefix_len, link: 0, source: None, metric: 0 };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            libc::RTA_DST => found.to = attribute.ip()?,
            libc::RTA_OIF => found.link = attribute.u32_ne()?,
            libc::RTA_PREFSRC => found.source = Some(attribute.ip()?),
            libc::RTA_PRIORITY => found.metric = attribute.u32_ne()?,
            // Of several ways the first: `struct rtnexthop` has its interface after 4 other bytes.
            libc::RTA_MULTIPATH => {
                if let Some(index) = attribute.payload.get(4..8).and_then(|bytes| bytes.try_into().ok()) {
                    found.link = u32::from_ne_bytes(index);
                }
            }
            _ => {}
        }
    }
    Ok(Some(found))
}

fn is_ip(family: u8) -> bool {
    [libc::AF_INET, libc::AF_INET6].contains(&family.into())
}

/// Bytes of `struct ifinfomsg`, with the interface's index after 4 others.
const LINK_HEADER: usize = 16;
/// Bytes of `struct ifaddrmsg`, whose first is the address family and whose last 4 the interface's index.
const ADDRESS_HEADER: usize = 8;
/// Bytes of `struct rtmsg`: address family, bits of the destination and the source, type of service, table, who made the
/// route, scope, kind.
const ROUTE_HEADER: usize = 12;
