//! Netlink messages for virtual servers and real servers.

use std::net::{IpAddr, Ipv4Addr};

use ferroute_core::Protocol;
use ferroute_netlink::{Attributes, Error, Message, Writer};

use crate::{
    kernel::KernelRealServer,
    plan::{FLAG_HASHED, RealServer, ServerConfig, ServerKey, ServerSettings},
};

/// Writes the attributes that identify a virtual server.
pub(super) fn write_server(attributes: &mut Writer<'_>, server: ServerKey) {
    write_identity(&mut attributes.nest(IPVS_CMD_ATTR_SERVICE), server);
}

fn write_identity(service: &mut Writer<'_>, server: ServerKey) {
    let family = if server.address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    service.put_u16_ne(IPVS_SVC_ATTR_AF, family as u16);
    service.put_u16_ne(IPVS_SVC_ATTR_PROTOCOL, server.protocol.number().into());
    service.put_bytes(IPVS_SVC_ATTR_ADDR, &padded(server.address));
    service.put_u16_be(IPVS_SVC_ATTR_PORT, server.port);
}

/// Writes all attributes of a virtual server.
pub(super) fn write_service(attributes: &mut Writer<'_>, server: ServerKey, settings: ServerSettings, scheduler: &str) {
    let mut service = attributes.nest(IPVS_CMD_ATTR_SERVICE);
    write_identity(&mut service, server);
    service.put_str(IPVS_SVC_ATTR_SCHED_NAME, scheduler);
    // `struct ip_vs_flags`: the flags, and a mask of those to set.
    let mut flags = [0; 8];
    flags[..4].copy_from_slice(&settings.flags.to_ne_bytes());
    flags[4..].copy_from_slice(&u32::MAX.to_ne_bytes());
    service.put_bytes(IPVS_SVC_ATTR_FLAGS, &flags);
    service.put_u32_ne(IPVS_SVC_ATTR_TIMEOUT, settings.timeout);
    service.put_u32_ne(IPVS_SVC_ATTR_NETMASK, full_netmask(server.address.is_ipv4()));
}

/// Returns the mask with which each client counts separately: an IPv4 mask or an IPv6 prefix length.
fn full_netmask(is_ipv4: bool) -> u32 {
    if is_ipv4 { u32::MAX } else { 128 }
}

/// Writes a real server: all attributes if it has a weight, otherwise the identifying ones.
pub(super) fn write_real_server(attributes: &mut Writer<'_>, server: ServerKey, real: RealServer, weight: Option<u32>) {
    write_server(attributes, server);
    let mut destination = attributes.nest(IPVS_CMD_ATTR_DEST);
    destination.put_bytes(IPVS_DEST_ATTR_ADDR, &padded(real.address));
    destination.put_u16_be(IPVS_DEST_ATTR_PORT, real.port);
    if let Some(weight) = weight {
        destination.put_u32_ne(IPVS_DEST_ATTR_FWD_METHOD, IP_VS_CONN_F_MASQ);
        destination.put_u32_ne(IPVS_DEST_ATTR_WEIGHT, weight);
        // No limits of the number of connections.
        destination.put_u32_ne(IPVS_DEST_ATTR_U_THRESH, 0);
        destination.put_u32_ne(IPVS_DEST_ATTR_L_THRESH, 0);
    }
}

/// Returns an address as the kernel's `union nf_inet_addr`.
fn padded(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    }
}

fn unpadded(address: [u8; 16], is_ipv4: bool) -> IpAddr {
    if is_ipv4 {
        Ipv4Addr::new(address[0], address[1], address[2], address[3]).into()
    } else {
        IpAddr::V6(address.into())
    }
}

pub(crate) fn parse_server(message: Message<'_>) -> Result<Option<(ServerKey, ServerConfig)>, Error> {
    parse_service(message.attribute::<GENL_HDRLEN>(IPVS_CMD_ATTR_SERVICE)?.nested())
}

/// Parses a virtual server; `None` if it has no address, or a protocol that Services do not support.
fn parse_service(attributes: Attributes<'_>) -> Result<Option<(ServerKey, ServerConfig)>, Error> {
    let (mut family, mut protocol, mut address, mut port) = (None, None, None, None);
    let mut config = ServerConfig { scheduler: "".into(), flags: 0, timeout: 0, netmask: None };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            IPVS_SVC_ATTR_AF => family = Some(attribute.u16_ne()?),
            IPVS_SVC_ATTR_PROTOCOL => protocol = Some(attribute.u16_ne()?),
            IPVS_SVC_ATTR_ADDR => address = Some(attribute.array::<16>()?),
            IPVS_SVC_ATTR_PORT => port = Some(attribute.u16_be()?),
            IPVS_SVC_ATTR_SCHED_NAME => config.scheduler = attribute.escaped_text().into(),
            IPVS_SVC_ATTR_FLAGS => {
                let [a, b, c, d, ..] = attribute.array::<8>()?;
                config.flags = u32::from_ne_bytes([a, b, c, d]) & !FLAG_HASHED;
            }
            IPVS_SVC_ATTR_TIMEOUT => config.timeout = attribute.u32_ne()?,
            IPVS_SVC_ATTR_NETMASK => config.netmask = Some(attribute.u32_ne()?),
            _ => {}
        }
    }
    let (Some(family), Some(protocol), Some(address), Some(port)) = (family, protocol, address, port) else {
        return Ok(None);
    };
    let Some(protocol) = u8::try_from(protocol).ok().and_then(Protocol::from_number) else { return Ok(None) };
    let is_ipv4 = i32::from(family) == libc::AF_INET;
    config.netmask = config.netmask.filter(|netmask| *netmask != full_netmask(is_ipv4));
    let address = unpadded(address, is_ipv4);
    Ok(Some((ServerKey { address, port, protocol }, config)))
}

pub(crate) fn parse_real_server(message: Message<'_>, is_ipv4: bool) -> Result<Option<KernelRealServer>, Error> {
    parse_destination(message.attribute::<GENL_HDRLEN>(IPVS_CMD_ATTR_DEST)?.nested(), is_ipv4)
}

fn parse_destination(attributes: Attributes<'_>, is_ipv4: bool) -> Result<Option<KernelRealServer>, Error> {
    let (mut address, mut port, mut is_ipv4) = (None, None, is_ipv4);
    let mut server = KernelRealServer {
        real: RealServer { address: Ipv4Addr::UNSPECIFIED.into(), port: 0 },
        weight: 0,
        is_masqueraded: true,
        has_limits: false,
        connections: 0,
        total_connections: 0,
    };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            IPVS_DEST_ATTR_ADDR => address = Some(attribute.array::<16>()?),
            IPVS_DEST_ATTR_PORT => port = Some(attribute.u16_be()?),
            IPVS_DEST_ATTR_ADDR_FAMILY => is_ipv4 = i32::from(attribute.u16_ne()?) == libc::AF_INET,
            IPVS_DEST_ATTR_FWD_METHOD => {
                server.is_masqueraded = attribute.u32_ne()? & IP_VS_CONN_F_FWD_MASK == IP_VS_CONN_F_MASQ;
            }
            IPVS_DEST_ATTR_WEIGHT => server.weight = attribute.u32_ne()?,
            IPVS_DEST_ATTR_U_THRESH | IPVS_DEST_ATTR_L_THRESH => server.has_limits |= attribute.u32_ne()? != 0,
            IPVS_DEST_ATTR_ACTIVE_CONNS | IPVS_DEST_ATTR_INACT_CONNS => {
                server.connections += u64::from(attribute.u32_ne()?);
            }
            IPVS_DEST_ATTR_STATS64 => {
                for statistic in attribute.nested() {
                    let statistic = statistic?;
                    if statistic.kind == IPVS_STATS_ATTR_CONNS {
                        server.total_connections = statistic.u64_ne()?;
                    }
                }
            }
            _ => {}
        }
    }
    let (Some(address), Some(port)) = (address, port) else { return Ok(None) };
    server.real = RealServer { address: unpadded(address, is_ipv4), port };
    Ok(Some(server))
}

/// Parses the timeouts of connections: TCP, TCP after a FIN packet, UDP.
pub(crate) fn parse_timeouts(message: Message<'_>) -> Result<[u32; 3], Error> {
    let seconds = |kind| Ok::<_, Error>(message.attribute::<GENL_HDRLEN>(kind)?.u32_ne()?);
    Ok([seconds(TIMEOUT_TCP)?, seconds(TIMEOUT_TCP_FIN)?, seconds(TIMEOUT_UDP)?])
}

pub(crate) fn parse_family(message: Message<'_>) -> Result<u16, Error> {
    Ok(message.attribute::<GENL_HDRLEN>(CTRL_ATTR_FAMILY_ID)?.u16_ne()?)
}

/// Returns a `struct genlmsghdr` (`include/uapi/linux/genetlink.h`): command, version, and two reserved bytes.
pub(super) const fn genl_header(command: u8) -> [u8; GENL_HDRLEN] {
    [command, IPVS_GENL_VERSION, 0, 0]
}

/// Bytes of `struct genlmsghdr`.
pub(crate) const GENL_HDRLEN: usize = 4;

// `include/uapi/linux/genetlink.h`.
pub(super) const GENL_ID_CTRL: u16 = libc::GENL_ID_CTRL as u16;
pub(super) const CTRL_CMD_GETFAMILY: u8 = libc::CTRL_CMD_GETFAMILY as u8;
const CTRL_ATTR_FAMILY_ID: u16 = libc::CTRL_ATTR_FAMILY_ID as u16;
pub(super) const CTRL_ATTR_FAMILY_NAME: u16 = libc::CTRL_ATTR_FAMILY_NAME as u16;

// `include/uapi/linux/ip_vs.h`: commands, their attributes, and the attributes of a virtual server (`SVC`) and of a real
// server (`DEST`).
pub(super) const IPVS_GENL_NAME: &str = "IPVS";
const IPVS_GENL_VERSION: u8 = 1;
pub(super) const IPVS_CMD_NEW_SERVICE: u8 = 1;
pub(super) const IPVS_CMD_SET_SERVICE: u8 = 2;
pub(super) const IPVS_CMD_DEL_SERVICE: u8 = 3;
pub(super) const IPVS_CMD_GET_SERVICE: u8 = 4;
pub(super) const IPVS_CMD_NEW_DEST: u8 = 5;
pub(super) const IPVS_CMD_SET_DEST: u8 = 6;
pub(super) const IPVS_CMD_DEL_DEST: u8 = 7;
pub(super) const IPVS_CMD_GET_DEST: u8 = 8;
pub(super) const IPVS_CMD_SET_CONFIG: u8 = 12;
pub(super) const IPVS_CMD_GET_CONFIG: u8 = 13;
pub(crate) const IPVS_CMD_ATTR_SERVICE: u16 = 1;
pub(crate) const IPVS_CMD_ATTR_DEST: u16 = 2;
/// `IPVS_CMD_ATTR_TIMEOUT_*`, in seconds.
pub(super) const TIMEOUT_TCP: u16 = 4;
pub(super) const TIMEOUT_TCP_FIN: u16 = 5;
pub(super) const TIMEOUT_UDP: u16 = 6;
pub(crate) const IPVS_SVC_ATTR_AF: u16 = 1;
pub(crate) const IPVS_SVC_ATTR_PROTOCOL: u16 = 2;
pub(crate) const IPVS_SVC_ATTR_ADDR: u16 = 3;
pub(crate) const IPVS_SVC_ATTR_PORT: u16 = 4;
pub(crate) const IPVS_SVC_ATTR_SCHED_NAME: u16 = 6;
pub(crate) const IPVS_SVC_ATTR_FLAGS: u16 = 7;
pub(crate) const IPVS_SVC_ATTR_TIMEOUT: u16 = 8;
pub(crate) const IPVS_SVC_ATTR_NETMASK: u16 = 9;
pub(crate) const IPVS_DEST_ATTR_ADDR: u16 = 1;
pub(crate) const IPVS_DEST_ATTR_PORT: u16 = 2;
pub(crate) const IPVS_DEST_ATTR_FWD_METHOD: u16 = 3;
pub(crate) const IPVS_DEST_ATTR_WEIGHT: u16 = 4;
pub(crate) const IPVS_DEST_ATTR_U_THRESH: u16 = 5;
pub(crate) const IPVS_DEST_ATTR_L_THRESH: u16 = 6;
/// Number of established connections; none of them are UDP.
pub(crate) const IPVS_DEST_ATTR_ACTIVE_CONNS: u16 = 7;
/// Number of connections in all other states, including all UDP connections.
pub(crate) const IPVS_DEST_ATTR_INACT_CONNS: u16 = 8;
pub(crate) const IPVS_DEST_ATTR_ADDR_FAMILY: u16 = 11;
pub(crate) const IPVS_DEST_ATTR_STATS64: u16 = 12;
/// The number of connections scheduled, in 64 bits.
const IPVS_STATS_ATTR_CONNS: u16 = 1;
/// Forwarding by NAT, and the mask of forwarding methods.
const IP_VS_CONN_F_MASQ: u32 = 0;
const IP_VS_CONN_F_FWD_MASK: u32 = 7;

#[cfg(test)]
mod tests {
    use ferroute_netlink::{Batch, Messages};

    use super::*;

    const IPVS_SVC_ATTR_FWMARK: u16 = 5;

    fn server(protocol: Protocol, address: &str) -> ServerKey {
        let socket: std::net::SocketAddr = address.parse().unwrap();
        ServerKey { address: socket.ip(), port: socket.port(), protocol }
    }

    /// Calls `parse` with a reply of the kernel with these attributes.
    fn parsed<T>(write: impl FnOnce(&mut Writer<'_>), parse: impl FnOnce(Message<'_>) -> Result<T, Error>) -> T {
        let mut batch = Batch::new();
        write(&mut batch.message(0x20, 0, &genl_header(IPVS_CMD_GET_SERVICE)));
        let message = Messages::new(batch.as_bytes().unwrap()).next().unwrap().unwrap();
        parse(message).unwrap()
    }

    #[test]
    fn a_virtual_server_parses_to_what_was_written() {
        let settings = ServerSettings { scheduler: None, flags: 1, timeout: 10800 };
        for server in [server(Protocol::Tcp, "10.96.0.1:443"), server(Protocol::Udp, "[fd00:96::a]:53")] {
            let written = parsed(|attributes| write_service(attributes, server, settings, "wlc"), parse_server);
            assert_eq!(written, Some((server, settings.with_scheduler("wlc"))));
        }
    }

    #[test]
    fn a_real_server_parses_to_what_was_written() {
        for (server, real) in [
            (server(Protocol::Tcp, "10.96.0.1:443"), "10.244.0.2:8443"),
            (server(Protocol::Udp, "[fd00:96::a]:53"), "[fd00:244::2]:5353"),
        ] {
            let real = RealServer::from(real.parse::<std::net::SocketAddr>().unwrap());
            let write = |attributes: &mut Writer<'_>| write_real_server(attributes, server, real, Some(7));
            let parsed = parsed(write, |message| parse_real_server(message, server.address.is_ipv4())).unwrap();
            assert_eq!((parsed.real, parsed.weight, parsed.is_masqueraded, parsed.has_limits), (real, 7, true, false));
        }
    }

    #[test]
    fn the_bytes_follow_the_kernels_header_file() {
        let mut batch = Batch::new();
        let server = server(Protocol::Tcp, "10.96.0.1:443");
        write_server(&mut batch.message(0x20, 0, &genl_header(IPVS_CMD_DEL_SERVICE)), server);
        let two = |number: u16| number.to_ne_bytes();
        let attribute = |length: u16, kind: u16| [two(length), two(kind)].concat();
        let wanted = [
            &[3, 1, 0, 0][..],
            &attribute(4 + 8 + 8 + 20 + 8, 0x8001),
            &[attribute(6, 1), two(2).to_vec(), vec![0; 2]].concat(),
            &[attribute(6, 2), two(6).to_vec(), vec![0; 2]].concat(),
            &[attribute(20, 3), vec![10, 96, 0, 1], vec![0; 12]].concat(),
            &[attribute(6, 4), vec![0x01, 0xbb], vec![0; 2]].concat(),
        ];
        let bytes = batch.as_bytes().unwrap();
        assert_eq!(&bytes[16..], wanted.concat());
    }

    #[test]
    fn the_connections_of_a_real_server_are_added_up() {
        let write = |message: &mut Writer<'_>| {
            let mut dest = message.nest(IPVS_CMD_ATTR_DEST);
            dest.put_bytes(IPVS_DEST_ATTR_ADDR, &[0; 16]);
            dest.put_u16_be(IPVS_DEST_ATTR_PORT, 8080);
            dest.put_u32_ne(IPVS_DEST_ATTR_ACTIVE_CONNS, 3);
            dest.put_u32_ne(IPVS_DEST_ATTR_INACT_CONNS, 70_000);
            dest.nest(IPVS_DEST_ATTR_STATS64).put_u64_ne(IPVS_STATS_ATTR_CONNS, 1 << 40);
        };
        let parsed = parsed(write, |message| parse_real_server(message, true)).unwrap();
        assert_eq!((parsed.connections, parsed.total_connections), (70_003, 1 << 40));
    }

    #[test]
    fn limits_and_masks_of_other_programs_are_read() {
        for attribute in [IPVS_DEST_ATTR_U_THRESH, IPVS_DEST_ATTR_L_THRESH] {
            let write = |message: &mut Writer<'_>| {
                let mut dest = message.nest(IPVS_CMD_ATTR_DEST);
                dest.put_bytes(IPVS_DEST_ATTR_ADDR, &[0; 16]);
                dest.put_u16_be(IPVS_DEST_ATTR_PORT, 8080);
                dest.put_u32_ne(attribute, 5);
            };
            assert!(parsed(write, |message| parse_real_server(message, true)).unwrap().has_limits);
        }
        for (address, netmask) in [("10.96.0.1:80", u32::from_ne_bytes([255, 255, 255, 0])), ("[fd00:96::1]:80", 64)] {
            let write = |message: &mut Writer<'_>| {
                let mut service = message.nest(IPVS_CMD_ATTR_SERVICE);
                write_identity(&mut service, server(Protocol::Tcp, address));
                service.put_u32_ne(IPVS_SVC_ATTR_NETMASK, netmask);
            };
            assert_eq!(parsed(write, parse_server).unwrap().1.netmask, Some(netmask));
        }
    }

    #[test]
    fn a_virtual_server_by_firewall_mark_has_no_address() {
        let write = |attributes: &mut Writer<'_>| {
            let mut service = attributes.nest(IPVS_CMD_ATTR_SERVICE);
            service.put_u16_ne(IPVS_SVC_ATTR_AF, libc::AF_INET as u16);
            service.put_u32_ne(IPVS_SVC_ATTR_FWMARK, 7);
        };
        assert_eq!(parsed(write, parse_server), None);
    }
}
