//! Measures connections per second through a Service, and the cost of rules for other connections, by the size of the
//! cluster. Requires root.
//!
//! ```text
//!   client ----- node (rules) ----- pods      network namespaces connected by veth devices
//!
//! cargo bench -p ferroute --bench connections
//! cargo bench -p ferroute --bench connections -- nftables 1000x10
//! ```
//!
//! Clients connect, wait until the pod closes the connection, and repeat this as fast as possible. Rounds of several kinds
//! alternate, so that other load affects all of them: directly to a pod without rules on the node, with connection tracking
//! and no other rules, and with the proxy's rules; through the Service in the middle of the cluster; the same while `ferroute flows`
//! reads the node's connections; and in nftables mode, up to 1,000 Services, through that Service with rules as kube-proxy writes
//! them. Clients are pods, so that nothing is masqueraded.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is an interactive program")]

#[path = "../common/mod.rs"]
mod common;
mod network;

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use ferroute_testing::{NetNs, Running};

use self::{
    common::{
        arguments::{Case, Invocation, Mode, measure_in_process, parse_arguments},
        cluster::{PORT, Size, TARGET_PORT, cluster_ip, endpoint},
        csv::Row,
        figures::time,
        kube_proxy, rules,
    },
    network::{Network, Round},
};

fn main() {
    match parse_arguments(default_sizes, &[]) {
        Invocation::Row(case) => measure(case),
        Invocation::Table(cases) => {
            println!(
                "| mode | cluster | connections per second: no proxy | tracking | pod, with rules | Service | flows read | kube-proxy's \
                 | time to connect: no proxy | tracking | pod, with rules | Service | flows read | kube-proxy's | reader's processor time \
                 per connection |"
            );
            println!("|{}", " --- |".repeat(2 * KINDS + 3));
            cases.into_iter().for_each(|case| measure_in_process(case, &[]));
        }
    }
}

fn default_sizes(mode: Mode) -> Vec<Size> {
    let services: &[u32] = match mode {
        Mode::Iptables => &[100, 1_000],
        Mode::Nftables => &[1_000, 10_000, 50_000, 100_000],
    };
    services.iter().map(|services| Size::new(*services, 10)).collect()
}

fn measure(case: Case) {
    let Case { mode, size } = case;
    let number = size.services / 2;
    let pods: Vec<_> = (0..size.endpoints).map(|i| endpoint(size, number, i)).collect();
    let pod = SocketAddr::from((pods[0], TARGET_PORT));
    let service = SocketAddr::from((cluster_ip(number), PORT));
    let network = || Network::new(&pods);
    let (without, tracking, with, read) = (network(), network(), network(), network());
    rules::track(&tracking.node);
    rules::write(&with.node, mode, size);
    rules::write(&read.node, mode, size);
    let reader = FlowsReader::start(&read.node);
    let kube_proxy = kube_proxy::is_comparable(mode, size).then(|| {
        let network = network();
        kube_proxy::write_rules(&network.node, size);
        network
    });
    let mut kinds = vec![
        (&without, pod, vec![]),
        (&tracking, pod, vec![]),
        (&with, pod, vec![]),
        (&with, service, vec![]),
        (&read, service, vec![]),
    ];
    kinds.extend(kube_proxy.as_ref().map(|network| (network, service, vec![])));
    for _ in 0..ROUNDS {
        for (network, to, rounds) in &mut kinds {
            rounds.push(network.connect(*to));
        }
    }
    let read_connections: u32 = kinds[4].2.iter().map(|round: &Round| round.per_second).sum();
    let reading = reader.processor_time() / read_connections.max(1);
    let medians: Vec<Round> = kinds.into_iter().map(|(_, _, rounds)| Round::median(rounds)).collect();
    for (kind, round) in NAMES.iter().zip(&medians) {
        Row::new(mode, size)
            .with("kind", kind)
            .with("per_second", &round.per_second)
            .time("connect_s", round.to_connect)
            .append("connections");
    }
    Row::new(mode, size).time("per_connection_s", reading).append("flows");
    let columns = |value: &dyn Fn(&Round) -> String| {
        (0..KINDS).map(|kind| medians.get(kind).map_or_else(String::new, value)).collect::<Vec<_>>().join(" | ")
    };
    println!(
        "| {mode} | {size} | {} | {} | {} |",
        columns(&|round| round.per_second.to_string()),
        columns(&|round| time(round.to_connect)),
        time(reading)
    );
}

/// `ferroute flows` on a node. It ends when it is dropped.
struct FlowsReader(Running);

impl FlowsReader {
    /// Starts it, and waits until it receives flows.
    fn start(node: &NetNs) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
        command.args(["flows", "-o", "json"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = node.run(|| command.spawn()).unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let is_start = |line: &String| line.contains("\"start\"");
        assert!(lines.any(|line| line.is_ok_and(|line| is_start(&line))), "the reader has ended");
        thread::spawn(move || lines.for_each(drop));
        Self(Running(process))
    }

    /// Returns its processor time since the start.
    fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.0.id())).unwrap();
        // User and system time, in hundredths of a second.
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }
}

/// The kinds of connections, which are columns of the table.
const KINDS: usize = NAMES.len();
const NAMES: [&str; 6] = ["no proxy", "tracking", "pod", "Service", "flows read", "kube-proxy's"];
/// The number of rounds of each kind.
const ROUNDS: usize = 7;
