//! Limits of the connections to a Service, exact to the connection. Real packets in network namespaces.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::{
    io::Read,
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    num::NonZeroUsize,
    thread,
    time::{Duration, Instant},
};

use common::{
    case::Case,
    lab::{CLIENT, Outcome, PORT, pod_ip, pod_ip6, tcp, udp},
};
use ferroute_core::{
    Dataplane, IpFamily,
    testing::{Cluster, ServiceBuilder, SliceBuilder, pod, service, slice},
};
use ferroute_nftables::RefusalReader;
use ferroute_testing::NetNs;

/// Applies a cluster to a node with two Pods.
fn case(family: IpFamily, cluster: &Cluster) -> Case {
    let case = Case::new(2, family, cluster);
    // The servers have closed their side. Connections must not expire on a slow machine.
    case.lab.node.command("sysctl", &["-qw", "net.netfilter.nf_conntrack_tcp_timeout_close_wait=86400"]);
    case
}

/// Returns the number of refused connections, from their counters in the kernel.
fn refused(case: &Case) -> u64 {
    let listed = case.lab.node.command("nft", &["list", "map", "ip", "ferroute", "refusals"]);
    let counts = listed.split("counter packets ").skip(1);
    counts.map(|rest| rest.split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Returns a cluster with web and DNS, and a second Service without limits.
fn cluster(limits: &[(&str, &str)]) -> Cluster {
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080).udp("dns", 53);
    let web = limits.iter().fold(web, |web, (name, value)| web.annotation(&format!("ferroute.io/{name}"), value));
    let other = service("shop/other").cluster_ip("10.96.0.2").port("http", 80);
    with_pods(web, "web").service(other).slice(pods("other"))
}

fn with_pods(service: ServiceBuilder, name: &str) -> Cluster {
    Cluster::new("node-1").service(service).slice(pods(name))
}

fn pods(name: &str) -> SliceBuilder {
    let slice = slice(&format!("shop/{name}-a"), name).port("http", PORT).udp("dns", PORT);
    [0, 1].into_iter().fold(slice, |slice, number| slice.pod(pod(&pod_ip(number).to_string()).on("node-1")))
}

/// Opens a connection that stays open until it is dropped; `None` if it is refused.
fn open(from: &NetNs, source: IpAddr, to: &str) -> Option<TcpStream> {
    let to: SocketAddr = to.parse().unwrap();
    from.run(|| {
        let socket = socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(source, 0).into()).unwrap();
        socket.connect_timeout(&to.into(), Duration::from_secs(5)).ok()?;
        let mut stream = TcpStream::from(socket);
        // The server has closed its side, and the connection stays until the client does the same.
        stream.read_to_string(&mut String::new()).unwrap();
        Some(stream)
    })
}

/// Opens connections until one is refused.
fn open_all(from: &NetNs, source: IpAddr, to: &str) -> Vec<TcpStream> {
    std::iter::from_fn(|| open(from, source, to)).take(100).collect()
}

fn add_address(client: &NetNs, address: &str) -> IpAddr {
    client.command("ip", &["addr", "add", &format!("{address}/24"), "dev", "eth0"]);
    address.parse().unwrap()
}

#[test]
fn open_connections_of_a_service_are_limited_at_all_its_addresses_together() {
    let mut case = self::case(IpFamily::V4, &cluster(&[("max-connections", "5")]));
    let client = CLIENT.into();
    let mut streams = open_all(&case.lab.client, client, "192.168.0.1:30080");
    assert_eq!((streams.len(), refused(&case)), (5, 1));
    // Connections from another client, or to another address, are refused as well.
    assert_eq!(tcp(&case.lab.pods[0], "10.96.0.1:80"), Outcome::Refused);
    assert_eq!(tcp(&case.lab.node, "10.96.0.1:80"), Outcome::Refused);
    assert_eq!(refused(&case), 3);
    // Connections to another port and to another Service are counted separately.
    assert!(matches!(udp(&case.lab.client, "10.96.0.1:53"), Outcome::Pod(..)));
    let others: Vec<_> = (0..8).map(|_| open(&case.lab.client, client, "10.96.0.2:80").unwrap()).collect();
    // Closed connections make place for as many.
    streams.truncate(3);
    settle();
    streams.extend(open_all(&case.lab.client, client, "10.96.0.1:80"));
    assert_eq!((streams.len(), others.len()), (5, 8));
    // Endpoints may change in the meantime.
    case.update_to(&cluster(&[("max-connections", "5")]).slice(pods("web").port("more", PORT)));
    assert!(open(&case.lab.client, client, "10.96.0.1:80").is_none());
}

/// The kernel notices once per tick of its clock that connections were closed.
fn settle() {
    thread::sleep(Duration::from_millis(200));
}

#[test]
fn open_connections_of_each_client_are_limited() {
    let case = self::case(IpFamily::V4, &cluster(&[("max-connections-per-client", "3"), ("max-connections", "8")]));
    let client = &case.lab.client;
    let [second, third] = ["192.168.0.20", "192.168.0.21"].map(|address| add_address(client, address));
    let first = open_all(client, CLIENT.into(), "10.96.0.1:80");
    let second = open_all(client, second, "192.168.0.1:30080");
    let rest = open_all(client, third, "10.96.0.1:80");
    assert_eq!([first, second, rest].map(|streams| streams.len()), [3, 3, 2]);
    assert_eq!(refused(&case), 3);
}

#[test]
fn new_connections_have_a_rate_per_service_and_per_client() {
    // The bucket does not fill up during the test.
    let limits = [("max-new-connections", "1/hour burst 7"), ("max-new-connections-per-client", "1/hour burst 4")];
    let case = self::case(IpFamily::V4, &cluster(&limits));
    let client = &case.lab.client;
    let second = add_address(client, "192.168.0.20");
    let send = |source: IpAddr| {
        let socket = client.run(|| UdpSocket::bind((source, 0)).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket.connect("10.96.0.1:53").unwrap();
        // Further packets of a connection are not counted.
        (0..3).all(|_| socket.send(b"?").and_then(|_| ferroute_testing::restart(|| socket.recv(&mut [0; 64]))).is_ok())
    };
    let accepted = |source| (0..10).filter(|_| send(source)).count();
    assert_eq!([accepted(CLIENT.into()), accepted(second)], [4, 3]);
    assert_eq!(refused(&case), 13);
    // TCP is another port.
    let streams = open_all(client, second, "10.96.0.1:80");
    assert_eq!(streams.len(), 4);
}

#[test]
fn rate_admits_further_connections_as_time_goes_on() {
    let case = self::case(IpFamily::V4, &cluster(&[("max-new-connections", "20/second burst 1")]));
    let start = Instant::now();
    let mut accepted = 0_u32;
    while accepted < 10 {
        accepted += u32::from(matches!(tcp(&case.lab.client, "10.96.0.1:80"), Outcome::Pod(..)));
    }
    let expected = Duration::from_millis(50) * (accepted - 1);
    assert!(start.elapsed() >= expected - Duration::from_millis(5), "{:?}", start.elapsed());
}

#[test]
fn connections_beyond_a_limit_are_dropped_if_asked() {
    let limits = [("max-new-connections", "1/hour"), ("over-limit", "drop")];
    let case = self::case(IpFamily::V4, &cluster(&limits));
    assert!(matches!(tcp(&case.lab.client, "10.96.0.1:80"), Outcome::Pod(..)));
    assert_eq!(tcp(&case.lab.client, "10.96.0.1:80"), Outcome::Silence);
}

#[test]
fn limits_apply_to_ipv6_and_to_traffic_policy_local_and_affinity() {
    let web = service("shop/web").cluster_ip("fd00:96::1").port("http", 80).affinity(300);
    let web = web.annotation("ferroute.io/max-connections-per-client", "2");
    let slice = slice("shop/web-a", "web").port("http", PORT).pod(pod(&pod_ip6(0).to_string()).on("node-1"));
    let case = self::case(IpFamily::V6, &Cluster::new("node-1").service(web).slice(slice));
    let streams = open_all(&case.lab.pods[1], pod_ip6(1).into(), "[fd00:96::1]:80");
    assert_eq!(streams.len(), 2);
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080).external_local();
    let local = with_pods(web.annotation("ferroute.io/max-new-connections", "1/hour burst 2"), "web");
    let case = self::case(IpFamily::V4, &local);
    let streams = open_all(&case.lab.client, CLIENT.into(), "192.168.0.1:30080");
    assert_eq!(streams.len(), 2);
}

#[test]
fn changed_limits_take_effect_and_leave_nothing_behind() {
    let mut case = self::case(IpFamily::V4, &cluster(&[]));
    let resync = |case: &mut Case| case.dataplane.resync(case.tracker.table(IpFamily::V4)).unwrap();
    let clean = resync(&mut case).total;
    let all = [
        ("max-connections", "4"),
        ("max-connections-per-client", "3"),
        ("max-new-connections", "600/minute burst 50"),
        ("max-new-connections-per-client", "300/minute"),
    ];
    for (limits, max) in [(&all[..1], 4), (&all, 3), (&all[1..], 3), (&all[..1], 4), (&[], 100)] {
        case.update_to(&cluster(limits));
        let streams = open_all(&case.lab.client, CLIENT.into(), "10.96.0.1:80");
        assert_eq!(streams.len(), max, "{limits:?}");
        drop(streams);
        settle();
        // The table is as planned, and limits are repaired.
        let report = resync(&mut case);
        assert_eq!((report.written, report.removed), (0, 0), "{limits:?}");
        if limits.len() == all.len() {
            case.lab.node.command("nft", &["flush", "set", "ip", "ferroute", "connections-4"]);
            case.lab.node.command("nft", &["flush", "chain", "ip", "ferroute", "limits"]);
            assert!(resync(&mut case).written > 0);
            assert_eq!(open_all(&case.lab.client, CLIENT.into(), "10.96.0.1:80").len(), 3);
            settle();
        }
    }
    assert_eq!(resync(&mut case).total, clean);
}

#[test]
fn clients_outside_of_source_ranges_are_counted_by_service_port() {
    let ranges =
        |range| cluster(&[("source-ranges", range), ("source-ranges-scope", "cluster-ip"), ("max-connections", "1")]);
    let mut case = case(IpFamily::V4, &ranges("192.0.2.0/24"));
    let mut reader = case.lab.node.run(|| RefusalReader::open(IpFamily::V4, NonZeroUsize::new(10).unwrap()).unwrap());
    let mut counted = || {
        reader.read().unwrap();
        let counts = reader.totals().map(|(name, reason, count)| (format!("{name} {}", reason.as_str()), count));
        counts.filter(|(_, count)| *count > 0).collect::<Vec<_>>()
    };
    assert_eq!(counted(), []);
    let datagram = || {
        let socket = case.lab.client.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        socket.send_to(b"?", "10.96.0.1:53").unwrap();
    };
    (0..3).for_each(|_| datagram());
    assert_eq!(counted(), [("shop/web:dns source-ranges".to_owned(), 3)]);
    // A Service without them, and clients in them.
    assert!(matches!(tcp(&case.lab.client, "10.96.0.2:80"), Outcome::Pod(..)));
    case.update_to(&ranges(&format!("{CLIENT}/32")));
    assert!(matches!(udp(&case.lab.client, "10.96.0.1:53"), Outcome::Pod(..)));
    assert_eq!(counted().len(), 1);
    // Without limits, no objects for them remain.
    case.update_to(&cluster(&[]));
    let report = case.dataplane.resync(case.tracker.table(IpFamily::V4)).unwrap();
    let mut fresh = Case::new(2, IpFamily::V4, &cluster(&[]));
    assert_eq!(report.total, fresh.dataplane.resync(fresh.tracker.table(IpFamily::V4)).unwrap().total);
}
