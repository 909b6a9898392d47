//! The network of a small cluster, each machine in a separate network namespace.
//!
//! ```text
//!   outside 192.168.0.9 ── 192.168.0.1 ┌──────┐ 10.244.0.1 ── pods 10.244.0.3, .6 and .9
//!                                      │ node │
//!     world 192.168.7.2 ── 192.168.7.1 └──────┘ 192.168.8.1 ── pods of other nodes 10.244.1.0/24, 10.244.2.0/24
//! ```
//!
//! The addresses of pods are those of generated clusters (`ferroute_core::testing::arbitrary`). The node's default
//! route leads to `world`, which answers packets to the addresses of Services with an ICMP error: a packet that no rule
//! translates is detected at once.

use std::net::{IpAddr, SocketAddr};

use ferroute_testing::NetNs;
use ipnet::IpNet;

/// The machines of the cluster.
pub(crate) struct Network {
    pub(crate) node: NetNs,
    pub(crate) outside: NetNs,
    /// The pods of the node.
    pub(crate) pods: Vec<(usize, NetNs)>,
    /// All pods of other nodes.
    pub(crate) remote: NetNs,
    world: NetNs,
}

impl Network {
    /// Creates the namespaces and connects them.
    pub(crate) fn new() -> Self {
        let pods = LOCAL_PODS.map(|pod| (pod, NetNs::new())).into();
        let [node, outside, remote, world] = std::array::from_fn(|_| NetNs::new());
        let network = Self { node, outside, pods, remote, world };
        network.set_parameters();
        network.connect("eth0", &network.outside, ["192.168.0", "fd00:168:"], 9);
        network.connect("eth1", &network.world, ["192.168.7", "fd00:7:"], 2);
        network.connect("eth2", &network.remote, ["192.168.8", "fd00:8:"], 2);
        for gateway in ["192.168.7.2", "fd00:7::2"] {
            network.node.command("ip", &["route", "add", "default", "via", gateway]);
        }
        network.reject_in_world();
        for (pod, namespace) in &network.pods {
            network.connect_pod(*pod, namespace);
        }
        network.add_remote_pods();
        network.node.link(EXTRA_DEVICE, &network.node, "extra1");
        network
    }

    fn machines(&self) -> impl Iterator<Item = &NetNs> {
        [&self.node, &self.outside, &self.remote, &self.world].into_iter().chain(self.pods.iter().map(|(_, pod)| pod))
    }

    fn set_parameters(&self) {
        for machine in self.machines() {
            machine.command("sysctl", &["-qw", "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.all.accept_dad=0"]);
            // The ports above these are those of clients, which never reuse a port within minutes.
            machine.command("sysctl", &["-qw", "net.ipv4.ip_local_port_range=10000 29999"]);
            // The kernel must not suppress ICMP errors of frequent requests.
            machine.command("sysctl", &["-qw", "net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0"]);
            // Older kernels have one limit for all namespaces, which must not change.
            machine
                .try_command("sysctl", &["-qw", "net.ipv4.icmp_msgs_burst=10000", "net.ipv4.icmp_msgs_per_sec=10000"]);
        }
        for machine in [&self.node, &self.world] {
            machine.command("sysctl", &["-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
            // A pod that connects to itself enters and leaves the node by the same interface.
            machine.command("sysctl", &["-qw", "net.ipv4.conf.all.send_redirects=0"]);
            machine.command("sysctl", &["-qw", "net.ipv4.conf.default.send_redirects=0"]);
        }
    }

    /// Connects a machine to the node, which is its gateway.
    fn connect(&self, device: &str, machine: &NetNs, network: [&str; 2], host: u8) {
        let [v4, v6] = network;
        self.node.link(device, machine, "eth0");
        self.node.add_address(&format!("{v4}.1/24"), device);
        self.node.add_address(&format!("{v6}:1/64"), device);
        machine.add_address(&format!("{v4}.{host}/24"), "eth0");
        machine.add_address(&format!("{v6}:{host}/64"), "eth0");
        machine.command("ip", &["route", "add", "default", "via", &format!("{v4}.1")]);
        machine.command("ip", &["route", "add", "default", "via", &format!("{v6}:1")]);
    }

    /// Makes the world reject packets that no rule of the node has translated. Of the ICMP errors that differ from those of
    /// the proxy's rules, the kernel reports only "prohibited" to UDP sockets.
    fn reject_in_world(&self) {
        let rules = "
            add table inet world
            add chain inet world forward { type filter hook forward priority 0; }
            add rule inet world forward reject with icmpx admin-prohibited\n";
        self.world.feed("nft", &["-f", "-"], rules);
    }

    fn connect_pod(&self, pod: usize, namespace: &NetNs) {
        let device = format!("veth{pod}");
        self.node.link(&device, namespace, "eth0");
        for (gateway, address, bits) in
            [("10.244.0.1", pod_address(pod, true), 32), ("fd00:244::1", pod_address(pod, false), 128)]
        {
            self.node.add_address(&format!("{gateway}/{bits}"), &device);
            self.node.command("ip", &["route", "add", &format!("{address}/{bits}"), "dev", &device]);
            namespace.add_address(&format!("{address}/{bits}"), "eth0");
            namespace.command("ip", &["route", "add", &format!("{gateway}/{bits}"), "dev", "eth0"]);
            namespace.command("ip", &["route", "add", "default", "via", gateway, "dev", "eth0"]);
        }
        self.node.command("sysctl", &["-qw", &format!("net.ipv4.conf.{device}.send_redirects=0")]);
    }

    fn add_remote_pods(&self) {
        for network in ["10.244.1.0/24", "10.244.2.0/24"] {
            self.node.command("ip", &["route", "add", network, "via", "192.168.8.2"]);
        }
        for network in ["fd00:244:0:1::/64", "fd00:244:0:2::/64"] {
            self.node.command("ip", &["route", "add", network, "via", "fd00:8::2"]);
        }
        for pod in REMOTE_PODS {
            self.remote.add_address(&format!("{}/32", pod_address(pod, true)), "eth0");
            self.remote.add_address(&format!("{}/128", pod_address(pod, false)), "eth0");
        }
    }

    /// Adds or removes the node's additional addresses.
    pub(crate) fn set_extra_addresses(&self, present: bool) {
        for address in EXTRA_ADDRESSES {
            let bits = if address.contains(':') { 128 } else { 32 };
            let address = format!("{address}/{bits}");
            if present {
                self.node.add_address(&address, EXTRA_DEVICE);
            } else {
                self.node.command("ip", &["address", "delete", &address, "dev", EXTRA_DEVICE]);
            }
        }
    }
}

/// Returns the address of a pod of generated clusters. Pod 0 uses the network of the node.
pub(crate) fn pod_address(pod: usize, v4: bool) -> IpAddr {
    let node = pod % 3;
    let text = match (pod, v4) {
        (0, true) => "192.168.0.1".to_owned(),
        (0, false) => "fd00:168::1".to_owned(),
        (_, true) => format!("10.244.{node}.{pod}"),
        (_, false) => format!("fd00:244:0:{node}::{pod}"),
    };
    text.parse().expect("an IP address")
}

/// Returns the sockets of a pod, in both families.
pub(crate) fn pod_sockets(pod: usize) -> impl Iterator<Item = SocketAddr> {
    [true, false].into_iter().flat_map(move |v4| PORTS.map(|port| SocketAddr::new(pod_address(pod, v4), port)))
}

/// Returns the addresses of the node, without the additional ones.
pub(crate) fn node_addresses() -> Vec<IpAddr> {
    let all = ["192.168.0.1", "192.168.7.1", "192.168.8.1", "10.244.0.1", "127.0.0.1"];
    let all = all.into_iter().chain(["fd00:168::1", "fd00:7::1", "fd00:8::1", "fd00:244::1", "::1"]);
    all.map(|address| address.parse().expect("an IP address")).collect()
}

/// Returns the node's address on its way to another machine.
pub(crate) fn node_address_towards(to: IpAddr) -> IpAddr {
    let is_to = |network: &str| network.parse::<IpNet>().expect("a network").contains(&to);
    let (_, address) = NETWORKS.iter().find(|(network, _)| is_to(network)).expect("there is a default route");
    address.parse().expect("an IP address")
}

/// Pods of the node that have a separate namespace.
const LOCAL_PODS: [usize; 3] = [3, 6, 9];
/// Pods of other nodes.
const REMOTE_PODS: [usize; 8] = [1, 2, 4, 5, 7, 8, 10, 11];
/// The node's networks, the last one for all other addresses, and its address in each.
const NETWORKS: [(&str, &str); 10] = [
    ("192.168.0.0/24", "192.168.0.1"),
    ("10.244.0.0/24", "10.244.0.1"),
    ("10.244.0.0/16", "192.168.8.1"),
    ("192.168.8.0/24", "192.168.8.1"),
    ("0.0.0.0/0", "192.168.7.1"),
    ("fd00:168::/64", "fd00:168::1"),
    ("fd00:244::/64", "fd00:244::1"),
    ("fd00:244::/32", "fd00:8::1"),
    ("fd00:8::/64", "fd00:8::1"),
    ("::/0", "fd00:7::1"),
];
/// The number of pods.
pub(crate) const PODS: usize = 12;
/// The ports of all pods in generated clusters.
pub(crate) const PORTS: [u16; 3] = [8080, 9000, 9001];
/// Addresses that the node has only at some times.
pub(crate) const EXTRA_ADDRESSES: [&str; 2] = ["10.99.0.1", "fd00:99::1"];
/// Not a device through which packets leave the node: the additional addresses must not become their sources.
const EXTRA_DEVICE: &str = "extra0";
