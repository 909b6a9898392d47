//! The steps that create the cluster's networks. Pure.
//!
//! Pods only have host routes: one to the gateway, and a default route through it. The node therefore routes packets
//! between its pods through its rules, and replies of a Service's endpoint return through the node, even without
//! `br_netfilter`. Loading that module would affect the host's own bridges.

use ferroute_core::IpFamily;

use crate::{
    instance::Instance,
    layout::{Addresses, BRIDGE, LAN, NodeId, OUTSIDE, gateway_addresses, outside_addresses},
    plan::PlannedPod,
};

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Create a network namespace.
    Namespace(String),
    /// Write sysctls in a namespace.
    Sysctls { namespace: String, values: Vec<Sysctl> },
    /// Run a batch of `ip -n NAMESPACE` commands.
    Links { namespace: String, lines: Vec<String> },
}

/// A sysctl and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sysctl {
    /// The path below `/proc/sys`.
    pub(crate) path: &'static str,
    pub(crate) value: &'static str,
    /// Whether it is ignored if the kernel does not have it.
    pub(crate) optional: bool,
}

/// Returns the steps for the machines and the network between them.
pub(crate) fn machines(instance: &Instance, ipv6: bool) -> Vec<Step> {
    let lan = instance.namespace(LAN);
    let gateway = gateway_addresses(ipv6);
    let mut lines = vec!["link set lo up".to_owned(), format!("link add {LAN} type bridge")];
    lines.extend(addresses(&gateway, LAN, [24, 64]));
    lines.push(format!("link set {LAN} up"));
    // Reject packets to unknown destinations at once, instead of a timeout.
    lines.push("route add unreachable 0.0.0.0/0".to_owned());
    lines.extend(ipv6.then(|| "route add unreachable ::/0".to_owned()));
    // For ICMP errors to pods.
    lines.extend(NodeId::ALL.into_iter().flat_map(|node| route_to_pods(node, ipv6)));
    let mut steps = namespace(&lan, &[&HOST[..], &ROUTER[..], &SWITCH[..]].concat(), ipv6);
    steps.push(Step::Links { namespace: lan.clone(), lines });

    let nodes = NodeId::ALL.map(|node| (node.name(), node.addresses(ipv6)));
    for (name, own) in nodes.into_iter().chain([(OUTSIDE, outside_addresses(ipv6))]) {
        let machine = instance.namespace(name);
        let node = NodeId::from_name(name);
        let sysctls = if node.is_some() { [&HOST[..], &ROUTER[..], &NODE[..]].concat() } else { HOST.to_vec() };
        steps.extend(namespace(&machine, &sysctls, ipv6));
        steps.push(Step::Links { namespace: lan.clone(), lines: attach(name, LAN, &machine) });
        let mut lines = vec!["link set lo up".to_owned()];
        lines.extend(addresses(&own, "eth0", [24, 64]));
        lines.push("link set eth0 up".to_owned());
        match node {
            Some(node) => lines.extend(node_lines(node, ipv6)),
            // The external client reaches all addresses through the first node, including cluster IPs and load balancer IPs.
            None => lines.extend(default_routes(&NodeId::Node.addresses(ipv6))),
        }
        steps.push(Step::Links { namespace: machine, lines });
    }
    steps
}

/// Returns the steps for a pod's network.
pub(crate) fn pod(instance: &Instance, pod: &PlannedPod) -> Vec<Step> {
    let ipv6 = pod.addresses.v6.is_some();
    let own = instance.namespace(&pod.short_name());
    let mut steps = namespace(&own, &HOST, ipv6);
    let mut lines = attach(&device(pod), BRIDGE, &own);
    // Hairpin: a pod may reach itself through a Service.
    lines.push(format!("link set {} type bridge_slave hairpin on", device(pod)));
    steps.push(Step::Links { namespace: instance.namespace(pod.node.name()), lines });
    let gateway = pod.node.bridge_addresses(ipv6);
    let mut lines = vec!["link set lo up".to_owned()];
    lines.extend(addresses(&pod.addresses, "eth0", [32, 128]));
    lines.push("link set eth0 up".to_owned());
    lines.extend(gateway.iter().map(|address| format!("route add {address} dev eth0")));
    lines.extend(default_routes(&gateway));
    steps.push(Step::Links { namespace: own, lines });
    steps
}

/// Returns the name of the node's end of a pod's veth pair.
pub(crate) fn device(pod: &PlannedPod) -> String {
    format!("veth{}", pod.addresses.v4.octets()[3])
}

fn node_lines(node: NodeId, ipv6: bool) -> Vec<String> {
    let mut lines = vec![format!("link add {BRIDGE} type bridge")];
    lines.extend(addresses(&node.bridge_addresses(ipv6), BRIDGE, [24, 64]));
    lines.push(format!("link set {BRIDGE} up"));
    lines.extend(default_routes(&gateway_addresses(ipv6)));
    let others = NodeId::ALL.into_iter().filter(|other| *other != node);
    lines.extend(others.flat_map(|other| route_to_pods(other, ipv6)));
    lines
}

fn namespace(name: &str, sysctls: &[Sysctl], ipv6: bool) -> Vec<Step> {
    let values = sysctls.iter().copied().filter(|sysctl| ipv6 || !sysctl.path.starts_with("net/ipv6/")).collect();
    vec![Step::Namespace(name.to_owned()), Step::Sysctls { namespace: name.to_owned(), values }]
}

/// Returns commands for a veth pair from a bridge port to `eth0` of another namespace.
fn attach(port: &str, bridge: &str, namespace: &str) -> Vec<String> {
    vec![
        format!("link add {port} type veth peer name eth0 netns {namespace}"),
        format!("link set {port} master {bridge}"),
        format!("link set {port} up"),
    ]
}

fn addresses(addresses: &Addresses, device: &str, prefixes: [u8; 2]) -> Vec<String> {
    let each = addresses.iter().map(|address| match IpFamily::of(address) {
        IpFamily::V4 => format!("addr add {address}/{} dev {device}", prefixes[0]),
        // Addresses are unique; duplicate address detection would take seconds.
        IpFamily::V6 => format!("addr add {address}/{} dev {device} nodad", prefixes[1]),
    });
    each.collect()
}

fn route_to_pods(node: NodeId, ipv6: bool) -> Vec<String> {
    let via = node.addresses(ipv6);
    via.iter().map(|via| format!("route add {} via {via}", node.pod_network(IpFamily::of(via)))).collect()
}

fn default_routes(gateway: &Addresses) -> Vec<String> {
    gateway.iter().map(|address| format!("route add default via {address}")).collect()
}

/// The sysctls of all machines and pods. New namespaces inherit the host's IPv4 settings.
const HOST: [Sysctl; 8] = [
    sysctl("net/ipv4/conf/all/rp_filter", "0"),
    sysctl("net/ipv4/conf/default/rp_filter", "0"),
    optional("net/ipv6/conf/all/disable_ipv6", "0"),
    optional("net/ipv6/conf/default/disable_ipv6", "0"),
    // No duplicate address detection.
    optional("net/ipv6/conf/all/accept_dad", "0"),
    optional("net/ipv6/conf/default/accept_dad", "0"),
    // No redirects that bypass the node between pods.
    optional("net/ipv6/conf/default/accept_redirects", "0"),
    sysctl("net/ipv4/ip_forward", "0"),
];

/// The sysctls of machines that forward packets. ICMP errors are not rate limited, so that every connection is rejected.
const ROUTER: [Sysctl; 6] = [
    sysctl("net/ipv4/ip_forward", "1"),
    optional("net/ipv6/conf/all/forwarding", "1"),
    sysctl("net/ipv4/conf/all/send_redirects", "0"),
    sysctl("net/ipv4/conf/default/send_redirects", "0"),
    optional("net/ipv4/icmp_ratelimit", "0"),
    optional("net/ipv6/icmp/ratelimit", "0"),
];

/// The sysctls of nodes: with `br_netfilter`, bridged packets go through the rules, as on other Kubernetes nodes.
const NODE: [Sysctl; 2] =
    [optional("net/bridge/bridge-nf-call-iptables", "1"), optional("net/bridge/bridge-nf-call-ip6tables", "1")];

/// The sysctls of the switch, which has no rules.
const SWITCH: [Sysctl; 2] =
    [optional("net/bridge/bridge-nf-call-iptables", "0"), optional("net/bridge/bridge-nf-call-ip6tables", "0")];

const fn sysctl(path: &'static str, value: &'static str) -> Sysctl {
    Sysctl { path, value, optional: false }
}

const fn optional(path: &'static str, value: &'static str) -> Sysctl {
    Sysctl { path, value, optional: true }
}
