//! The source addresses that endpoints see.

use std::net::{IpAddr, SocketAddr, TcpListener};

use ferroute_testing::NetNs;

use crate::{
    Case, Mode,
    cluster::{PORT, pod_addresses},
    in_every_mode,
    proxy::FERROUTE,
    traffic::{TIMEOUT, any, connect_from_here},
    web, web_tcp,
};

in_every_mode!(sources_are_kept_at_endpoints_in_no_masquerade_cidrs);

/// The port of a server that returns the addresses of its clients.
const SERVER: u16 = 9090;

/// Connects to a frontend, from an address if given, and returns the address that the server in a pod sees.
fn seen(server: &TcpListener, from: &NetNs, source: Option<IpAddr>, to: SocketAddr) -> IpAddr {
    let source = source.map_or_else(|| any(to), |source| SocketAddr::new(source, 0));
    // The reply to the first packet arrives only if the pod can answer to the address that it sees.
    let client = from.run(|| connect_from_here(source, to, TIMEOUT)).unwrap_or_else(|error| panic!("{to}: {error}"));
    let (_, peer) = server.accept().unwrap();
    drop(client);
    peer.ip().to_canonical()
}

fn sources_are_kept_at_endpoints_in_no_masquerade_cidrs(mode: Mode) {
    let yaml = |pod: u8| {
        web(&[pod])
            .replace("spec:\n", "spec:\n  type: NodePort\n")
            .replace("port: 80}", "port: 80, nodePort: 30080}")
            .replace(&format!("port: {PORT}"), &format!("port: {SERVER}"))
    };
    let localhost = if mode == Mode::Nftables { "nodePortAddresses: [primary, localhost]\n" } else { "" };
    let settings = format!("noMasqueradeCIDRs: [10.244.0.2/32, \"fd00:244::2/128\"]\n{localhost}");
    for (pod, keeps) in [(0, mode != Mode::Userspace), (1, false)] {
        let case = Case::with_settings(mode, &yaml(pod), &settings);
        let (node, client, pods) = (&case.cluster.node, &case.cluster.client, &case.cluster.pods);
        // They stay open: while another test starts a process, that has copies of this process' sockets, so a port may be in
        // use after its listener is dropped.
        let endpoints = pod_addresses(pod);
        let servers = endpoints.map(|endpoint| pods.run(|| TcpListener::bind((endpoint, SERVER))).unwrap());
        for (family, server) in servers.iter().enumerate() {
            let ip = |texts: [&str; 2]| texts[family].parse::<IpAddr>().unwrap();
            let (gateway, own) = (ip(["10.244.0.1", "fd00:244::1"]), ip(["192.168.0.1", "fd00:168::1"]));
            let node_port = SocketAddr::new(own, 30080);
            for (from, source, to, expected) in [
                (client, None, node_port, if keeps { ip(["192.168.0.9", "fd00:168::9"]) } else { gateway }),
                (node, None, node_port, if keeps { own } else { gateway }),
                // The pod itself would answer to itself.
                (pods, Some(endpoints[family]), node_port, gateway),
                (pods, Some(endpoints[family]), web_tcp()[family], gateway),
            ] {
                assert_eq!(seen(server, from, source, to), expected, "{source:?} to {to}, pod {pod}");
            }
        }
        // The same applies to localhost, which would be the pod itself.
        let localhost = "127.0.0.1:30080".parse().unwrap();
        let gateway: IpAddr = "10.244.0.1".parse().unwrap();
        assert_eq!(seen(&servers[0], node, None, localhost), gateway);
        let diff = node.try_command(FERROUTE, &["diff"]);
        assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
        let explanation = node.command(FERROUTE, &["explain", "service", "default/web"]);
        assert_eq!(explanation.contains("noMasqueradeCIDRs"), keeps, "{explanation}");
    }
}
