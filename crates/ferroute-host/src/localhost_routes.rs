//! Local routes to `::1` on all interfaces, without which node ports on `::1` get no replies.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ferroute_netlink::{Drained, Error, Message, Protocol, Request, Socket, Subscription, flags};

use crate::{
    Sysctls,
    routes::{IFINFOMSG_LENGTH, RTM_PROTOCOL, RTM_TABLE, RTM_TYPE, RTMSG_LENGTH, RouteError, parse_link, parse_route},
};

/// Routes that let replies to `::1` arrive on any interface.
///
/// Once the translation of a connection from `::1` is undone, its replies have the destination `::1`. For loopback
/// addresses, the kernel uses only a route of the interface on which a packet arrives (`rt6_need_strict`), and has one
/// only for `lo`. Routes of other interfaces give other hosts no access: packets from and to `::1` that arrive on them
/// are dropped before any hook (`ip6_rcv_core`).
///
/// The routes are in the table `local`, with a metric after that of `lo`, and are identified by their protocol.
#[derive(Debug)]
pub struct LocalhostRoutes {
    socket: Socket,
    subscription: Subscription,
}

impl LocalhostRoutes {
    /// Opens sockets in the calling thread's network namespace.
    ///
    /// # Errors
    /// If they cannot be opened.
    pub fn open() -> Result<Self, RouteError> {
        // Subscribe before listing, so that no change is lost in between.
        let subscription = Subscription::open(Protocol::Route, &[libc::RTNLGRP_LINK]).map_err(RouteError::Open)?;
        let mut socket = Socket::open(Protocol::Route).map_err(RouteError::Open)?;
        // Hosts can have a million routes in other tables.
        socket.set_strict_dumps();
        Ok(Self { socket, subscription })
    }

    /// Reports whether interfaces may have changed since the last call.
    pub fn interfaces_changed(&mut self) -> bool {
        let mut changed = false;
        !matches!(self.subscription.drain(|_| changed = true), Ok(Drained::Nothing | Drained::Messages)) || changed
    }

    /// Adds missing routes. Interfaces without IPv6 need none.
    ///
    /// # Errors
    /// See [`RouteError`]. Other routes are added nevertheless.
    pub fn ensure(&mut self) -> Result<(), RouteError> {
        let mut failed = None;
        for interface in self.interfaces_without_route()?.into_keys() {
            let flags = flags::NLM_F_CREATE | flags::NLM_F_APPEND;
            match self.socket.request_ack(&mut request(libc::RTM_NEWROUTE, flags, interface)) {
                Err(error) if !error.is_exists() && !lacks_ipv6(&error) => failed = Some(error),
                _ => {}
            }
        }
        failed.map_or(Ok(()), |error| Err(RouteError::Localhost(error)))
    }

    /// Returns the names of the interfaces without such a route, except for those without IPv6, which need none.
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn missing(&mut self) -> Result<Vec<String>, RouteError> {
        let sysctls = Sysctls::from_kernel();
        let has_ipv6 =
            |name: &String| sysctls.read(&format!("net/ipv6/conf/{name}/disable_ipv6")).is_ok_and(|value| value == "0");
        Ok(self.interfaces_without_route()?.into_values().filter(has_ipv6).collect())
    }

    fn interfaces_without_route(&mut self) -> Result<BTreeMap<u32, String>, RouteError> {
        let existing = self.list()?;
        let mut interfaces = self.interfaces()?;
        interfaces.retain(|interface, _| !existing.contains(interface));
        Ok(interfaces)
    }

    /// Removes all routes that [`ensure`](Self::ensure) has added, including in other processes. Returns their number.
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn remove(&mut self) -> Result<usize, RouteError> {
        let existing = self.list()?;
        for interface in &existing {
            match self.socket.request_ack(&mut request(libc::RTM_DELROUTE, 0, *interface)) {
                Err(error) if !error.is_not_found() => return Err(RouteError::Localhost(error)),
                _ => {}
            }
        }
        Ok(existing.len())
    }

    /// Returns the indices of the interfaces that have such a route.
    fn list(&mut self) -> Result<BTreeSet<u32>, RouteError> {
        let parse = |message: Message<'_>| {
            let (header, _) = message.split_header::<RTMSG_LENGTH>()?;
            let is_ours = (header[RTM_TABLE], header[RTM_PROTOCOL]) == (libc::RT_TABLE_LOCAL, PROTOCOL);
            let route = parse_route(message)?.filter(|route| is_ours && route.destination == LOCALHOST);
            Ok::<_, Error>(route.and_then(|route| route.interface))
        };
        let mut header = header();
        (header[1], header[RTM_PROTOCOL]) = (0, 0);
        match self.socket.collect(&mut Request::new(libc::RTM_GETROUTE, 0, &header), parse) {
            Ok(interfaces) => Ok(interfaces.into_iter().collect()),
            // A network namespace without addresses has no such table, and a kernel may have no IPv6.
            Err(error) if error.is_not_found() || lacks_ipv6(&error) => Ok(BTreeSet::new()),
            Err(error) => Err(RouteError::Routes(error)),
        }
    }

    /// Returns the names of the interfaces that are up by their indices, except for the loopback interface.
    fn interfaces(&mut self) -> Result<BTreeMap<u32, String>, RouteError> {
        let parse = |message: Message<'_>| {
            let (header, _) = message.split_header::<IFINFOMSG_LENGTH>()?;
            let [_, _, _, _, _, _, _, _, f0, f1, f2, f3, ..] = *header;
            let flags = i32::from_ne_bytes([f0, f1, f2, f3]);
            let link = parse_link(message)?;
            Ok::<_, Error>(link.filter(|_| flags & (libc::IFF_UP | libc::IFF_LOOPBACK) == libc::IFF_UP))
        };
        let mut request = Request::new(libc::RTM_GETLINK, 0, &[0; IFINFOMSG_LENGTH]);
        let interfaces = self.socket.collect(&mut request, parse).map_err(RouteError::Links)?;
        Ok(interfaces.into_iter().collect())
    }
}

fn request(kind: u16, flags: u16, interface: u32) -> Request {
    let mut request = Request::new(kind, flags, &header());
    let mut attributes = request.attributes();
    attributes.put_ip(libc::RTA_DST, LOCALHOST);
    attributes.put_u32_ne(libc::RTA_OIF, interface);
    attributes.put_u32_ne(libc::RTA_PRIORITY, METRIC);
    drop(attributes);
    request
}

fn header() -> [u8; RTMSG_LENGTH] {
    let mut header = [0; RTMSG_LENGTH];
    (header[0], header[1]) = (libc::AF_INET6 as u8, 128);
    (header[RTM_TABLE], header[RTM_PROTOCOL], header[RTM_TYPE]) = (libc::RT_TABLE_LOCAL, PROTOCOL, libc::RTN_LOCAL);
    header
}

/// Reports whether the interface no longer exists, is down or has no IPv6, or whether the kernel has no IPv6.
fn lacks_ipv6(error: &Error) -> bool {
    let refusals = [libc::ENODEV, libc::ENETDOWN, libc::EACCES, libc::EOPNOTSUPP, libc::EAFNOSUPPORT];
    error.refusal().is_some_and(|refusal| refusals.contains(&refusal.errno))
}

const LOCALHOST: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

/// Metric after that of the kernel's route of `lo`, which is 0.
const METRIC: u32 = 1024;

/// Origin of these routes (`rtm_protocol`): a number that `/etc/iproute2/rt_protos` does not assign to any program.
const PROTOCOL: u8 = 70;
