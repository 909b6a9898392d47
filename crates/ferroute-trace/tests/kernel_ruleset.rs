//! The walk agrees with the kernel on rules that are read from it, of any program: real packets pass the same rules and
//! have the same result.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up must fail")]

mod common;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use common::{
    cluster::{address, clients, cluster, frontends},
    lab::Lab,
    world::{Client, World, ip},
};
use ferroute_core::{IpFamily, LocalTrafficDetector, Protocol, ProxySettings};
use ferroute_iptables::{HostExec, exec::search_path};
use ferroute_modes::kernel_rules::read;
use ferroute_nftables::{
    kernel::{Kernel, NetlinkKernel},
    plan::{NftablesSettings, render},
};
use ferroute_testing::NetNs;
use ferroute_trace::{Effect, Event, Leaf, Ruleset, Verdict, write_leaf_into};

/// A lab whose rules are read from its kernel.
struct Trial {
    world: World,
    family: IpFamily,
    lab: Lab,
}

impl Trial {
    fn new(world: World, family: IpFamily, load: impl FnOnce(&NetNs)) -> Self {
        Self { world, family, lab: Lab::new(family, load) }
    }

    /// Sends a packet, asserts that the kernel agrees with one of the leaves, and returns its verdict.
    fn check(&mut self, client: &Client, to: SocketAddr) -> Verdict {
        let Self { world, family, lab } = self;
        let packet = client.packet(world, Protocol::Udp, to);
        // The rules include the current session affinity.
        let rules = lab.node().run(|| read(*family, &HostExec, &search_path())).unwrap();
        let host = world.host();
        let leaves: Vec<Leaf> = Ruleset::from_rules(&rules).leaves(&host, &packet).collect();
        let delivered = |leaf: &Leaf| matches!(leaf.verdict, Verdict::Delivered { translated: true, .. });
        let observed = lab.send(world, client, packet.source, to, leaves.iter().all(delivered));
        let rules: Vec<String> = observed.rules.iter().map(|rule| rule.replace(": goto ", ": jump ")).collect();
        // In Ferroute's table endpoints are map elements, so the rules are the same for all of them.
        let agrees = |leaf: &&Leaf| traced_rules(leaf) == rules && received(leaf) == observed.received;
        let Some(leaf) = leaves.iter().find(agrees) else {
            let mut text = String::new();
            leaves.iter().for_each(|leaf| write_leaf_into(&mut text, leaf).unwrap());
            let walked: Vec<_> = leaves.iter().map(|leaf| (traced_rules(leaf), received(leaf))).collect();
            panic!(
                "{client:?} to {to}: the kernel evaluated {rules:#?}, delivered to {:?}, the walk {walked:#?}\n{text}",
                observed.received
            );
        };
        assert_eq!(leaf.assumptions, [], "all conditions can be evaluated");
        leaf.verdict.clone()
    }

    /// Checks all clients with all frontends, and returns the kinds of verdicts.
    fn check_all(&mut self, frontends: &[SocketAddr]) -> Vec<String> {
        let mut verdicts = BTreeSet::new();
        for client in clients(self.family) {
            for to in frontends {
                if !to.ip().is_loopback() || matches!(client, Client::Node) {
                    let verdict = self.check(&client, *to).to_string();
                    verdicts.extend(verdict.split(' ').next().map(str::to_owned));
                }
            }
        }
        verdicts.into_iter().collect()
    }
}

/// Returns the receiver of the packet and the source that it sees, in the format of
/// [`Observation::received`](common::lab::Observation::received).
fn received(leaf: &Leaf) -> Option<(SocketAddr, IpAddr)> {
    match &leaf.verdict {
        Verdict::Delivered { to, from, translated: true, .. } => Some((*to, *from)),
        _ => None,
    }
}

/// Returns the rules that matched in the format of the kernel's tracing, `table chain: verdict`, with `jump` for gotos.
fn traced_rules(leaf: &Leaf) -> Vec<String> {
    let mut current_table = String::new();
    let mut rules = Vec::new();
    for (n, event) in leaf.events.iter().enumerate() {
        match event {
            Event::Hook { table, .. } => {
                current_table = table.strip_prefix("ip ").or(table.strip_prefix("ip6 ")).unwrap_or(table).to_owned();
            }
            Event::Rule { chain, text, depth, mismatch: None, .. } if !current_table.starts_with("inet ") => {
                let verdict = verdict(text, *depth, &leaf.events[n + 1..]);
                rules.push(format!("{current_table} {chain}: {verdict}"));
            }
            _ => {}
        }
    }
    rules
}

/// Returns the verdict that the kernel traces for a rule, given the events after it.
fn verdict(text: &str, depth: usize, next: &[Event]) -> String {
    for event in next {
        match event {
            Event::Effect { effect: Effect::Mark { .. }, .. } => {}
            Event::Effect { effect: Effect::Drop | Effect::Reject { .. }, .. } => return "drop".to_owned(),
            Event::Effect { .. } => return "accept".to_owned(),
            Event::Rule { chain, depth: inner, .. } if *inner > depth => return format!("jump {chain}"),
            _ => break,
        }
    }
    if text.ends_with(" return") || text.ends_with("RETURN") { "return" } else { "continue" }.to_owned()
}

/// Pods are recognised by their addresses, and node ports are served on all addresses, including localhost.
fn world() -> World {
    let pods = ["10.244.0.0/16", "fd00:244::/32"].map(|net| net.parse().unwrap());
    let detector = LocalTrafficDetector::ClusterCidr(pods.into());
    World::new(ProxySettings { detector, ..ProxySettings::default() })
}

fn load_planned(world: &World, family: IpFamily, node: &NetNs) {
    let settings = NftablesSettings { proxy: world.settings.clone(), counters: true, flowtable: None };
    let mut table = cluster(family).table(family);
    let network = match family {
        IpFamily::V4 => "10.96.0.0/16",
        IpFamily::V6 => "fd00:96::/112",
    };
    table.service_cidrs = vec![network.parse().unwrap()];
    let transaction = render(&table, &settings, &world.addresses());
    node.run(|| NetlinkKernel::open().unwrap().commit(&transaction)).unwrap();
}

fn verdicts_of_ferroutes_table(family: IpFamily) -> Vec<String> {
    let world = world();
    let mut trial = Trial::new(world.clone(), family, |node| load_planned(&world, family, node));
    trial.check_all(&frontends(family))
}

#[test]
fn walk_agrees_with_kernel_on_ferroutes_ipv4_table() {
    assert_eq!(verdicts_of_ferroutes_table(IpFamily::V4), ["delivered", "dropped", "rejected"]);
}

#[test]
fn walk_agrees_with_kernel_on_ferroutes_ipv6_table() {
    // Node ports are not served on localhost.
    assert_eq!(verdicts_of_ferroutes_table(IpFamily::V6), ["delivered", "dropped", "not", "rejected"]);
}

/// Returns the table of a family; that of IPv6 differs only in its addresses.
fn kube_proxy_table(family: IpFamily) -> String {
    let v4 = include_str!("common/kube_proxy.nft").to_owned();
    let replacements = [
        ("table ip ", "table ip6 "),
        ("ipv4_addr", "ipv6_addr"),
        ("ip saddr", "ip6 saddr"),
        ("ip daddr", "ip6 daddr"),
        ("dnat to 10.244.0.3:", "dnat to [fd00:244::3]:"),
        ("dnat to 10.244.0.6:", "dnat to [fd00:244::6]:"),
        ("dnat to 10.244.1.1:", "dnat to [fd00:244:0:1::1]:"),
        ("10.244.0.0/16", "fd00:244::/32"),
        ("192.168.0.0/29", "fd00:168::/125"),
        ("10.96.0.0/16", "fd00:96::/112"),
        ("192.168.0.1", "fd00:168::1"),
        ("10.244.0.", "fd00:244::"),
        ("10.244.1.", "fd00:244:0:1::"),
        ("10.96.0.", "fd00:96::"),
        ("203.0.113.", "2001:db8:ee::"),
        ("198.51.100.", "2001:db8:1b::"),
    ];
    match family {
        IpFamily::V4 => v4,
        IpFamily::V6 => replacements.iter().fold(v4, |text, (from, to)| text.replace(from, to)),
    }
}

fn check_kube_proxys_table(family: IpFamily) {
    let table = kube_proxy_table(family);
    let mut trial = Trial::new(world(), family, |node| _ = node.feed("nft", &["-f", "-"], &table));
    let of = |kind: &str, n: u16, port: u16| SocketAddr::new(ip(&address(family, kind, n)), port);
    let mut all: Vec<SocketAddr> = (1..=4).map(|n| of("cluster", n, 80)).collect();
    all.extend([of("cluster", 1, 81), of("cluster", 99, 80), of("external", 1, 80), of("external", 3, 80)]);
    all.push(of("balancer", 4, 80));
    let [node, other] = [["192.168.0.1", "10.244.0.1"], ["fd00:168::1", "fd00:244::1"]][family.index()].map(ip);
    all.extend([30_001, 30_003, 30_004, 30_099].map(|port| SocketAddr::new(node, port)));
    all.push(SocketAddr::new(other, 30_001));
    assert_eq!(trial.check_all(&all), ["delivered", "dropped", "not", "rejected"]);
    // Session affinity.
    let pod = &clients(family)[0];
    let verdicts: Vec<Verdict> = (0..6).map(|_| trial.check(pod, of("cluster", 2, 80))).collect();
    assert!(verdicts.windows(2).all(|pair| pair[0] == pair[1]), "{verdicts:?}");
}

#[test]
fn walk_agrees_with_kernel_on_kube_proxys_ipv4_table() {
    check_kube_proxys_table(IpFamily::V4);
}

#[test]
fn walk_agrees_with_kernel_on_kube_proxys_ipv6_table() {
    check_kube_proxys_table(IpFamily::V6);
}

/// Rules of a network plugin and an administrator beside the proxy's table: iptables rules that accept, drop, mark and
/// masquerade at the same hooks, and an nftables firewall.
#[test]
fn walk_agrees_with_kernel_on_rules_of_several_programs() {
    let iptables = "*raw
:PREROUTING ACCEPT [0:0]
-A PREROUTING -s 10.244.0.200/32 -d 10.96.0.4/32 -p udp -j CT --notrack
COMMIT
*mangle
:PREROUTING ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
-A PREROUTING -i eth0 -p udp -j MARK --set-xmark 0x8/0x8
-A FORWARD -d 10.244.1.1/32 -m mark --mark 0x8/0x8 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI - [0:0]
-A PREROUTING -d 10.96.0.1/32 -p udp -m udp --dport 80 -j DNAT --to-destination 10.244.0.6:8080
-A PREROUTING -d 192.168.0.1/32 -p udp -m udp --dport 31000 -j DNAT --to-destination 10.244.0.3:8080
-A PREROUTING -d 192.168.0.1/32 -p udp -m udp --dport 31001 -j DNAT --to-destination 10.244.0.3:7000
-A OUTPUT -d 192.168.0.1/32 -p udp -m udp --dport 31000 -j DNAT --to-destination 10.244.0.3:8080
-A POSTROUTING -o eth1 -p udp -m multiport --dports 53,9000:9999 -m state --state NEW -j SNAT --to-source 192.168.7.1
-A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -p udp -j CNI
-A CNI -o eth0 -j MASQUERADE
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT
-A FORWARD -i cbr0 -p udp -j ACCEPT
-A OUTPUT -d 10.244.0.3/32 -p udp -m udp --dport 8080 -j REJECT
COMMIT
";
    let firewall = "
table inet firewall {
    set friends { type ipv4_addr; flags interval; elements = { 10.244.0.0/16, 192.168.0.9-192.168.0.20 }; }
    chain early {
        type filter hook prerouting priority -120; policy accept;
        ct state established,related accept
        meta nfproto ipv6 accept
        ip saddr != @friends drop
    }
    chain forward {
        type filter hook forward priority 10; policy drop;
        oifname \"cbr0\" udp dport { 8080, 9000-9010 } accept
        oifname \"eth*\" accept
    }
}
table ip early-dnat {
    chain pre { type nat hook prerouting priority -100; ip daddr 10.96.0.77 udp dport 80 dnat to 10.244.0.3:8080; }
    chain same { type filter hook input priority 0; udp dport 30099 drop; }
}
table ip late-dnat {
    chain pre { type nat hook prerouting priority -100; ip daddr 10.96.0.77 udp dport 80 dnat to 10.244.0.6:8080; }
    chain same { type filter hook input priority 0; udp dport 30099 reject; }
}
";
    let world = world();
    let mut trial = Trial::new(world.clone(), IpFamily::V4, |node| {
        node.feed("iptables-nft-restore", &[], iptables);
        load_planned(&world, IpFamily::V4, node);
        node.feed("nft", &["-f", "-"], firewall);
    });
    let others = ["10.96.0.77:80", "192.168.0.1:31000", "192.168.0.1:30099", "192.168.7.9:9999", "192.168.0.1:31001"];
    let mut all = frontends(IpFamily::V4);
    all.extend(others.map(|text| text.parse::<SocketAddr>().unwrap()));
    assert_eq!(trial.check_all(&all), ["delivered", "dropped", "not", "rejected"]);
}

#[test]
fn chains_with_equal_priorities_are_evaluated_in_reverse_order_of_registration() {
    let nft = |name: &str, to: &str| {
        format!(
            "table ip {name} {{
                chain nat {{ type nat hook prerouting priority -100; udp dport 100 dnat to {to}:8080; }}
                chain in {{ type filter hook input priority 0; udp dport 101 meta mark set 1; }}
            }}"
        )
    };
    let iptables = "*nat
-A PREROUTING -p udp -m udp --dport 100 -j DNAT --to-destination 10.244.0.6:8080
COMMIT
*filter
-A INPUT -p udp -m udp --dport 101 -m mark --mark 0x1 -j DROP
COMMIT
";
    let client = Client::Elsewhere(ip("192.168.0.9"));
    let mut all = Vec::new();
    for order in [["a", "iptables"], ["iptables", "a"]] {
        let mut trial = Trial::new(world(), IpFamily::V4, |node| {
            for program in order {
                match program {
                    "iptables" => node.feed("iptables-nft-restore", &["--noflush"], iptables),
                    name => node.feed("nft", &["-f", "-"], &nft(name, "10.244.0.3")),
                };
            }
        });
        let verdicts =
            [100, 101].map(|port| trial.check(&client, SocketAddr::new(ip("192.168.0.1"), port)).to_string());
        all.push(verdicts);
    }
    let to = |pod: &str| format!("delivered to {pod}:8080 through cbr0, with source 192.168.0.9");
    let here = "not translated, delivered to 192.168.0.1:101 on this host, with source 192.168.0.9".to_owned();
    assert_eq!(all, [[to("10.244.0.6"), here], [to("10.244.0.3"), "dropped".to_owned()]]);
}

#[test]
fn unknown_conditions_become_assumptions() {
    let world = world();
    let lab = Lab::new(IpFamily::V4, |node| {
        load_planned(&world, IpFamily::V4, node);
        let text = "table ip other {
            chain pre {
                type filter hook prerouting priority -150;
                ip dscp 3 drop
                limit rate 5/second accept
                ip dscp 4 ip saddr 203.0.113.99 drop
                ip dscp 5 log prefix \"five\"
            }
            chain post { type nat hook postrouting priority 90; ip saddr 10.244.0.9 snat to 192.168.7.1-192.168.7.9; }
        }";
        node.feed("nft", &["-f", "-"], text);
    });
    let rules = lab.node().run(|| read(IpFamily::V4, &HostExec, &search_path())).unwrap();
    let host = world.host();
    let ruleset = Ruleset::from_rules(&rules);
    let leaves = |from: &str| {
        let packet = Client::Pod(ip(from)).packet(&world, Protocol::Udp, "10.96.0.1:80".parse().unwrap());
        ruleset.verdicts(&host, &packet)
    };
    let assumptions: BTreeSet<String> =
        leaves("10.244.0.200").iter().flat_map(|leaf| &leaf.assumptions).map(ToString::to_string).collect();
    let is_assumed = |part: &str| assumptions.iter().any(|assumption| assumption.contains(part));
    assert!(is_assumed("`ip dscp 3` matches") && is_assumed("`limit rate 5/second` matches"), "{assumptions:?}");
    // Another condition of the rule does not match, or the rule has no effect.
    assert!(!is_assumed("ip dscp 4") && !is_assumed("ip dscp 5"), "{assumptions:?}");
    let sources = |client: &str| {
        let from = |leaf: Leaf| match leaf.verdict {
            Verdict::Delivered { from, .. } => Some(from),
            _ => None,
        };
        leaves(client).into_iter().filter_map(from).collect::<BTreeSet<IpAddr>>()
    };
    assert_eq!(sources("10.244.0.9").len(), 9, "{:?}", sources("10.244.0.9"));
    assert_eq!(sources("10.244.0.200"), [ip("10.244.0.200")].into());
}
