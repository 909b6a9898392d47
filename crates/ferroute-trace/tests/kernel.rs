//! The walk tells the truth: the kernel takes real packets through the same rules to the same end.

mod common;

use std::net::SocketAddr;

use common::{
    lab::{Lab, Sighting},
    world::{Client, World, ip},
};
use ferroute_core::{
    IpFamily, LocalTrafficDetector, Protocol, ProxySettings,
    testing::{Cluster, ServiceBuilder, SliceBuilder, pod, service, slice},
};
use ferroute_iptables::{HostFacts, PlanContext, render};
use ferroute_trace::{Event, Story, Verdict, iptables, write_story_into};

/// Services of every kind that a node tells apart; number `n` has the addresses that end in `n`.
fn cluster(family: IpFamily) -> Cluster {
    let pick = |v4: &str, v6: &str| if family == IpFamily::V4 { v4.to_owned() } else { v6.to_owned() };
    let plain = |n: u16, name: &str| -> ServiceBuilder {
        service(&format!("lab/{name}"))
            .cluster_ip(&address(family, "cluster", n))
            .udp("", 80)
            .node_port(30_000 + n)
            .external_ip(&address(family, "external", n))
            .load_balancer(&address(family, "balancer", n))
    };
    let slice = |name: &str, port| -> SliceBuilder { slice(&format!("lab/{name}"), name).udp("", port) };
    let here = |v4, v6| pod(&pick(v4, v6)).on("node-1");
    let first = || here("10.244.0.3", "fd00:244::3");
    let second = || here("10.244.0.6", "fd00:244::6");
    let away = || pod(&pick("10.244.1.1", "fd00:244:0:1::1")).on("node-2");
    let outside = pick("192.168.0.9/32", "fd00:168::9/128");
    Cluster::of_node("node-1")
        .service(plain(1, "everywhere"))
        .slice(slice("everywhere", 8080).pod(first()).pod(second()).pod(away()))
        .service(plain(2, "local").external_local().source_range(&outside))
        .slice(slice("local", 8080).pod(first()).pod(away()))
        .service(plain(3, "away").external_local().internal_local())
        .slice(slice("away", 8080).pod(away()))
        .service(plain(4, "nowhere"))
        .service(plain(5, "node"))
        .slice(slice("node", 9000).pod(here("192.168.0.1", "fd00:168::1")))
        .service(plain(6, "one").affinity(60))
        .slice(slice("one", 8080).pod(first()))
}

fn address(family: IpFamily, kind: &str, n: u16) -> String {
    let prefixes = match kind {
        "cluster" => ["10.96.0.", "fd00:96::"],
        "external" => ["203.0.113.", "2001:db8:ee::"],
        _ => ["198.51.100.", "2001:db8:1b::"],
    };
    format!("{}{n}", prefixes[family.index()])
}

fn clients(family: IpFamily) -> Vec<Client> {
    let [caller, endpoint, outside] = match family {
        IpFamily::V4 => ["10.244.0.200", "10.244.0.3", "192.168.0.9"].map(ip),
        IpFamily::V6 => ["fd00:244::200", "fd00:244::3", "fd00:168::9"].map(ip),
    };
    vec![Client::Pod(caller), Client::Pod(endpoint), Client::Elsewhere(outside), Client::Node]
}

fn frontends(family: IpFamily) -> Vec<SocketAddr> {
    let mut all = Vec::new();
    for n in 1..=6 {
        let by_address = ["cluster", "external", "balancer"].map(|kind| ip(&address(family, kind, n)));
        all.extend(by_address.map(|ip| SocketAddr::new(ip, 80)));
        let own: &[&str] = match family {
            IpFamily::V4 => &["192.168.0.1", "10.244.0.1", "127.0.0.1"],
            IpFamily::V6 => &["fd00:168::1", "fd00:244::1", "::1"],
        };
        all.extend(own.iter().map(|own| SocketAddr::new(ip(own), 30_000 + n)));
    }
    // What no Service has.
    all.push(SocketAddr::new(ip(&address(family, "cluster", 1)), 81));
    all
}

/// The rules of a story that matched, as [`Sighting::rules`] has them.
fn rules_met(story: &Story) -> Vec<String> {
    let mut in_table = "";
    let mut met = Vec::new();
    for event in &story.events {
        match event {
            Event::Hook { table, .. } => in_table = table,
            Event::Rule { chain, text, mismatch: None, .. } => {
                met.push(format!("{in_table} {chain}: {}", verdict(text)))
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
        None | Some((_, "MARK")) => "continue".to_owned(),
        Some((_, "ACCEPT" | "DNAT" | "MASQUERADE")) => "accept".to_owned(),
        Some((_, "DROP" | "REJECT")) => "drop".to_owned(),
        Some((_, "RETURN")) => "return".to_owned(),
        Some(("-g", chain)) => format!("goto {chain}"),
        Some((_, chain)) => format!("jump {chain}"),
    }
}

fn agrees(family: IpFamily) {
    let world = World::of(ProxySettings {
        detector: LocalTrafficDetector::ClusterCidr(
            ["10.244.0.0/16", "fd00:244::/32"].map(|net| net.parse().unwrap()).into(),
        ),
        ..ProxySettings::default()
    });
    let table = cluster(family).table(family);
    let facts = HostFacts { addresses: world.addresses(), random_fully: true, ..HostFacts::default() };
    let rules = render(&table, &PlanContext::new(&world.settings, &table, &facts));
    let mut lab = Lab::new(family, &rules.to_string());
    let host = world.host();
    let mut ends = std::collections::BTreeMap::new();
    for client in clients(family) {
        for to in frontends(family) {
            if to.ip().is_loopback() && !matches!(client, Client::Node) {
                continue;
            }
            let mut packet = client.packet(&world, Protocol::Udp, to);
            let told = |packet: &_| iptables::stories(&rules, &host, packet).collect::<Vec<Story>>();
            let mut stories = told(&packet);
            let delivered = |story: &Story| matches!(story.ending.verdict, Verdict::Delivered { translated: true, .. });
            let seen = lab.send(&world, &client, packet.source, to, stories.iter().all(delivered));
            // The kernel remembers clients for their affinity; that is known to us from its own way only.
            if seen.rules.first().is_some() && !stories.iter().any(|story| rules_met(story) == seen.rules) {
                for story in told(&packet.clone()) {
                    let chains = rules_met(&story);
                    let chosen = chains.iter().filter_map(|met| met.split_once("jump KUBE-SEP-")).next();
                    if let Some((_, name)) = chosen {
                        packet.remembered.insert(format!("KUBE-SEP-{name}"), 0);
                    }
                }
                stories = told(&packet);
            }
            let Some(story) = stories.iter().find(|story| rules_met(story) == seen.rules) else {
                let mut text = String::new();
                stories.iter().for_each(|story| write_story_into(&mut text, story).unwrap());
                panic!("{client:?} to {to}: the kernel went {:#?}, but we say\n{text}", seen.rules);
            };
            let received = match &story.ending.verdict {
                Verdict::Delivered { to, from, translated: true, .. } => Some((*to, *from)),
                _ => None,
            };
            assert_eq!(seen, Sighting { rules: rules_met(story), received }, "{client:?} to {to}");
            *ends.entry(story.ending.verdict.to_string().split(' ').next().unwrap().to_owned()).or_insert(0) += 1;
        }
    }
    println!("{ends:?}");
}

#[test]
fn the_kernel_takes_ipv4_packets_the_way_that_the_walk_tells() {
    agrees(IpFamily::V4);
}

#[test]
fn the_kernel_takes_ipv6_packets_the_way_that_the_walk_tells() {
    agrees(IpFamily::V6);
}
