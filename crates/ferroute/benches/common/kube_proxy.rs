//! The rules of kube-proxy 1.36 in nftables mode, as a kernel lists them, for a cluster of any size.

use std::fmt::Write as _;

use ferroute_testing::NetNs;

use super::{
    arguments::Mode,
    cluster::{CLUSTER_CIDR, NODE_IP, PORT, Size, TARGET_PORT, cluster_ip, endpoint},
};

/// Reports whether these rules are a mode's counterpart, and written in seconds.
pub(crate) fn is_comparable(mode: Mode, size: Size) -> bool {
    mode == Mode::Nftables && size.services <= MAX_SERVICES
}

/// Writes the rules with `nft`.
pub(crate) fn write_rules(node: &NetNs, size: Size) {
    node.feed("nft", &["-f", "-"], &rules(size));
}

fn rules(size: Size) -> String {
    let mut text = fixed();
    for number in 0..size.services {
        let (service, chain) = (cluster_ip(number), chain(number));
        let endpoints: Vec<String> =
            (0..size.endpoints).map(|i| format!("{i} : {} . {TARGET_PORT}", endpoint(size, number, i))).collect();
        writeln!(
            text,
            "table ip kube-proxy {{
                set cluster-ips {{ type ipv4_addr; elements = {{ {service} }}; }}
                chain {chain} {{ meta l4proto tcp dnat ip to numgen random mod {} map {{ {} }}; }}
                map service-ips {{
                    type ipv4_addr . inet_proto . inet_service : verdict
                    elements = {{ {service} . tcp . {PORT} : goto {chain} }}
                }}
            }}",
            size.endpoints,
            endpoints.join(", ")
        )
        .unwrap();
    }
    text
}

/// Eight characters of a digest are part of each name.
fn chain(number: u32) -> String {
    format!("service-{number:08X}-bench/svc-{number:06}/tcp/http")
}

/// The chains, sets and maps that do not depend on the Services.
fn fixed() -> String {
    let frontend = "ip daddr . meta l4proto . th dport vmap";
    let frontends = "type ipv4_addr . inet_proto . inet_service : verdict";
    let ports = "type inet_proto . inet_service : verdict";
    format!(
        "table ip kube-proxy {{
            set hairpin-connections {{ type ipv4_addr . ipv4_addr . inet_proto . inet_service; }}
            set cluster-ips {{ type ipv4_addr; }}
            set nodeport-ips {{ type ipv4_addr; elements = {{ {NODE_IP} }}; }}
            map no-endpoint-services {{ {frontends}; }}
            map no-endpoint-nodeports {{ {ports}; }}
            map firewall-ips {{ {frontends}; }}
            map service-ips {{ {frontends}; }}
            map service-nodeports {{ {ports}; }}
            chain nodeport-endpoints-check {{ ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }}
            chain service-endpoints-check {{ {frontend} @no-endpoint-services; }}
            chain firewall-check {{ {frontend} @firewall-ips; }}
            chain services {{
                ip daddr @cluster-ips ip saddr != {CLUSTER_CIDR} meta mark set meta mark | 0x00004000
                {frontend} @service-ips
                ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
            }}
            chain masquerading {{
                meta mark & 0x00004000 != 0 meta mark set meta mark ^ 0x00004000 masquerade fully-random
                ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
            }}
            chain cluster-ips-check {{ ip daddr @cluster-ips reject; }}
            chain filter-prerouting-pre-dnat {{
                type filter hook prerouting priority dstnat - 10
                ct state new jump firewall-check
            }}
            chain filter-output-pre-dnat {{ type filter hook output priority -110; ct state new jump firewall-check; }}
            chain filter-input {{
                type filter hook input priority filter
                ct state new jump nodeport-endpoints-check
                ct state new jump service-endpoints-check
            }}
            chain filter-forward {{
                type filter hook forward priority filter
                ct state new jump service-endpoints-check
                ct state new jump cluster-ips-check
            }}
            chain filter-output {{
                type filter hook output priority filter
                ct state new jump service-endpoints-check
                ct state new jump cluster-ips-check
            }}
            chain nat-prerouting {{ type nat hook prerouting priority dstnat; jump services; }}
            chain nat-output {{ type nat hook output priority -100; jump services; }}
            chain nat-postrouting {{ type nat hook postrouting priority srcnat; jump masquerading; }}
        }}\n"
    )
}

/// The most Services that `nft` writes in seconds.
const MAX_SERVICES: u32 = 1_000;
