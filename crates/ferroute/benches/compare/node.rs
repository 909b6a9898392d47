//! A node with a client and pods.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    thread,
    time::{Duration, Instant},
};

use ferroute_testing::NetNs;

use crate::{
    common::{
        cluster::{NODE_IP, Size, TARGET_PORT},
        network::Row,
    },
    prober::reaches,
};

/// A node that reaches the API server, with a client and the pods of all Services.
pub(crate) struct Node {
    pub(crate) client: NetNs,
    pub(crate) node: NetNs,
    /// Namespace of all pods.
    _pods: NetNs,
}

impl Node {
    /// Creates a node that is connected to the API server's namespace.
    pub(crate) fn new(control: &NetNs, size: Size) -> Self {
        let Row { client, node, server } = Row::new([]);
        // The kernel removes the devices of the node before only after a while.
        control.try_command("ip", &["link", "delete", "node"]);
        control.link("node", &node, "control");
        control.add_address(&format!("{API_SERVER}/24"), "node");
        node.add_address("203.0.113.2/24", "control");
        // The Node's address, which serves node ports.
        node.add_address(&format!("{NODE_IP}/32"), "lo");
        for range in [OWN, REACHABLE] {
            node.command("ip", &["route", "add", range, "via", "198.51.100.2"]);
            // All addresses belong to the namespace: without a listener, the kernel refuses connections.
            server.command("ip", &["route", "add", "local", range, "dev", "lo"]);
        }
        // By default, conntrack keeps closed connections for ten seconds.
        node.command("sysctl", &["-qw", "net.netfilter.nf_conntrack_tcp_timeout_close=1"]);
        for i in 0..size.endpoints {
            let listener = server.run(|| TcpListener::bind((reachable(i), TARGET_PORT)).unwrap());
            // The thread runs until the process exits.
            thread::spawn(move || listener.incoming().for_each(drop));
        }
        Self { client, node, _pods: server }
    }

    /// Waits until the client reaches an endpoint through each of these frontends, or through none, and returns the time.
    ///
    /// # Panics
    ///
    /// If this takes more than an hour.
    pub(crate) fn wait_until(&self, frontends: Vec<SocketAddr>, reached: bool) -> Instant {
        self.client.run(|| {
            let deadline = Instant::now() + Duration::from_secs(3_600);
            for to in frontends {
                while reaches(to) != reached {
                    assert!(Instant::now() < deadline, "connections to {to} are accepted: {}", !reached);
                    thread::sleep(Duration::from_millis(1));
                }
            }
            Instant::now()
        })
    }
}

/// Returns an endpoint that accepts connections, by number.
pub(crate) fn reachable(i: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from_be_bytes([172, 16, 0, 1]) + i)
}

/// The address of the API server for the node.
pub(crate) const API_SERVER: &str = "203.0.113.1";
/// All endpoints of [`cluster::slice`](crate::common::cluster::slice).
const OWN: &str = "10.128.0.0/10";
/// All endpoints of [`reachable`].
const REACHABLE: &str = "172.16.0.0/24";
