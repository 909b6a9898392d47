//! A client, a node and pods that TCP packets are sent from without a TCP stack.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    time::{Duration, Instant},
};

use ferroute_core::{IpFamily, Protocol};
use ferroute_host::conntrack;
use ferroute_testing::NetNs;
use socket2::{Domain, Socket, Type};

use crate::common::network::{CLIENT, Row};

/// A client, a node and pods. No host has the addresses of the packets, so there are no responses.
pub(crate) struct Network {
    pub(crate) node: NetNs,
    pods: NetNs,
    from_client: Socket,
    from_pods: Socket,
}

/// An established connection.
pub(crate) struct Connection {
    to: SocketAddrV4,
    packet: Vec<u8>,
}

/// The control bits of a TCP packet.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Flags(u8);

impl Flags {
    const SYN: Self = Self(0x02);
    const SYN_ACK: Self = Self(0x12);
    const ACK: Self = Self(0x10);
}

impl Network {
    /// Creates a network that forwards packets to these pods.
    pub(crate) fn new(pods: &[SocketAddrV4]) -> Self {
        let Row { client, node, server } = Row::new(pods.iter().map(|pod| *pod.ip()));
        node.command("ip", &["route", "add", &format!("{SOURCE}/32"), "via", CLIENT]);
        // Devices do the checksums of veth packets, so these have none.
        node.command("sysctl", &["-qw", "net.netfilter.nf_conntrack_checksum=0"]);
        let (from_client, from_pods) = (client.run(raw_socket), server.run(raw_socket));
        Self { node, pods: server, from_client, from_pods }
    }

    /// Sends the first packets of this many connections and returns the time of one. Ports of rounds differ.
    pub(crate) fn first_packets(&self, to: SocketAddrV4, count: u32, round: u32) -> Duration {
        let packets: Vec<_> = (0..count)
            .map(|i| {
                let port = u16::try_from(FIRST_PORT + (round * count + i) % (65_536 - FIRST_PORT)).unwrap();
                packet(SocketAddrV4::new(SOURCE, port), to, Flags::SYN)
            })
            .collect();
        self.forwarded(count, || packets.iter().for_each(|packet| send(&self.from_client, packet, to)))
    }

    /// Establishes a connection from a port below those of [`Network::first_packets`].
    pub(crate) fn establish(&self, from: u16, to: SocketAddrV4) -> Connection {
        let from = SocketAddrV4::new(SOURCE, from);
        send(&self.from_client, &packet(from, to, Flags::SYN), to);
        let pod = self.source_of_replies(from).unwrap_or(to);
        send(&self.from_pods, &packet(pod, from, Flags::SYN_ACK), from);
        let connection = Connection { to, packet: packet(from, to, Flags::ACK) };
        send(&self.from_client, &connection.packet, to);
        connection
    }

    /// Sends this many packets of a connection from the client and returns the time of one.
    pub(crate) fn later_packets(&self, connection: &Connection, count: u32) -> Duration {
        self.forwarded(count, || (0..count).for_each(|_| send(&self.from_client, &connection.packet, connection.to)))
    }

    /// Returns the time of one of `count` packets. Panics if not all of them reach the pods.
    fn forwarded(&self, count: u32, send_all: impl FnOnce()) -> Duration {
        let before = received(&self.pods);
        let start = Instant::now();
        send_all();
        let time = start.elapsed() / count;
        assert_eq!(received(&self.pods) - before, u64::from(count), "packets that reached the pods");
        time
    }

    /// Returns the pod that the tracked connection from a client goes to.
    fn source_of_replies(&self, client: SocketAddrV4) -> Option<SocketAddrV4> {
        let mut pod = None;
        let each = |entry: &conntrack::Entry| {
            if let (SocketAddr::V4(source), true) =
                (entry.reply_source, entry.original_source == SocketAddr::V4(client))
            {
                pod = Some(source);
            }
        };
        self.node.run(|| conntrack::list(IpFamily::V4, Protocol::Tcp, each)).unwrap();
        pod
    }

    /// Deletes the entries of [`Network::first_packets`].
    pub(crate) fn forget_first_packets(&self) {
        let is_first = |entry: &conntrack::Entry| u32::from(entry.original_source.port()) >= FIRST_PORT;
        self.node.run(|| conntrack::delete_if(IpFamily::V4, Protocol::Tcp, is_first)).unwrap();
    }
}

/// Returns the number of IPv4 packets that a namespace has received.
fn received(namespace: &NetNs) -> u64 {
    let counters = namespace.run(|| fs::read_to_string("/proc/thread-self/net/snmp")).unwrap();
    // A line of names and one of values.
    let mut lines = counters.lines().filter_map(|line| line.strip_prefix("Ip:")).map(str::split_whitespace);
    let (mut names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    let index = names.position(|name| name == "InReceives").unwrap();
    values.nth(index).unwrap().parse().unwrap()
}

fn raw_socket() -> Socket {
    let protocol = socket2::Protocol::from(nix::libc::IPPROTO_RAW);
    Socket::new(Domain::IPV4, Type::RAW, Some(protocol)).unwrap()
}

fn send(socket: &Socket, packet: &[u8], to: SocketAddrV4) {
    socket.send_to(packet, &to.into()).unwrap();
}

/// Returns an IP packet with a TCP header. The kernel completes the IP header.
fn packet(from: SocketAddrV4, to: SocketAddrV4, flags: Flags) -> Vec<u8> {
    // Both sides begin with sequence number 1; a SYN counts as a byte.
    let (sequence, acknowledged): (u32, u32) = match flags {
        Flags::SYN => (1, 0),
        Flags::SYN_ACK => (1, 2),
        _ => (2, 2),
    };
    let ip_header = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
    let tcp_header = [0x50, flags.0, 0xff, 0xff, 0, 0, 0, 0];
    [
        &ip_header[..],
        &from.ip().octets(),
        &to.ip().octets(),
        &from.port().to_be_bytes(),
        &to.port().to_be_bytes(),
        &sequence.to_be_bytes(),
        &acknowledged.to_be_bytes(),
        &tcp_header,
    ]
    .concat()
}

/// The source of the client's packets, an address of the cluster's pods.
const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 255, 1, 2);
/// The ports of [`Network::first_packets`] and above.
const FIRST_PORT: u32 = 1024;
