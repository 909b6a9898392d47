//! Features of nftables mode only.

use std::{
    fs,
    io::Read,
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use ferroute_testing::NetNs;

use crate::{
    Cluster, Files, Mode, Proxy, WEB,
    proxy::{FERROUTE, run_command},
    slices,
    traffic::connect,
    wait, web,
};

/// Starts a proxy with node ports on localhost, and a Service with node port 30080.
fn start_with_localhost_node_ports(cluster: &Cluster, files: &Files) -> Proxy {
    let service =
        WEB.replace("spec:\n", "spec:\n  type: NodePort\n").replace("port: 80}", "port: 80, nodePort: 30080}");
    files.apply(&format!("{service}{}", slices("web", &[0])));
    let config = files.config(Mode::Nftables);
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}nodePortAddresses: [192.168.0.0/24, 127.0.0.0/8]\n")).unwrap();
    let mut proxy = Proxy::spawn(&cluster.node, &mut run_command(FERROUTE, &files.manifests(), &config));
    proxy.wait_synced(&cluster.node);
    proxy
}

#[test]
fn configured_localhost_node_ports_accept_connections() {
    let (cluster, files) = (Cluster::new(), Files::new());
    let _proxy = start_with_localhost_node_ports(&cluster, &files);
    for to in ["127.0.0.1:30080", "192.168.0.1:30080"] {
        assert_eq!(connect(&cluster.node, to.parse().unwrap()).unwrap(), 0, "{to}");
    }
    assert_eq!(connect(&cluster.client, "192.168.0.1:30080".parse().unwrap()).unwrap(), 0);
}

/// Reports whether a server on the node's loopback address is reachable.
fn reaches_localhost(from: &NetNs, at: SocketAddr) -> bool {
    let receives = |mut stream: TcpStream| {
        stream.set_read_timeout(Some(NO_REPLY)).unwrap();
        stream.read_exact(&mut [0]).is_ok()
    };
    from.run(|| TcpStream::connect_timeout(&at, NO_REPLY)).is_ok_and(receives)
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
    assert!(!reaches_localhost(&cluster.client, at), "the kernel drops packets to loopback addresses");
    cluster.node.command("sysctl", &["-qw", "net.ipv4.conf.all.route_localnet=1"]);
    assert!(reaches_localhost(&cluster.client, at), "route_localnet exposes loopback addresses");
    let _proxy = start_with_localhost_node_ports(&cluster, &files);
    assert!(!reaches_localhost(&cluster.client, at));
    assert!(reaches_localhost(&cluster.node, at));
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
