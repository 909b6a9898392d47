//! What kube-proxy leaves on a node, mode by mode, as it writes it for the Service `web` over TCP and IPv4.

use std::fs;

use ferroute_testing::NetNs;

/// The rules of kube-proxy's iptables mode, as they were recorded for a Service with three endpoints; only addresses are
/// others.
pub(crate) fn iptables(node: &NetNs) {
    let recorded = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../conformance/scenarios/clusterip-three-endpoints/expected/iptables-save.txt"
    );
    let mut rules = fs::read_to_string(recorded).unwrap();
    for (theirs, ours) in [
        ("10.96.1.1/", "10.96.0.1/"),
        ("10.180.1.2", "10.244.0.2"),
        ("10.180.1.3", "10.244.0.3"),
        ("10.180.2.2", "10.244.0.4"),
        ("10.180.0.0/16", "10.244.0.0/16"),
        // The packet counter that the rule names is not there, and not what this is about.
        ("-m nfacct --nfacct-name  ct_state_invalid_dropped_pkts ", ""),
    ] {
        assert!(rules.contains(theirs), "{theirs} is not recorded");
        rules = rules.replace(theirs, ours);
    }
    // The kubelet's as well, and there already.
    let rules: String =
        rules.lines().filter(|line| !line.contains("KUBE-FIREWALL")).map(|line| format!("{line}\n")).collect();
    node.feed("iptables-restore", &["--noflush"], &rules);
}

/// The table of kube-proxy's nftables mode in its shape: verdicts in maps, a chain for the Service and one for each
/// endpoint.
pub(crate) fn nftables(node: &NetNs) {
    let mut endpoints = String::new();
    for pod in 2..5 {
        let chain = format!("endpoint-ABCDEFG{pod}-default/web/tcp/tcp__10.244.0.{pod}/8080");
        endpoints.push_str(&format!(
            "add chain ip kube-proxy {chain}\n\
             add rule ip kube-proxy {chain} ip saddr 10.244.0.{pod} jump mark-for-masquerade\n\
             add rule ip kube-proxy {chain} meta l4proto tcp dnat to 10.244.0.{pod}:8080\n"
        ));
    }
    let goto =
        |n: u8| format!("{n} : goto endpoint-ABCDEFG{pod}-default/web/tcp/tcp__10.244.0.{pod}/8080", pod = n + 2);
    let choice = [0, 1, 2].map(goto).join(", ");
    let rules = format!(
        "
        add table ip kube-proxy {{ comment \"rules for kube-proxy\"; }}
        add chain ip kube-proxy mark-for-masquerade
        add rule ip kube-proxy mark-for-masquerade mark set mark or 0x4000
        add chain ip kube-proxy masquerading
        add rule ip kube-proxy masquerading mark and 0x4000 == 0 return
        add rule ip kube-proxy masquerading mark set mark xor 0x4000
        add rule ip kube-proxy masquerading masquerade fully-random
        add map ip kube-proxy service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
        add set ip kube-proxy cluster-ips {{ type ipv4_addr; elements = {{ 10.96.0.1 }}; }}
        add chain ip kube-proxy services
        add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips
        add chain ip kube-proxy cluster-ips-check
        add rule ip kube-proxy cluster-ips-check ip daddr @cluster-ips reject
        add chain ip kube-proxy filter-forward {{ type filter hook forward priority 0; }}
        add rule ip kube-proxy filter-forward ct state new jump cluster-ips-check
        add chain ip kube-proxy nat-prerouting {{ type nat hook prerouting priority -100; }}
        add rule ip kube-proxy nat-prerouting jump services
        add chain ip kube-proxy nat-output {{ type nat hook output priority -100; }}
        add rule ip kube-proxy nat-output jump services
        add chain ip kube-proxy nat-postrouting {{ type nat hook postrouting priority 100; }}
        add rule ip kube-proxy nat-postrouting jump masquerading
        {endpoints}
        add chain ip kube-proxy service-ABCDEFGH-default/web/tcp/tcp
        add rule ip kube-proxy service-ABCDEFGH-default/web/tcp/tcp ip daddr 10.96.0.1 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade
        add rule ip kube-proxy service-ABCDEFGH-default/web/tcp/tcp numgen random mod 3 vmap {{ {choice} }}
        add element ip kube-proxy service-ips {{ 10.96.0.1 . tcp . 80 : goto service-ABCDEFGH-default/web/tcp/tcp }}
        "
    );
    node.feed("nft", &["-f", "-"], &rules);
}

/// The sets and rules of kube-proxy's ipvs mode. Few kernels have virtual servers, so nothing answers by these.
pub(crate) fn ipvs(node: &NetNs) {
    for (set, kind) in [
        ("KUBE-CLUSTER-IP", "hash:ip,port"),
        ("KUBE-LOOP-BACK", "hash:ip,port,ip"),
        ("KUBE-LOAD-BALANCER", "hash:ip,port"),
        ("KUBE-LOAD-BALANCER-FW", "hash:ip,port"),
        ("KUBE-NODE-PORT-TCP", "bitmap:port range 0-65535"),
        ("KUBE-HEALTH-CHECK-NODE-PORT", "bitmap:port range 0-65535"),
        ("KUBE-IPVS-IPS", "hash:ip"),
        ("KUBE-6-CLUSTER-IP", "hash:ip,port family inet6"),
    ] {
        node.command("ipset", &[&["create", set], &kind.split(' ').collect::<Vec<_>>()[..]].concat());
    }
    node.command("ipset", &["add", "KUBE-CLUSTER-IP", "10.96.0.1,tcp:80"]);
    node.feed("iptables-restore", &["--noflush"], IPVS);
}

const IPVS: &str = r#"*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES ! -s 10.244.0.0/16 -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
-A FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
-A KUBE-NODE-PORT -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT
-A KUBE-PROXY-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
-A KUBE-IPVS-OUT-FILTER -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j RETURN
COMMIT
"#;
