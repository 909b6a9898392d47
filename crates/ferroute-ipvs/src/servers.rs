use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use ferroute_netlink::{Attributes, Error, Message, Protocol, Request, Socket, Writer};

/// Virtual servers cannot be looked at or removed.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// There is no way to ask for them.
    #[error("cannot ask the kernel for virtual servers")]
    Open(#[source] Error),
    /// They cannot be listed.
    #[error("cannot list virtual servers")]
    List(#[source] Error),
    /// Nobody can tell how many connections one has.
    #[error("cannot count the connections of virtual server {server}")]
    Count {
        /// Which one.
        server: VirtualServer,
        /// The kernel's answer.
        #[source]
        source: Error,
    },
    /// The kernel does not remove one.
    #[error("cannot remove virtual server {server}")]
    Remove {
        /// Which one.
        server: VirtualServer,
        /// The kernel's answer.
        #[source]
        source: Error,
    },
}

/// A virtual server: an address and port from which the kernel hands connections on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// Number of the transport protocol (`IPPROTO_*`).
    pub protocol: u16,
    /// Where connections come to.
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

/// The virtual servers of a network namespace.
#[derive(Debug)]
pub struct VirtualServers {
    socket: Socket,
    /// The number that this kernel has given to the family `IPVS`.
    family: u16,
}

impl VirtualServers {
    /// Those of the calling thread's network namespace; `None` where the kernel has none. One that has them as a module
    /// loads it for the question.
    pub fn open() -> Result<Option<Self>, ServerError> {
        let mut socket = Socket::open(Protocol::Generic).map_err(ServerError::Open)?;
        match socket.get(&mut family_request(), parse_family) {
            Ok(family) => Ok(family.map(|family| Self { socket, family })),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(ServerError::Open(error)),
        }
    }

    /// All that have an address; the others, which go by packet marks, are never kube-proxy's.
    pub fn list(&mut self) -> Result<Vec<VirtualServer>, ServerError> {
        let mut request = Request::new(self.family, 0, &header(GET_SERVICE));
        self.socket.collect(&mut request, parse_server).map_err(ServerError::List)
    }

    /// How many connections through one the kernel knows of: those that are open, being made or half closed, and for two
    /// minutes those that have ended, which it does not tell from the latter.
    pub fn connections(&mut self, server: VirtualServer) -> Result<u64, ServerError> {
        let mut request = Request::new(self.family, 0, &header(GET_DESTINATION));
        write_server(&mut request.attributes(), server);
        let counted = self.socket.collect(&mut request, parse_connections);
        counted.map(|counts| counts.iter().sum()).map_err(|source| ServerError::Count { server, source })
    }

    /// Removes one with all that it hands connections to.
    pub fn remove(&mut self, server: VirtualServer) -> Result<(), ServerError> {
        self.socket
            .request_ack(&mut removal(self.family, server))
            .map_err(|source| ServerError::Remove { server, source })
    }
}

fn family_request() -> Request {
    let mut request = Request::new(CONTROL, 0, &header(GET_FAMILY));
    request.attributes().put_str(FAMILY_NAME, "IPVS");
    request
}

fn parse_family(message: Message<'_>) -> Result<u16, Error> {
    let (_, attributes) = message.split_header::<HEADER>()?;
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == FAMILY_ID {
            return Ok(attribute.u16_ne()?);
        }
    }
    Err(message.missing(FAMILY_ID).into())
}

fn removal(family: u16, server: VirtualServer) -> Request {
    let mut request = Request::new(family, 0, &header(DELETE_SERVICE));
    write_server(&mut request.attributes(), server);
    request
}

/// What names a server.
fn write_server(attributes: &mut Writer<'_>, server: VirtualServer) {
    let (family, address) = match server.address.ip() {
        IpAddr::V4(address) => (libc::AF_INET, padded(address)),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets()),
    };
    let mut service = attributes.nest(SERVICE);
    service.put_u16_ne(service::FAMILY, family as u16);
    service.put_u16_ne(service::PROTOCOL, server.protocol);
    service.put_bytes(service::ADDRESS, &address);
    service.put_u16_be(service::PORT, server.address.port());
}

/// The kernel's field for an address is as long as one of IPv6.
fn padded(address: Ipv4Addr) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&address.octets());
    bytes
}

fn parse_server(message: Message<'_>) -> Result<Option<VirtualServer>, Error> {
    let (_, attributes) = message.split_header::<HEADER>()?;
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == SERVICE {
            return parse_service(attribute.nested());
        }
    }
    Err(message.missing(SERVICE).into())
}

/// `None` for a server without an address.
fn parse_service(attributes: Attributes<'_>) -> Result<Option<VirtualServer>, Error> {
    let (mut family, mut protocol, mut address, mut port) = (None, None, None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            service::FAMILY => family = Some(attribute.u16_ne()?),
            service::PROTOCOL => protocol = Some(attribute.u16_ne()?),
            service::ADDRESS => address = Some(attribute.array::<16>()?),
            service::PORT => port = Some(attribute.u16_be()?),
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

/// Connections to one of those that a server hands them to.
fn parse_connections(message: Message<'_>) -> Result<Option<u64>, Error> {
    let (_, attributes) = message.split_header::<HEADER>()?;
    let mut connections = 0;
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind != DESTINATION {
            continue;
        }
        for field in attribute.nested() {
            let field = field?;
            if [destination::ESTABLISHED, destination::OTHERS].contains(&field.kind) {
                connections += u64::from(field.u32_ne()?);
            }
        }
    }
    Ok(Some(connections))
}

/// `struct genlmsghdr` (`include/uapi/linux/genetlink.h`): a command, a version, and two bytes that mean nothing.
const fn header(command: u8) -> [u8; HEADER] {
    [command, 1, 0, 0]
}

const HEADER: usize = 4;

// The family that knows the others (`include/uapi/linux/genetlink.h`).
const CONTROL: u16 = libc::GENL_ID_CTRL as u16;
const GET_FAMILY: u8 = libc::CTRL_CMD_GETFAMILY as u8;
const FAMILY_ID: u16 = libc::CTRL_ATTR_FAMILY_ID as u16;
const FAMILY_NAME: u16 = libc::CTRL_ATTR_FAMILY_NAME as u16;

// Commands and attributes of `include/uapi/linux/ip_vs.h`.
const DELETE_SERVICE: u8 = 3;
const GET_SERVICE: u8 = 4;
const GET_DESTINATION: u8 = 8;
const SERVICE: u16 = 1;
const DESTINATION: u16 = 2;

/// Attributes within [`SERVICE`].
mod service {
    pub(super) const FAMILY: u16 = 1;
    pub(super) const PROTOCOL: u16 = 2;
    pub(super) const ADDRESS: u16 = 3;
    pub(super) const PORT: u16 = 4;
}

/// Attributes within [`DESTINATION`].
mod destination {
    /// Connections that are open; none of UDP are.
    pub(super) const ESTABLISHED: u16 = 7;
    /// Those that are being made, half closed or ended, and all of UDP.
    pub(super) const OTHERS: u16 = 8;
}

#[cfg(test)]
mod tests {
    use ferroute_netlink::{Batch, Messages};

    use super::*;

    fn server(protocol: i32, address: &str) -> VirtualServer {
        VirtualServer { protocol: u16::try_from(protocol).unwrap(), address: address.parse().unwrap() }
    }

    /// What the kernel would answer with these attributes.
    fn parsed(write: impl FnOnce(&mut Writer<'_>)) -> Option<VirtualServer> {
        let mut batch = Batch::new();
        write(&mut batch.message(0x20, 0, &header(GET_SERVICE)));
        let message = Messages::new(batch.as_bytes().unwrap()).next().unwrap().unwrap();
        parse_server(message).unwrap()
    }

    #[test]
    fn a_server_is_named_as_the_kernel_lists_it() {
        for (server, text) in [
            (server(libc::IPPROTO_TCP, "10.96.0.1:443"), "10.96.0.1:443/tcp"),
            (server(libc::IPPROTO_UDP, "[fd00:96::a]:53"), "[fd00:96::a]:53/udp"),
        ] {
            assert_eq!(parsed(|attributes| write_server(attributes, server)), Some(server));
            assert_eq!(server.to_string(), text);
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_kernels_header_file() {
        let mut batch = Batch::new();
        write_server(&mut batch.message(0x20, 0, &header(DELETE_SERVICE)), server(libc::IPPROTO_TCP, "10.96.0.1:443"));
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
    fn connections_are_read_from_what_a_server_hands_them_to() {
        let mut batch = Batch::new();
        let mut message = batch.message(0x20, 0, &header(GET_DESTINATION));
        let mut destination = message.nest(DESTINATION);
        destination.put_u16_be(2, 8080);
        destination.put_u32_ne(destination::ESTABLISHED, 3);
        destination.put_u32_ne(destination::OTHERS, 70_000);
        drop(destination);
        drop(message);
        let message = Messages::new(batch.as_bytes().unwrap()).next().unwrap().unwrap();
        assert_eq!(parse_connections(message).unwrap(), Some(70_003));
    }

    #[test]
    fn a_server_that_goes_by_packet_marks_has_no_address() {
        let marked = parsed(|attributes| {
            let mut service = attributes.nest(SERVICE);
            service.put_u16_ne(service::FAMILY, libc::AF_INET as u16);
            service.put_u32_ne(5, 7);
        });
        assert_eq!(marked, None);
    }
}
