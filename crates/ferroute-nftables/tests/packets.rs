//! Connections through rules in the kernel.

mod common;

use std::{collections::BTreeSet, net::IpAddr, num::NonZeroUsize};

use common::{
    Host,
    case::Case,
    lab::{CLIENT, Lab, Outcome, PORT, pod_ip, pod_ip6, tcp, udp},
    settings,
};
use ferroute_core::{
    Dataplane, IpFamily, NodePortAddresses,
    testing::{Cluster, PodBuilder, ServiceBuilder, SliceBuilder, pod, service, slice},
    tracker::TrackerEvent,
};
use ferroute_nftables::{ConnectionReader, ConnectionTotals, NftablesDataplane, plan::NftablesSettings};
use ferroute_testing::NetNs;

fn local(number: usize) -> PodBuilder {
    pod(&pod_ip(number).to_string()).on("node-1")
}

fn web() -> ServiceBuilder {
    service("shop/web").cluster_ip("10.96.0.1").udp("dns", 53).port("http", 80)
}

fn pods_of_web(pods: impl IntoIterator<Item = PodBuilder>) -> SliceBuilder {
    pods.into_iter().fold(slice("shop/web-a", "web").port("http", PORT).udp("dns", PORT), SliceBuilder::pod)
}

fn cluster(service: ServiceBuilder, pods: impl IntoIterator<Item = PodBuilder>) -> Cluster {
    Cluster::new("node-1").service(service).slice(pods_of_web(pods))
}

/// Returns the Pods that replied, provided that all connections succeed, and the sources that they have seen.
fn spread(connect: impl Fn() -> Outcome) -> (BTreeSet<usize>, BTreeSet<IpAddr>) {
    (0..TRIES)
        .map(|_| match connect() {
            Outcome::Pod(pod, source) => (pod, source),
            other => panic!("{other:?}"),
        })
        .unzip()
}

fn set<T: Ord, const N: usize>(items: [T; N]) -> BTreeSet<T> {
    items.into()
}

#[test]
fn connections_are_distributed_over_all_endpoints_by_tcp_and_udp() {
    let case = Case::new(3, IpFamily::V4, &cluster(web(), (0..3).map(local)));
    for connect in [|ns: &NetNs| tcp(ns, "10.96.0.1:80"), |ns: &NetNs| udp(ns, "10.96.0.1:53")] {
        let (pods, sources) = spread(|| connect(&case.lab.pods[0]));
        assert_eq!(pods, set([0, 1, 2]));
        // A Pod that connects to itself is masqueraded, because it would otherwise reply to itself directly.
        assert_eq!(sources, set([pod_ip(0).into(), [10, 244, 0, 1].into()]));
        // Replies to external clients must return through this node.
        let (pods, sources) = spread(|| connect(&case.lab.client));
        assert_eq!(pods, set([0, 1, 2]));
        assert_eq!(sources, set([0, 1, 2].map(|pod| [10, 244, pod, 1].into())));
        assert_eq!(spread(|| connect(&case.lab.node)).0, set([0, 1, 2]));
    }
}

/// A host port for the address of a Service, and marks of a network plugin that select another routing table: the first
/// translation ends the hook; among chains of equal priority, that of the program that started last comes first.
#[test]
fn services_precede_the_nat_rules_of_other_programs_whichever_starts_first() {
    let host_port = format!(
        "add table ip nat
        add chain ip nat PREROUTING {{ type nat hook prerouting priority -100; }}
        add chain ip nat OUTPUT {{ type nat hook output priority -100; }}
        add chain ip nat POSTROUTING {{ type nat hook postrouting priority 100; }}
        add chain ip nat marked {{ type filter hook forward priority 0; }}
        add rule ip nat marked ct mark & 0x80 == 0x80 drop
        add rule ip nat PREROUTING iifname != lo ct mark set ct mark or 0x80
        add rule ip nat PREROUTING meta mark set ct mark
        add rule ip nat PREROUTING tcp dport {{ 80, 30080 }} dnat to {pod}:{PORT}
        add rule ip nat OUTPUT tcp dport {{ 80, 30080 }} dnat to {pod}:{PORT}
        add rule ip nat POSTROUTING oifname != lo snat to 192.168.0.1
        ",
        pod = pod_ip(0)
    );
    let service = || web().node_port(30080).external_ip("203.0.113.1");
    for proxy_first in [true, false] {
        let lab = Lab::new(2);
        if !proxy_first {
            lab.node.feed("nft", &["-f", "-"], &host_port);
        }
        let table = cluster(service(), [local(1)]).table(IpFamily::V4);
        let open = || NftablesDataplane::open(IpFamily::V4, settings(), Box::new(Host::default())).unwrap();
        lab.node.run(open).resync(&table).unwrap();
        if proxy_first {
            lab.node.feed("nft", &["-f", "-"], &host_port);
        }
        for to in ["10.96.0.1:80", "203.0.113.1:80", "192.168.0.1:30080"] {
            // The Service masquerades the connection, not the other program.
            let expected = Outcome::Pod(1, [10, 244, 1, 1].into());
            assert_eq!(tcp(&lab.client, to), expected, "{to}, proxy first: {proxy_first}");
        }
        assert!(matches!(tcp(&lab.node, "10.96.0.1:80"), Outcome::Pod(1, _)), "proxy first: {proxy_first}");
    }
}

#[test]
fn removed_endpoint_gets_no_connections() {
    let mut case = Case::new(3, IpFamily::V4, &cluster(web(), (0..3).map(local)));
    case.update_to(&cluster(web(), [local(1), local(2)]));
    assert_eq!(spread(|| tcp(&case.lab.client, "10.96.0.1:80")).0, set([1, 2]));
    case.update_to(&cluster(web(), [local(2)]));
    assert_eq!(spread(|| tcp(&case.lab.client, "10.96.0.1:80")).0, set([2]));
    case.update_to(&cluster(web(), []));
    assert_eq!(tcp(&case.lab.client, "10.96.0.1:80"), Outcome::Refused);
}

#[test]
fn connections_without_endpoints_are_rejected_or_dropped_by_policy() {
    let everywhere = |service: ServiceBuilder| service.node_port(30080).external_ip("203.0.113.1");
    let mut case = Case::new(1, IpFamily::V4, &cluster(everywhere(web()), []));
    let Lab { node, client, pods, .. } = &case.lab;
    for from in [node, client, &pods[0]] {
        for to in ["10.96.0.1:80", "203.0.113.1:80", "192.168.0.1:30080"] {
            assert_eq!(tcp(from, to), Outcome::Refused, "{to}");
        }
        assert_eq!(udp(from, "10.96.0.1:53"), Outcome::Refused);
    }
    let far = pod("10.244.9.2").on("node-2");
    case.update_to(&cluster(everywhere(web()).internal_local().external_local(), [far]));
    for to in ["10.96.0.1:80", "203.0.113.1:80", "192.168.0.1:30080"] {
        assert_eq!(tcp(&case.lab.client, to), Outcome::Silence, "{to}");
    }
}

#[test]
fn unknown_ports_are_rejected_and_unknown_addresses_dropped() {
    let mut case = Case::new(1, IpFamily::V4, &cluster(web(), [local(0)]));
    case.tracker.apply(TrackerEvent::ServiceCidrsApplied(vec!["10.96.0.0/16".parse().unwrap()]));
    case.sync();
    for from in [&case.lab.node, &case.lab.client, &case.lab.pods[0]] {
        assert_eq!(tcp(from, "10.96.0.1:81"), Outcome::Refused);
        assert_eq!(udp(from, "10.96.0.1:80"), Outcome::Refused);
    }
    assert_eq!(tcp(&case.lab.client, "10.96.0.2:80"), Outcome::Silence);
}

#[test]
fn external_policy_local_keeps_sources_and_uses_this_nodes_endpoints() {
    let service = web().node_port(30080).external_local();
    let far = pod("10.244.9.2").on("node-2").unready();
    let case = Case::new(2, IpFamily::V4, &cluster(service, [local(0), pod(&pod_ip(1).to_string()), far]));
    // Pod 1 is declared to run on another node.
    assert_eq!(spread(|| tcp(&case.lab.client, "192.168.0.1:30080")), (set([0]), set([CLIENT.into()])));
    assert_eq!(spread(|| tcp(&case.lab.node, "192.168.0.1:30080")).0, set([0, 1]));
    // Pods are served as through a load balancer, and keep their source unless they connect to themselves.
    let (pods, sources) = spread(|| tcp(&case.lab.pods[0], "192.168.0.1:30080"));
    assert_eq!((pods, sources), (set([0, 1]), set([pod_ip(0).into(), [10, 244, 0, 1].into()])));
}

#[test]
fn node_ports_are_served_on_the_configured_addresses() {
    let service = || web().node_port(30080);
    let case = Case::new(1, IpFamily::V4, &cluster(service(), [local(0)]));
    assert_eq!(tcp(&case.lab.client, "192.168.0.1:30080"), Outcome::Pod(0, [10, 244, 0, 1].into()));
    assert_eq!(tcp(&case.lab.node, "192.168.0.1:30080"), Outcome::Pod(0, [10, 244, 0, 1].into()));
    assert_eq!(tcp(&case.lab.client, "10.244.0.1:30080"), Outcome::Refused);
    assert_eq!(tcp(&case.lab.node, "127.0.0.1:30080"), Outcome::Refused);
    drop(case);
    let mut all = settings();
    all.proxy.node_port_addresses = NodePortAddresses::All;
    all.proxy.localhost_node_ports = true;
    let case = Case::with_settings(1, IpFamily::V4, all, &cluster(service(), [local(0)]));
    case.lab.node.command("sysctl", &["-qw", "net.ipv4.conf.all.route_localnet=1"]);
    for to in ["192.168.0.1:30080", "10.244.0.1:30080"] {
        assert_eq!(tcp(&case.lab.client, to), Outcome::Pod(0, [10, 244, 0, 1].into()), "{to}");
    }
    assert_eq!(tcp(&case.lab.node, "127.0.0.1:30080"), Outcome::Pod(0, [10, 244, 0, 1].into()));
}

#[test]
fn source_ranges_restrict_load_balancers_only() {
    let service = |range: &str| web().node_port(30080).load_balancer("198.51.100.1").source_range(range);
    let mut case = Case::new(1, IpFamily::V4, &cluster(service("192.168.0.9/32"), [local(0)]));
    assert!(matches!(tcp(&case.lab.client, "198.51.100.1:80"), Outcome::Pod(0, _)));
    case.update_to(&cluster(service("192.168.0.10/31"), [local(0)]));
    assert_eq!(tcp(&case.lab.client, "198.51.100.1:80"), Outcome::Silence);
    assert_eq!(tcp(&case.lab.node, "198.51.100.1:80"), Outcome::Silence);
    for to in ["192.168.0.1:30080", "10.96.0.1:80"] {
        assert!(matches!(tcp(&case.lab.client, to), Outcome::Pod(0, _)), "{to}");
    }
    // The last source ranges are removed with their chains, and others are added.
    case.update_to(&cluster(web().load_balancer("198.51.100.1"), [local(0)]));
    assert!(matches!(tcp(&case.lab.client, "198.51.100.1:80"), Outcome::Pod(0, _)));
    case.update_to(&cluster(service("192.168.0.10/31"), [local(0)]));
    assert_eq!(tcp(&case.lab.client, "198.51.100.1:80"), Outcome::Silence);
}

#[test]
fn client_with_affinity_keeps_its_endpoint_while_it_exists() {
    let service = || web().node_port(30080).affinity(300);
    let mut case = Case::new(4, IpFamily::V4, &cluster(service(), (0..4).map(local)));
    for to in ["10.96.0.1:80", "192.168.0.1:30080"] {
        let once = |case: &Case| spread(|| tcp(&case.lab.client, to)).0;
        case.update_to(&cluster(service(), (0..4).map(local)));
        let [chosen] = once(&case).into_iter().collect::<Vec<_>>()[..] else { panic!("several endpoints for {to}") };
        // Other endpoints are removed and added.
        let other = (chosen + 1) % 4;
        case.update_to(&cluster(service(), [local(other), local(chosen)]));
        assert_eq!(once(&case), set([chosen]), "{to}");
        case.update_to(&cluster(service(), (0..4).map(local)));
        assert_eq!(once(&case), set([chosen]), "{to}");
        // The endpoint is removed, and the client keeps its new one after the endpoint returns.
        case.update_to(&cluster(service(), (0..4).filter(|pod| *pod != chosen).map(local)));
        let [next] = once(&case).into_iter().collect::<Vec<_>>()[..] else { panic!("several endpoints for {to}") };
        assert_ne!(next, chosen);
        case.update_to(&cluster(service(), (0..4).map(local)));
        assert_eq!(once(&case), set([next]), "{to}");
    }
    // A resync keeps it, too.
    let [chosen] = spread(|| udp(&case.lab.pods[3], "10.96.0.1:53")).0.into_iter().collect::<Vec<_>>()[..] else {
        panic!("several endpoints")
    };
    case.dataplane.resync(case.tracker.table(IpFamily::V4)).unwrap();
    assert_eq!(spread(|| udp(&case.lab.pods[3], "10.96.0.1:53")).0, set([chosen]));
    let listed = case.lab.node.command("nft", &["list", "map", "ip", "ferroute", "affinity"]);
    assert!(listed.contains(" . 10.244.3.2 timeout 5m expires"), "{listed}");
}

#[test]
fn client_with_affinity_has_one_endpoint_for_all_frontends_of_a_service_port() {
    let service = || web().node_port(30080).external_ip("203.0.113.1").affinity(300);
    let mut case = Case::new(4, IpFamily::V4, &cluster(service(), (0..4).map(local)));
    let everywhere = |case: &Case| {
        let to = ["10.96.0.1:80", "192.168.0.1:30080", "203.0.113.1:80"];
        to.into_iter().flat_map(|to| spread(|| tcp(&case.lab.client, to)).0).collect::<BTreeSet<_>>()
    };
    let [chosen] = everywhere(&case).into_iter().collect::<Vec<_>>()[..] else { panic!("several endpoints") };
    case.update_to(&cluster(service(), (0..4).filter(|pod| *pod != chosen).map(local)));
    let next = everywhere(&case);
    assert!(next.len() == 1 && !next.contains(&chosen), "{next:?}");
    // With policy Local, one of this node's endpoints is chosen and kept.
    let local_only = service().external_local();
    let far = |number: usize| pod(&pod_ip(number).to_string()).on("node-2");
    case.update_to(&cluster(local_only, [far(0), far(1), local(2), local(3)]));
    let outside = spread(|| tcp(&case.lab.client, "192.168.0.1:30080")).0;
    assert!(outside.len() == 1 && outside.is_subset(&set([2, 3])), "{outside:?}");
    assert_eq!(spread(|| tcp(&case.lab.client, "203.0.113.1:80")).0, outside);
}

#[test]
fn clients_beyond_the_share_of_a_list_are_served_without_taking_the_affinity_of_others() {
    let mut case = Case::new(3, IpFamily::V4, &cluster(web().affinity(300), (0..3).map(local)));
    let Lab { node, client, .. } = &case.lab;
    let addresses: Vec<String> = (20..30).map(|i| format!("192.168.0.{i}")).collect();
    for address in &addresses {
        client.command("ip", &["addr", "add", &format!("{address}/24"), "dev", "eth0"]);
    }
    // A part of 3 instead of thousands.
    let listed = node.command("nft", &["list", "set", "ip", "ferroute", "new-clients-300-2"]);
    let planned = |listed: &str| listed.matches("limit rate 9437184/day burst 32768 packets").count();
    assert_eq!(planned(&listed), 3, "set and two lists: {listed}");
    for list in ["1:1", "1:5"] {
        let set = "element ip ferroute new-clients-300-2";
        let commands = format!("delete {set} {{ {list} }}; add {set} {{ {list} limit rate 1/hour burst 3 packets }}");
        node.command("nft", &[&commands]);
    }
    let exchange = |from: &str| {
        let socket = client.run(|| std::net::UdpSocket::bind((from, 0)).unwrap());
        socket.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
        socket.connect("10.96.0.1:53").unwrap();
        socket.send(b"?").unwrap();
        let mut buffer = [0; 128];
        let length = ferroute_testing::restart(|| socket.recv(&mut buffer)).unwrap();
        buffer[..length].first().copied()
    };
    let first: Vec<_> = addresses.iter().map(|address| exchange(address)).collect();
    let clients = || node.command("nft", &["list", "map", "ip", "ferroute", "affinity"]).matches(" expires ").count();
    assert_eq!(clients(), 3);
    for _ in 0..20 {
        assert_eq!(exchange(&addresses[0]), first[0]);
    }
    let without: BTreeSet<_> = (0..TRIES).map(|_| exchange(&addresses[9])).collect();
    assert_eq!((without.len(), clients()), (3, 3));
    // The clients of the other port have a separate share.
    assert_eq!(spread(|| tcp(client, "10.96.0.1:80")).0.len(), 1);
    assert_eq!(clients(), 4);
    // The limits of the elements are noticed, and repaired.
    assert!(case.dataplane.was_modified_externally().unwrap());
    case.dataplane.resync(case.tracker.table(IpFamily::V4)).unwrap();
    assert_eq!(planned(&node.command("nft", &["list", "set", "ip", "ferroute", "new-clients-300-2"])), 3);
    assert!(!case.dataplane.was_modified_externally().unwrap());
}

/// A user who may create Services in a namespace may give them many ports.
#[test]
fn ports_of_a_namespace_divide_its_share_of_clients_with_affinity() {
    const PORTS: u16 = 34;
    let name = |port: u16| format!("p{port}");
    let greedy = service("greedy/web").cluster_ip("10.96.0.2").affinity(300);
    let greedy = (0..PORTS).fold(greedy, |service, port| service.udp(&name(port), 1_000 + port));
    let pods = (0..PORTS).fold(slice("greedy/web-a", "web"), |slice, port| slice.udp(&name(port), PORT));
    let cluster = cluster(web().affinity(300), (0..3).map(local)).service(greedy).slice(pods.pod(local(0)));
    let case = Case::new(3, IpFamily::V4, &cluster);
    let Lab { node, client, .. } = &case.lab;
    let listed = node.command("nft", &["list", "set", "ip", "ferroute", "new-clients-300-64"]);
    assert_eq!(listed.matches("limit rate 294912/day burst 1024 packets").count(), 1 + usize::from(PORTS), "{listed}");
    // Clients with spoofed addresses.
    client.command("ip", &["route", "add", "local", "10.77.0.0/16", "dev", "lo"]);
    node.command("ip", &["route", "add", "10.77.0.0/16", "via", &CLIENT.to_string()]);
    client.run(|| {
        for number in 0..2_000_u16 {
            let [high, low] = number.to_be_bytes();
            let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::new(10, 77, high, low), 0)).unwrap();
            socket.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
            socket.connect("10.96.0.2:1000").unwrap();
            socket.send(b"?").unwrap();
            assert!(ferroute_testing::restart(|| socket.recv(&mut [0; 128])).unwrap() > 0, "a client beyond is served");
        }
    });
    let clients = || node.command("nft", &["list", "map", "ip", "ferroute", "affinity"]).matches(" expires ").count();
    let before = clients();
    assert!((1_024..1_999).contains(&before), "{before}");
    assert_eq!(spread(|| tcp(client, "10.96.0.1:80")).0.len(), 1);
    assert_eq!(clients(), before + 1);
}

#[test]
fn source_ranges_apply_to_the_addresses_of_their_scope() {
    let service = |annotations: &[(&str, &str)]| {
        let web = web().node_port(30080).external_ip("203.0.113.1");
        annotations.iter().fold(web, |web, (name, value)| web.annotation(&format!("ferroute.io/{name}"), value))
    };
    let mut case = Case::new(2, IpFamily::V4, &cluster(service(&[]), (0..2).map(local)));
    let is_served = |case: &Case, pod: usize| {
        let to = ["10.96.0.1:80", "203.0.113.1:80", "192.168.0.1:30080"];
        to.map(|to| match tcp(&case.lab.pods[pod], to) {
            Outcome::Pod(..) => true,
            Outcome::Silence => false,
            Outcome::Refused => panic!("{to} is refused"),
        })
    };
    let all = ("source-ranges-scope", "cluster-ip, external-ips, node-ports");
    let ranges = ("source-ranges", "10.244.1.0/24 192.0.2.0/24");
    for (annotations, expected) in [
        (&[ranges, all][..], [[false; 3], [true; 3]]),
        (&[ranges, ("source-ranges-scope", "node-ports")], [[true, true, false], [true; 3]]),
        (&[ranges, all, ("source-ranges-policy", "deny")], [[true; 3], [false; 3]]),
        (&[ranges], [[true; 3], [true; 3]]),
        // An error admits no client.
        (&[("source-ranges", "10.244.1.0/240"), ("source-ranges-scope", "cluster-ip")], [[false, true, true]; 2]),
        (&[ranges, ("source-ranges-scope", "cluster-ips")], [[false; 3], [true; 3]]),
        (&[ranges, all, ("source-ranges-policy", "Deny")], [[false; 3]; 2]),
        (&[], [[true; 3], [true; 3]]),
    ] {
        case.update_to(&cluster(service(annotations), (0..2).map(local)));
        assert_eq!([0, 1].map(|pod| is_served(&case, pod)), expected, "{annotations:?}");
        let report = case.dataplane.resync(case.tracker.table(IpFamily::V4)).unwrap();
        assert_eq!((report.written, report.removed), (0, 0), "{annotations:?}");
    }
}

#[test]
fn ipv6_connections_are_served() {
    let service = service("shop/web").cluster_ip("fd00:96::1").port("http", 80).affinity(300);
    let pods = [0, 1].map(|i| pod(&pod_ip6(i).to_string()).on("node-1"));
    let mut slice = slice("shop/web-a", "web").port("http", PORT);
    for pod in pods {
        slice = slice.pod(pod);
    }
    let cluster = Cluster::new("node-1").service(service).slice(slice);
    let case = Case::new(3, IpFamily::V6, &cluster);
    let (pods, sources) = spread(|| tcp(&case.lab.pods[2], "[fd00:96::1]:80"));
    assert_eq!((pods.len(), sources), (1, set([pod_ip6(2).into()])));
    assert_eq!(tcp(&case.lab.pods[2], "[fd00:96::1]:81"), Outcome::Refused);
}

#[test]
fn priority_is_cleared_before_queueing() {
    let hooks = ["input priority 101", "output priority 1", "postrouting priority -300"];
    let forward = [(IpFamily::V4, "forward priority -300"), (IpFamily::V6, "forward priority 1")];
    for (family, forward) in forward {
        let (web, host) = match family {
            IpFamily::V4 => ("10.96.0.1", "10.96.0.2"),
            IpFamily::V6 => ("fd00:96::1", "fd00:96::2"),
        };
        let lab_pods = (0..2).map(|i| match family {
            IpFamily::V4 => pod(&pod_ip(i).to_string()),
            IpFamily::V6 => pod(&pod_ip6(i).to_string()),
        });
        let pods =
            lab_pods.fold(slice("shop/web-a", "web").port("http", PORT), |slice, pod| slice.pod(pod.on("node-1")));
        // The gateway of the Pods.
        let node = if family == IpFamily::V4 { "10.244.0.1" } else { "fd00:244::1" };
        let cluster = Cluster::new("node-1")
            .service(service("shop/web").cluster_ip(web).port("http", 80))
            .service(service("shop/host").cluster_ip(host).port("http", 80))
            .slice(pods)
            .slice(slice("shop/host-a", "host").port("http", PORT).pod(pod(node).on("node-1")));
        let case = Case::new(2, family, &cluster);
        let chains = hooks.into_iter().chain([forward]).map(|hook| {
            let name = hook.split(' ').next().unwrap();
            format!(
                "add chain inet watch {name} {{ type filter hook {hook}; }}; \
                 add rule inet watch {name} ct status dnat counter; \
                 add rule inet watch {name} ct status dnat meta priority != none counter;"
            )
        });
        case.lab.node.command("nft", &[&format!("add table inet watch; {}", chains.collect::<String>())]);
        let address = |ip: &str| if family == IpFamily::V4 { format!("{ip}:80") } else { format!("[{ip}]:80") };
        spread(|| tcp(&case.lab.node, &address(web)));
        spread(|| tcp(&case.lab.pods[0], &address(web)));
        assert_eq!(tcp(&case.lab.pods[0], &address(host)), Outcome::Refused);
        let listed = case.lab.node.command("nft", &["list", "table", "inet", "watch"]);
        // One counter of each chain counts all translated packets, the other one those with a priority.
        assert_eq!(listed.matches("counter packets 0 bytes 0").count(), 4, "{listed}");
        assert_eq!(listed.matches("counter packets").count(), 8, "{listed}");
    }
}

#[test]
fn connections_are_counted_by_frontend_and_endpoint() {
    let counting = NftablesSettings { counters: true, ..settings() };
    let mut case = Case::with_settings(2, IpFamily::V4, counting, &cluster(web().node_port(30080), (0..2).map(local)));
    for _ in 0..10 {
        tcp(&case.lab.client, "10.96.0.1:80");
        tcp(&case.lab.client, "192.168.0.1:30080");
        udp(&case.lab.client, "10.96.0.1:53");
    }
    let max = NonZeroUsize::new(10).unwrap();
    let mut reader = case.lab.node.run(|| ConnectionReader::open(IpFamily::V4, max).unwrap());
    let services = |totals: &ConnectionTotals| -> Vec<(String, u64)> {
        totals.services().map(|(name, total)| (name.to_owned(), total)).collect()
    };
    let totals = reader.read().unwrap();
    assert_eq!(services(totals), [("shop/web:dns".to_owned(), 10), ("shop/web:http".to_owned(), 20)]);
    let of_http: Vec<_> = totals.endpoints().filter(|(name, ..)| *name == "shop/web:http").collect();
    assert_eq!(
        of_http.iter().map(|(_, socket, _)| *socket).collect::<Vec<_>>(),
        [0, 1].map(|pod| { std::net::SocketAddr::from((pod_ip(pod), PORT)) })
    );
    assert_eq!(of_http.iter().map(|(.., total)| total).sum::<u64>(), 20);
    // With another number of endpoints there are new elements, whose counters start at zero.
    case.update_to(&cluster(web().node_port(30080), (0..1).map(local)));
    tcp(&case.lab.client, "192.168.0.1:30080");
    let totals = reader.read().unwrap();
    assert_eq!(services(totals)[1], ("shop/web:http".to_owned(), 21));
    assert_eq!((totals.other_services(), totals.other_endpoints()), (0, 0));
}

#[test]
fn endpoints_in_a_large_hash_table_are_not_counted() {
    let counting = NftablesSettings { counters: true, ..settings() };
    let hashed = |size: &str| {
        let web = web().annotation("ferroute.io/load-balancing", "source-hash");
        cluster(web.annotation("ferroute.io/hash-table-size", size), (0..2).map(local))
    };
    for (size, expected) in [("1024", 5), ("16384", 0)] {
        let case = Case::with_settings(2, IpFamily::V4, counting.clone(), &hashed(size));
        (0..5).for_each(|_| _ = tcp(&case.lab.client, "10.96.0.1:80"));
        let mut reader = case.lab.node.run(|| ConnectionReader::open(IpFamily::V4, NonZeroUsize::MIN).unwrap());
        let totals = reader.read().unwrap();
        assert_eq!(totals.services().map(|(_, total)| total).collect::<Vec<_>>(), [5], "{size}");
        assert_eq!(totals.endpoints().map(|(.., total)| total).sum::<u64>(), expected, "{size}");
    }
}

#[test]
fn connections_with_affinity_and_local_policy_are_counted_by_endpoint() {
    let counting = NftablesSettings { counters: true, ..settings() };
    let service = || web().node_port(30080).external_local().affinity(300);
    let case =
        Case::with_settings(2, IpFamily::V4, counting, &cluster(service(), [local(0), pod("10.244.1.2").on("node-2")]));
    for _ in 0..5 {
        tcp(&case.lab.client, "192.168.0.1:30080");
    }
    let max = NonZeroUsize::new(10).unwrap();
    let mut reader = case.lab.node.run(|| ConnectionReader::open(IpFamily::V4, max).unwrap());
    let totals = reader.read().unwrap();
    let local: Vec<_> =
        totals.endpoints().filter(|(name, socket, _)| *name == "shop/web:http" && socket.ip() == pod_ip(0)).collect();
    assert_eq!(local.iter().map(|(.., total)| *total).sum::<u64>(), 5);
}

/// With three endpoints, the chance that one of them is never chosen is 3 × (2/3)^60, one in ten thousand million.
const TRIES: usize = 60;
