//! Conntrack entries of real traffic, and entries created by netlink requests.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
};

use ferroute_core::{IpFamily, Protocol};
use ferroute_host::conntrack::{self, Deleted, Entry};
use ferroute_netlink as netlink;
use ferroute_testing::NetNs;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("valid test address")
}

/// Lists the entries of a family and protocol: client, frontend and endpoint.
fn entries(namespace: &NetNs, family: IpFamily, protocol: Protocol) -> BTreeSet<(SocketAddr, SocketAddr, SocketAddr)> {
    let mut entries = BTreeSet::new();
    let insert = |entry: &Entry| {
        entries.insert((entry.original_source, entry.original_destination, entry.reply_source));
    };
    namespace.run(|| conntrack::list(family, protocol, insert)).expect("conntrack can be listed");
    entries
}

/// Returns a namespace in which the Service 10.96.0.10:53 (and fd00:96::10) leads to one of two endpoints, selected by the
/// parity of the client's port, for UDP and TCP. All addresses are local.
fn namespace_with_service() -> NetNs {
    let namespace = NetNs::new();
    for address in ["10.96.0.10/32", "10.0.0.1/32", "10.0.0.2/32", "fd00:96::10/128", "fd00::1/128", "fd00::2/128"] {
        namespace.add_address(address, "lo");
    }
    let rules = "
        table inet nat {
          chain output {
            type nat hook output priority -100;
            ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 53 th sport & 1 == 0 dnat ip to 10.0.0.1:5300
            ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 53 th sport & 1 == 1 dnat ip to 10.0.0.2:5300
            ip6 daddr fd00:96::10 meta l4proto { tcp, udp } th dport 53 th sport & 1 == 0 dnat ip6 to [fd00::1]:5300
            ip6 daddr fd00:96::10 meta l4proto { tcp, udp } th dport 53 th sport & 1 == 1 dnat ip6 to [fd00::2]:5300
          }
        }";
    namespace.feed("nft", &["-f", "-"], rules);
    namespace
}

/// Sockets of clients and endpoints, held open to keep their conntrack entries.
#[derive(Default)]
struct Traffic {
    udp: Vec<UdpSocket>,
    tcp: Vec<TcpStream>,
    listeners: Vec<TcpListener>,
}

impl Traffic {
    /// Starts endpoints, and clients on the given ports of `source` that send to `service`.
    fn start(namespace: &NetNs, source: &str, service: &str, endpoints: [&str; 2], ports: &[u16]) -> Self {
        let source: IpAddr = source.parse().expect("valid test address");
        namespace.run(|| {
            let mut traffic = Self::default();
            for endpoint in endpoints {
                traffic.listeners.push(TcpListener::bind(endpoint).expect("the address is local"));
                traffic.udp.push(UdpSocket::bind(endpoint).expect("the address is local"));
            }
            for port in ports {
                let client = UdpSocket::bind((source, *port)).expect("the port is free");
                client.send_to(b"query", service).expect("the service is reachable");
                traffic.udp.push(client);
            }
            let stream = TcpStream::connect(service).expect("an endpoint listens");
            traffic.tcp.push(stream);
            traffic
        })
    }
}

#[test]
fn only_entries_of_the_removed_endpoint_are_deleted() {
    let namespace = namespace_with_service();
    let ports = [2000, 2001, 2002, 2003];
    let v4 = Traffic::start(&namespace, "127.0.0.1", "10.96.0.10:53", ["10.0.0.1:5300", "10.0.0.2:5300"], &ports);
    let v6 = Traffic::start(&namespace, "::1", "[fd00:96::10]:53", ["[fd00::1]:5300", "[fd00::2]:5300"], &ports);
    let tcp = || IpFamily::BOTH.map(|family| entries(&namespace, family, Protocol::Tcp));
    let (tcp_before, v6_before) = (tcp(), entries(&namespace, IpFamily::V6, Protocol::Udp));
    assert_eq!((tcp_before[0].len(), tcp_before[1].len(), v6_before.len()), (1, 1, 4));

    let entry = |port: u16, endpoint: &str| {
        (SocketAddr::new(address("127.0.0.1:0").ip(), port), address("10.96.0.10:53"), address(endpoint))
    };
    let (one, two) = ("10.0.0.1:5300", "10.0.0.2:5300");
    assert_eq!(
        entries(&namespace, IpFamily::V4, Protocol::Udp),
        BTreeSet::from([entry(2000, one), entry(2001, two), entry(2002, one), entry(2003, two)])
    );
    let is_stale = |entry: &Entry| entry.reply_source == address(one);
    let deleted = namespace.run(|| conntrack::delete_if(IpFamily::V4, Protocol::Udp, is_stale));
    assert_eq!(deleted.unwrap(), Deleted { seen: 4, deleted: 2 });
    let remaining = entries(&namespace, IpFamily::V4, Protocol::Udp);
    assert_eq!(remaining, BTreeSet::from([entry(2001, two), entry(2003, two)]));
    assert_eq!((tcp(), entries(&namespace, IpFamily::V6, Protocol::Udp)), (tcp_before, v6_before));

    let is_stale = |entry: &Entry| entry.reply_source == address("[fd00::2]:5300");
    let deleted = namespace.run(|| conntrack::delete_if(IpFamily::V6, Protocol::Udp, is_stale));
    assert_eq!(deleted.unwrap(), Deleted { seen: 4, deleted: 2 });
    let remaining = entries(&namespace, IpFamily::V6, Protocol::Udp);
    let remaining: Vec<u16> = remaining.iter().map(|(client, ..)| client.port()).collect();
    assert_eq!(remaining, [2000, 2002]);
    drop((v4, v6));
}

#[test]
fn next_packet_after_deletion_is_translated_by_current_rules() {
    let namespace = namespace_with_service();
    let sockets = namespace.run(|| {
        ["10.0.0.1:5300", "10.0.0.2:5300", "127.0.0.1:2000"].map(|local| {
            let socket = UdpSocket::bind(local).expect("the address is local");
            socket.set_nonblocking(true).expect("the socket can be set to non-blocking mode");
            socket
        })
    });
    // Reports the endpoints that receive a packet of the client. Over loopback, it arrives before `send_to` returns.
    let reached = || {
        sockets[2].send_to(b"query", "10.96.0.10:53").unwrap();
        [0, 1].map(|endpoint| sockets[endpoint].recv(&mut [0; 16]).is_ok())
    };
    assert_eq!(reached(), [true, false]);
    namespace.command("nft", &["flush", "chain", "inet", "nat", "output"]);
    let rule = "add rule inet nat output ip daddr 10.96.0.10 udp dport 53 dnat ip to 10.0.0.2:5300";
    namespace.command("nft", &[rule]);
    assert_eq!(reached(), [true, false]);
    let is_stale = |entry: &Entry| entry.reply_source == address("10.0.0.1:5300");
    let deleted = namespace.run(|| conntrack::delete_if(IpFamily::V4, Protocol::Udp, is_stale));
    assert_eq!(deleted.unwrap(), Deleted { seen: 1, deleted: 1 });
    assert_eq!(reached(), [false, true]);
}

#[test]
fn entry_has_the_tuples_of_both_directions() {
    let namespace = NetNs::new();
    let entry = "-I --timeout 900 --proto udp --orig-src 10.1.0.9 --orig-dst 10.96.0.10 --sport 4000 --dport 53 \
                 --reply-src 10.0.0.1 --reply-dst 10.1.0.1 --reply-port-src 5300 --reply-port-dst 61000";
    namespace.command("conntrack", &entry.split_whitespace().collect::<Vec<_>>());
    let mut listed = Vec::new();
    let push = |entry: &Entry| {
        listed.push(*entry);
        true
    };
    let deleted = namespace.run(|| conntrack::delete_if(IpFamily::V4, Protocol::Udp, push));
    let expected = Entry {
        protocol: Protocol::Udp,
        original_source: address("10.1.0.9:4000"),
        original_destination: address("10.96.0.10:53"),
        reply_source: address("10.0.0.1:5300"),
        reply_destination: address("10.1.0.1:61000"),
        is_open: true,
        is_answered: false,
    };
    assert_eq!((deleted.unwrap(), listed), (Deleted { seen: 1, deleted: 1 }, vec![expected]));
    assert_eq!(namespace.command("conntrack", &["-L"]), "");
}

#[test]
fn entries_without_a_reply_are_selected() {
    let namespace = NetNs::new();
    for (port, status) in [(1, ""), (2, " --status SEEN_REPLY"), (3, "")] {
        let entry = format!(
            "-I --timeout 900 --proto tcp --state SYN_SENT --src 10.1.0.9 --dst 10.96.0.10 --sport {port} --dport 80{status}"
        );
        namespace.command("conntrack", &entry.split(' ').collect::<Vec<_>>());
    }
    let unanswered = || {
        let mut ports = BTreeSet::new();
        let each = |entry: &Entry| _ = ports.insert(entry.original_source.port());
        namespace.run(|| conntrack::list_unanswered(IpFamily::V4, Protocol::Tcp, each).unwrap());
        ports
    };
    assert_eq!(unanswered(), [1, 3].into());
    let udp = "-I --timeout 900 --proto udp --src 10.1.0.9 --dst 10.96.0.10 --sport 2 --dport 53";
    namespace.command("conntrack", &udp.split(' ').collect::<Vec<_>>());
    let is_stale = |entry: &Entry| entry.original_source.port() <= 2;
    let deleted = namespace.run(|| conntrack::delete_unanswered_if(IpFamily::V4, is_stale));
    assert_eq!((deleted.unwrap().deleted, unanswered()), (2, [3].into()), "of all protocols");
    assert_eq!(namespace.command("conntrack", &["-L", "-p", "udp"]), "");
}

#[test]
fn entries_in_a_zone_are_deleted() {
    let namespace = NetNs::new();
    let entry = "-I --zone 7 --timeout 900 --proto udp --src 10.1.0.9 --dst 10.96.0.10 --sport 4000 --dport 53";
    namespace.command("conntrack", &entry.split(' ').collect::<Vec<_>>());
    let deleted = namespace.run(|| conntrack::delete_if(IpFamily::V4, Protocol::Udp, |_| true));
    assert_eq!(deleted.unwrap(), Deleted { seen: 1, deleted: 1 });
    assert_eq!(namespace.command("conntrack", &["-L"]), "");
}

#[test]
fn entry_that_is_deleted_concurrently_is_no_error() {
    let namespace = NetNs::new();
    insert(&namespace, 3);
    let is_stale = |entry: &Entry| {
        if entry.original_source.port() == 2 {
            let arguments = ["-D", "--proto", "udp", "--sport", "2"];
            namespace.command("conntrack", &arguments);
        }
        true
    };
    let deleted = namespace.run(|| conntrack::delete_if(IpFamily::V4, Protocol::Udp, is_stale));
    assert_eq!(deleted.unwrap(), Deleted { seen: 3, deleted: 2 });
}

#[test]
fn exactly_the_selected_entries_of_a_large_table_are_deleted() {
    let namespace = NetNs::new();
    insert(&namespace, 50_000);
    let (mut seen, mut count_midway) = (0, String::new());
    let is_stale = |entry: &Entry| {
        seen += 1;
        if seen == 25_000 {
            count_midway = namespace.command("conntrack", &["-C"]);
        }
        entry.original_source.port().is_multiple_of(3)
    };
    let deleted = namespace.run(|| conntrack::delete_if(IpFamily::V4, Protocol::Udp, is_stale)).unwrap();
    // Entries are deleted during the dump, so they need not all be kept in memory.
    let count_midway: usize = count_midway.trim().parse().unwrap();
    assert!(count_midway < 45_000, "{count_midway}");
    assert_eq!(deleted.deleted, 16_666);
    let remaining = entries(&namespace, IpFamily::V4, Protocol::Udp);
    assert_eq!(remaining.len(), 50_000 - 16_666);
    assert!(remaining.iter().all(|(client, ..)| !client.port().is_multiple_of(3)));
}

#[test]
fn empty_table_is_no_error() {
    let namespace = NetNs::new();
    for (family, protocol) in [(IpFamily::V4, Protocol::Udp), (IpFamily::V6, Protocol::Sctp)] {
        assert_eq!(entries(&namespace, family, protocol), BTreeSet::new());
    }
}

/// Inserts UDP entries of clients 10.1.0.9:1 to 10.1.0.9:`count`.
fn insert(namespace: &NetNs, count: u16) {
    // IPCTNL_MSG_CT_NEW and attributes of include/uapi/linux/netfilter/nfnetlink_conntrack.h.
    const IPCTNL_MSG_CT_NEW: u8 = 0;
    const CTA_TUPLE_ORIG: u16 = 1;
    const CTA_TUPLE_REPLY: u16 = 2;
    const CTA_TIMEOUT: u16 = 7;
    const CTA_TUPLE_IP: u16 = 1;
    const CTA_TUPLE_PROTO: u16 = 2;
    const CTA_IP_V4_SRC: u16 = 1;
    const CTA_IP_V4_DST: u16 = 2;
    const CTA_PROTO_NUM: u16 = 1;
    const CTA_PROTO_SRC_PORT: u16 = 2;
    const CTA_PROTO_DST_PORT: u16 = 3;

    let kind = netlink::nfnetlink::kind(netlink::nfnetlink::NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_NEW);
    let mut batch = netlink::Batch::new();
    for port in 1..=count {
        let header = netlink::nfnetlink::header(libc::AF_INET as u8, 0, 0);
        let mut message = batch.message(kind, netlink::flags::NLM_F_CREATE | netlink::flags::NLM_F_EXCL, &header);
        let (client, service) = (("10.1.0.9", port), ("10.96.0.10", 53));
        for (tuple, source, destination) in [(CTA_TUPLE_ORIG, client, service), (CTA_TUPLE_REPLY, service, client)] {
            let mut tuple = message.nest(tuple);
            let mut ip = tuple.nest(CTA_TUPLE_IP);
            ip.put_ip(CTA_IP_V4_SRC, source.0.parse().expect("valid test address"));
            ip.put_ip(CTA_IP_V4_DST, destination.0.parse().expect("valid test address"));
            drop(ip);
            let mut protocol = tuple.nest(CTA_TUPLE_PROTO);
            protocol.put_u8(CTA_PROTO_NUM, Protocol::Udp.number());
            protocol.put_u16_be(CTA_PROTO_SRC_PORT, source.1);
            protocol.put_u16_be(CTA_PROTO_DST_PORT, destination.1);
        }
        message.put_u32_be(CTA_TIMEOUT, 900);
    }
    let refusals = namespace.run(|| {
        let mut socket = netlink::Socket::open(netlink::Protocol::Netfilter).expect("the kernel has netfilter");
        socket.send_batch(&mut batch).expect("the entries can be created")
    });
    assert!(refusals.is_empty(), "{:?}", refusals.as_slice().first());
}
