//! `ferroute trace` of the kernel's rules, and of what programs print of them, compared with real packets.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    process::Command,
    time::Duration,
};

use ferroute_testing::{NetNs, restart};

/// A client and a server with a node between them.
struct Lab {
    client: NetNs,
    node: NetNs,
    server: NetNs,
    directory: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let (client, node, server) = (NetNs::new(), NetNs::new(), NetNs::new());
        node.command("sysctl", &["-qw", "net.ipv4.ip_forward=1"]);
        for (peer, interface, network) in [(&client, "client", "10.244.1"), (&server, "server", "10.244.2")] {
            node.link(interface, peer, "eth0");
            node.add_address(&format!("{network}.1/24"), interface);
            peer.add_address(&format!("{network}.2/24"), "eth0");
            peer.command("ip", &["route", "add", "default", "via", &format!("{network}.1")]);
        }
        node.add_address("10.244.2.11/24", "server");
        node.add_address("10.244.2.12/24", "server");
        node.add_address("10.244.2.13/24", "server");
        Self { client, node, server, directory: tempfile::tempdir().unwrap() }
    }

    /// Runs commands on the node, one a line.
    fn run(&self, commands: &str) {
        for line in commands.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.node.command("sh", &["-c", line]);
        }
    }

    /// Sends a packet from the client. Returns the source that the server sees; `None` if none arrives.
    fn send(&self, to: &str) -> Option<IpAddr> {
        let server = self.server.run(|| UdpSocket::bind("10.244.2.2:8080").unwrap());
        server.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
        let to: SocketAddr = to.parse().unwrap();
        let client = self.client.run(|| UdpSocket::bind("10.244.1.2:50000").unwrap());
        client.send_to(b"x", to).unwrap();
        restart(|| server.recv_from(&mut [0; 8])).ok().map(|(_, from)| from.ip())
    }

    /// Returns the source that the server sees in all branches of a trace; `None` if no packet arrives in any.
    fn trace(&self, to: &str, rules: &[&str]) -> (Option<IpAddr>, String) {
        let output = self.node.run(|| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
            command.args(["trace", "--from", "10.244.1.2", "--proto", "udp", "--to", to]).args(rules).output().unwrap()
        });
        let text = String::from_utf8(output.stdout).unwrap();
        let ends: Vec<&str> = text.lines().filter(|line| line.starts_with("=> ")).collect();
        let is_delivered = |end: &&str| end.contains("delivered to 10.244.2.2:8080 through server");
        assert!(!ends.is_empty(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(!text.contains("=> unknown"), "{text}");
        let delivered: Vec<&&str> = ends.iter().filter(|end| is_delivered(end)).collect();
        if delivered.is_empty() {
            return (None, text);
        }
        assert_eq!(delivered.len(), ends.len(), "all branches end alike: {text}");
        let source = delivered[0].rsplit_once("source ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
        (Some(source), text)
    }

    /// Writes the output of the documented commands to a file.
    fn collect(&self, commands: &str) -> String {
        let file = self.directory.path().join("node.txt");
        let text = self.node.command("sh", &["-c", commands]);
        std::fs::write(&file, text).unwrap();
        Path::to_str(&file).unwrap().to_owned()
    }
}

const COLLECTION: &str = "ip address; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; \
                          iptables-nft-save; ip6tables-nft-save; nft list ruleset; ipset save";

#[test]
fn rules_of_nft_in_tables_of_iptables_are_traced_in_files_as_packets_meet_them() {
    const IPTABLES: &str =
        "iptables-nft -t nat -A PREROUTING -d 10.96.0.99 -p udp -j DNAT --to-destination 10.244.1.2:80";
    const TO_SERVER: &str =
        "iptables-nft -t nat -A PREROUTING -d 10.96.0.1 -p udp -j DNAT --to-destination 10.244.2.2:8080
                             iptables-nft -A FORWARD -j ACCEPT";
    for (first, rule, is_delivered) in [
        (
            IPTABLES,
            "nft add chain ip nat kilo '{ type nat hook prerouting priority -110; }'
             nft add rule ip nat kilo ip daddr 10.96.0.1 udp dport 80 dnat to 10.244.2.2:8080",
            true,
        ),
        (IPTABLES, "nft add rule ip nat PREROUTING ip daddr 10.96.0.1 udp dport 80 dnat to 10.244.2.2:8080", true),
        (
            IPTABLES,
            "nft add rule ip nat PREROUTING ip daddr '{ 10.96.0.1, 10.96.0.2 }' udp dport 80 dnat to 10.244.2.2:8080",
            true,
        ),
        (
            TO_SERVER,
            "nft add chain ip filter fw '{ type filter hook forward priority 10; }'
             nft add rule ip filter fw udp dport 8080 drop",
            false,
        ),
        (TO_SERVER, "nft insert rule ip filter FORWARD udp dport '{ 9091, 9090 }' meta mark != 7 drop", true),
        (TO_SERVER, "nft insert rule ip filter FORWARD udp dport '{ 8080, 9090 }' meta mark != 7 drop", false),
        (
            TO_SERVER,
            "nft insert rule ip filter FORWARD ip saddr '{ 10.244.1.9, 10.244.1.8 }' udp dport 8080 drop",
            true,
        ),
        (TO_SERVER, "nft insert rule ip filter FORWARD udp dport vmap '{ 8080 : drop }'", false),
        (TO_SERVER, "nft insert rule ip filter FORWARD ct mark 5 udp dport 8080 drop", true),
        (TO_SERVER, "iptables-nft -I FORWARD -p udp -m multiport --dports 80,8080 -m mark ! --mark 0x7 -j DROP", false),
        // Options of a module that nft does not print.
        (
            TO_SERVER,
            "ipset create clients hash:ip
             ipset add clients 10.244.1.2
             iptables-nft -F FORWARD
             iptables-nft -P FORWARD DROP
             iptables-nft -A FORWARD -p udp -m set ! --match-set clients src -m set --match-set clients dst -j DROP
             iptables-nft -A FORWARD -s 10.244.1.0/24 -p udp -m set --match-set clients src -j ACCEPT
             nft insert rule ip filter FORWARD udp dport '{ 9091, 9090 }' drop",
            true,
        ),
    ] {
        let lab = Lab::new();
        lab.run(first);
        lab.run(rule);
        let actual = lab.send("10.96.0.1:80");
        assert_eq!(actual.is_some(), is_delivered, "{rule}");
        let file = lab.collect(COLLECTION);
        for rules in [&["--kernel"][..], &["--rules", &file, "--routes", &file]] {
            let (traced, text) = lab.trace("10.96.0.1:80", rules);
            assert_eq!(traced, actual, "{rule}\n{text}\n{}", std::fs::read_to_string(&file).unwrap());
        }
    }
}

#[test]
fn tables_that_only_iptables_has_written_are_shown_with_its_words() {
    let lab = Lab::new();
    lab.run(
        "iptables-nft -t nat -A PREROUTING -d 10.96.0.1 -p udp -m udp --dport 80 -j DNAT --to-destination 10.244.2.2:8080
         iptables-nft -A FORWARD -m comment --comment known -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
         iptables-nft -A FORWARD -i client -p udp -m multiport --dports 8080,8081 -j ACCEPT
         iptables-nft -P FORWARD DROP",
    );
    let actual = lab.send("10.96.0.1:80");
    assert!(actual.is_some());
    let file = lab.collect(COLLECTION);
    let (traced, text) = lab.trace("10.96.0.1:80", &["--all", "--rules", &file, "--routes", &file]);
    assert_eq!(traced, actual, "{text}");
    for words in [
        "PREROUTING 1: -d 10.96.0.1/32 -p udp -m udp --dport 80 -j DNAT --to-destination 10.244.2.2:8080",
        "FORWARD 1: -m comment --comment known -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "FORWARD 2: -i client -p udp -m multiport --dports 8080,8081 -j ACCEPT",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn chains_of_equal_priority_run_as_in_the_kernel() {
    let snat = |chain: &str, address: u8| {
        format!(
            "chain {chain} {{ type nat hook postrouting priority srcnat; policy accept; snat ip to 10.244.2.{address}; }}"
        )
    };
    for family in ["ip", "inet"] {
        let (older, newer) = (snat("b", 11), snat("a", 12));
        let (first, second) = (snat("x", 11), snat("y", 12));
        for ruleset in [
            format!("table {family} t {{ {older}\n {newer}\n }}\n"),
            format!("table {family} t {{ {first}\n {second}\n }}\n"),
            format!("table {family} u {{ {older}\n }}\ntable {family} t {{ {newer}\n }}\n"),
        ] {
            let lab = Lab::new();
            lab.node.feed("nft", &["-f", "-"], &ruleset);
            let actual = lab.send("10.244.2.2:8080");
            assert_eq!(actual, Some("10.244.2.12".parse().unwrap()), "the last one runs first: {ruleset}");
            let file = lab.collect(COLLECTION);
            for rules in [&["--kernel"][..], &["--rules", &file, "--routes", &file]] {
                let (traced, text) = lab.trace("10.244.2.2:8080", rules);
                assert_eq!(traced, actual, "{ruleset}\n{text}");
            }
        }
    }
    let lab = Lab::new();
    let chain = |table: &str, chain: &str| format!("table ip {table} {{ {chain}\n }}\n");
    lab.node.feed("nft", &["-f", "-"], &(chain("u", &snat("a", 11)) + &chain("t", &snat("a", 12))));
    let (_, text) = lab.trace("10.244.2.2:8080", &["--kernel"]);
    assert!(!text.contains("of equal priority"), "{text}");
    lab.node.feed("nft", &["-f", "-"], &chain("u", &snat("late", 13)));
    assert_eq!(lab.send("10.244.2.2:8080"), Some("10.244.2.13".parse().unwrap()), "a chain of the older table");
    let file = lab.collect(COLLECTION);
    for rules in [&["--kernel"][..], &["--rules", &file, "--routes", &file]] {
        let (_, text) = lab.trace("10.244.2.2:8080", rules);
        assert!(text.contains("note: tables ip u and ip t have NAT chains of equal priority at POSTROUTING"), "{text}");
    }
}

/// Among filter chains of equal priority, the order decides only who refuses a packet, or whether a mark is set.
#[test]
fn order_of_filter_chains_is_noted_where_the_result_depends_on_it() {
    let table = |name: &str, rule: &str| {
        format!("table ip {name} {{ chain c {{ type filter hook forward priority 0; {rule}; }}\n }}\n")
    };
    for (older, newer, delivers, depends) in [
        ("drop", "reject", false, true),
        ("meta mark 7 accept; drop", "meta mark set 7", true, true),
        ("meta mark set 7", "meta mark 7 drop", true, true),
        ("ct state new accept", "drop", false, false),
        ("ip daddr 10.244.2.9 drop", "meta mark set 7", true, false),
    ] {
        let lab = Lab::new();
        lab.node.feed("nft", &["-f", "-"], &(table("o", older) + &table("n", newer)));
        let actual = lab.send("10.244.2.2:8080");
        assert_eq!(actual.is_some(), delivers, "{older}, then {newer}");
        let file = lab.collect(COLLECTION);
        for (rules, is_known) in [(&["--kernel"][..], true), (&["--rules", &file, "--routes", &file], false)] {
            let (traced, text) = lab.trace("10.244.2.2:8080", rules);
            assert_eq!(traced, actual, "{text}");
            assert_eq!(text.contains("have chains of equal priority at FORWARD"), depends && !is_known, "{text}");
        }
    }
}

/// Where packets on bridges pass the rules, these see the port on which a packet arrived, also of packets that are routed.
#[test]
fn ports_of_bridges_are_seen_by_rules_as_packets_meet_them() {
    let lab = Lab::new();
    lab.run(
        "ip link add br0 type bridge
         ip link set br0 up
         ip address flush dev client
         ip link set client master br0
         ip address add 10.244.1.1/24 dev br0",
    );
    let second = NetNs::new();
    lab.node.link("second", &second, "eth0");
    lab.run("ip link set second master br0");
    second.add_address("10.244.1.3/24", "eth0");
    let receive = |to: &str| match to.starts_with("10.244.2.") {
        true => lab.send(to),
        false => {
            let server = second.run(|| UdpSocket::bind("10.244.1.3:8080").unwrap());
            server.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
            let client = lab.client.run(|| UdpSocket::bind("10.244.1.2:50000").unwrap());
            client.send_to(b"x", to).unwrap();
            restart(|| server.recv_from(&mut [0; 8])).ok().map(|(_, from)| from.ip())
        }
    };
    // Both branches follow if it is one of several ports.
    for (setting, to, rule, is_dropped, is_known) in [
        ("1", "10.244.2.2:8080", "FORWARD -m physdev --physdev-is-in", true, true),
        ("1", "10.244.2.2:8080", "FORWARD -m physdev --physdev-in client", true, false),
        ("1", "10.244.2.2:8080", "FORWARD -m physdev --physdev-in veth+", false, true),
        ("1", "10.244.2.2:8080", "FORWARD -m physdev --physdev-is-bridged", false, true),
        ("1", "10.244.2.2:8080", "FORWARD -m physdev ! --physdev-is-out", true, true),
        ("1", "10.244.2.2:8080", "PREROUTING -t mangle -m physdev --physdev-is-in", true, true),
        ("1", "10.244.1.3:8080", "FORWARD -m physdev --physdev-is-bridged", true, true),
        ("1", "10.244.1.3:8080", "FORWARD -m physdev --physdev-out client", false, false),
        ("1", "10.244.1.3:8080", "FORWARD -m physdev --physdev-is-in --physdev-is-out", true, true),
        ("0", "10.244.2.2:8080", "FORWARD -m physdev --physdev-is-in", false, true),
        ("0", "10.244.2.2:8080", "FORWARD -m physdev ! --physdev-is-bridged", true, true),
    ] {
        lab.run(&format!(
            "iptables-nft -F\niptables-nft -t mangle -F\nsysctl -qw net.bridge.bridge-nf-call-iptables={setting}\n\
             iptables-nft -A {rule} -j DROP"
        ));
        let actual = receive(to);
        assert_eq!(actual.is_none(), is_dropped, "{rule} {to}");
        let output = lab.node.run(|| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
            command.args(["trace", "--kernel", "--from", "10.244.1.2", "--proto", "udp", "--to", to]).output().unwrap()
        });
        let text = String::from_utf8(output.stdout).unwrap();
        let ends: Vec<bool> =
            text.lines().filter(|line| line.starts_with("=> ")).map(|end| end.contains("dropped")).collect();
        match is_known {
            true => assert_eq!(ends, [is_dropped], "{rule} {to}: {text}"),
            false => assert!(ends.len() == 2 && ends.contains(&is_dropped), "{rule} {to}: {text}"),
        }
    }
}

/// Groups of interfaces, realms of routes and policies of IPsec.
#[test]
fn facts_of_the_host_decide_conditions_as_packets_meet_them() {
    let lab = Lab::new();
    lab.run("ip link set client group 5\nip link set server group 18");
    let iptables = |condition: &str| format!("iptables-nft -A FORWARD {condition} -j DROP");
    let nft = |hook: &str, condition: &str| {
        format!(
            "nft add table ip t\nnft add chain ip t c '{{ type filter hook {hook} priority 0; }}'\nnft add rule ip t c {condition} drop"
        )
    };
    for (rule, is_dropped, of_ipsec) in [
        (iptables("-m devgroup --src-group 5"), true, false),
        (iptables("-m devgroup --src-group 0"), false, false),
        (iptables("-m devgroup ! --src-group 0x1/0xf"), true, false),
        (iptables("-m devgroup --src-group 5 --dst-group 0x2/0xf"), true, false),
        (iptables("-m devgroup --src-group 5 ! --dst-group 18"), false, false),
        (nft("forward", "iifgroup 5"), true, false),
        (nft("forward", "oifgroup != default"), true, false),
        (nft("forward", "iifgroup 6-9"), false, false),
        (nft("forward", "iifgroup . oifgroup '{ 5 . 18 }'"), true, false),
        (nft("prerouting", "oifgroup != 7"), false, false),
        (iptables("-m realm --realm 0"), true, false),
        (iptables("-m realm --realm 5"), false, false),
        (iptables("-m realm ! --realm 0x1/0xf"), true, false),
        (nft("forward", "rt classid 0"), true, false),
        (nft("prerouting", "rt classid 0"), false, false),
        (iptables("-m policy --dir in --pol none"), true, true),
        (iptables("-m policy --dir in --pol ipsec"), false, true),
        (iptables("-m policy --dir out --pol none"), true, true),
        (iptables("-m policy --dir in --pol ipsec --proto esp ! --reqid 5"), false, true),
        (nft("forward", "meta ipsec missing"), true, true),
        (nft("forward", "rt ipsec exists"), false, true),
        (nft("prerouting", "rt ipsec missing"), false, true),
        (nft("forward", "ipsec in reqid != 5"), false, true),
    ] {
        lab.run("nft flush ruleset");
        lab.run(&rule);
        let actual = lab.send("10.244.2.2:8080");
        assert_eq!(actual.is_none(), is_dropped, "{rule}");
        let file = lab.collect(COLLECTION);
        // Files do not show whether the host uses IPsec.
        let sources = [&["--kernel"][..], &["--rules", &file, "--routes", &file]];
        for rules in &sources[..if of_ipsec { 1 } else { 2 }] {
            let (traced, text) = lab.trace("10.244.2.2:8080", rules);
            assert_eq!(traced, actual, "{rule}\n{text}\n{}", std::fs::read_to_string(&file).unwrap());
        }
    }
    // The facts are unknown.
    for (change, rule) in [
        ("ip route change 10.244.2.0/24 dev server realm 7", iptables("-m realm --realm 7")),
        (
            "ip xfrm policy add src 192.0.2.1 dst 192.0.2.2 dir fwd action allow",
            iptables("-m policy --dir in --pol none"),
        ),
    ] {
        lab.run("nft flush ruleset");
        lab.run(&rule);
        lab.run(change);
        let output = lab.node.run(|| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
            command.args(["trace", "--kernel", "--from", "10.244.1.2", "--to", "10.244.2.2:8080"]).output().unwrap()
        });
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("assuming: ") && text.matches("\n=> ").count() == 2, "{rule}: {text}");
    }
}
