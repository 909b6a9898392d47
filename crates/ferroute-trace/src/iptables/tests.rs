mod matches;
mod nginx;
mod routing;
mod targets;

use std::net::{IpAddr, SocketAddr};

use ferroute_core::{IpFamily, Protocol};

use super::*;
use crate::{Event, Origin, Route, Verdict};

/// A node with pods behind `cni0` and the rest of the world behind `eth0`.
fn host() -> Host {
    let route = |to: &str, interface: &str, source: &str| Route {
        to: to.parse().unwrap(),
        interface: interface.to_owned(),
        source: ip(source),
    };
    Host {
        addresses: ["192.168.49.2", "172.17.0.1", "fd00:49::2", "fd00:17::1"].map(ip).into(),
        routes: vec![
            route("172.17.0.0/24", "cni0", "172.17.0.1"),
            route("0.0.0.0/0", "eth0", "192.168.49.2"),
            route("fd00:17::/64", "cni0", "fd00:17::1"),
            route("::/0", "eth0", "fd00:49::2"),
        ],
        route_localnet: true,
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A TCP connection from a pod.
fn from_pod(to: &str) -> Packet {
    let source = if socket(to).is_ipv4() { "172.17.0.14:40000" } else { "[fd00:17::14]:40000" };
    Packet::arriving(Protocol::Tcp, socket(source), socket(to), "cni0")
}

/// A TCP connection from outside.
fn from_outside(to: &str) -> Packet {
    let source = if socket(to).is_ipv4() { "203.0.113.7:40000" } else { "[2001:db8::7]:40000" };
    Packet::arriving(Protocol::Tcp, socket(source), socket(to), "eth0")
}

/// A TCP connection from the node itself.
fn from_node(to: &str) -> Packet {
    let host = host();
    let destination = socket(to);
    let source = host.route(destination.ip()).map_or(destination.ip(), |route| route.source);
    Packet::local(Protocol::Tcp, SocketAddr::new(source, 40_000), destination)
}

/// Reads rules, without the last line of each table.
fn rules(family: IpFamily, text: &str) -> RuleSet {
    let mut lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let tables: Vec<usize> = (1..lines.len()).filter(|n| lines[*n].starts_with('*')).collect();
    tables.into_iter().rev().for_each(|n| lines.insert(n, "COMMIT"));
    lines.push("COMMIT");
    RuleSet::parse_save(family, &(lines.join("\n") + "\n")).unwrap()
}

/// The ends of a walk through rules, each with its share and assumptions.
fn ends(text: &str, packet: &Packet) -> Vec<String> {
    let endings = endings(&rules(packet.family(), text), &host(), packet).into_iter();
    endings
        .map(|Ending { verdict, share, assuming }| {
            let assuming: String = assuming.iter().map(|assumption| format!(" ({assumption})")).collect();
            let share = if share < 1.0 { format!("{share:.3} ") } else { String::new() };
            format!("{share}{verdict}{assuming}")
        })
        .collect()
}
