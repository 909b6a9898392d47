//! A client, a node and pods.

use std::net::Ipv4Addr;

use ferroute_testing::NetNs;

/// Three namespaces in a row, with a forwarding node in the middle.
pub(crate) struct Row {
    /// A pod of this node.
    pub(crate) client: NetNs,
    pub(crate) node: NetNs,
    /// The server, which has no addresses of pods yet.
    pub(crate) server: NetNs,
}

impl Row {
    /// Creates namespaces that forward packets to these pods.
    pub(crate) fn new(pods: impl IntoIterator<Item = Ipv4Addr>) -> Self {
        let (client, node, server) = (NetNs::new(), NetNs::new(), NetNs::new());
        client.link("node", &node, "client");
        server.link("node", &node, "pods");
        client.add_address(&format!("{CLIENT}/24"), "node");
        node.add_address(&format!("{GATEWAY}/24"), "client");
        server.add_address("198.51.100.2/24", "node");
        node.add_address("198.51.100.1/24", "pods");
        client.command("ip", &["route", "add", "default", "via", GATEWAY]);
        server.command("ip", &["route", "add", "default", "via", "198.51.100.1"]);
        for pod in pods {
            node.command("ip", &["route", "add", &pod.to_string(), "via", "198.51.100.2"]);
        }
        node.command("sysctl", &["-qw", "net.ipv4.ip_forward=1"]);
        Self { client, node, server }
    }
}

/// The address of the client, in the cluster's CIDR.
pub(crate) const CLIENT: &str = "10.255.0.2";
const GATEWAY: &str = "10.255.0.1";
