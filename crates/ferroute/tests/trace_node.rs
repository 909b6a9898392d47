//! `ferroute trace --kernel` on nodes with routes, sets and rules of real network plugins.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::process::{Command, Output};

use ferroute_testing::NetNs;

/// A node with `eth0`, `eth1` and pod interfaces without addresses.
fn node() -> NetNs {
    let node = NetNs::new();
    for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
        node.command("sysctl", &["-qw", setting]);
    }
    for device in ["eth0", "eth1", "cali1", "cali2"] {
        add_interface(&node, device);
    }
    for (address, device) in [
        ("192.168.6.121/24", "eth0"),
        ("fd00:6::121/64", "eth0"),
        ("192.168.7.121/24", "eth1"),
        ("fd00:7::121/64", "eth1"),
    ] {
        node.add_address(address, device);
    }
    run(&node, "ip route add default via 192.168.6.1");
    run(&node, "ip -6 route add default via fd00:6::1");
    for (address, device) in
        [("10.244.1.5", "cali1"), ("10.244.1.6", "cali2"), ("fd00:244::5", "cali1"), ("fd00:244::6", "cali2")]
    {
        run(&node, &format!("ip route add {address} dev {device}"));
    }
    node
}

fn add_interface(node: &NetNs, name: &str) {
    run(node, &format!("ip link add {name} type bridge"));
    run(node, &format!("ip link set {name} up"));
}

fn run(node: &NetNs, command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    node.command(words[0], &words[1..]);
}

fn rules(node: &NetNs, text: &str) {
    node.feed("nft", &["-f", "-"], text);
}

fn trace(node: &NetNs, arguments: &str) -> Output {
    node.run(|| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
        command
            .args(["trace", "--kernel", "--hostname-override", "node-a"])
            .args(arguments.split(' '))
            .output()
            .unwrap()
    })
}

/// Returns the result in the last lines that begin with an arrow or name a route.
fn results(node: &NetNs, arguments: &str) -> Vec<String> {
    let output = trace(node, arguments);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let is_result = |line: &&str| ["=> ", "routed ", "dropped by"].iter().any(|start| line.starts_with(start));
    let lines: Vec<String> = text.lines().filter(is_result).map(str::to_owned).collect();
    assert!(!lines.is_empty(), "{arguments}: {output:?}");
    lines
}

const NO_FORWARD_FROM_PODS: &str = "table inet f {
    chain fw {
        type filter hook forward priority 0; policy accept;
        iifname \"cali1\" oifname \"cali2\" drop
    }
}";

const MASQUERADE: &str = "table inet n {
    chain post {
        type nat hook postrouting priority 100;
        masquerade
    }
}";

#[test]
fn pods_behind_interfaces_without_addresses_are_reached_through_them() {
    let node = node();
    for (from, to) in [("10.244.1.5", "10.244.1.6:8080"), ("fd00:244::5", "[fd00:244::6]:8080")] {
        let output = trace(&node, &format!("--from {from} --to {to}"));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("arriving on cali1, the interface to"), "{text}");
        assert!(text.contains("routed through cali2\n"), "{text}");
    }
    rules(&node, NO_FORWARD_FROM_PODS);
    for (from, to) in [("10.244.1.5", "10.244.1.6:8080"), ("fd00:244::5", "[fd00:244::6]:8080")] {
        assert_eq!(results(&node, &format!("--from {from} --to {to}")), ["routed through cali2", "=> dropped"]);
    }
}

/// The kernel looks up no routes for SCTP.
#[test]
fn packets_of_sctp_are_routed() {
    let node = node();
    run(&node, "ip route add default via 192.168.7.1 dev eth1 table 100");
    run(&node, "ip -6 route add default via fd00:7::1 dev eth1 table 100");
    for (from, to) in [("10.244.1.5", "203.0.113.7"), ("fd00:244::5", "[2001:db8::7]")] {
        let routed = |port: u16| results(&node, &format!("--proto sctp --from {from} --to {to}:{port}")).remove(0);
        assert_eq!(routed(80), "routed through eth0");
        let family = if from.contains(':') { "-6" } else { "-4" };
        run(&node, &format!("ip {family} rule add iif cali1 lookup 100"));
        assert_eq!(routed(80), "routed through eth1");
        let local = results(&node, &format!("--proto sctp --local --to {to}:80")).remove(0);
        assert_eq!(local, "routed through eth0");
    }
    rules(&node, "table inet t { chain c { type filter hook forward priority 0; sctp chunk init exists drop; }; }");
    assert_eq!(results(&node, "--proto sctp --from 10.244.1.5 --to 10.244.1.6:80").last().unwrap(), "=> dropped");
}

#[test]
fn masquerading_to_interface_without_address_uses_another_one() {
    let node = node();
    rules(&node, MASQUERADE);
    assert_eq!(
        results(&node, "--from 10.244.1.5 --to 10.244.1.6:80").last().unwrap(),
        "=> not translated, delivered to 10.244.1.6:80 through cali2, with source 192.168.6.121"
    );
    assert!(
        results(&node, "--from fd00:244::5 --to [fd00:244::6]:80").last().unwrap().contains("with source fd00:6::121")
    );
    // Among several addresses, the one in the network of the next hop.
    node.add_address("192.168.9.121/24", "eth0");
    run(&node, "ip route add 203.0.113.0/24 via 192.168.9.1");
    assert!(
        results(&node, "--from 10.244.1.5 --to 203.0.113.9:80")
            .last()
            .unwrap()
            .contains("eth0, with source 192.168.9.121")
    );
}

#[test]
fn policy_rules_decide_by_source_interface_and_mark() {
    let node = node();
    for (table, device, via) in [("100", "eth1", "192.168.7.1"), ("101", "cali2", "")] {
        let via = if via.is_empty() { String::new() } else { format!(" via {via}") };
        run(&node, &format!("ip route add default{via} dev {device} table {table}"));
    }
    run(&node, "ip -6 route add default via fd00:7::1 table 100");
    run(&node, "ip rule add from 10.244.1.5 to 198.51.100.0/24 lookup 100");
    run(&node, "ip rule add iif cali2 to 198.51.100.0/24 lookup 100");
    run(&node, "ip rule add fwmark 0x80/0xff lookup 101");
    run(&node, "ip -6 rule add from fd00:244::5 lookup 100");
    assert_eq!(results(&node, "--from 10.244.1.5 --to 198.51.100.7:80")[0], "routed through eth1");
    assert_eq!(results(&node, "--from 10.244.1.6 --to 198.51.100.7:80")[0], "routed through eth1");
    assert_eq!(results(&node, "--from 10.244.1.5 --to 203.0.113.7:80")[0], "routed through eth0");
    assert_eq!(results(&node, "--from fd00:244::5 --to [2001:db8::7]:80")[0], "routed through eth1");
    assert_eq!(results(&node, "--from fd00:244::6 --to [2001:db8::7]:80")[0], "routed through eth0");
    rules(
        &node,
        "table ip m { chain pre { type filter hook prerouting priority -150; tcp dport 81 meta mark set 0x80; }; }",
    );
    assert_eq!(results(&node, "--from 10.244.1.5 --to 203.0.113.7:81")[0], "routed through cali2");
    rules(
        &node,
        "table ip m { chain out { type route hook output priority -150; tcp dport 81 meta mark set 0x80; }; }",
    );
    assert_eq!(
        results(&node, "--local --to 203.0.113.7:81").last().unwrap().split(", ").nth(1).unwrap(),
        "delivered to 203.0.113.7:81 through cali2"
    );
}

#[test]
fn mark_can_route_packets_of_others_to_this_host() {
    let node = node();
    run(&node, "ip rule add fwmark 0x200/0xf00 lookup 2004");
    run(&node, "ip route add local default dev lo table 2004");
    rules(&node, "table ip m { chain pre { type filter hook prerouting priority -150; meta mark set 0x200; }; }");
    assert_eq!(results(&node, "--from 10.244.1.5 --to 203.0.113.7:80")[0], "routed to this host");
}

#[test]
fn routes_that_refuse_packets_are_named() {
    let node = node();
    for (kind, network) in [
        ("blackhole", "10.244.2.0/24"),
        ("unreachable", "10.244.3.0/24"),
        ("prohibit", "10.244.4.0/24"),
        ("blackhole", "fd00:244:0:2::/64"),
        ("unreachable", "fd00:244:0:3::/64"),
        ("prohibit", "fd00:244:0:4::/64"),
    ] {
        run(&node, &format!("ip route add {kind} {network}"));
    }
    for (arguments, expected) in [
        ("--from 10.244.1.5 --to 10.244.2.1:80", &["dropped by the kernel: blackhole route", "=> dropped"][..]),
        ("--from 10.244.1.5 --to 10.244.3.1:80", &["=> no route to the destination"]),
        (
            "--from 10.244.1.5 --to 10.244.4.1:80",
            &["dropped by the kernel: prohibit route", "=> rejected with icmp-admin-prohibited"],
        ),
        ("--from fd00:244::5 --to [fd00:244:0:2::1]:80", &["dropped by the kernel: blackhole route", "=> dropped"]),
        ("--from fd00:244::5 --to [fd00:244:0:3::1]:80", &["=> no route to the destination"]),
        (
            "--from fd00:244::5 --to [fd00:244:0:4::1]:80",
            &["dropped by the kernel: prohibit route", "=> rejected with icmp6-adm-prohibited"],
        ),
        ("--local --from 192.168.6.121 --to 10.244.2.1:80", &["dropped by the kernel: blackhole route", "=> dropped"]),
    ] {
        assert_eq!(results(&node, arguments), expected, "{arguments}");
    }
    // The packet has been sent when a rule changes its route: TCP gets no error.
    run(&node, "ip rule add fwmark 0x90000/0xff0000 prohibit");
    rules(
        &node,
        "table ip m { chain out { type route hook output priority -150; tcp dport 81 meta mark set 0x90000; }; }",
    );
    let local = "--local --from 192.168.6.121 --to 10.244.1.5:81";
    assert_eq!(results(&node, local)[1..], ["dropped by the kernel: prohibit route", "=> dropped"]);
    run(&node, "sysctl -qw net.ipv4.conf.eth1.rp_filter=1");
    assert_eq!(
        results(&node, "--from 203.0.113.7 --in eth1 --to 10.244.1.6:80"),
        [
            "dropped by the kernel: reverse path filter (rp_filter) of eth1: the route to 203.0.113.7 uses eth0",
            "=> dropped"
        ]
    );
}

#[test]
fn source_of_the_node_is_that_of_the_kernel() {
    let node = node();
    run(&node, "ip route del default");
    // A dummy device in ipvs mode. Its addresses, and secondary ones, belong to the host.
    add_interface(&node, "kube-ipvs0");
    node.add_address("10.96.0.10/32", "kube-ipvs0");
    node.add_address("192.168.6.122/24", "eth0");
    let source = |to: &str| {
        let text = String::from_utf8(trace(&node, &format!("--local --to {to}:80")).stdout).unwrap();
        text.lines().nth(1).unwrap().to_owned()
    };
    for to in ["10.96.0.10", "192.168.6.122", "192.168.7.9"] {
        let route = node.command("ip", &["route", "get", to]);
        let expected = route.split(" src ").nth(1).unwrap().split(' ').next().unwrap();
        assert_eq!(source(to), format!("tcp from {expected}:50000 to {to}:80"));
    }
}

#[test]
fn zones_of_connections_are_followed() {
    let node = node();
    rules(
        &node,
        "table ip z {
            chain raw { type filter hook prerouting priority raw; tcp dport 80 ct zone set 5; }
            chain fw { type filter hook forward priority 0; ct zone 5 drop; ct zone 6 reject; }
        }",
    );
    assert_eq!(results(&node, "--from 10.244.1.5 --to 10.244.1.6:80").last().unwrap(), "=> dropped");
    assert!(results(&node, "--from 10.244.1.5 --to 10.244.1.6:81").last().unwrap().contains("delivered"));
    iptables(&node, "*raw\n-A PREROUTING -p tcp --dport 81 -j CT --zone 6\n");
    let rejected = "=> rejected with icmp port-unreachable";
    assert_eq!(results(&node, "--from 10.244.1.5 --to 10.244.1.6:81").last().unwrap(), rejected);
}

#[test]
fn error_names_a_route_that_refuses_packets() {
    let node = node();
    run(&node, "ip route add blackhole 203.0.113.0/24");
    let output = trace(&node, "--local --to 203.0.113.7:80");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("no route to 203.0.113.7:80 but one that refuses packets (blackhole route)"), "{error}");
}

#[test]
fn multipath_route_uses_one_of_its_interfaces() {
    let node = node();
    run(&node, "ip route add 198.51.100.0/24 nexthop via 192.168.6.1 nexthop via 192.168.7.1");
    let through = |port: u16| results(&node, &format!("--from 10.244.1.5 --to 198.51.100.7:{port}"))[0].clone();
    assert!(["routed through eth0", "routed through eth1"].contains(&through(80).as_str()));
    run(&node, "sysctl -qw net.ipv4.fib_multipath_hash_policy=1");
    let used: std::collections::BTreeSet<String> = (1..40).map(through).collect();
    assert_eq!(used.len(), 2, "{used:?}");
}

#[test]
fn filters_of_sources_accept_any_path() {
    let node = node();
    run(&node, "ip route add 198.51.100.0/24 nexthop via 192.168.6.1 nexthop via 192.168.7.1");
    run(&node, "ip -6 route add 2001:db8:7::/64 nexthop via fd00:6::1 nexthop via fd00:7::1");
    for setting in ["all", "eth0", "eth1"] {
        run(&node, &format!("sysctl -qw net.ipv4.conf.{setting}.rp_filter=0"));
    }
    let ends = |arguments: &str| {
        let text = String::from_utf8(trace(&node, arguments).stdout).unwrap();
        let mut ends: Vec<bool> =
            text.lines().filter_map(|line| line.strip_prefix("=> ")).map(|end| end == "dropped").collect();
        ends.sort_unstable();
        ends
    };
    let check = |kind: &str, is_any_of_ipv6: bool| {
        for (interface, is_path) in [("eth0", true), ("eth1", true), ("cali1", false)] {
            let ipv4 = ends(&format!("--from 198.51.100.7 --in {interface} --to 10.244.1.6:80"));
            assert_eq!(ipv4, [!is_path], "{kind}, {interface}");
            let ipv6 = ends(&format!("--from 2001:db8:7::7 --in {interface} --to [fd00:244::6]:80"));
            let expected = match (is_path, is_any_of_ipv6) {
                // By an unknown hash.
                (true, false) => vec![false, true],
                _ => vec![!is_path],
            };
            assert_eq!(ipv6, expected, "{kind}, {interface}");
        }
    };
    rules(
        &node,
        "table inet r { chain p { type filter hook prerouting priority -300; fib saddr . iif oif missing drop; }; }",
    );
    check("fib", false);
    rules(&node, "flush ruleset");
    for program in ["iptables-nft-restore", "ip6tables-nft-restore"] {
        node.feed(program, &[], "*raw\n-A PREROUTING -m rpfilter --invert -j DROP\nCOMMIT\n");
    }
    check("rpfilter", true);
}

#[test]
fn filters_of_sources_look_up_the_route_back_from_the_destination() {
    let node = node();
    for setting in ["all", "eth0", "eth1"] {
        run(&node, &format!("sysctl -qw net.ipv4.conf.{setting}.rp_filter=0"));
    }
    // As on nodes with separate routing tables for pods.
    run(&node, "ip rule add from 10.244.1.6 lookup 101");
    run(&node, "ip route add default via 192.168.7.1 dev eth1 table 101");
    let is_dropped = |interface: &str, to: &str| {
        let results = results(&node, &format!("--from 203.0.113.9 --in {interface} --to {to}:80"));
        results.last().unwrap() == "=> dropped"
    };
    let check = |kind: &str| {
        for (interface, to, drops) in [
            ("eth0", "10.244.1.5", false),
            ("eth1", "10.244.1.5", true),
            ("eth0", "10.244.1.6", true),
            ("eth1", "10.244.1.6", false),
        ] {
            assert_eq!(is_dropped(interface, to), drops, "{kind}, {interface}, {to}");
        }
    };
    rules(
        &node,
        "table inet r { chain p { type filter hook prerouting priority -300; fib saddr . iif oif missing drop; }; }",
    );
    check("fib");
    rules(&node, "flush ruleset");
    iptables(&node, "*raw\n-A PREROUTING -m rpfilter --invert -j DROP\n");
    check("rpfilter");
}

#[test]
fn networks_of_local_addresses_and_broadcasts_are_known() {
    let node = node();
    run(&node, "ip route add local 203.0.113.0/24 dev lo");
    rules(
        &node,
        "table ip m { chain in { type filter hook input priority 0; fib daddr type broadcast drop; fib daddr type local reject; }; }",
    );
    assert_eq!(results(&node, "--from 10.244.1.5 --to 203.0.113.7:80")[1], "=> rejected with icmp port-unreachable");
    assert_eq!(results(&node, "--from 192.168.6.7 --to 192.168.6.255:80 --proto udp")[1], "=> dropped");
}

#[test]
fn disabled_forwarding_is_noted() {
    let node = node();
    for (setting, arguments) in [
        ("net.ipv4.ip_forward", "--from 10.244.1.5 --to 10.244.1.6:80"),
        ("net.ipv6.conf.all.forwarding", "--from fd00:244::5 --to [fd00:244::6]:80"),
    ] {
        let noted =
            || String::from_utf8(trace(&node, arguments).stdout).unwrap().contains(&format!("note: {setting} is 0"));
        assert!(!noted());
        run(&node, &format!("sysctl -qw {setting}=0"));
        assert!(noted());
        assert_eq!(results(&node, arguments)[0], "routed through cali2");
    }
}

/// Loads iptables rules.
fn iptables(node: &NetNs, text: &str) {
    node.feed("iptables-nft-restore", &[], &format!("{text}COMMIT\n"));
}

#[test]
fn ipsets_of_other_programs_are_read() {
    let node = node();
    for command in [
        "create empty hash:ip",
        "create pods hash:ip timeout 600",
        "add pods 10.244.1.6",
        "create nets hash:net",
        "add nets 10.244.0.0/16",
        "add nets 10.244.1.6 nomatch",
        "create ports hash:ip,port",
        "add ports 10.244.1.6,tcp:80",
        "create ifaces hash:net,iface",
        "add ifaces 10.244.1.0/24,cali1",
        "create bits bitmap:ip range 10.244.1.0/24",
        "add bits 10.244.1.5",
        "create numbers bitmap:port range 0-1000",
        "add numbers 80",
        "create all list:set",
        "add all empty",
        "add all bits",
        "create masked hash:ip netmask 24",
        "add masked 10.244.1.0",
        "create six hash:net family inet6",
        "add six fd00:244::/64",
    ] {
        run(&node, &format!("ipset {command}"));
    }
    for (set, is_member) in [
        ("empty src", false),
        ("pods dst", true),
        ("pods src", false),
        ("nets src", true),
        ("nets dst", false),
        ("ports dst,dst", true),
        ("ports dst,src", false),
        ("ifaces src,src", true),
        ("ifaces dst,dst", false),
        ("bits src", true),
        ("numbers dst", true),
        ("all src", true),
        ("all dst", false),
        ("masked src", true),
    ] {
        iptables(&node, &format!("*filter\n-A FORWARD -m set --match-set {set} -j DROP\n"));
        let results = results(&node, "--from 10.244.1.5 --to 10.244.1.6:80");
        assert_eq!(results.last().unwrap() == "=> dropped", is_member, "{set}: {results:?}");
        assert_eq!(results.len(), 2, "{set}: {results:?}");
    }
    node.feed("ip6tables-nft-restore", &[], "*filter\n-A FORWARD -m set --match-set six src -j DROP\nCOMMIT\n");
    assert_eq!(results(&node, "--from fd00:244::5 --to [fd00:244::6]:80")[1], "=> dropped");
}

#[test]
fn everyday_nftables_lines_are_decided() {
    let node = node();
    rules(
        &node,
        "table inet filter {
            chain input {
                type filter hook input priority 0; policy drop;
                iif lo accept
                iif eth1 accept
                ip saddr 192.168.6.1-192.168.6.9 tcp dport 9999 accept
                tcp flags & (fin|syn|rst|ack) == syn ct mark 0x1 drop
                tcp dport 22 limit rate 5/minute accept
            }
        }",
    );
    let here = |arguments: &str| results(&node, arguments).last().unwrap().clone();
    assert!(
        here("--from 192.168.6.1 --to 192.168.6.121:9999").contains("delivered to 192.168.6.121:9999 on this host")
    );
    assert_eq!(here("--from 192.168.6.10 --to 192.168.6.121:9999"), "=> dropped");
    assert!(here("--from 192.168.7.1 --to 192.168.7.121:1").contains("on this host"));
    assert!(here("--local --to 127.0.0.1:1").contains("on this host"));
    let text = String::from_utf8(trace(&node, "--from 192.168.6.10 --to 192.168.6.121:22 -a").stdout).unwrap();
    for part in [
        "input 1: iif \"lo\" accept\n",
        "input 2: iif \"eth1\" accept\n",
        "tcp flags & (fin | syn | rst | ack) == syn ct mark 0x00000001 drop\n",
        "th dport 22 limit rate 5/minute accept\n",
        "assuming: `limit rate 5/minute` matches\n",
        "assuming: `limit rate 5/minute` does not match\n",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(!text.contains("100.0 %"), "{text}");
}

#[test]
fn elements_apply_with_their_conditions_and_in_their_order() {
    let node = node();
    const TO: &str = "--from 10.244.1.5 --to 10.244.1.6:80";
    let delivered = "=> not translated, delivered to 10.244.1.6:80 through cali2, with source 10.244.1.5";
    let routes = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(routes.path(), ["address", "route"].map(|list| node.command("ip", &[list])).concat()).unwrap();
    for (sets, rule, condition) in [
        (
            "set s { type ipv4_addr; limit rate over 9/second; elements = { 10.244.1.6 }; }",
            "ip daddr @s drop",
            Some("limit rate over 9/second"),
        ),
        (
            "map m { type inet_service : verdict; limit rate over 9/second; elements = { 80 : drop }; }",
            "tcp dport vmap @m",
            Some("limit rate over 9/second"),
        ),
        (
            "set s { type ipv4_addr; flags dynamic; ct count over 3; elements = { 10.244.1.6 }; }",
            "ip daddr @s drop",
            Some("ct count over 3"),
        ),
        (
            "set s { type ipv4_addr . inet_service; flags interval; quota over 9 bytes; elements = { 10.244.1.0/24 . 1-80 }; }",
            "ip daddr . tcp dport @s drop",
            Some("quota over 9 bytes"),
        ),
        (
            "set s { type ipv4_addr; flags interval; limit rate over 9/second; elements = { 10.244.1.0/24 }; }",
            "ip daddr != @s drop",
            None,
        ),
        ("set s { type ipv4_addr; flags timeout; elements = { 10.244.1.5 timeout 1h }; }", "ip daddr @s drop", None),
        (
            "map m { type ipv4_addr . inet_service : verdict; flags interval; elements = {
                10.244.1.6-10.244.1.9 . 80-81 : accept, 10.244.1.2-10.244.1.255 . 70-90 : drop }; }",
            "ip daddr . tcp dport vmap @m",
            None,
        ),
        (
            "map m { type ipv4_addr . inet_service : verdict; flags interval; elements = {
                10.244.1.2-10.244.1.255 . 70-90 : accept, 10.244.1.6-10.244.1.9 . 60-100 : drop }; }",
            "ip daddr . tcp dport vmap @m",
            None,
        ),
    ] {
        rules(
            &node,
            &format!(
                "flush ruleset\ntable ip t {{ {sets}; chain c {{ type filter hook forward priority 0; {rule}; }}; }}"
            ),
        );
        let mut expected = vec![delivered.to_owned()];
        expected.extend(condition.map(|_| "=> dropped".to_owned()));
        let ends = |output: Output| {
            let text = String::from_utf8(output.stdout).unwrap();
            let mut ends: Vec<String> =
                text.lines().filter(|line| line.starts_with("=> ")).map(str::to_owned).collect();
            ends.sort_by_key(|end| end == "=> dropped");
            (ends, text)
        };
        let ruleset = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(ruleset.path(), node.command("nft", &["list", "ruleset"])).unwrap();
        let mut in_file = Command::new(env!("CARGO_BIN_EXE_ferroute"));
        in_file.args(["trace", "--rules"]).arg(ruleset.path()).arg("--routes").arg(routes.path());
        for output in [trace(&node, TO), in_file.args(TO.split(' ')).output().unwrap()] {
            let (ends, text) = ends(output);
            assert_eq!(ends, expected, "{rule}: {text}");
            assert_eq!(text.contains("assuming: "), condition.is_some(), "{rule}: {text}");
            assert!(condition.is_none_or(|condition| text.contains(&format!("`{condition}"))), "{rule}: {text}");
        }
    }
}

/// Returns the constructs of `docs/tracing.md` in the syntax of `nft`, each with its result.
fn documented() -> Vec<(String, &'static str)> {
    let rows = include_str!("../../../docs/tracing.md").lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.filter(|line| !line.starts_with('-')).filter_map(|line| line.split_once("` | "));
    let results = ["decided |", "both branches |", "unknown |"];
    rows.filter(|(_, result)| results.contains(result))
        .map(|(text, result)| (text.replace("\\|", "|"), result))
        .collect()
}

#[test]
fn nftables_constructs_have_their_documented_results() {
    let node = node();
    let rows = documented();
    assert!(rows.len() > 20, "{rows:?}");
    let routes = tempfile::NamedTempFile::new().unwrap();
    let listed = [&["address"][..], &["route"], &["-6", "route"]].map(|command| node.command("ip", command));
    std::fs::write(routes.path(), listed.concat()).unwrap();
    let ends = |text: &str| {
        let mut ends: Vec<String> = text.lines().filter(|line| line.starts_with("=> ")).map(str::to_owned).collect();
        ends.sort();
        ends
    };
    for (text, result) in rows {
        let is_nat = ["redirect", "dnat", "snat"].iter().any(|name| text.starts_with(name));
        let is_statement = is_nat || text.contains(" set ") || text.starts_with("queue") || text.contains(" vmap ");
        let kind =
            if is_nat { "type nat hook prerouting priority -100" } else { "type filter hook prerouting priority -150" };
        let end = if is_statement { "" } else { " drop" };
        rules(
            &node,
            &format!(
                "flush ruleset\ntable inet t {{
                set seen {{ type ipv4_addr; size 9; flags dynamic; }}
                chain c {{ {kind}; meta l4proto tcp {text}{end}; }}; }}"
            ),
        );
        let of_ipv6 = ["exthdr ", "rt ", "frag ", "hbh ", "mh ", "srh "].iter().any(|word| text.starts_with(word));
        let (from, to) = match of_ipv6 {
            true => ("fd00:244::5", "[fd00:6::121]:80"),
            false => ("10.244.1.5", "192.168.6.121:80"),
        };
        let output = trace(&node, &format!("--from {from} --to {to} -a"));
        let shown = String::from_utf8(output.stdout).unwrap();
        let found = match (shown.contains("=> unknown"), shown.contains("assuming: ")) {
            (false, false) => "decided |",
            (false, true) => "both branches |",
            (true, _) => "unknown |",
        };
        assert_eq!(found, result, "{text}: {shown}");
        let is_shown = result != "both branches |" || shown.contains(&format!("`{text}`"));
        assert!(is_shown, "{text} is shown in other words: {shown}");
        // The text of `nft list ruleset` leads to the same.
        let ruleset = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(ruleset.path(), node.command("nft", &["list", "ruleset"])).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
        command.args(["trace", "--from", from, "--to", to, "--rules"]).arg(ruleset.path());
        let output = command.arg("--routes").arg(routes.path()).output().unwrap();
        let in_file = String::from_utf8(output.stdout).unwrap();
        assert_eq!(ends(&in_file), ends(&shown), "{text}: {in_file}\n{shown}");
    }
}

#[test]
fn scripts_lead_to_the_results_of_the_rules_that_they_write() {
    let node = node();
    let routes = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(routes.path(), ["address", "route"].map(|list| node.command("ip", &[list])).concat()).unwrap();
    let nft = "flush ruleset
define PODS = { 10.244.1.5, 10.244.1.6 }
define PORTS = { 80, 8000-8090 }
define LAN = cali*
table inet fw
delete table inet fw
table inet fw {
    chain forward { type filter hook forward priority filter; policy drop; }
    chain own { ip saddr $PODS tcp dport $PORTS accept; }
}
table inet fw {
    chain forward { iifname $LAN jump own; }
}
insert rule inet fw forward ip daddr 10.244.1.9 drop
";
    let iptables = "#!/bin/sh -e
POD=10.244.1.6
iptables -P FORWARD DROP
iptables -N own
iptables -A own -s 10.244.1.5 -p tcp -m multiport --dports 80,8000:8090 \\
    -m comment --comment 'it is \"own\"' -j ACCEPT
iptables -A FORWARD -d $POD -j own
iptables -C FORWARD -j ACCEPT 2>/dev/null || iptables -I FORWARD -d 10.244.1.9 -j DROP
";
    for (text, program) in [(nft, "nft -f"), (iptables, "sh")] {
        let script = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(script.path(), text).unwrap();
        node.command("nft", &["flush", "ruleset"]);
        let words: Vec<&str> = program.split(' ').chain([script.path().to_str().unwrap()]).collect();
        node.command(words[0], &words[1..]);
        for (to, end) in [
            ("10.244.1.6:80", "delivered"),
            ("10.244.1.6:8085", "delivered"),
            ("10.244.1.6:443", "dropped"),
            ("10.244.1.9:80", "dropped"),
        ] {
            let mut in_file = Command::new(env!("CARGO_BIN_EXE_ferroute"));
            in_file.args(["trace", "--from", "10.244.1.5", "--to", to, "--rules"]).arg(script.path());
            let in_file = in_file.arg("--routes").arg(routes.path()).output().unwrap();
            let in_kernel = trace(&node, &format!("--from 10.244.1.5 --to {to}"));
            let last = |output: Output| {
                let text = String::from_utf8(output.stdout).unwrap();
                text.lines().filter(|line| line.starts_with("=> ")).map(str::to_owned).collect::<Vec<_>>()
            };
            let (in_file, in_kernel) = (last(in_file), last(in_kernel));
            assert!(in_kernel.len() == 1 && in_kernel[0].contains(end), "{program} {to}: {in_kernel:?}");
            assert_eq!(in_file, in_kernel, "{program} {to}");
        }
    }
}

/// Scripts have names, and so has the output of `nft -S`.
#[test]
fn names_of_ports_are_read() {
    let node = node();
    let routes = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(routes.path(), ["address", "route"].map(|list| node.command("ip", &[list])).concat()).unwrap();
    let nft = "flush ruleset
table inet fw {
    map ports { type inet_service : verdict; elements = { ssh : accept, http-alt : accept }; }
    chain pre { type nat hook prerouting priority -100; tcp dport https dnat ip to 10.244.1.6:http; tcp dport 30001 dnat ip to 10.244.1.6:http-alt; }
    chain forward { type filter hook forward priority 0; policy drop; tcp dport vmap @ports; tcp dport { http, 30009 } accept; }
}
";
    let iptables = "#!/bin/sh
iptables -t nat -A PREROUTING -p tcp --dport https -j DNAT --to-destination 10.244.1.6:80
iptables -t nat -A PREROUTING -p tcp --dport 30001 -j DNAT --to-destination 10.244.1.6:8080
iptables -P FORWARD DROP
iptables -A FORWARD -p tcp -m multiport --dports ssh,http-alt,30009 -j ACCEPT
iptables -A FORWARD -p tcp --dport http -j ACCEPT
";
    for (text, program) in [(nft, "nft -f"), (iptables, "sh")] {
        let script = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(script.path(), text).unwrap();
        node.command("nft", &["flush", "ruleset"]);
        let words: Vec<&str> = program.split(' ').chain([script.path().to_str().unwrap()]).collect();
        node.command(words[0], &words[1..]);
        let mut files = vec![script];
        if program == "nft -f" {
            let listed = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(listed.path(), node.command("nft", &["-S", "list", "ruleset"])).unwrap();
            files.push(listed);
        }
        for port in [22, 443, 30001, 30009, 80, 8080, 82] {
            let to = format!("10.244.1.6:{port}");
            let expected = results(&node, &format!("--from 10.244.1.5 --to {to}"));
            for file in &files {
                let mut in_file = Command::new(env!("CARGO_BIN_EXE_ferroute"));
                in_file.args(["trace", "--from", "10.244.1.5", "--to", &to, "--rules"]).arg(file.path());
                let output = in_file.arg("--routes").arg(routes.path()).output().unwrap();
                let text = String::from_utf8(output.stdout).unwrap();
                let end = text.lines().rfind(|line| line.starts_with("=> ")).unwrap();
                assert_eq!(end, expected.last().unwrap(), "{program} {to}: {text}");
                assert!(!text.contains("assuming"), "{program} {to}: {text}");
            }
        }
    }
}

#[test]
fn connection_marks_and_translations_of_nftables_are_followed() {
    let node = node();
    rules(
        &node,
        "table ip m {
            chain pre { type filter hook prerouting priority -150; meta mark set 0x12; ct mark set meta mark & 0xff; meta mark set 0x0; meta mark set ct mark; }
            chain nat { type nat hook prerouting priority -100; tcp dport 80 redirect to :15001; tcp dport 81 dnat to :8080; }
            chain fw { type filter hook forward priority 0; ct mark != 0x12 drop; meta mark != 0x12 drop; }
            chain in { type filter hook input priority 0; meta l4proto tcp ct original proto-dst != 80 drop; }
        }",
    );
    let end = |arguments: &str| results(&node, arguments).last().unwrap().clone();
    run(&node, "ip address add 169.254.1.1/32 dev cali1");
    assert_eq!(
        end("--from 10.244.1.5 --to 203.0.113.9:80"),
        "=> delivered to 169.254.1.1:15001 on this host, with source 10.244.1.5"
    );
    assert!(end("--from 10.244.1.5 --to 203.0.113.9:81").contains("delivered to 203.0.113.9:8080 through eth0"));
}

/// First packets have no extension headers, with any options of the module and with any backend.
#[test]
fn extension_headers_of_iptables_rules_are_read_from_the_kernel() {
    let node = node();
    for program in ["ip6tables-nft", "ip6tables-legacy"] {
        for (rule, is_dropped) in [
            ("-m rt --rt-type 0", false),
            ("-m rt ! --rt-type 0 --rt-segsleft 1:2", false),
            ("-m frag --fragmore", false),
            ("-m frag ! --fragid 5", false),
            ("-m hbh ! --hbh-len 5", false),
            ("-m dst", false),
            ("-m ipv6header --header protocol", true),
            ("-m ipv6header ! --header protocol", false),
            ("-m ipv6header --header ipv6-frag,protocol", false),
            ("-m ipv6header ! --header ipv6-frag,hop-by-hop --soft", true),
        ] {
            let words =
                |command: &'static str| [command, "FORWARD"].into_iter().chain(rule.split(' ')).chain(["-j", "DROP"]);
            node.command(program, &words("-A").collect::<Vec<_>>());
            let results = results(&node, "--from fd00:244::5 --to [fd00:244::6]:80");
            assert_eq!(results.last().unwrap() == "=> dropped", is_dropped, "{program} {rule}: {results:?}");
            let shown = String::from_utf8(trace(&node, "--from fd00:244::5 --to [fd00:244::6]:80 -a").stdout).unwrap();
            assert!(!shown.contains("assuming") && !shown.contains('…'), "{program} {rule}: {shown}");
            node.command(program, &words("-D").collect::<Vec<_>>());
        }
    }
}

#[test]
fn options_of_other_programs_iptables_rules_are_read_from_the_kernel() {
    let node = node();
    for (rule, is_dropped) in [
        ("-m iprange --src-range 10.244.1.1-10.244.1.9", true),
        ("-m iprange ! --src-range 10.244.1.1-10.244.1.9", false),
        ("-m connmark --mark 0x1/0xff", false),
        ("-m connmark ! --mark 0x1/0xff", true),
        ("-m conntrack --ctorigdst 10.244.0.0/16 --ctorigdstport 80", true),
        ("-m conntrack --ctstate NEW --ctdir REPLY", false),
        ("-m pkttype --pkt-type broadcast", false),
        ("-m physdev --physdev-out eth0 --physdev-is-bridged", false),
        ("-m physdev ! --physdev-in eth+", true),
        ("-m helper --helper ftp", false),
        ("-m connlabel ! --label 3", true),
        ("-m connlimit --connlimit-above 0", true),
        ("-m connbytes --connbytes 1:1 --connbytes-mode packets --connbytes-dir both", true),
        ("-m connbytes ! --connbytes 2: --connbytes-mode packets --connbytes-dir original", true),
        ("-m connbytes --connbytes 100000: --connbytes-mode bytes --connbytes-dir both", false),
        ("-m cluster --cluster-total-nodes 2 --cluster-local-node 1 --cluster-hash-seed 5", false),
        ("-m cluster --cluster-total-nodes 2 --cluster-local-node 2 --cluster-hash-seed 5", true),
        ("-m string --string GET --algo bm", false),
        ("-m ecn ! --ecn-tcp-cwr", true),
    ] {
        if node
            .try_command(
                "iptables-nft",
                &[&["-A", "FORWARD", "-p", "tcp"][..], &rule.split(' ').collect::<Vec<_>>()].concat(),
            )
            .status
            .success()
        {
            iptables(&node, &format!("*filter\n-A FORWARD -p tcp {rule} -j DROP\n"));
            let results = results(&node, "--from 10.244.1.5 --to 10.244.1.6:80");
            assert_eq!(results.last().unwrap() == "=> dropped", is_dropped, "{rule}: {results:?}");
            assert_eq!(results.len(), 2, "{rule}: {results:?}");
        }
    }
    iptables(
        &node,
        "*mangle\n-A FORWARD -j CLASSIFY --set-class 1:a\nCOMMIT\n*filter\n-A FORWARD -j DROP\nCOMMIT\n*nat\n",
    );
    assert_eq!(results(&node, "--from 10.244.1.5 --to 10.244.1.6:80").last().unwrap(), "=> dropped");
    let hmark =
        ["-j", "HMARK", "--hmark-tuple", "src,dst", "--hmark-mod", "4", "--hmark-offset", "16", "--hmark-rnd", "1"];
    if node.try_command("iptables-nft", &[&["-t", "mangle", "-A", "OUTPUT"][..], &hmark].concat()).status.success() {
        let rules = "*mangle\n-A PREROUTING HMARK\nCOMMIT\n*filter\n-A FORWARD -m mark --mark 0x11 -j DROP\n";
        iptables(&node, &rules.replace("HMARK", &hmark.join(" ")));
        let output = String::from_utf8(trace(&node, "--from 10.244.1.5 --to 10.244.1.6:80").stdout).unwrap();
        assert!(!output.contains("unknown") && output.contains("in 25.0 % of all cases"), "{output}");
    }
    iptables(
        &node,
        "*mangle
-A PREROUTING -j CONNMARK --set-xmark 0x80/0x80
-A PREROUTING -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80
*nat
-A PREROUTING -p tcp -m tcp --dport 82 -j REDIRECT --to-ports 15001
-A POSTROUTING -p tcp -j MASQUERADE --to-ports 1024-65535
*filter
-A FORWARD -m mark ! --mark 0x80/0x80 -j DROP
"
        .replace("*nat", "COMMIT\n*nat")
        .replace("*filter", "COMMIT\n*filter")
        .as_str(),
    );
    run(&node, "ip address add 169.254.1.1/32 dev cali1");
    let end = |arguments: &str| results(&node, arguments).last().unwrap().clone();
    assert!(end("--from 10.244.1.5 --to 203.0.113.9:80").contains("through eth0, with source 192.168.6.121"));
    assert!(end("--from 10.244.1.5 --to 203.0.113.9:82").contains("delivered to 169.254.1.1:15001 on this host"));
}

/// Services of all kinds that rules distinguish, with endpoints at the pods of [`node`] and elsewhere.
const SERVICES: &str = r#"
{"kind": "List", "apiVersion": "v1", "items": [
  {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node-a"},
   "status": {"addresses": [{"type": "InternalIP", "address": "192.168.6.121"}]}},
  {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "web", "namespace": "shop"},
   "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.10", "externalIPs": ["198.51.100.20"],
            "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000, "loadBalancerSourceRanges": ["203.0.113.0/24"],
            "ports": [{"name": "p", "port": 80, "nodePort": 30080}]},
   "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.10"}]}}},
  {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "sticky", "namespace": "shop"},
   "spec": {"type": "NodePort", "clusterIP": "10.96.0.11", "sessionAffinity": "ClientIP",
            "ports": [{"name": "p", "port": 80, "nodePort": 30081}]}},
  {"kind": "Service", "apiVersion": "v1",
   "metadata": {"name": "hash", "namespace": "shop",
                "annotations": {"ferroute.io/load-balancing": "source-hash", "ferroute.io/hash-table-size": "1024"}},
   "spec": {"clusterIP": "10.96.0.12", "ports": [{"name": "p", "port": 80}]}},
  {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "none", "namespace": "shop"},
   "spec": {"clusterIP": "10.96.0.13", "ports": [{"name": "p", "port": 80}]}},
  {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
   "metadata": {"name": "web", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
   "addressType": "IPv4", "ports": [{"name": "p", "port": 8080}],
   "endpoints": [{"addresses": ["10.244.1.5"], "nodeName": "node-a"}, {"addresses": ["10.244.2.7"], "nodeName": "node-b"}]},
  {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
   "metadata": {"name": "sticky", "namespace": "shop", "labels": {"kubernetes.io/service-name": "sticky"}},
   "addressType": "IPv4", "ports": [{"name": "p", "port": 8080}],
   "endpoints": [{"addresses": ["10.244.1.5"], "nodeName": "node-a"}, {"addresses": ["10.244.1.6"], "nodeName": "node-a"},
                 {"addresses": ["10.244.2.7"], "nodeName": "node-b"}]},
  {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
   "metadata": {"name": "hash", "namespace": "shop", "labels": {"kubernetes.io/service-name": "hash"}},
   "addressType": "IPv4", "ports": [{"name": "p", "port": 8080}],
   "endpoints": [{"addresses": ["10.244.1.6"], "nodeName": "node-a"}, {"addresses": ["10.244.2.7"], "nodeName": "node-b"}]}
]}"#;

#[test]
fn rules_of_each_mode_are_traced_alike_from_the_kernel_and_from_what_programs_print_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = directory.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let manifests = file("services.json", SERVICES);
    let config = file(
        "config.yaml",
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\n",
    );
    for mode in ["iptables", "nftables"] {
        let node = node();
        let render = |arguments: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
            command.args(["render", "--hostname-override", "node-a", "--proxy-mode", mode, "--family", "ipv4"]);
            let output =
                node.run(|| command.args(["--manifests", &manifests]).args(arguments.split(' ')).output().unwrap());
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let rendered = render(&format!("--config {config}"));
        let dumps: &[&[&str]] = match mode {
            "iptables" => {
                // Counters of the kernel that the proxy creates.
                let rules: String = rendered.split_inclusive('\n').filter(|line| !line.contains("nfacct")).collect();
                node.feed("iptables-nft-restore", &[], &rules);
                &[&["iptables-nft-save"], &["nft", "list", "ruleset"]]
            }
            _ => {
                node.feed("nft", &["-f", "-"], &rendered);
                &[&["nft", "list", "ruleset"], &["nft", "-a", "list", "ruleset"]]
            }
        };
        let routes = ["address", "route show table all", "rule"]
            .map(|words| node.command("ip", &words.split(' ').collect::<Vec<_>>()))
            .concat();
        let routes = file("routes", &routes);
        for dump in dumps {
            let rules = file("rules", &node.command(dump[0], &dump[1..]));
            for client in
                ["--from 10.244.1.5", "--from 10.244.1.6", "--from 203.0.113.9", "--from 192.168.6.9", "--local"]
            {
                for target in [
                    "10.96.0.10:80",
                    "198.51.100.10:80",
                    "198.51.100.20:80",
                    "192.168.6.121:30080",
                    "10.96.0.11:80",
                    "192.168.6.121:30081",
                    "10.96.0.12:80",
                    "10.96.0.13:80",
                    "10.96.0.10:81",
                ] {
                    let branches = |source: &[&str]| {
                        let output = node.run(|| {
                            let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
                            command.args(["trace", "--hostname-override", "node-a", "-o", "json", "--to", target]);
                            command.args(client.split(' ')).args(source).output().unwrap()
                        });
                        let report: serde_json::Value = serde_json::from_slice(&output.stdout)
                            .unwrap_or_else(|reason| panic!("{reason}: {output:?}"));
                        // Rules of iptables are printed in two syntaxes, and their probabilities are rounded.
                        let choices = |branch: &serde_json::Value| {
                            let choices = branch["choices"].as_array().cloned().unwrap_or_default();
                            let to = |choice: &serde_json::Value| {
                                let share = (choice["share"].as_f64().unwrap() * 1e4).round();
                                (choice["to"].to_string(), choice["from"].to_string(), share.to_string())
                            };
                            choices.iter().map(to).collect::<Vec<_>>()
                        };
                        let branches = report["branches"].as_array().unwrap().iter();
                        branches
                            .map(|branch| (branch["verdict"].clone(), branch["assumptions"].clone(), choices(branch)))
                            .collect::<Vec<_>>()
                    };
                    // `nft` does not print the options of `-m recent`.
                    if mode == "iptables"
                        && dump[0] == "nft"
                        && ["10.96.0.11:80", "192.168.6.121:30081"].contains(&target)
                    {
                        continue;
                    }
                    assert_eq!(
                        branches(&["--kernel"]),
                        branches(&["--rules", &rules, "--routes", &routes]),
                        "{mode}, {dump:?}, {client} to {target}"
                    );
                }
            }
        }
    }
}
