use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use ferroute_netlink::{Attributes, Error, Message, Protocol, Request, Socket, Writer};

/// A failure to read or delete virtual servers.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The netlink socket or the generic netlink family cannot be opened.
    #[error("cannot open a netlink socket for virtual servers")]
    Open(#[source] Error),
    /// Virtual servers cannot be listed.
    #[error("cannot list virtual servers")]
    List(#[source] Error),
    /// The connections of a virtual server cannot be counted.
    #[error("cannot count the connections of virtual server {server}")]
    Count {
        /// The virtual server.
        server: VirtualServer,
        /// The cause.
        #[source]
        source: Error,
    },
    /// A virtual server cannot be deleted.
    #[error("cannot delete virtual server {server}")]
    Delete {
        /// The virtual server.
        server: VirtualServer,
        /// The cause.
        #[source]
        source: Error,
    },
}

/// A virtual server: a protocol, address and port whose connections ipvs schedules among real servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// The transport protocol (`IPPROTO_*`).
    pub protocol: u16,
    /// The address and port.
    pub address: SocketAddr,
}

impl fmt::Display for VirtualServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match i32::from(self.protocol) {
            libc::IPPROTO_TCP => write!(f, "{}/tcp", self.address),
            libc::IPPROTO_UDP => write!(f, "{}/udp", self.address),
            libc::IPPROTO_SCTP => write!(f, "{}/sctp", self.address),
            protocol => write!(f, "{}/{protocol}", self.address),
        }
    }
}

/// Access to the virtual servers of a network namespace.
#[derive(Debug)]
pub struct VirtualServers {
    socket: Socket,
    /// The id of the generic netlink family `IPVS` in this kernel.
    family: u16,
}

impl VirtualServers {
    /// Opens a netlink socket in the calling thread's network namespace. Returns `None` if the kernel does not support
    /// ipvs. Loads the kernel module if necessary.
    pub fn open() -> Result<Option<Self>, ServerError> {
        let mut socket = Socket::open(Protocol::Generic).map_err(ServerError::Open)?;
        match socket.get(&mut family_request(), parse_family) {
            Ok(family) => Ok(family.map(|family| Self { socket, family })),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(ServerError::Open(error)),
        }
    }

    /// Returns the virtual servers with an address. kube-proxy creates no others (`ipvsadm -f`, by firewall mark).
    pub fn list(&mut self) -> Result<Vec<VirtualServer>, ServerError> {
        let mut request = Request::new(self.family, 0, &genl_header(IPVS_CMD_GET_SERVICE));
        self.socket.collect(&mut request, parse_server).map_err(ServerError::List)
    }

    /// Returns the number of connections to the real servers of a virtual server: established, in setup, half closed, and
    /// for two minutes closed ones, which the kernel counts with those in setup.
    pub fn connections(&mut self, server: VirtualServer) -> Result<u64, ServerError> {
        let mut request = Request::new(self.family, 0, &genl_header(IPVS_CMD_GET_DEST));
        write_server(&mut request.attributes(), server);
        let counted = self.socket.collect(&mut request, parse_connections);
        counted.map(|counts| counts.iter().sum()).map_err(|source| ServerError::Count { server, source })
    }

    /// Deletes a virtual server with its real servers.
    pub fn delete(&mut self, server: VirtualServer) -> Result<(), ServerError> {
        self.socket
            .request_ack(&mut deletion(self.family, server))
            .map_err(|source| ServerError::Delete { server, source })
    }
}

fn family_request() -> Request {
    let mut request = Request::new(GENL_ID_CTRL, 0, &genl_header(CTRL_CMD_GETFAMILY));
    request.attributes().put_str(CTRL_ATTR_FAMILY_NAME, IPVS_GENL_NAME);
    request
}

fn parse_family(message: Message<'_>) -> Result<u16, Error> {
    let (_, attributes) = message.split_header::<GENL_HDRLEN>()?;
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == CTRL_ATTR_FAMILY_ID {
            return Ok(attribute.u16_ne()?);
        }
    }
    Err(message.missing(CTRL_ATTR_FAMILY_ID).into())
}

fn deletion(family: u16, server: VirtualServer) -> Request {
    let mut request = Request::new(family, 0, &genl_header(IPVS_CMD_DEL_SERVICE));
    write_server(&mut request.attributes(), server);
    request
}

/// Writes the attributes that identify a virtual server.
fn write_server(attributes: &mut Writer<'_>, server: VirtualServer) {
    let (family, address) = match server.address.ip() {
        IpAddr::V4(address) => (libc::AF_INET, padded(address)),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets()),
    };
    let mut service = attributes.nest(IPVS_CMD_ATTR_SERVICE);
    service.put_u16_ne(IPVS_SVC_ATTR_AF, family as u16);
    service.put_u16_ne(IPVS_SVC_ATTR_PROTOCOL, server.protocol);
    service.put_bytes(IPVS_SVC_ATTR_ADDR, &address);
    service.put_u16_be(IPVS_SVC_ATTR_PORT, server.address.port());
}

/// Pads an IPv4 address to the length of the kernel's `union nf_inet_addr`.
fn padded(address: Ipv4Addr) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&address.octets());
    bytes
}

fn parse_server(message: Message<'_>) -> Result<Option<VirtualServer>, Error> {
    let (_, attributes) = message.split_header::<GENL_HDRLEN>()?;
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == IPVS_CMD_ATTR_SERVICE {
            return parse_service(attribute.nested());
        }
    }
    Err(message.missing(IPVS_CMD_ATTR_SERVICE).into())
}

/// Parses a virtual server; `None` if it has no address.
fn parse_service(attributes: Attributes<'_>) -> Result<Option<VirtualServer>, Error> {
    let (mut family, mut protocol, mut address, mut port) = (None, None, None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            IPVS_SVC_ATTR_AF => family = Some(attribute.u16_ne()?),
            IPVS_SVC_ATTR_PROTOCOL => protocol = Some(attribute.u16_ne()?),
            IPVS_SVC_ATTR_ADDR => address = Some(attribute.array::<16>()?),
            IPVS_SVC_ATTR_PORT => port = Some(attribute.u16_be()?),
            _ => {}
        }
    }
    let (Some(family), Some(protocol), Some(address), Some(port)) = (family, protocol, address, port) else {
        return Ok(None);
    };
    let ip = match i32::from(family) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::new(address[0], address[1], address[2], address[3])),
        _ => IpAddr::V6(address.into()),
    };
    Ok(Some(VirtualServer { protocol, address: SocketAddr::new(ip, port) }))
}

/// Parses the number of connections of a real server.
fn parse_connections(message: Message<'_>) -> Result<Option<u64>, Error> {
    let (_, attributes) = message.split_header::<GENL_HDRLEN>()?;
    let mut connections = 0;
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind != IPVS_CMD_ATTR_DEST {
            continue;
        }
        for field in attribute.nested() {
            let field = field?;
            if [IPVS_DEST_ATTR_ACTIVE_CONNS, IPVS_DEST_ATTR_INACT_CONNS].contains(&field.kind) {
                connections += u64::from(field.u32_ne()?);
            }
        }
    }
    Ok(Some(connections))
}

/// Returns a `struct genlmsghdr` (`include/uapi/linux/genetlink.h`): command, version, and two reserved bytes.
const fn genl_header(command: u8) -> [u8; GENL_HDRLEN] {
    [command, IPVS_GENL_VERSION, 0, 0]
}

/// Bytes of `struct genlmsghdr`.
const GENL_HDRLEN: usize = 4;

// `include/uapi/linux/genetlink.h`.
const GENL_ID_CTRL: u16 = libc::GENL_ID_CTRL as u16;
const CTRL_CMD_GETFAMILY: u8 = libc::CTRL_CMD_GETFAMILY as u8;
const CTRL_ATTR_FAMILY_ID: u16 = libc::CTRL_ATTR_FAMILY_ID as u16;
const CTRL_ATTR_FAMILY_NAME: u16 = libc::CTRL_ATTR_FAMILY_NAME as u16;

// `include/uapi/linux/ip_vs.h`: commands, their attributes, and the attributes of a virtual server (`SVC`) and of a real
// server (`DEST`).
const IPVS_GENL_NAME: &str = "IPVS";
const IPVS_GENL_VERSION: u8 = 1;
const IPVS_CMD_DEL_SERVICE: u8 = 3;
const IPVS_CMD_GET_SERVICE: u8 = 4;
const IPVS_CMD_GET_DEST: u8 = 8;
const IPVS_CMD_ATTR_SERVICE: u16 = 1;
const IPVS_CMD_ATTR_DEST: u16 = 2;
const IPVS_SVC_ATTR_AF: u16 = 1;
const IPVS_SVC_ATTR_PROTOCOL: u16 = 2;
const IPVS_SVC_ATTR_ADDR: u16 = 3;
const IPVS_SVC_ATTR_PORT: u16 = 4;
/// Established connections; none of UDP are.
const IPVS_DEST_ATTR_ACTIVE_CONNS: u16 = 7;
/// Connections in all other states, and all of UDP.
const IPVS_DEST_ATTR_INACT_CONNS: u16 = 8;

#[cfg(test)]
mod tests {
    use ferroute_netlink::{Batch, Messages};

    use super::*;

    const IPVS_SVC_ATTR_FWMARK: u16 = 5;
    const IPVS_DEST_ATTR_PORT: u16 = 2;

    fn server(protocol: i32, address: &str) -> VirtualServer {
        VirtualServer { protocol: u16::try_from(protocol).unwrap(), address: address.parse().unwrap() }
    }

    /// Parses a reply of the kernel with these attributes.
    fn parsed(write: impl FnOnce(&mut Writer<'_>)) -> Option<VirtualServer> {
        let mut batch = Batch::new();
        write(&mut batch.message(0x20, 0, &genl_header(IPVS_CMD_GET_SERVICE)));
        let message = Messages::new(batch.as_bytes().unwrap()).next().unwrap().unwrap();
        parse_server(message).unwrap()
    }

    #[test]
    fn a_virtual_server_parses_to_what_was_written() {
        for (server, text) in [
            (server(libc::IPPROTO_TCP, "10.96.0.1:443"), "10.96.0.1:443/tcp"),
            (server(libc::IPPROTO_UDP, "[fd00:96::a]:53"), "[fd00:96::a]:53/udp"),
        ] {
            assert_eq!(parsed(|attributes| write_server(attributes, server)), Some(server));
            assert_eq!(server.to_string(), text);
        }
    }

    #[test]
    fn the_bytes_follow_the_kernels_header_file() {
        let mut batch = Batch::new();
        write_server(
            &mut batch.message(0x20, 0, &genl_header(IPVS_CMD_DEL_SERVICE)),
            server(libc::IPPROTO_TCP, "10.96.0.1:443"),
        );
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
        let mut batch = Batch::new();
        let mut message = batch.message(0x20, 0, &genl_header(IPVS_CMD_GET_DEST));
        let mut dest = message.nest(IPVS_CMD_ATTR_DEST);
        dest.put_u16_be(IPVS_DEST_ATTR_PORT, 8080);
        dest.put_u32_ne(IPVS_DEST_ATTR_ACTIVE_CONNS, 3);
        dest.put_u32_ne(IPVS_DEST_ATTR_INACT_CONNS, 70_000);
        drop(dest);
        drop(message);
        let message = Messages::new(batch.as_bytes().unwrap()).next().unwrap().unwrap();
        assert_eq!(parse_connections(message).unwrap(), Some(70_003));
    }

    #[test]
    fn a_virtual_server_by_firewall_mark_has_no_address() {
        let marked = parsed(|attributes| {
            let mut service = attributes.nest(IPVS_CMD_ATTR_SERVICE);
            service.put_u16_ne(IPVS_SVC_ATTR_AF, libc::AF_INET as u16);
            service.put_u32_ne(IPVS_SVC_ATTR_FWMARK, 7);
        });
        assert_eq!(marked, None);
    }
}
