//! Features of nftables mode only.

use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use ferroute_testing::NetNs;

use crate::{
    Cluster, Files, Mode, Proxy, WEB,
    http::get,
    proxy::{FERROUTE, run_command},
    slices,
    status::METRICS,
    traffic::{Flow, Reply, TIMEOUT, connect},
    wait, web,
};

/// Returns a Service with node port 30080 of TCP and UDP.
fn node_port_service() -> String {
    let service = WEB
        .replace("spec:\n", "spec:\n  type: NodePort\n")
        .replace("port: 80}", "port: 80, nodePort: 30080}")
        .replace("port: 53,", "port: 53, nodePort: 30080,");
    format!("{service}{}", slices("web", &[0]))
}

/// Starts a proxy with these addresses of node ports, and a Service with one.
fn start_with_node_port_addresses(cluster: &Cluster, files: &Files, addresses: &str) -> Proxy {
    files.apply(&node_port_service());
    let config = files.config(Mode::Nftables);
    let text = fs::read_to_string(&config).unwrap();
    let text = text.lines().filter(|line| !line.starts_with("nodePortAddresses")).collect::<Vec<_>>().join("\n");
    fs::write(&config, format!("{text}\nnodePortAddresses: {addresses}\n")).unwrap();
    let mut proxy = Proxy::spawn(&cluster.node, &mut run_command(FERROUTE, &files.manifests(), &config));
    proxy.wait_synced(&cluster.node);
    proxy
}

fn start_with_localhost_node_ports(cluster: &Cluster, files: &Files) -> Proxy {
    start_with_node_port_addresses(cluster, files, "[192.168.0.0/24, \"fd00:168::/64\", localhost]")
}

/// Returns the interfaces that have a local route to `::1`.
fn routes_to_localhost(node: &NetNs) -> BTreeSet<String> {
    let routes = node.command("ip", &["-6", "route", "show", "table", "local", "::1"]);
    let interface = |line: &str| line.split_whitespace().skip_while(|word| *word != "dev").nth(1).map(str::to_owned);
    routes.lines().filter_map(interface).filter(|name| name != "lo").collect()
}

fn answers(cluster: &Cluster, to: &str) -> bool {
    let to = to.parse().unwrap();
    connect(&cluster.node, to).is_ok() && Flow::open(&cluster.node, to).request() == Reply::Pod(0)
}

#[test]
fn configured_localhost_node_ports_accept_connections_and_datagrams() {
    let (cluster, files) = (Cluster::new(), Files::new());
    let _proxy = start_with_localhost_node_ports(&cluster, &files);
    for to in ["127.0.0.1:30080", "[::1]:30080", "192.168.0.1:30080", "[fd00:168::1]:30080"] {
        assert!(answers(&cluster, to), "{to}");
    }
    assert_eq!(connect(&cluster.client, "192.168.0.1:30080".parse().unwrap()).unwrap(), 0);
    let text = get(&cluster.node, METRICS, "/metrics").unwrap().body;
    for family in ["IPv4", "IPv6"] {
        let line = format!("kubeproxy_nftables_localhost_nodeport_listeners{{ip_family=\"{family}\"}} 2");
        assert!(text.lines().any(|it| it == line), "{line} is not in {text}");
    }
    let node = &cluster.node;
    let trace = |rules: &[&str]| {
        let packet = ["trace", "--local", "--protocol", "udp", "--to", "[::1]:30080"];
        node.command(FERROUTE, &[&packet[..], rules].concat())
    };
    for (rules, text) in [("--kernel", trace(&["--kernel"])), ("planned", trace(&[]))] {
        assert!(text.contains("[fd00:244::2]"), "{rules}: {text}");
    }
    let diff = node.try_command(FERROUTE, &["diff"]);
    assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
}

#[test]
fn routes_to_ipv6_localhost_follow_interfaces_and_the_configuration() {
    let (cluster, files) = (Cluster::new(), Files::new());
    let node = &cluster.node;
    let mut proxy = start_with_localhost_node_ports(&cluster, &files);
    let before = routes_to_localhost(node);
    assert!(before.contains("pods") && before.contains("client"), "{before:?}");
    node.command("ip", &["link", "add", "new0", "type", "veth", "peer", "name", "new1"]);
    node.command("ip", &["link", "set", "new0", "up"]);
    node.command("ip", &["-6", "route", "delete", "local", "::1", "dev", "pods", "table", "local"]);
    let with_new: BTreeSet<String> = before.iter().cloned().chain(["new0".to_owned()]).collect();
    wait("routes of all interfaces", || (routes_to_localhost(node) == with_new).then_some(()));
    assert!(answers(&cluster, "[::1]:30080"));
    // They stay when the proxy ends, as rules do.
    proxy.stop("TERM");
    assert!(answers(&cluster, "[::1]:30080"));
    let mut proxy = start_with_node_port_addresses(&cluster, &files, "[192.168.0.0/24, 127.0.0.0/8]");
    wait("the removal of the routes", || routes_to_localhost(node).is_empty().then_some(()));
    assert!(answers(&cluster, "127.0.0.1:30080") && !answers(&cluster, "[::1]:30080"));
    proxy.stop("TERM");
    let mut proxy = start_with_localhost_node_ports(&cluster, &files);
    assert_eq!(routes_to_localhost(node), with_new);
    proxy.stop("TERM");
    assert!(node.try_command(FERROUTE, &["run", "--cleanup"]).status.success());
    assert_eq!(routes_to_localhost(node), BTreeSet::new());
}

#[test]
fn doctor_reports_interfaces_without_route_to_ipv6_localhost() {
    let (cluster, files) = (Cluster::new(), Files::new());
    let node = &cluster.node;
    let mut proxy = start_with_localhost_node_ports(&cluster, &files);
    let (config, manifests) = (files.path("config.yaml"), files.manifests());
    let missing = || {
        let sources = ["--config", config.to_str().unwrap(), "--manifests", manifests.to_str().unwrap()];
        let output = node.try_command(FERROUTE, &[&["doctor", "-o", "json", "--no-connect"][..], &sources].concat());
        let examination: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = examination["findings"].as_array().unwrap().iter();
        let mut findings = findings.filter(|finding| finding["check"] == "localhost-routes");
        findings.next().map(|finding| finding["values"]["interfaces"].as_str().unwrap().to_owned())
    };
    proxy.stop("TERM");
    // Interfaces that are down or have no IPv6 need no route.
    for (name, state) in [("idle", "down"), ("without", "up")] {
        node.command("ip", &["link", "add", name, "type", "veth", "peer", "name", &format!("{name}-peer")]);
        node.command("sysctl", &["-qw", &format!("net.ipv6.conf.{name}.disable_ipv6={}", u8::from(state == "up"))]);
        node.command("ip", &["link", "set", name, state]);
    }
    assert_eq!(missing(), None);
    node.command("ip", &["-6", "route", "delete", "local", "::1", "dev", "pods", "table", "local"]);
    assert_eq!(missing().as_deref(), Some("pods"));
    node.command("sysctl", &["-qw", "net.ipv6.conf.without.disable_ipv6=0"]);
    assert_eq!(missing().as_deref(), Some("pods, without"));
    // Without rules, no node ports are served at `::1`.
    assert!(node.try_command(FERROUTE, &["run", "--cleanup"]).status.success());
    assert_eq!(missing(), None);
}

/// Reports whether a server on the node's loopback address is reachable within this time.
fn reaches_localhost(from: &NetNs, at: SocketAddr, time: Duration) -> bool {
    let receives = |mut stream: TcpStream| {
        stream.set_read_timeout(Some(time)).unwrap();
        stream.read_exact(&mut [0]).is_ok()
    };
    from.run(|| TcpStream::connect_timeout(&at, time)).is_ok_and(receives)
}

/// Node ports on localhost require `route_localnet`, which exposes loopback addresses to neighbours (CVE-2020-8558).
#[test]
fn localhost_node_ports_do_not_expose_loopback_to_neighbours() {
    let (cluster, files) = (Cluster::new(), Files::new());
    let listener = cluster.node.run(|| TcpListener::bind("127.0.0.1:0")).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // The client may have disconnected already.
            _ = stream.and_then(|mut stream| std::io::Write::write_all(&mut stream, b"!"));
        }
    });
    // A neighbour that routes 127.0.0.1 to the node.
    cluster.client.command("sysctl", &["-qw", "net.ipv4.conf.all.route_localnet=1"]);
    cluster.client.command("ip", &["address", "delete", "127.0.0.1/8", "dev", "lo"]);
    cluster.client.command("ip", &["route", "add", "127.0.0.1/32", "via", "192.168.0.1"]);
    assert!(!reaches_localhost(&cluster.client, at, NO_REPLY), "the kernel drops packets to loopback addresses");
    cluster.node.command("sysctl", &["-qw", "net.ipv4.conf.all.route_localnet=1"]);
    assert!(reaches_localhost(&cluster.client, at, TIMEOUT), "route_localnet exposes loopback addresses");
    let _proxy = start_with_localhost_node_ports(&cluster, &files);
    assert!(!reaches_localhost(&cluster.client, at, NO_REPLY));
    assert!(reaches_localhost(&cluster.node, at, TIMEOUT));
}

#[test]
fn unused_addresses_of_service_cidrs_are_dropped() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let _proxy = Proxy::start(&cluster.node, &files, Mode::Nftables);
    let rules = |family: &str| cluster.node.command("nft", &["list", "chain", family, "ferroute", "cluster-ips"]);
    assert!(!rules("ip").contains("drop") && !rules("ip6").contains("drop"));
    let networks = "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\n\
                    spec: {cidrs: [10.96.0.0/16, \"fd00:96::/112\"]}\n";
    files.apply(&format!("{}{networks}", web(&[0])));
    for (family, rule) in [("ip", "ip daddr 10.96.0.0/16 drop"), ("ip6", "ip6 daddr fd00:96::/112 drop")] {
        wait("the rule", || rules(family).contains(rule).then_some(()));
    }
    assert_eq!(connect(&cluster.client, "10.96.0.1:80".parse().unwrap()).unwrap(), 0);
    files.apply(&web(&[0]));
    for family in ["ip", "ip6"] {
        wait("removal of the rule", || (!rules(family).contains("drop")).then_some(()));
    }
}

/// The time after which a server counts as unreachable.
const NO_REPLY: Duration = Duration::from_millis(500);
