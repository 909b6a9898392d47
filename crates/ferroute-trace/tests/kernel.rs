//! The walk tells the truth: the kernel takes real packets through the same rules to the same end.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up must fail")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use common::{
    lab::{Lab, Sighting},
    scene::{clients, cluster, frontends},
    world::{Client, World, ip},
};
use ferroute_core::{IpFamily, LocalTrafficDetector, Protocol, ProxySettings};
use ferroute_iptables::{HostFacts, PlanContext, RuleSet, render};
use ferroute_trace::{Event, Story, Verdict, iptables, write_story_into};

/// The texts of a story's rules that matched.
fn rules_that_matched(story: &Story) -> impl Iterator<Item = &str> {
    story.events.iter().filter_map(|event| match event {
        Event::Rule { text, mismatch: None, .. } => Some(text.as_str()),
        _ => None,
    })
}

/// The rules of a story that matched, as [`Sighting::rules`] has them.
fn rules_met(story: &Story) -> Vec<String> {
    let mut in_table = "";
    let mut met = Vec::new();
    for event in &story.events {
        match event {
            Event::Hook { table, .. } => in_table = table,
            Event::Rule { chain, text, mismatch: None, .. } => {
                met.push(format!("{in_table} {chain}: {}", verdict(text)));
            }
            _ => {}
        }
    }
    met
}

/// What the kernel does after a rule.
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

/// A lab with its rules, and who has been remembered for affinity, by list.
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

    /// Sends a packet and panics unless it went as one of the stories tells; returns the end of that story.
    fn check(&mut self, client: &Client, to: SocketAddr) -> Verdict {
        let Self { world, rules, lab, remembered } = self;
        let mut packet = client.packet(world, Protocol::Udp, to);
        let remembered = remembered.entry(packet.source.ip()).or_default();
        packet.remembered.clone_from(remembered);
        let stories: Vec<Story> = iptables::stories(rules, &world.host(), &packet).collect();
        let delivered = |story: &Story| matches!(story.ending.verdict, Verdict::Delivered { translated: true, .. });
        let seen = lab.send(world, client, packet.source, to, stories.iter().all(delivered));
        let Some(story) = stories.iter().find(|story| rules_met(story) == seen.rules) else {
            let mut told = String::new();
            stories.iter().for_each(|story| write_story_into(&mut told, story).unwrap());
            panic!("{client:?} to {to}: the kernel went {:#?}, but we say\n{told}", seen.rules);
        };
        let verdict = story.ending.verdict.clone();
        let received = match &verdict {
            Verdict::Delivered { to, from, translated: true, .. } => Some((*to, *from)),
            _ => None,
        };
        assert_eq!(seen, Sighting { rules: rules_met(story), received }, "{client:?} to {to}");
        remembered.extend(rules_that_matched(story).filter_map(|rule| {
            let (_, list) = rule.split_once("--set --name ")?;
            Some((list.split(' ').next()?.to_owned(), 0))
        }));
        verdict
    }
}

fn agrees_on_services(family: IpFamily) {
    let pods = ["10.244.0.0/16", "fd00:244::/32"].map(|net| net.parse().unwrap());
    let detector = LocalTrafficDetector::ClusterCidr(pods.into());
    let world = World::of(ProxySettings { detector, ..ProxySettings::default() });
    let table = cluster(family).table(family);
    let facts = HostFacts { addresses: world.addresses(), random_fully: true, ..HostFacts::default() };
    let rules = render(&table, &PlanContext::new(&world.settings, &table, &facts));
    let mut trial = Trial::new(world, rules);
    let mut ends = BTreeSet::new();
    for client in clients(family) {
        for to in frontends(family) {
            if !to.ip().is_loopback() || matches!(client, Client::Node) {
                let end = trial.check(&client, to).to_string();
                ends.extend(end.split(' ').next().map(str::to_owned));
            }
        }
    }
    assert_eq!(Vec::from_iter(ends), ["delivered", "dropped", "not", "rejected"]);
}

#[test]
fn the_kernel_takes_ipv4_packets_the_way_that_the_walk_tells() {
    agrees_on_services(IpFamily::V4);
}

#[test]
fn the_kernel_takes_ipv6_packets_the_way_that_the_walk_tells() {
    agrees_on_services(IpFamily::V6);
}

/// Gotos, returns, policies, packets that are not tracked: what kube-proxy's rules do not have, but others' do.
#[test]
fn the_kernel_goes_through_chains_of_any_shape_as_the_walk_does() {
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
    let mut trial = Trial::new(World::of(ProxySettings::default()), rules);
    for client in clients(IpFamily::V4) {
        for port in 100..=106 {
            for own in ["192.168.0.1", "10.244.0.1", "198.51.100.1"] {
                trial.check(&client, SocketAddr::new(ip(own), port));
            }
        }
    }
}
