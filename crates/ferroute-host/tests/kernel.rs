//! The host's facts in network namespaces of their own.

use std::{
    fs,
    net::{IpAddr, TcpListener, TcpStream, UdpSocket},
};

use ferroute_host::{
    AddressWatch, Counter, Ensured, HostAddresses, KernelAddresses, KernelCounters, KernelGeneration, PacketCounters,
    RuleGeneration, SysctlError, Sysctls, Transport, listeners, routes,
};
use ferroute_testing::NetNs;

fn ips<const N: usize>(addresses: [&str; N]) -> Vec<IpAddr> {
    addresses.map(|address| address.parse().expect("test addresses are addresses")).to_vec()
}

#[test]
fn all_addresses_of_all_interfaces_are_listed_once_and_sorted() {
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
    // The kernel gives each interface that is up a link-local address of its own choice.
    listed.retain(
        |address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local() && v6.segments()[7] != 0x1234),
    );
    assert_eq!(listed, ips(["127.0.0.1", "192.0.2.3", "192.0.2.9", "::1", "2001:db8::5", "fe80::1234"]));
}

#[test]
fn on_a_link_between_two_hosts_only_the_near_end_is_ours() {
    let (namespace, peer) = (NetNs::new(), NetNs::new());
    namespace.link("one", &peer, "far");
    namespace.command("ip", &["address", "add", "192.0.2.1", "peer", "192.0.2.2", "dev", "one"]);
    let listed = namespace.run(KernelAddresses::open).unwrap().list().unwrap();
    assert!(listed.contains(&ips(["192.0.2.1"])[0]) && !listed.contains(&ips(["192.0.2.2"])[0]), "{listed:?}");
}

#[test]
fn routes_of_both_families_are_listed_with_what_the_hosts_own_packets_have_as_their_source() {
    let (namespace, peer) = (NetNs::new(), NetNs::new());
    namespace.link("one", &peer, "far");
    let ip = |arguments: &str| namespace.command("ip", &arguments.split(' ').collect::<Vec<_>>());
    ip("address add 192.0.2.9/24 dev one");
    ip("address add 192.0.2.10/24 dev one");
    ip("address add 2001:db8::5/64 dev one nodad");
    ip("route add default via 192.0.2.1");
    ip("route add 198.51.100.0/24 via 192.0.2.1 src 192.0.2.10 metric 7");
    ip("route add unreachable 203.0.113.0/24");
    ip("-6 route add default via 2001:db8::1");
    let mut told: Vec<String> = namespace
        .run(routes)
        .unwrap()
        .into_iter()
        .filter(|route| !matches!(route.to, IpAddr::V6(to) if to.is_unicast_link_local() || to.is_multicast()))
        .map(|route| {
            assert_eq!(route.interface, "one");
            let metric = if route.to.is_ipv4() { route.metric } else { 0 };
            format!("{}/{} from {} metric {metric}", route.to, route.prefix_len, route.source)
        })
        .collect();
    told.sort();
    assert_eq!(
        told,
        [
            "0.0.0.0/0 from 192.0.2.9 metric 0",
            "192.0.2.0/24 from 192.0.2.9 metric 0",
            "198.51.100.0/24 from 192.0.2.10 metric 7",
            "2001:db8::/64 from 2001:db8::5 metric 0",
            "::/0 from 2001:db8::5 metric 0",
        ]
    );
}

#[test]
fn addresses_that_come_and_go_are_seen() {
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
fn news_that_changes_no_address_wakes_nobody() {
    let namespace = NetNs::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let mut watch = namespace.run(|| runtime.handle().block_on(async { AddressWatch::open() })).unwrap();
        // There and gone before anybody looks, and a change of a lifetime.
        namespace.command("ip", &["address", "add", "192.0.2.1/32", "dev", "lo"]);
        namespace.command("ip", &["address", "delete", "192.0.2.1/32", "dev", "lo"]);
        namespace.command(
            "ip",
            &["address", "change", "127.0.0.1/8", "dev", "lo", "valid_lft", "900", "preferred_lft", "9"],
        );
        tokio::select! {
            biased;
            changed = watch.changed() => panic!("woken for {changed:?}"),
            // Each time the runtime looks whether there is news.
            () = async { for _ in 0..100 { tokio::task::yield_now().await } } => {}
        }
        // Given up once, it still wakes for what matters.
        namespace.command("ip", &["address", "add", "192.0.2.2/32", "dev", "lo"]);
        assert_eq!(watch.changed().await.unwrap(), ips(["127.0.0.1", "192.0.2.2", "::1"]));
    });
}

#[test]
fn a_sysctl_is_set_once_and_in_its_own_namespace_only() {
    const NAME: &str = "net/ipv4/conf/all/route_localnet";
    let (namespace, other) = (NetNs::new(), NetNs::new());
    let sysctls = Sysctls::of_kernel();
    assert_eq!(namespace.run(|| sysctls.read(NAME)).unwrap(), "0");
    assert_eq!(namespace.run(|| sysctls.ensure(NAME, "1")).unwrap(), Ensured::Changed { from: "0".to_owned() });
    assert_eq!(namespace.run(|| sysctls.ensure(NAME, "1")).unwrap(), Ensured::AsBefore);
    assert_eq!(namespace.command("sysctl", &["-n", "net.ipv4.conf.all.route_localnet"]), "1\n");
    assert_eq!(other.run(|| sysctls.read(NAME)).unwrap(), "0");
}

#[test]
fn a_sysctl_of_several_words_is_compared_by_its_words() {
    const NAME: &str = "net/ipv4/ip_local_port_range";
    let namespace = NetNs::new();
    let sysctls = Sysctls::of_kernel();
    assert!(matches!(namespace.run(|| sysctls.ensure(NAME, "40000 50000")).unwrap(), Ensured::Changed { .. }));
    assert_eq!(namespace.run(|| sysctls.ensure(NAME, "40000\t50000\n")).unwrap(), Ensured::AsBefore);
}

#[test]
fn a_value_that_the_kernel_does_not_take_is_an_error_that_tells_both_values() {
    let error = NetNs::new()
        .run(|| Sysctls::of_kernel().ensure("net/netfilter/nf_conntrack_tcp_be_liberal", "often"))
        .unwrap_err();
    let want = r#"cannot set sysctl net/netfilter/nf_conntrack_tcp_be_liberal to "often" (it is "0")"#;
    assert_eq!(error.to_string(), want);
}

#[test]
fn a_sysctl_that_does_not_exist_is_neither_read_nor_made() {
    let root = tempfile::tempdir().unwrap();
    let sysctls = Sysctls::rooted_at(root.path());
    assert!(matches!(sysctls.read("net/nothing"), Err(SysctlError::Missing { name }) if name == "net/nothing"));
    assert!(matches!(sysctls.ensure("nothing", "1"), Err(SysctlError::Missing { .. })));
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn a_right_value_needs_no_right_to_write() {
    let root = tempfile::tempdir().unwrap();
    // Root may write to every file but those that the kernel lets nobody write to.
    std::os::unix::fs::symlink("/proc/sys/kernel/ostype", root.path().join("ostype")).unwrap();
    let sysctls = Sysctls::rooted_at(root.path());
    assert_eq!(sysctls.ensure("ostype", "Linux").unwrap(), Ensured::AsBefore);
    assert!(matches!(sysctls.ensure("ostype", "Other"), Err(SysctlError::Write { found, .. }) if found == "Linux"));
}

#[test]
fn a_counter_counts_what_a_rule_gives_it_and_keeps_its_numbers_when_ensured_again() {
    let namespace = NetNs::new();
    let mut counters = namespace.run(KernelCounters::open).unwrap().expect("this kernel has packet accounting");
    assert_eq!(counters.read("pings").unwrap(), None);
    counters.ensure("pings").unwrap();
    assert_eq!(counters.read("pings").unwrap(), Some(Counter::default()));
    let rule = ["-w", "-A", "OUTPUT", "-p", "icmp", "-m", "nfacct", "--nfacct-name", "pings"];
    namespace.command("iptables", &rule);
    let socket = namespace.run(|| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    // Nobody listens there, so the kernel answers each with an ICMP message: 28 bytes more than what came.
    for _ in 0..3 {
        socket.send_to(b"four", "127.0.0.1:9").unwrap();
    }
    counters.ensure("pings").unwrap();
    assert_eq!(counters.read("pings").unwrap(), Some(Counter { packets: 3, bytes: 3 * (4 + 28 + 28) }));

    let error = counters.remove("pings").unwrap_err();
    assert_eq!(error.to_string(), r#"cannot remove the packet counter "pings""#, "the rule needs it");
    namespace.command("iptables", &["-w", "-F", "OUTPUT"]);
    counters.remove("pings").unwrap();
    assert_eq!(counters.read("pings").unwrap(), None);
    counters.remove("pings").unwrap();
}

#[test]
fn a_counter_whose_name_the_kernel_does_not_take_is_an_error_that_names_it() {
    let mut counters = NetNs::new().run(KernelCounters::open).unwrap().expect("this kernel has packet accounting");
    let error = counters.ensure("a-name-of-more-than-thirty-one-bytes").unwrap_err();
    assert_eq!(error.to_string(), r#"cannot create the packet counter "a-name-of-more-than-thirty-one-bytes""#);
}

#[test]
fn the_generation_moves_when_anybody_changes_a_rule_and_at_no_other_time() {
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
fn sockets_that_listen_are_told_and_connections_are_not() {
    let (namespace, other) = (NetNs::new(), NetNs::new());
    namespace.run(|| {
        let listening = [TcpListener::bind("0.0.0.0:30080").unwrap(), TcpListener::bind("[::1]:30081").unwrap()];
        let _connection = TcpStream::connect("127.0.0.1:30080").unwrap();
        let bound = UdpSocket::bind("[::]:30053").unwrap();
        let connected = UdpSocket::bind("127.0.0.1:30054").unwrap();
        connected.connect("127.0.0.1:9").unwrap();
        let told = |transport| {
            let found = listeners(transport).unwrap();
            assert!(found.iter().all(|listener| listener.user == 0), "{found:?}");
            found.iter().map(|listener| listener.address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(told(Transport::Tcp), ["0.0.0.0:30080", "[::1]:30081"]);
        assert_eq!(told(Transport::Udp), ["[::]:30053"]);
        assert_eq!(told(Transport::Sctp), [""; 0]);
        drop((listening, bound));
        // A program that another test starts has our sockets too until it has begun to run.
        let are_gone = || {
            std::thread::sleep(std::time::Duration::from_millis(10));
            told(Transport::Tcp).is_empty()
        };
        assert!(std::iter::repeat_with(are_gone).take(1000).any(|gone| gone), "{:?}", told(Transport::Tcp));
    });
    assert_eq!(other.run(|| listeners(Transport::Tcp)).unwrap(), []);
}
