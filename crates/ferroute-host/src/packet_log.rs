//! Packets that rules log for a program (`log group N` in nftables, `NFLOG` in iptables).

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, SystemTime},
};

use ferroute_core::Protocol;
use ferroute_netlink::{
    self as netlink, Attribute, Drained, Malformed, Message, Request, Socket, Subscription, nfnetlink,
};

/// Packets that rules log for one group, in one network namespace.
///
/// A group has one receiver; packets for a group without a receiver are not copied. It never blocks: the file
/// descriptor becomes readable when packets arrive.
#[derive(Debug)]
pub struct PacketLog {
    subscription: Subscription,
    group: u16,
    /// The number of the next packet.
    next: u32,
    lost: u64,
}

/// A packet of a transport protocol that Services have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedPacket<'a> {
    /// The prefix of the rule.
    pub prefix: &'a str,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The source.
    pub source: SocketAddr,
    /// The destination.
    pub destination: SocketAddr,
    /// Sequence number of a TCP segment, which is the same in a repeated segment.
    pub sequence: Option<u32>,
    /// Time of arrival, if the kernel has recorded it.
    pub time: Option<SystemTime>,
}

/// Reason why packets cannot be received.
#[derive(Debug, thiserror::Error)]
pub enum PacketLogError {
    /// No socket can be opened.
    #[error("cannot open a socket for logged packets")]
    Open(#[source] netlink::Error),
    /// The kernel refuses it: it does not support logging to programs, or all groups have receivers.
    #[error("cannot receive packets that rules log (groups {} to {})", groups.start(), groups.end())]
    Bind {
        /// The groups that were tried.
        groups: RangeInclusive<u16>,
        /// The last refusal.
        #[source]
        source: netlink::Error,
    },
    /// Packets cannot be read.
    #[error("cannot read logged packets")]
    Receive(#[source] netlink::Error),
}

impl PacketLog {
    /// Receives packets for the first of these groups without a receiver, in the network namespace of the calling thread. Packets beyond
    /// `buffer` bytes that are not received in time are lost. Requires `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// If the kernel refuses all groups.
    pub fn open(groups: RangeInclusive<u16>, buffer: usize) -> Result<Self, PacketLogError> {
        let mut refused = None;
        for group in groups.clone() {
            // A socket has one group.
            let mut socket = Socket::open(netlink::Protocol::Netfilter).map_err(PacketLogError::Open)?;
            match configure(&mut socket, group) {
                Ok(()) => {
                    let mut subscription = socket.into_subscription();
                    subscription.set_receive_buffer(buffer).map_err(PacketLogError::Receive)?;
                    return Ok(Self { subscription, group, next: 0, lost: 0 });
                }
                // The kernel's error is the same for a group that another socket has and for a lack of permission.
                Err(error) if error.refusal().is_some_and(|refusal| refusal.is_permission() || refusal.is_busy()) => {
                    refused = Some(error);
                }
                Err(source) => return Err(PacketLogError::Bind { groups, source }),
            }
        }
        let source = refused.unwrap_or(netlink::Error::Unanswered { kind: CONFIG });
        Err(PacketLogError::Bind { groups, source })
    }

    /// Returns the group.
    pub fn group(&self) -> u16 {
        self.group
    }

    /// Returns the number of packets that were lost because they were not received in time.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Calls `each` with the packets received so far, at most those of `limit` datagrams. Packets of protocols that
    /// Services do not have, and packets with unusual headers, are skipped. Reports whether none was lost.
    ///
    /// # Errors
    /// If the socket cannot be read.
    pub fn receive(&mut self, limit: usize, mut each: impl FnMut(&LoggedPacket<'_>)) -> Result<bool, PacketLogError> {
        let Self { subscription, next, lost, .. } = self;
        let before = *lost;
        let drained = subscription.receive(limit, |message| {
            if message.kind != PACKET {
                return;
            }
            let Ok(logged) = Logged::parse(message) else { return };
            if let Some(number) = logged.number {
                *lost += u64::from(number.wrapping_sub(*next));
                *next = number.wrapping_add(1);
            }
            if let Some(packet) = logged.packet() {
                each(&packet);
            }
        });
        // After an overrun, the numbers of the next packets show how many were lost.
        Ok(drained.map_err(PacketLogError::Receive)? != Drained::Overrun && *lost == before)
    }
}

impl AsFd for PacketLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.subscription.as_fd()
    }
}

/// Requests the packets of a group.
fn configure(socket: &mut Socket, group: u16) -> Result<(), netlink::Error> {
    let mut set = |write: &dyn Fn(&mut netlink::Writer<'_>)| {
        let mut request = Request::new(CONFIG, 0, &nfnetlink::header(libc::AF_UNSPEC as u8, 0, group));
        write(&mut request.attributes());
        socket.request_ack(&mut request)
    };
    set(&|config| config.put_u8(NFULA_CFG_CMD, NFULNL_CFG_CMD_BIND))?;
    set(&|config| {
        // struct nfulnl_msg_config_mode
        let [a, b, c, d] = HEADERS.to_be_bytes();
        config.put_bytes(NFULA_CFG_MODE, &[a, b, c, d, NFULNL_COPY_PACKET, 0]);
        config.put_u32_be(NFULA_CFG_TIMEOUT, DELAY);
        config.put_u16_be(NFULA_CFG_FLAGS, NFULNL_CFG_F_SEQ);
    })
}

/// The attributes of a logged packet.
#[derive(Default)]
struct Logged<'a> {
    prefix: &'a str,
    payload: &'a [u8],
    number: Option<u32>,
    time: Option<SystemTime>,
}

impl<'a> Logged<'a> {
    fn parse(message: Message<'a>) -> Result<Self, Malformed> {
        let mut logged = Self::default();
        let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                NFULA_PREFIX => logged.prefix = text(attribute),
                NFULA_PAYLOAD => logged.payload = attribute.payload,
                NFULA_SEQ => logged.number = Some(attribute.u32_be()?),
                NFULA_TIMESTAMP => logged.time = time(attribute.payload),
                _ => {}
            }
        }
        Ok(logged)
    }

    /// Returns `None` for protocols that Services do not have, later fragments, and packets with other headers before the transport
    /// header.
    fn packet(&self) -> Option<LoggedPacket<'a>> {
        let bytes = self.payload;
        let (addresses, protocol, transport): ([IpAddr; 2], u8, &[u8]) = match bytes.first()? >> 4 {
            4 => {
                let header = bytes.first_chunk::<20>()?;
                let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
                if fragment != 0 {
                    return None;
                }
                let address = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
                let length = usize::from(header[0] & 0xf) * 4;
                ([address(12).into(), address(16).into()], header[9], bytes.get(length..)?)
            }
            6 => {
                let (header, rest) = bytes.split_first_chunk::<40>()?;
                let address = |at: usize| Some(Ipv6Addr::from(*header.get(at..)?.first_chunk::<16>()?));
                ([address(8)?.into(), address(24)?.into()], header[6], rest)
            }
            _ => return None,
        };
        let protocol = Protocol::from_number(protocol)?;
        let ports = transport.first_chunk::<4>()?;
        let [source, destination] = [[ports[0], ports[1]], [ports[2], ports[3]]].map(u16::from_be_bytes);
        let sequence = transport.get(4..).and_then(<[u8]>::first_chunk).copied().map(u32::from_be_bytes);
        Some(LoggedPacket {
            prefix: self.prefix,
            protocol,
            source: SocketAddr::new(addresses[0], source),
            destination: SocketAddr::new(addresses[1], destination),
            sequence: sequence.filter(|_| protocol == Protocol::Tcp),
            time: self.time,
        })
    }
}

fn text(attribute: Attribute<'_>) -> &str {
    let bytes = attribute.payload.strip_suffix(&[0]).unwrap_or(attribute.payload);
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// Returns the time of `struct nfulnl_msg_packet_timestamp`: seconds and microseconds.
fn time(bytes: &[u8]) -> Option<SystemTime> {
    let (seconds, rest) = bytes.split_first_chunk::<8>()?;
    let microseconds = u64::from_be_bytes(*rest.first_chunk::<8>()?);
    let since = Duration::from_secs(u64::from_be_bytes(*seconds)).checked_add(Duration::from_micros(microseconds))?;
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// `NFULNL_MSG_PACKET` and `NFULNL_MSG_CONFIG` (`include/uapi/linux/netfilter/nfnetlink_log.h`, as all of these constants).
const PACKET: u16 = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_ULOG, libc::NFULNL_MSG_PACKET as u8);
const CONFIG: u16 = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_ULOG, libc::NFULNL_MSG_CONFIG as u8);
const NFULA_CFG_CMD: u16 = libc::NFULA_CFG_CMD as u16;
const NFULA_CFG_MODE: u16 = libc::NFULA_CFG_MODE as u16;
const NFULA_CFG_TIMEOUT: u16 = libc::NFULA_CFG_TIMEOUT as u16;
const NFULA_CFG_FLAGS: u16 = libc::NFULA_CFG_FLAGS as u16;
const NFULNL_CFG_CMD_BIND: u8 = libc::NFULNL_CFG_CMD_BIND as u8;
const NFULNL_COPY_PACKET: u8 = libc::NFULNL_COPY_PACKET as u8;
const NFULNL_CFG_F_SEQ: u16 = libc::NFULNL_CFG_F_SEQ as u16;
const NFULA_TIMESTAMP: u16 = libc::NFULA_TIMESTAMP as u16;
const NFULA_PAYLOAD: u16 = libc::NFULA_PAYLOAD as u16;
const NFULA_PREFIX: u16 = libc::NFULA_PREFIX as u16;
const NFULA_SEQ: u16 = libc::NFULA_SEQ as u16;
/// Bytes of a packet that are copied: an IPv4 header with all options, and the sequence number of a TCP segment.
const HEADERS: u32 = 72;
/// The longest time for which the kernel collects packets, in hundredths of a second.
const DELAY: u32 = 5;

#[cfg(test)]
mod tests {
    use ferroute_testing::{NetNs, wait};

    use super::*;

    #[test]
    fn packets_of_a_rule_are_received_by_one_socket() {
        let namespace = NetNs::new();
        namespace.command("ip", &["link", "set", "lo", "up"]);
        let mut log = namespace.run(|| PacketLog::open(7..=8, 1 << 20)).unwrap();
        let second = namespace.run(|| PacketLog::open(7..=8, 1 << 20)).unwrap();
        assert_eq!((log.group(), second.group()), (7, 8));
        assert!(matches!(namespace.run(|| PacketLog::open(7..=8, 1 << 20)), Err(PacketLogError::Bind { .. })));
        namespace.command(
            "nft",
            &["add table inet t; add chain inet t c { type filter hook output priority 0; }; \
               add rule inet t c meta l4proto tcp log prefix \"to\" group 7"],
        );
        for to in ["127.0.0.1:9", "[::1]:9"] {
            namespace.run(|| std::net::TcpStream::connect(to)).unwrap_err();
            let mut received = Vec::new();
            wait("the packet", || {
                log.receive(64, |packet| {
                    if packet.destination.port() == 9 {
                        received.push((packet.prefix.to_owned(), packet.destination, packet.sequence.is_some()));
                    }
                })
                .unwrap();
                (!received.is_empty()).then_some(())
            });
            assert_eq!(received, [("to".to_owned(), to.parse().unwrap(), true)]);
        }
        assert_eq!(log.lost(), 0);
        drop(log);
        assert_eq!(namespace.run(|| PacketLog::open(7..=7, 1 << 20)).unwrap().group(), 7);
    }

    #[test]
    fn lost_packets_are_counted() {
        let namespace = NetNs::new();
        namespace.command("ip", &["link", "set", "lo", "up"]);
        let mut log = namespace.run(|| PacketLog::open(7..=7, 1)).unwrap();
        namespace.command(
            "nft",
            &["add table inet t; add chain inet t c { type filter hook output priority 0; }; add rule inet t c udp dport 9 log group 7"],
        );
        let socket = namespace.run(|| std::net::UdpSocket::bind("127.0.0.1:0")).unwrap();
        let (sent, mut received) = (2000_u64, 0);
        for _ in 0..sent {
            // A refusal of an earlier datagram is reported here.
            _ = socket.send_to(b"x", "127.0.0.1:9");
        }
        // A packet shows how many were lost before it.
        wait("a later packet", || {
            log.receive(usize::MAX, |_| received += 1).unwrap();
            _ = socket.send_to(b"x", "127.0.0.1:9");
            (log.lost() > 0).then_some(())
        });
        assert!(received < sent, "{received}");
    }
}
