//! The walk agrees with the kernel: real packets meet the same iptables rules and end in the same place.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up must fail")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use common::{
    cluster::{clients, cluster, frontends},
    lab::{Lab, Observation},
    world::{Client, World, ip},
};
use ferroute_core::{HostState, IpFamily, LocalTrafficDetector, Protocol, ProxySettings};
use ferroute_iptables::{IptablesContext, RuleSet, render};
use ferroute_trace::{Event, Leaf, Ruleset, Verdict, write_leaf_into};

/// Returns the text of each rule that matched.
fn matching_rules(leaf: &Leaf) -> impl Iterator<Item = &str> {
    leaf.events.iter().filter_map(|event| match event {
        Event::Rule { text, mismatch: None, .. } => Some(text.as_str()),
        _ => None,
    })
}

/// Returns the rules that matched, in the format of [`Observation::rules`].
fn traced_rules(leaf: &Leaf) -> Vec<String> {
    let mut current_table = "";
    let mut rules = Vec::new();
    for event in &leaf.events {
        match event {
            Event::Hook { table, .. } => current_table = table,
            Event::Rule { chain, text, mismatch: None, .. } => {
                rules.push(format!("{current_table} {chain}: {}", verdict(text)));
            }
            _ => {}
        }
    }
    rules
}

/// Returns the verdict that the kernel traces for a rule.
fn verdict(rule: &str) -> String {
    let words: Vec<&str> = rule.split(' ').collect();
    let target = words.windows(2).rev().find(|pair| ["-j", "-g"].contains(&pair[0]));
    match target.map(|pair| (pair[0], pair[1])) {
        None | Some((_, "MARK" | "CT")) => "continue".to_owned(),
        Some((_, "ACCEPT" | "DNAT" | "MASQUERADE")) => "accept".to_owned(),
        Some((_, "DROP" | "REJECT")) => "drop".to_owned(),
        Some((_, "RETURN")) => "return".to_owned(),
        Some(("-g", chain)) => format!("goto {chain}"),
        Some((_, chain)) => format!("jump {chain}"),
    }
}

/// A lab with its rules, and the entries of the `recent` lists for each client.
struct Trial {
    world: World,
    rules: RuleSet,
    lab: Lab,
    remembered: BTreeMap<IpAddr, BTreeMap<String, u32>>,
}

impl Trial {
    fn new(world: World, rules: RuleSet) -> Self {
        let lab = Lab::new(rules.family, |node| {
            let program = ["iptables-nft-restore", "ip6tables-nft-restore"][rules.family.index()];
            node.feed(program, &[], &rules.to_string());
        });
        Self { world, rules, lab, remembered: BTreeMap::new() }
    }

    /// Sends a packet, asserts that the kernel agrees with one of the leaves, and returns its verdict.
    fn check(&mut self, client: &Client, to: SocketAddr) -> Verdict {
        let Self { world, rules, lab, remembered } = self;
        let mut packet = client.packet(world, Protocol::Udp, to);
        let remembered = remembered.entry(packet.source.ip()).or_default();
        packet.remembered.clone_from(remembered);
        let leaves: Vec<Leaf> = Ruleset::from_rules(rules).leaves(&world.host(), &packet).collect();
        let delivered = |leaf: &Leaf| matches!(leaf.verdict, Verdict::Delivered { translated: true, .. });
        let observed = lab.send(world, client, packet.source, to, leaves.iter().all(delivered));
        let Some(leaf) = leaves.iter().find(|leaf| traced_rules(leaf) == observed.rules) else {
            let mut text = String::new();
            leaves.iter().for_each(|leaf| write_leaf_into(&mut text, leaf).unwrap());
            panic!("{client:?} to {to}: the kernel evaluated {:#?}, the walk\n{text}", observed.rules);
        };
        let verdict = leaf.verdict.clone();
        let received = match &verdict {
            Verdict::Delivered { to, from, translated: true, .. } => Some((*to, *from)),
            _ => None,
        };
        assert_eq!(observed, Observation { rules: traced_rules(leaf), received }, "{client:?} to {to}");
        remembered.extend(matching_rules(leaf).filter_map(|rule| {
            let (_, list) = rule.split_once("--set --name ")?;
            Some((list.split(' ').next()?.to_owned(), 0))
        }));
        verdict
    }
}

fn check_services(family: IpFamily) {
    let pods = ["10.244.0.0/16", "fd00:244::/32"].map(|net| net.parse().unwrap());
    let detector = LocalTrafficDetector::ClusterCidr(pods.into());
    let world = World::new(ProxySettings { detector, ..ProxySettings::default() });
    let table = cluster(family).table(family);
    let host_state = HostState { addresses: world.addresses(), random_fully: true, ..HostState::default() };
    let rules = render(&table, &IptablesContext::new(&world.settings, &table, &host_state));
    let mut trial = Trial::new(world, rules);
    let mut verdicts = BTreeSet::new();
    for client in clients(family) {
        for to in frontends(family) {
            if !to.ip().is_loopback() || matches!(client, Client::Node) {
                let verdict = trial.check(&client, to).to_string();
                verdicts.extend(verdict.split(' ').next().map(str::to_owned));
            }
        }
    }
    assert_eq!(Vec::from_iter(verdicts), ["delivered", "dropped", "not", "rejected"]);
}

#[test]
fn walk_agrees_with_kernel_on_ipv4_services() {
    check_services(IpFamily::V4);
}

#[test]
fn walk_agrees_with_kernel_on_ipv6_services() {
    check_services(IpFamily::V6);
}

/// Gotos, returns, policies and untracked packets, which other programs use but kube-proxy does not.
#[test]
fn walk_agrees_with_kernel_on_chains_of_any_shape() {
    let rules = RuleSet::parse_save(
        IpFamily::V4,
        "*raw
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A PREROUTING -p udp -m udp --dport 105 -j CT --notrack
-A OUTPUT -p udp -m udp --dport 105 -j CT --notrack
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:A - [0:0]
:B - [0:0]
:C - [0:0]
-A PREROUTING -p udp -m udp --dport 101 -g A
-A PREROUTING -j C
-A OUTPUT -p udp -m udp --dport 101 -g A
-A OUTPUT -j C
-A POSTROUTING -m mark ! --mark 0x0/0x10 -j MASQUERADE
-A A -j MARK --set-xmark 0x10/0x10
-A A -j B
-A A -p udp -j DNAT --to-destination 10.244.0.3:8080
-A B -p udp -m udp --dport 101 -j RETURN
-A B -j MARK --set-xmark 0x20/0x20
-A C -p udp -m udp --dport 102 -g A
-A C -p udp -m udp --dport 103:104 -j RETURN
-A C -p udp -m udp --dport 105 -j A
-A C -d 192.168.0.1/32 -p udp -m udp --dport 106 -j DNAT --to-destination 192.168.0.1:9000
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:D - [0:0]
-A INPUT -m conntrack --ctstate UNTRACKED -j D
-A INPUT -m conntrack --ctstate DNAT -j D
-A INPUT -m conntrack --ctstate SNAT -j D
-A INPUT -p udp -m udp --dport 103 -j DROP
-A OUTPUT -o lo -p udp -m udp --dport 102 -j D
-A D -m addrtype --src-type LOCAL --dst-type LOCAL -j ACCEPT
-A D -m mark --mark 0x20/0x20 -g D2
-A D -m conntrack ! --ctstate NEW -j RETURN
:D2 - [0:0]
-A D2 -j MARK --set-xmark 0x0/0xffffffff
COMMIT
",
    )
    .unwrap();
    let mut trial = Trial::new(World::new(ProxySettings::default()), rules);
    for client in clients(IpFamily::V4) {
        for port in 100..=106 {
            for own in ["192.168.0.1", "10.244.0.1", "198.51.100.1"] {
                trial.check(&client, SocketAddr::new(ip(own), port));
            }
        }
    }
}
