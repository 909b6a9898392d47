//! Conntrack entries in network namespaces, created by real traffic and by netlink requests.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
};

use ferroute_core::{IpFamily, Protocol};
use ferroute_host::conntrack::{self, Deleted, Entry};
use ferroute_netlink as netlink;
use ferroute_testing::NetNs;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("test addresses are addresses")
}

/// All flows of a family and protocol, without removing any.
fn flows(namespace: &NetNs, family: IpFamily, protocol: Protocol) -> BTreeSet<(SocketAddr, SocketAddr, SocketAddr)> {
    let mut flows = BTreeSet::new();
    let note = |entry: &Entry| {
        flows.insert((flow.original_source, flow.original_destination, flow.reply_source));
    };
    namespace.run(|| conntrack::list(family, protocol, note)).expect("the table can be read");
    flows
}

/// A namespace where the service 10.96.0.10:53 (or fd00:96::10) leads to one of two endpoints, by the parity of the
/// client's port, for UDP and TCP. All addresses are its own.
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

/// What clients and endpoints hold open so that flows stay.
#[derive(Default)]
struct Traffic {
    udp: Vec<UdpSocket>,
    tcp: Vec<TcpStream>,
    listeners: Vec<TcpListener>,
}

impl Traffic {
    /// Endpoints that listen, and clients on the given ports of `source` that have sent to `service`.
    fn start(namespace: &NetNs, source: &str, service: &str, endpoints: [&str; 2], ports: &[u16]) -> Self {
        let source: IpAddr = source.parse().expect("test addresses are addresses");
        namespace.run(|| {
            let mut traffic = Self::default();
            for endpoint in endpoints {
                traffic.listeners.push(TcpListener::bind(endpoint).expect("the address is there"));
                traffic.udp.push(UdpSocket::bind(endpoint).expect("the address is there"));
            }
            for port in ports {
                let client = UdpSocket::bind((source, *port)).expect("the port is free");
                client.send_to(b"query", service).expect("there is a route");
                traffic.udp.push(client);
            }
            let stream = TcpStream::connect(service).expect("an endpoint listens");
            traffic.tcp.push(stream);
            traffic
        })
    }
}

#[test]
fn flows_to_an_endpoint_that_is_gone_are_removed_and_all_others_stay() {
    let namespace = namespace_with_service();
    let ports = [2000, 2001, 2002, 2003];
    let v4 = Traffic::start(&namespace, "127.0.0.1", "10.96.0.10:53", ["10.0.0.1:5300", "10.0.0.2:5300"], &ports);
    let v6 = Traffic::start(&namespace, "::1", "[fd00:96::10]:53", ["[fd00::1]:5300", "[fd00::2]:5300"], &ports);
    let tcp = || IpFamily::BOTH.map(|family| flows(&namespace, family, Protocol::Tcp));
    let (tcp_before, v6_before) = (tcp(), flows(&namespace, IpFamily::V6, Protocol::Udp));
    assert_eq!((tcp_before[0].len(), tcp_before[1].len(), v6_before.len()), (1, 1, 4));

    let flow = |port: u16, endpoint: &str| {
        (SocketAddr::new(address("127.0.0.1:0").ip(), port), address("10.96.0.10:53"), address(endpoint))
    };
    let (one, two) = ("10.0.0.1:5300", "10.0.0.2:5300");
    assert_eq!(
        flows(&namespace, IpFamily::V4, Protocol::Udp),
        BTreeSet::from([flow(2000, one), flow(2001, two), flow(2002, one), flow(2003, two)])
    );
    let is_gone = |entry: &Entry| flow.reply_source == address(one);
    let removed = namespace.run(|| conntrack::delete_if(IpFamily::V4, Protocol::Udp, is_gone));
    assert_eq!(removed.unwrap(), Deleted { seen: 4, deleted: 2 });
    assert_eq!(flows(&namespace, IpFamily::V4, Protocol::Udp), BTreeSet::from([flow(2001, two), flow(2003, two)]));
    assert_eq!((tcp(), flows(&namespace, IpFamily::V6, Protocol::Udp)), (tcp_before, v6_before));

    let is_gone = |entry: &Entry| flow.reply_source == address("[fd00::2]:5300");
    let removed = namespace.run(|| conntrack::delete_if(IpFamily::V6, Protocol::Udp, is_gone));
    assert_eq!(removed.unwrap(), Deleted { seen: 4, deleted: 2 });
    let left: Vec<u16> = flows(&namespace, IpFamily::V6, Protocol::Udp).iter().map(|flow| flow.0.port()).collect();
    assert_eq!(left, [2000, 2002]);
    drop((v4, v6));
}

#[test]
fn the_next_packet_of_a_removed_flow_is_routed_anew() {
    let namespace = namespace_with_service();
    let sockets = namespace.run(|| {
        ["10.0.0.1:5300", "10.0.0.2:5300", "127.0.0.1:2000"].map(|local| {
            let socket = UdpSocket::bind(local).expect("the address is there");
            socket.set_nonblocking(true).expect("sockets can be told not to block");
            socket
        })
    });
    // Which endpoint gets what the client sends: over loopback it is there when the sending is done.
    let reached = || {
        sockets[2].send_to(b"query", "10.96.0.10:53").unwrap();
        [0, 1].map(|endpoint| sockets[endpoint].recv(&mut [0; 16]).is_ok())
    };
    assert_eq!(reached(), [true, false]);
    namespace.command("nft", &["flush", "chain", "inet", "nat", "output"]);
    let rule = "add rule inet nat output ip daddr 10.96.0.10 udp dport 53 dnat ip to 10.0.0.2:5300";
    namespace.command("nft", &[rule]);
    assert_eq!(reached(), [true, false]);
    let is_gone = |entry: &Entry| flow.reply_source == address("10.0.0.1:5300");
    let removed = namespace.run(|| conntrack::delete_if(IpFamily::V4, Protocol::Udp, is_gone));
    assert_eq!(removed.unwrap(), Deleted { seen: 1, deleted: 1 });
    assert_eq!(reached(), [false, true]);
}

#[test]
fn both_directions_of_a_flow_are_told() {
    let namespace = NetNs::new();
    let entry = "-I --timeout 900 --proto udp --orig-src 10.1.0.9 --orig-dst 10.96.0.10 --sport 4000 --dport 53 \
                 --reply-src 10.0.0.1 --reply-dst 10.1.0.1 --reply-port-src 5300 --reply-port-dst 61000";
    namespace.command("conntrack", &entry.split_whitespace().collect::<Vec<_>>());
    let mut told = Vec::new();
    let note = |entry: &Entry| {
        told.push(*flow);
        true
    };
    let removed = namespace.run(|| conntrack::delete_if(IpFamily::V4, Protocol::Udp, note));
    let want = Flow {
        protocol: Protocol::Udp,
        original_source: address("10.1.0.9:4000"),
        original_destination: address("10.96.0.10:53"),
        reply_source: address("10.0.0.1:5300"),
        reply_destination: address("10.1.0.1:61000"),
    };
    assert_eq!((removed.unwrap(), told), (Deleted { seen: 1, deleted: 1 }, vec![want]));
    assert_eq!(namespace.command("conntrack", &["-L"]), "");
}

#[test]
fn flows_in_a_zone_are_found_again() {
    let namespace = NetNs::new();
    let entry = "-I --zone 7 --timeout 900 --proto udp --src 10.1.0.9 --dst 10.96.0.10 --sport 4000 --dport 53";
    namespace.command("conntrack", &entry.split(' ').collect::<Vec<_>>());
    let removed = namespace.run(|| conntrack::delete_if(IpFamily::V4, Protocol::Udp, |_| true));
    assert_eq!(removed.unwrap(), Deleted { seen: 1, deleted: 1 });
    assert_eq!(namespace.command("conntrack", &["-L"]), "");
}

#[test]
fn a_flow_that_ends_by_itself_meanwhile_is_no_error() {
    let namespace = NetNs::new();
    fill(&namespace, 3);
    let is_stale = |entry: &Entry| {
        if flow.original_source.port() == 2 {
            let arguments = ["-D", "--proto", "udp", "--sport", "2"];
            namespace.command("conntrack", &arguments);
        }
        true
    };
    let removed = namespace.run(|| conntrack::delete_if(IpFamily::V4, Protocol::Udp, is_stale));
    assert_eq!(removed.unwrap(), Deleted { seen: 3, deleted: 2 });
}

#[test]
fn of_many_thousands_exactly_those_that_were_selected_go() {
    let namespace = NetNs::new();
    fill(&namespace, 50_000);
    let (mut seen, mut left_midway) = (0, String::new());
    let is_stale = |entry: &Entry| {
        seen += 1;
        if seen == 25_000 {
            left_midway = namespace.command("conntrack", &["-C"]);
        }
        flow.original_source.port().is_multiple_of(3)
    };
    let removed = namespace.run(|| conntrack::delete_if(IpFamily::V4, Protocol::Udp, is_stale)).unwrap();
    // They go while the table is read, so that they need not all be remembered.
    let left_midway: usize = left_midway.trim().parse().unwrap();
    assert!(left_midway < 45_000, "{left_midway}");
    assert_eq!(removed.removed, 16_666);
    let left = flows(&namespace, IpFamily::V4, Protocol::Udp);
    assert_eq!(left.len(), 50_000 - 16_666);
    assert!(left.iter().all(|(source, ..)| !source.port().is_multiple_of(3)));
}

#[test]
fn an_empty_table_is_no_error() {
    let namespace = NetNs::new();
    for (family, protocol) in [(IpFamily::V4, Protocol::Udp), (IpFamily::V6, Protocol::Sctp)] {
        assert_eq!(flows(&namespace, family, protocol), BTreeSet::new());
    }
}

/// Puts UDP flows from 10.1.0.9 ports 1 to `count` into a table.
fn fill(namespace: &NetNs, count: u16) {
    // IPCTNL_MSG_CT_NEW with the attributes of include/uapi/linux/netfilter/nfnetlink_conntrack.h.
    let kind = netlink::nfnetlink::kind(netlink::nfnetlink::CONNTRACK, 0);
    let mut batch = netlink::Batch::new();
    for port in 1..=count {
        let header = netlink::nfnetlink::header(2, 0, 0);
        let mut message = batch.message(kind, netlink::flags::CREATE | netlink::flags::EXCLUSIVE, &header);
        let ends = [("10.1.0.9", port), ("10.96.0.10", 53)];
        for (tuple, [source, destination]) in [(1, ends), (2, [ends[1], ends[0]])] {
            let mut tuple = message.nest(tuple);
            let mut addresses = tuple.nest(1);
            addresses.put_ip(1, source.0.parse().expect("test addresses are addresses"));
            addresses.put_ip(2, destination.0.parse().expect("test addresses are addresses"));
            drop(addresses);
            let mut protocol = tuple.nest(2);
            protocol.put_u8(1, Protocol::Udp.number());
            protocol.put_u16_be(2, source.1);
            protocol.put_u16_be(3, destination.1);
        }
        message.put_u32_be(7, 900);
    }
    let refusals = namespace.run(|| {
        let mut socket = netlink::Socket::open(netlink::Protocol::Netfilter).expect("the kernel has netfilter");
        socket.send_batch(&mut batch).expect("flows can be made")
    });
    assert!(refusals.is_empty(), "{:?}", refusals.as_slice().first());
}
