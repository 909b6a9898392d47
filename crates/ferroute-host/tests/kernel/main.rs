//! The host's values, read in network namespaces.

mod conntrack;

use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
};

use ferroute_core::{IpFamily, Protocol};
use ferroute_host::{
    AddressWatch, Counter, Ensured, HeldPort, HostAddresses, KernelAddresses, KernelCounters, KernelGeneration,
    KernelRoutes, PacketCounters, RouteQuery, RouteReply, RuleGeneration, RuleNotifications, SysctlError, Sysctls,
    listeners,
};
use ferroute_testing::{NetNs, wait};

fn ips<const N: usize>(addresses: [&str; N]) -> Vec<IpAddr> {
    addresses.map(|address| address.parse().expect("valid test address")).to_vec()
}

#[test]
fn addresses_of_all_interfaces_are_listed_sorted_and_without_duplicates() {
    let (namespace, peer) = (NetNs::new(), NetNs::new());
    namespace.link("one", &peer, "far");
    namespace.command("ip", &["link", "add", "idle", "type", "veth", "peer", "name", "idle-peer"]);
    for (address, device) in [
        ("2001:db8::5/64", "one"),
        ("fe80::1234/64", "one"),
        ("192.0.2.9/24", "one"),
        ("192.0.2.9/32", "idle"),
        ("192.0.2.3/24", "idle"),
    ] {
        namespace.command("ip", &["address", "add", address, "dev", device, "nodad"]);
    }
    let mut addresses = namespace.run(KernelAddresses::open).unwrap();
    let mut listed = addresses.list().unwrap();
    // The kernel assigns a generated link-local address to each interface that is up.
    listed.retain(
        |address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local() && v6.segments()[7] != 0x1234),
    );
    assert_eq!(listed, ips(["127.0.0.1", "192.0.2.3", "192.0.2.9", "::1", "2001:db8::5", "fe80::1234"]));
}

#[test]
fn addresses_of_the_service_device_are_excluded_and_others_are_listed_after_each_change() {
    let namespace = NetNs::new();
    let ip = |arguments: &str| namespace.command("ip", &arguments.split(' ').collect::<Vec<_>>());
    let mut addresses = namespace.run(KernelAddresses::open).unwrap();
    let mut listed = || addresses.list().unwrap();
    assert_eq!(listed(), ips(["127.0.0.1", "::1"]));
    // A bridge is used, because not every kernel has dummy devices.
    for _ in 0..2 {
        ip("link add kube-ipvs0 type bridge");
        ip("address add 10.96.0.1/32 dev kube-ipvs0");
        assert_eq!(listed(), ips(["127.0.0.1", "::1"]));
        ip("address add 10.96.0.1/32 dev lo");
        ip("address add 10.96.0.2/32 dev kube-ipvs0");
        assert_eq!(listed(), ips(["10.96.0.1", "127.0.0.1", "::1"]));
        ip("address delete 10.96.0.1/32 dev lo");
        assert_eq!(listed(), ips(["127.0.0.1", "::1"]));
        // Its successor has another index.
        ip("link delete kube-ipvs0");
    }
}

#[test]
fn peer_address_of_a_point_to_point_link_is_not_listed() {
    let (namespace, peer) = (NetNs::new(), NetNs::new());
    namespace.link("one", &peer, "far");
    namespace.command("ip", &["address", "add", "192.0.2.1", "peer", "192.0.2.2", "dev", "one"]);
    let listed = namespace.run(KernelAddresses::open).unwrap().list().unwrap();
    assert!(listed.contains(&ips(["192.0.2.1"])[0]) && !listed.contains(&ips(["192.0.2.2"])[0]), "{listed:?}");
}

#[test]
fn kernel_answers_for_routes_of_both_families() {
    let namespace = NetNs::new();
    let ip = |arguments: &str| drop(namespace.command("ip", &arguments.split(' ').collect::<Vec<_>>()));
    ip("link add one type bridge");
    ip("link set one up");
    ip("address add 192.0.2.1/24 dev one");
    ip("address add 192.0.2.10/24 dev one");
    namespace.add_address("2001:db8::10/64", "one");
    ip("link add pod type bridge");
    ip("link set pod up");
    ip("route add default via 192.0.2.7");
    ip("route add 198.51.100.0/24 via 192.0.2.7 src 192.0.2.10");
    ip("route add unreachable 203.0.113.0/24");
    ip("route add 10.0.0.5/32 dev pod");
    ip("-6 route add default via 2001:db8::7");
    let (interfaces, routes, answers) = namespace.run(|| {
        let mut kernel = KernelRoutes::open().unwrap();
        let interfaces = kernel.interfaces().unwrap();
        let mut answer = |destination: &str| {
            let query = RouteQuery {
                destination: destination.parse().unwrap(),
                source: None,
                input: None,
                output: None,
                mark: 0,
                transport: Some((Protocol::Tcp, 1, 2)),
            };
            match kernel.lookup(&query).unwrap() {
                RouteReply::Refused(errno) => format!("error {errno}"),
                RouteReply::Found(route) => {
                    let interface = interfaces.iter().find(|interface| interface.index == route.interface).unwrap();
                    let (gateway, source) = (route.gateway.map(|ip| ip.to_string()), route.source.unwrap());
                    format!("{} {} from {source}", interface.name, gateway.as_deref().unwrap_or("direct"))
                }
            }
        };
        let answers =
            ["8.8.8.8", "198.51.100.1", "203.0.113.1", "10.0.0.5", "2001:db8:1::1", "2001:db8::1"].map(&mut answer);
        (interfaces, kernel.list().unwrap(), answers)
    });
    assert_eq!(
        answers,
        [
            "one 192.0.2.7 from 192.0.2.1",
            "one 192.0.2.7 from 192.0.2.10",
            &format!("error {}", libc::EHOSTUNREACH),
            "pod direct from 192.0.2.1",
            "one 2001:db8::7 from 2001:db8::10",
            "one direct from 2001:db8::10",
        ]
    );
    let one = interfaces.iter().find(|interface| interface.name == "one").unwrap();
    let v4: Vec<(String, bool)> = one
        .addresses
        .iter()
        .filter(|address| address.address.is_ipv4())
        .map(|address| (format!("{}/{}", address.address, address.prefix_len), address.is_secondary))
        .collect();
    assert_eq!(v4, [("192.0.2.1/24".to_owned(), false), ("192.0.2.10/24".to_owned(), true)]);
    let is_local = |address: &str| {
        let address: IpAddr = address.parse().unwrap();
        routes.iter().any(|route| route.kind == libc::RTN_LOCAL && route.destination == address)
    };
    assert!(is_local("192.0.2.10") && is_local("2001:db8::10") && !is_local("10.0.0.5"));
}

#[test]
fn local_addresses_are_those_with_a_route_in_the_table_local() {
    let namespace = NetNs::new();
    let ip = |arguments: &str| drop(namespace.command("ip", &arguments.split(' ').collect::<Vec<_>>()));
    let listed = |family| {
        let local = namespace.run(|| KernelRoutes::open().unwrap().local_addresses(family).unwrap());
        local.into_iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    ip("link add one type bridge");
    ip("link set one up");
    ip("address add 192.0.2.1/24 dev one");
    ip("address add 192.0.2.9/32 dev one");
    namespace.add_address("2001:db8::1/64", "one");
    namespace.add_address("2001:db8::9/128", "one");
    ip("route add local 198.51.100.1 dev lo table 100");
    ip("route add local 203.0.113.0/24 dev lo");
    let mut before = listed(IpFamily::V6);
    before.retain(|address| !matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()));
    assert_eq!(before, ips(["::1", "2001:db8::1", "2001:db8::9"]));
    assert_eq!(listed(IpFamily::V4), ips(["127.0.0.1", "192.0.2.1", "192.0.2.9"]));
    ip("route delete table local local 192.0.2.9");
    ip("-6 route delete table local local 2001:db8::9");
    assert_eq!(listed(IpFamily::V4), ips(["127.0.0.1", "192.0.2.1"]));
    assert!(!listed(IpFamily::V6).contains(&ips(["2001:db8::9"])[0]));
}

#[test]
fn next_hops_of_all_routes_and_ends_of_tunnels_are_listed() {
    let namespace = NetNs::new();
    let ip = |arguments: &str| drop(namespace.command("ip", &arguments.split(' ').collect::<Vec<_>>()));
    ip("link add one type bridge");
    ip("link set one up");
    ip("address add 192.0.2.1/24 dev one");
    namespace.add_address("2001:db8::10/64", "one");
    ip("route add default via 192.0.2.7");
    ip("route add 10.244.1.0/24 via 192.0.2.8 table 100");
    ip("route add 10.244.2.0/24 nexthop via 192.0.2.9 nexthop via 192.0.2.10 weight 2");
    ip("route add 10.244.3.0/24 via inet6 2001:db8::8 dev one");
    ip("-6 route add default via 2001:db8::7");
    ip("route add 10.0.0.5/32 dev one");
    ip("link add tunnel type vxlan id 1 dev one dstport 8472 nolearning");
    namespace.command("bridge", &["fdb", "append", "02:00:00:00:00:01", "dev", "tunnel", "dst", "198.51.100.2"]);
    let next_hops = namespace.run(|| KernelRoutes::open().unwrap().next_hops().unwrap());
    let expected =
        ips(["192.0.2.7", "192.0.2.8", "192.0.2.9", "192.0.2.10", "198.51.100.2", "2001:db8::7", "2001:db8::8"]);
    assert_eq!(next_hops.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn added_and_deleted_addresses_are_reported() {
    let namespace = NetNs::new();
    let set = |verb: &str, address: &str| namespace.command("ip", &["address", verb, address, "dev", "lo"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let mut watch = namespace.run(|| runtime.handle().block_on(async { AddressWatch::open() })).unwrap();
        assert_eq!(watch.addresses(), ips(["127.0.0.1", "::1"]));
        set("add", "192.0.2.1/32");
        assert_eq!(watch.changed().await.unwrap(), ips(["127.0.0.1", "192.0.2.1", "::1"]));
        set("add", "2001:db8::1/128");
        assert_eq!(watch.changed().await.unwrap(), ips(["127.0.0.1", "192.0.2.1", "::1", "2001:db8::1"]));
        set("delete", "192.0.2.1/32");
        assert_eq!(watch.changed().await.unwrap(), ips(["127.0.0.1", "::1", "2001:db8::1"]));
        assert_eq!(watch.addresses(), ips(["127.0.0.1", "::1", "2001:db8::1"]));
    });
}

#[test]
fn notifications_without_effect_on_the_list_are_ignored() {
    let namespace = NetNs::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let mut watch = namespace.run(|| runtime.handle().block_on(async { AddressWatch::open() })).unwrap();
        // An address that is deleted before the list is read, and a changed lifetime.
        namespace.command("ip", &["address", "add", "192.0.2.1/32", "dev", "lo"]);
        namespace.command("ip", &["address", "delete", "192.0.2.1/32", "dev", "lo"]);
        namespace.command(
            "ip",
            &["address", "change", "127.0.0.1/8", "dev", "lo", "valid_lft", "900", "preferred_lft", "9"],
        );
        tokio::select! {
            biased;
            changed = watch.changed() => panic!("unexpected change: {changed:?}"),
            // The runtime polls its I/O driver in between.
            () = async { for _ in 0..100 { tokio::task::yield_now().await } } => {}
        }
        // The cancelled watch still reports the next change.
        namespace.command("ip", &["address", "add", "192.0.2.2/32", "dev", "lo"]);
        assert_eq!(watch.changed().await.unwrap(), ips(["127.0.0.1", "192.0.2.2", "::1"]));
    });
}

#[test]
fn sysctl_is_set_once_and_in_its_own_namespace_only() {
    const NAME: &str = "net/ipv4/conf/all/route_localnet";
    let (namespace, other) = (NetNs::new(), NetNs::new());
    let sysctls = Sysctls::from_kernel();
    assert_eq!(namespace.run(|| sysctls.read(NAME)).unwrap(), "0");
    assert_eq!(namespace.run(|| sysctls.ensure(NAME, "1")).unwrap(), Ensured::Changed { from: "0".to_owned() });
    assert_eq!(namespace.run(|| sysctls.ensure(NAME, "1")).unwrap(), Ensured::Unchanged);
    assert_eq!(namespace.command("sysctl", &["-n", "net.ipv4.conf.all.route_localnet"]), "1\n");
    assert_eq!(other.run(|| sysctls.read(NAME)).unwrap(), "0");
}

#[test]
fn sysctl_values_are_compared_without_regard_to_white_space() {
    const NAME: &str = "net/ipv4/ip_local_port_range";
    let namespace = NetNs::new();
    let sysctls = Sysctls::from_kernel();
    assert!(matches!(namespace.run(|| sysctls.ensure(NAME, "40000 50000")).unwrap(), Ensured::Changed { .. }));
    assert_eq!(namespace.run(|| sysctls.ensure(NAME, "40000\t50000\n")).unwrap(), Ensured::Unchanged);
}

#[test]
fn rejected_sysctl_value_is_an_error_with_both_values() {
    const NAME: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";
    let error = NetNs::new().run(|| Sysctls::from_kernel().ensure(NAME, "often")).unwrap_err();
    let SysctlError::Write { name, value, current, .. } = error else { panic!("{error:?}") };
    assert_eq!((&*name, &*value, &*current), (NAME, "often", "0"));
}

#[test]
fn missing_sysctl_is_neither_read_nor_created() {
    let root = tempfile::tempdir().unwrap();
    let sysctls = Sysctls::with_root(root.path());
    assert!(matches!(sysctls.read("net/missing"), Err(SysctlError::Missing { name }) if name == "net/missing"));
    assert!(matches!(sysctls.ensure("missing", "1"), Err(SysctlError::Missing { .. })));
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn correct_sysctl_needs_no_write_permission() {
    let root = tempfile::tempdir().unwrap();
    // Root may write to any file except those that the kernel makes read-only.
    std::os::unix::fs::symlink("/proc/sys/kernel/ostype", root.path().join("ostype")).unwrap();
    let sysctls = Sysctls::with_root(root.path());
    assert_eq!(sysctls.ensure("ostype", "Linux").unwrap(), Ensured::Unchanged);
    assert!(matches!(sysctls.ensure("ostype", "Other"), Err(SysctlError::Write { current, .. }) if current == "Linux"));
}

#[test]
fn counter_counts_packets_of_its_rule_and_keeps_its_values_when_ensured_again() {
    let namespace = NetNs::new();
    let mut counters = namespace.run(KernelCounters::open).unwrap().expect("this kernel has packet accounting");
    assert_eq!(counters.read("pings").unwrap(), None);
    counters.ensure("pings").unwrap();
    assert_eq!(counters.read("pings").unwrap(), Some(Counter::default()));
    let rule = ["-w", "-A", "OUTPUT", "-p", "icmp", "-m", "nfacct", "--nfacct-name", "pings"];
    namespace.command("iptables", &rule);
    let socket = namespace.run(|| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    // The port is closed, so the kernel replies with an ICMP message that is 28 bytes longer than the packet.
    for _ in 0..3 {
        socket.send_to(b"four", "127.0.0.1:9").unwrap();
    }
    counters.ensure("pings").unwrap();
    assert_eq!(counters.read("pings").unwrap(), Some(Counter { packets: 3, bytes: 3 * (4 + 28 + 28) }));

    counters.remove("pings").expect_err("a counter in use cannot be removed");
    namespace.command("iptables", &["-w", "-F", "OUTPUT"]);
    counters.remove("pings").unwrap();
    assert_eq!(counters.read("pings").unwrap(), None);
    counters.remove("pings").unwrap();
}

#[test]
fn counter_name_that_the_kernel_rejects_is_named_in_the_error() {
    const NAME: &str = "a-name-of-more-than-thirty-one-bytes";
    let mut counters = NetNs::new().run(KernelCounters::open).unwrap().expect("this kernel has packet accounting");
    let error = counters.ensure(NAME).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot create packet counter {NAME:?}"));
}

#[test]
fn generation_changes_with_rules_of_its_namespace_only() {
    let (namespace, other) = (NetNs::new(), NetNs::new());
    let mut generation = namespace.run(KernelGeneration::open).unwrap().expect("this kernel has nf_tables");
    let start = generation.current().unwrap();
    namespace.command("nft", &["list", "ruleset"]);
    other.command("nft", &["add", "table", "inet", "t"]);
    assert_eq!(generation.current().unwrap(), start);
    namespace.command("nft", &["add", "table", "inet", "t"]);
    assert_eq!(generation.current().unwrap(), start + 1);
    let rules = "*nat\n:A - [0:0]\nCOMMIT\n*filter\n:A - [0:0]\nCOMMIT\n";
    namespace.feed("iptables-nft-restore", &["--noflush"], rules);
    assert_eq!(generation.current().unwrap(), start + 3);
    namespace.command("iptables-nft-save", &[]);
    assert_eq!(generation.current().unwrap(), start + 3);
}

#[test]
fn held_ports_exclude_other_sockets_and_receive_nothing() {
    NetNs::new().run(|| {
        for address in ["0.0.0.0:30080", "[::]:30080", "127.0.0.1:30081"].map(|address| address.parse().unwrap()) {
            let held = [Protocol::Tcp, Protocol::Udp].map(|protocol| HeldPort::bind(protocol, address).unwrap());
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                assert!(HeldPort::bind(protocol, address).unwrap_err().is_in_use());
            }
            // The standard library sets SO_REUSEADDR.
            assert_eq!(TcpListener::bind(address).unwrap_err().kind(), ErrorKind::AddrInUse);
            let local =
                SocketAddr::new(if address.is_ipv4() { "127.0.0.1" } else { "::1" }.parse().unwrap(), address.port());
            assert_eq!(TcpStream::connect(local).unwrap_err().kind(), ErrorKind::ConnectionRefused);
            let sender = UdpSocket::bind(SocketAddr::new(local.ip(), 0)).unwrap();
            sender.send_to(b"datagram", local).unwrap();
            let udp = format!(":{:04X} ", address.port());
            let table = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"]
                .map(|path| fs::read_to_string(path).unwrap());
            let socket = table.iter().flat_map(|table| table.lines()).find(|line| line.contains(&udp)).unwrap();
            // `tx_queue:rx_queue`
            assert_eq!(socket.split_whitespace().nth(4), Some("00000000:00000000"), "{socket}");
            drop(held);
            // A process that another test is starting may have copies of the sockets.
            wait("the free ports", || Some((TcpListener::bind(address).ok()?, UdpSocket::bind(address).ok()?)));
        }
    });
}

#[test]
fn listening_sockets_are_listed_without_connections() {
    let (namespace, other) = (NetNs::new(), NetNs::new());
    namespace.run(|| {
        let listening = [TcpListener::bind("0.0.0.0:30080").unwrap(), TcpListener::bind("[::1]:30081").unwrap()];
        let _connection = TcpStream::connect("127.0.0.1:30080").unwrap();
        let bound = UdpSocket::bind("[::]:30053").unwrap();
        let connected = UdpSocket::bind("127.0.0.1:30054").unwrap();
        connected.connect("127.0.0.1:9").unwrap();
        let listed = |protocol| {
            let listeners = listeners(protocol).unwrap();
            assert!(listeners.iter().all(|listener| listener.user == 0), "{listeners:?}");
            listeners.iter().map(|listener| listener.address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(listed(Protocol::Tcp), ["0.0.0.0:30080", "[::1]:30081"]);
        assert_eq!(listed(Protocol::Udp), ["[::]:30053"]);
        assert_eq!(listed(Protocol::Sctp), [""; 0]);
        drop((listening, bound));
        // A process that another test forks inherits the sockets until its exec.
        let are_closed = || {
            std::thread::sleep(std::time::Duration::from_millis(10));
            listed(Protocol::Tcp).is_empty()
        };
        assert!(std::iter::repeat_with(are_closed).take(1000).any(|closed| closed), "{:?}", listed(Protocol::Tcp));
    });
    assert_eq!(other.run(|| listeners(Protocol::Tcp)).unwrap(), []);
}

#[test]
fn own_changes_of_rules_are_notified_to_no_subscription_of_the_process_in_their_namespace() {
    let (here, elsewhere) = (NetNs::new(), NetNs::new());
    let open = |namespace: &NetNs| namespace.run(RuleNotifications::open).expect("nf_tables");
    let (mut one, mut other, mut distant) = (open(&here), open(&here), open(&elsewhere));
    let number = |notifications: &mut RuleNotifications| {
        let mut number = 0;
        assert!(notifications.receive(|_| number += 1), "none are lost");
        number
    };
    let add = |name: &str| [&here, &elsewhere].map(|namespace| namespace.command("nft", &["add", "table", "ip", name]));
    one.without(|| add("own"));
    assert_eq!([number(&mut one), number(&mut other)], [0, 0]);
    assert!(number(&mut distant) > 0);
    add("foreign");
    assert!(number(&mut one) > 0 && number(&mut other) > 0);
}
