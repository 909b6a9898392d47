//! The rules of kube-proxy for the Service `web`, in each of its modes.

use std::{fs, net::SocketAddr};

use ferroute_testing::NetNs;

use crate::{
    cluster::{PODS, PORT, pod_addresses},
    web_tcp, web_udp,
};

/// Adds recorded rules of kube-proxy's iptables mode, with replaced addresses. The recording of IPv4 consists of two Services
/// with one protocol each.
pub(crate) fn iptables(node: &NetNs) {
    let restore = |program: &str, rules: &str| _ = node.feed(program, &["--noflush"], rules);
    restore("iptables-restore", &recorded("clusterip-three-endpoints/expected/iptables-save.txt", |_| true));
    // Declared chains are flushed, so only the Service's own chains are declared.
    let of_service = |line: &str| {
        [":KUBE-SVC-", ":KUBE-SEP-"].iter().any(|start| line.starts_with(start)) || line.contains("ns1/web")
    };
    let rules = recorded("clusterip-udp/expected/iptables-save.txt", of_service);
    restore("iptables-restore", &format!("*nat\n{rules}COMMIT\n"));
    restore("ip6tables-restore", &recorded("ipv6-only/expected/ip6tables-save.txt", |_| true));
}

/// Returns the matching lines of a recording, with replaced addresses.
fn recorded(path: &str, matches: impl Fn(&str) -> bool) -> String {
    let scenarios = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/scenarios");
    let mut rules = fs::read_to_string(format!("{scenarios}/{path}")).unwrap();
    for (recorded, replacement) in [
        ("10.96.1.1/", "10.96.0.1/"),
        ("10.180.1.2", "10.244.0.2"),
        ("10.180.1.3", "10.244.0.3"),
        ("10.180.2.2", "10.244.0.4"),
        ("10.180.0.0/16", "10.244.0.0/16"),
        ("fd00:10:96::11/", "fd00:96::1/"),
        ("fd00:10:180:1::2", "fd00:244::2"),
        ("fd00:10:180:2::2", "fd00:244::3"),
        ("fd00:10:180::/48", "fd00:244::/64"),
        (":53", ":8080"),
        // The rule's packet counter does not exist in the test.
        ("-m nfacct --nfacct-name  ct_state_invalid_dropped_pkts ", ""),
    ] {
        rules = rules.replace(recorded, replacement);
    }
    // KUBE-FIREWALL is also a chain of the kubelet.
    let keeps = |line: &&str| !line.contains("KUBE-FIREWALL") && matches(line);
    rules.lines().filter(keeps).map(|line| format!("{line}\n")).collect()
}

/// Adds tables with the structure of kube-proxy's nftables mode: verdict maps, and a chain per service port and endpoint.
pub(crate) fn nftables(node: &NetNs) {
    for (index, (family, pods)) in [("ip", "10.244.0.0/16"), ("ip6", "fd00:244::/64")].into_iter().enumerate() {
        let mut rules = nftables_without_ports(family, &web_tcp()[index]);
        for (protocol, to) in [("tcp", web_tcp()[index]), ("udp", web_udp()[index])] {
            let mut choices = Vec::new();
            for pod in 0..PODS {
                let endpoint = SocketAddr::from((pod_addresses(pod)[index], PORT));
                let address = endpoint.ip();
                let address_in_name = address.to_string().replace(':', ".");
                let chain =
                    format!("endpoint-ABCDEFG{pod}-default/web/{protocol}/{protocol}__{address_in_name}/{PORT}");
                rules.push_str(&format!(
                    "add chain {family} kube-proxy {chain}
                    add rule {family} kube-proxy {chain} {family} saddr {address} jump mark-for-masquerade
                    add rule {family} kube-proxy {chain} meta l4proto {protocol} dnat to {endpoint}\n"
                ));
                choices.push(format!("{pod} : goto {chain}"));
            }
            let chain = format!("service-ABCDEFGH-default/web/{protocol}/{protocol}");
            let (count, choices, address, port) = (choices.len(), choices.join(", "), to.ip(), to.port());
            rules.push_str(&format!(
                "add chain {family} kube-proxy {chain}
                add rule {family} kube-proxy {chain} {family} daddr {address} {protocol} dport {port} {family} saddr != {pods} jump mark-for-masquerade
                add rule {family} kube-proxy {chain} numgen random mod {count} vmap {{ {choices} }}
                add element {family} kube-proxy service-ips {{ {address} . {protocol} . {port} : goto {chain} }}\n"
            ));
        }
        node.feed("nft", &["-f", "-"], &rules);
    }
}

fn nftables_without_ports(family: &str, to: &SocketAddr) -> String {
    let (address, kind) = (to.ip(), if to.is_ipv4() { "ipv4_addr" } else { "ipv6_addr" });
    format!(
        "
        add table {family} kube-proxy {{ comment \"rules for kube-proxy\"; }}
        add chain {family} kube-proxy mark-for-masquerade
        add rule {family} kube-proxy mark-for-masquerade mark set mark or 0x4000
        add chain {family} kube-proxy masquerading
        add rule {family} kube-proxy masquerading mark and 0x4000 == 0 return
        add rule {family} kube-proxy masquerading mark set mark xor 0x4000
        add rule {family} kube-proxy masquerading masquerade fully-random
        add map {family} kube-proxy service-ips {{ type {kind} . inet_proto . inet_service : verdict; }}
        add set {family} kube-proxy cluster-ips {{ type {kind}; elements = {{ {address} }}; }}
        add chain {family} kube-proxy services
        add rule {family} kube-proxy services {family} daddr . meta l4proto . th dport vmap @service-ips
        add chain {family} kube-proxy cluster-ips-check
        add rule {family} kube-proxy cluster-ips-check {family} daddr @cluster-ips reject
        add chain {family} kube-proxy filter-forward {{ type filter hook forward priority 0; }}
        add rule {family} kube-proxy filter-forward ct state new jump cluster-ips-check
        add chain {family} kube-proxy nat-prerouting {{ type nat hook prerouting priority -100; }}
        add rule {family} kube-proxy nat-prerouting jump services
        add chain {family} kube-proxy nat-output {{ type nat hook output priority -100; }}
        add rule {family} kube-proxy nat-output jump services
        add chain {family} kube-proxy nat-postrouting {{ type nat hook postrouting priority 100; }}
        add rule {family} kube-proxy nat-postrouting jump masquerading
        "
    )
}

/// Adds the sets and rules of kube-proxy's ipvs mode, without virtual servers, which few test kernels support.
pub(crate) fn ipvs(node: &NetNs) {
    node.feed("ipset", &["restore"], include_str!("../../../../conformance/vm/kube-proxy-sets.txt"));
    node.feed("iptables-restore", &["--noflush"], include_str!("../../../../conformance/vm/kube-proxy-rules.txt"));
}
