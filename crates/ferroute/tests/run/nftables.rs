//! What only nftables mode has.

use std::{
    fs,
    io::Read,
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use ferroute_testing::NetNs;

use crate::{
    Files, Lab, Mode, Proxy, WEB,
    proxy::{FERROUTE, run_command},
    slices,
    traffic::connect,
    wait, web,
};

/// A node whose node ports answer on localhost, too, and a Service with the node port 30080.
fn with_localhost(lab: &Lab, files: &Files) -> Proxy {
    let service =
        WEB.replace("spec:\n", "spec:\n  type: NodePort\n").replace("port: 80}", "port: 80, nodePort: 30080}");
    files.apply(&format!("{service}{}", slices("web", &[0])));
    let config = files.config(Mode::Nftables);
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}nodePortAddresses: [192.168.0.0/24, 127.0.0.0/8]\n")).unwrap();
    let mut proxy = Proxy::spawn(&lab.node, &mut run_command(FERROUTE, &files.manifests(), &config));
    proxy.wait_in_force(&lab.node);
    proxy
}

#[test]
fn node_ports_answer_on_localhost_for_those_who_name_it() {
    let (lab, files) = (Lab::new(), Files::new());
    let _proxy = with_localhost(&lab, &files);
    for to in ["127.0.0.1:30080", "192.168.0.1:30080"] {
        assert_eq!(connect(&lab.node, to.parse().unwrap()).unwrap(), 0, "{to}");
    }
    assert_eq!(connect(&lab.client, "192.168.0.1:30080".parse().unwrap()).unwrap(), 0);
}

/// Whether a program that listens on the node's localhost can be reached.
fn reaches_localhost(from: &NetNs, at: SocketAddr) -> bool {
    let greeted = |mut stream: TcpStream| {
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        stream.read_exact(&mut [0]).is_ok()
    };
    from.run(|| TcpStream::connect_timeout(&at, SILENCE)).is_ok_and(greeted)
}

/// What node ports on localhost need of the kernel would let neighbours in (CVE-2020-8558).
#[test]
fn while_node_ports_answer_on_localhost_neighbours_get_at_nothing_that_listens_there() {
    let (lab, files) = (Lab::new(), Files::new());
    let listener = lab.node.run(|| TcpListener::bind("127.0.0.1:0")).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // Whoever connects is greeted, and may be gone by then.
            _ = stream.and_then(|mut stream| std::io::Write::write_all(&mut stream, b"!"));
        }
    });
    // A neighbour that takes 127.0.0.1 for the node's.
    lab.client.command("sysctl", &["-qw", "net.ipv4.conf.all.route_localnet=1"]);
    lab.client.command("ip", &["address", "delete", "127.0.0.1/8", "dev", "lo"]);
    lab.client.command("ip", &["route", "add", "127.0.0.1/32", "via", "192.168.0.1"]);
    assert!(!reaches_localhost(&lab.client, at), "the kernel itself guards localhost");
    lab.node.command("sysctl", &["-qw", "net.ipv4.conf.all.route_localnet=1"]);
    assert!(reaches_localhost(&lab.client, at), "the test does what it is meant to");
    let _proxy = with_localhost(&lab, &files);
    assert!(!reaches_localhost(&lab.client, at));
    assert!(reaches_localhost(&lab.node, at));
}

#[test]
fn addresses_of_a_service_network_that_no_service_has_lead_nowhere() {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0]));
    let _proxy = Proxy::start(&lab.node, &files, Mode::Nftables);
    let rules = |family: &str| lab.node.command("nft", &["list", "chain", family, "ferroute", "cluster-ips"]);
    assert!(!rules("ip").contains("drop") && !rules("ip6").contains("drop"));
    let networks = "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\n\
                    spec: {cidrs: [10.96.0.0/16, \"fd00:96::/112\"]}\n";
    files.apply(&format!("{}{networks}", web(&[0])));
    for (family, rule) in [("ip", "ip daddr 10.96.0.0/16 drop"), ("ip6", "ip6 daddr fd00:96::/112 drop")] {
        wait("the rule", || rules(family).contains(rule).then_some(()));
    }
    assert_eq!(connect(&lab.client, "10.96.0.1:80".parse().unwrap()).unwrap(), 0);
    files.apply(&web(&[0]));
    for family in ["ip", "ip6"] {
        wait("the rule's end", || (!rules(family).contains("drop")).then_some(()));
    }
}

/// How long to wait for somebody who is silent.
const SILENCE: Duration = Duration::from_millis(500);
