//! Node ports held open with `--hold-node-ports`.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener, UdpSocket},
    process::Command,
};

use ferroute_testing::NetNs;

use crate::{
    Mode,
    cluster::Cluster,
    in_each_mode,
    proxy::{FERROUTE, Files, Proxy},
    slices, traffic, wait, web, web_tcp,
};

in_each_mode!(
    node_ports_are_held_until_the_service_goes,
    held_node_ports_follow_node_port_addresses,
    node_ports_beyond_the_limit_of_open_files_are_reported_and_served,
);

fn node_ports_are_held_until_the_service_goes(mode: Mode) {
    let (files, cluster) = (Files::with_settings("nodePortAddresses: [0.0.0.0/0, '::/0']\n"), Cluster::new());
    files.apply(&node_ports(30080));
    let _proxy = start(&cluster, &files, mode, "");
    for address in ["0.0.0.0", "[::]", "192.168.0.1", "[fd00:168::1]", "127.0.0.1"] {
        let at = |port| format!("{address}:{port}");
        wait(&format!("held ports at {address}"), || {
            (!is_free(&cluster.node, &at(30080)) && !is_free(&cluster.node, &at(30053))).then_some(())
        });
        assert!(is_free(&cluster.node, &at(30081)), "{address}");
    }
    // Held ports are served as before.
    for address in ["192.168.0.1:30080", "[fd00:168::1]:30080"] {
        assert_eq!(traffic::connect(&cluster.client, address.parse().unwrap()).unwrap(), 0);
    }
    files.apply(&node_ports(30081));
    wait("the new node port", || (!is_free(&cluster.node, "0.0.0.0:30081")).then_some(()));
    wait("the old node port", || is_free(&cluster.node, "0.0.0.0:30080").then_some(()));
    files.apply(&web(&[0]));
    for address in ["0.0.0.0:30081", "[::]:30081", "0.0.0.0:30053", "[::]:30053"] {
        wait(address, || is_free(&cluster.node, address).then_some(()));
    }
}

fn held_node_ports_follow_node_port_addresses(mode: Mode) {
    let settings = "nodePortAddresses: [192.168.0.0/24, 'fd00:168::/64']\n";
    let (files, cluster) = (Files::with_settings(settings), Cluster::new());
    files.apply(&node_ports(30080));
    let _proxy = start(&cluster, &files, mode, "");
    for address in ["192.168.0.1:30080", "[fd00:168::1]:30080", "192.168.0.1:30053"] {
        wait(address, || (!is_free(&cluster.node, address)).then_some(()));
    }
    assert!(is_free(&cluster.node, "127.0.0.1:30080") && is_free(&cluster.node, "10.244.0.1:30080"));
    cluster.node.add_address("192.168.0.2/24", "client");
    wait("an added address", || (!is_free(&cluster.node, "192.168.0.2:30080")).then_some(()));
    cluster.node.command("ip", &["address", "delete", "192.168.0.1/24", "dev", "client"]);
    cluster.node.command("ip", &["address", "add", "192.168.0.1/24", "dev", "pods"]);
    wait("an address that was moved", || (!is_free(&cluster.node, "192.168.0.1:30080")).then_some(()));
}

fn node_ports_beyond_the_limit_of_open_files_are_reported_and_served(mode: Mode) {
    let (files, cluster) = (Files::new(), Cluster::new());
    let others = (0..100).map(|number| {
        let (name, ip, port) = (format!("other-{number}"), format!("10.96.1.{number}"), 30200 + number);
        format!("---\n{}{}", service(&name, &format!("clusterIP: {ip}"), &port.to_string()), slices(&name, &[1]))
    });
    files.apply(&format!("{}{}", node_ports(30080), others.collect::<String>()));
    let proxy = start(&cluster, &files, mode, "ulimit -n 128; ");
    proxy.wait_log("node ports are not held");
    for port in [30080, 30200, 30299] {
        let address = SocketAddr::new("192.168.0.1".parse().unwrap(), port);
        wait("the node port", || traffic::connect(&cluster.client, address).ok());
    }
    // Changes are still read and applied.
    files.apply(&web(&[2]));
    for to in web_tcp() {
        wait("the change", || (traffic::connect(&cluster.client, to).ok()? == 2).then_some(()));
    }
}

/// Starts the proxy with `--hold-node-ports` after a shell command.
#[track_caller]
fn start(cluster: &Cluster, files: &Files, mode: Mode, before: &str) -> Proxy {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{before}exec \"$@\""), "sh", FERROUTE, "run", "--hold-node-ports", "--manifests"]);
    command.arg(files.manifests()).arg("--config").arg(files.config(mode));
    let mut proxy = Proxy::spawn(&cluster.node, &mut command);
    proxy.wait_synced(&cluster.node);
    proxy
}

/// Returns the Service `web` with a node port for TCP, 30053 for UDP, and one pod.
fn node_ports(port: u16) -> String {
    let ips = "clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, \"fd00:96::1\"], ipFamilies: [IPv4, IPv6]";
    let service = service("web", ips, &port.to_string());
    format!(
        "{}{}",
        service.replace("}]}", "}, {name: udp, port: 53, protocol: UDP, nodePort: 30053}]}"),
        slices("web", &[0])
    )
}

fn service(name: &str, ips: &str, port: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{type: NodePort, {ips}, ports: [{{name: tcp, port: 80, nodePort: {port}}}]}}\n"
    )
}

/// Reports whether a program of the node can bind a TCP and a UDP socket to this address and port.
#[track_caller]
fn is_free(node: &NetNs, address: &str) -> bool {
    let result = node.run(|| {
        let tcp = TcpListener::bind(address)?;
        UdpSocket::bind(address).map(|udp| drop((tcp, udp)))
    });
    match result {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::AddrInUse => false,
        Err(error) => panic!("cannot bind {address}: {error}"),
    }
}
