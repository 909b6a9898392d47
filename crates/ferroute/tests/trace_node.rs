//! `ferroute trace --kernel` on nodes with the routes of real network plugins.

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
    // Of several addresses, the one in the network of the next hop.
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
