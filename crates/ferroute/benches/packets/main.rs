//! Measures the time that a node spends on a packet that it forwards: on the first packet of a connection and on later
//! ones. Requires root.
//!
//! ```text
//!   client ----- node (rules) ----- pods      network namespaces connected by veth devices
//!
//! cargo bench -p ferroute --bench packets
//! cargo bench -p ferroute --bench packets -- nftables 1000x10
//! ```
//!
//! A thread that is bound to one processor sends TCP packets without a TCP stack. The kernel forwards each of them
//! before the system call returns, and the namespace of the pods drops it, so the difference between two kinds is the
//! cost of the rules. Rounds of all kinds alternate. The client is a pod, so that nothing is masqueraded.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is an interactive program")]

#[path = "../common/mod.rs"]
mod common;
mod network;

use std::{net::SocketAddrV4, time::Duration};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use self::{
    common::{
        arguments::{Case, Invocation, Mode, measure_in_process, parse_arguments},
        cluster::{PORT, Size, TARGET_PORT, cluster_ip, endpoint},
        csv::Row,
        figures::{median, time},
        kube_proxy, rules,
    },
    network::{Connection, Network},
};

fn main() {
    match parse_arguments(default_sizes, &[]) {
        Invocation::Row(case) => measure(case),
        Invocation::Table(cases) => {
            println!("| mode | cluster | kind | first packet | later packet |");
            println!("|{}", " --- |".repeat(5));
            cases.into_iter().for_each(|case| measure_in_process(case, &[]));
        }
    }
}

fn default_sizes(mode: Mode) -> Vec<Size> {
    let services: &[u32] = match mode {
        Mode::Iptables => &[100, 1_000],
        Mode::Nftables => &[1_000, 100_000],
    };
    services.iter().map(|services| Size::new(*services, 10)).collect()
}

/// Packets from the client to one address in a network.
struct Kind<'a> {
    name: &'static str,
    network: &'a Network,
    to: SocketAddrV4,
    connection: Connection,
    /// The time per packet in each round.
    first: Vec<Duration>,
    later: Vec<Duration>,
}

fn measure(case: Case) {
    let Case { mode, size } = case;
    let number = size.services / 2;
    let pods: Vec<_> = (0..size.endpoints).map(|i| SocketAddrV4::new(endpoint(size, number, i), TARGET_PORT)).collect();
    let pod = pods[0];
    let service = SocketAddrV4::new(cluster_ip(number), PORT);
    let network = || Network::new(&pods);
    let (without, tracking, one_rule, proxy) = (network(), network(), network(), network());
    rules::track(&tracking.node);
    let rule = format!("add rule ip translation prerouting ip daddr {} tcp dport {PORT} dnat to {pod}", service.ip());
    one_rule.node.feed("nft", &["-f", "-"], &format!("{NAT}\n{rule}"));
    rules::write(&proxy.node, mode, size);
    let kube_proxy = kube_proxy::is_comparable(mode, size).then(|| {
        let network = network();
        kube_proxy::write_rules(&network.node, size);
        network
    });
    let mut kinds = vec![
        ("no proxy", &without, pod),
        ("tracking", &tracking, pod),
        ("one rule that translates", &one_rule, service),
        ("pod with rules", &proxy, pod),
        ("Service", &proxy, service),
    ];
    let annotated: Vec<_> = if mode == Mode::Nftables { ANNOTATED.to_vec() } else { Vec::new() };
    let annotated: Vec<_> = annotated
        .into_iter()
        .map(|(name, annotations)| {
            let network = network();
            rules::write_with(&network.node, size, number, annotations);
            (name, network)
        })
        .collect();
    kinds.extend(annotated.iter().map(|(name, network)| (*name, network, service)));
    if let Some(network) = &kube_proxy {
        kinds.extend([
            ("pod with kube-proxy's rules", network, pod),
            ("Service by kube-proxy's rules", network, service),
        ]);
    }
    let mut kinds: Vec<_> = kinds
        .into_iter()
        .zip(1..)
        .map(|((name, network, to), port)| {
            let connection = network.establish(port, to);
            Kind { name, network, to, connection, first: Vec::new(), later: Vec::new() }
        })
        .collect();
    stay_on_one_processor();
    for round in 0..ROUNDS {
        for Kind { network, to, connection, first, later, .. } in &mut kinds {
            first.push(network.first_packets(*to, PACKETS, round));
            later.push(network.later_packets(connection, PACKETS));
            if round % ROUNDS_REMEMBERED == 0 {
                network.forget_first_packets();
            }
        }
    }
    for Kind { name, first, later, .. } in kinds {
        let (first, later) = (median(first), median(later));
        Row::new(mode, size).with("kind", &name).time("first_s", first).time("later_s", later).append("packets");
        println!("| {mode} | {size} | {name} | {} | {} |", time(first), time(later));
    }
}

/// The kernel processes a packet on the processor that has sent it.
fn stay_on_one_processor() {
    let mut processors = CpuSet::new();
    processors.set(0).unwrap();
    sched_setaffinity(Pid::from_raw(0), &processors).unwrap();
}

/// Services with other methods of load balancing, whose first packets pass other rules.
const ANNOTATED: [(&str, &[(&str, &str)]); 3] = [
    ("Service with round robin", &[("load-balancing", "round-robin")]),
    ("Service with source hash", &[("load-balancing", "source-hash")]),
    ("Service with source and port hash", &[("load-balancing", "source-port-hash")]),
];

/// The hooks that any translation needs.
const NAT: &str = "table ip translation {
    chain prerouting { type nat hook prerouting priority dstnat; }
    chain postrouting { type nat hook postrouting priority srcnat + 1; };
}";
const ROUNDS: u32 = 300;
/// The number of packets that each round sends.
const PACKETS: u32 = 200;
/// Number of rounds after which their entries are deleted, so that the kernel's table does not fill up.
const ROUNDS_REMEMBERED: u32 = 10;
