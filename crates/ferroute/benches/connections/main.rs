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
//! Clients connect, wait until the pod closes the connection, and repeat this as fast as possible. Rounds of three kinds
//! alternate, so that other load affects all of them: directly to a pod without rules on the node, directly to a pod with
//! rules, and through the Service in the middle of the cluster.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is an interactive program")]

#[path = "../common/mod.rs"]
mod common;
mod network;

use std::net::SocketAddr;

use self::{
    common::{
        arguments::{Case, Invocation, Mode, measure_in_process, parse_arguments},
        cluster::{PORT, Size, TARGET_PORT, cluster_ip, endpoint},
        figures::time,
        pipeline::Pipeline,
        rules,
    },
    network::{Network, Round},
};

fn main() {
    match parse_arguments(default_sizes, &[]) {
        Invocation::Row(case) => measure(case),
        Invocation::Table(cases) => {
            println!(
                "| mode | cluster | no proxy | pod, with rules | Service | Service vs. no proxy | time to connect: no proxy | pod | Service |"
            );
            println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
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
    let (without, with) = (Network::new(&pods), Network::new(&pods));
    with.node.run(|| {
        let mut pipeline = Pipeline::open(mode);
        pipeline.load(size);
        pipeline.first_sync();
    });
    rules::check(&with.node, mode, size);
    let (mut no_proxy, mut direct, mut through) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        no_proxy.push(without.connect(pod));
        direct.push(with.connect(pod));
        through.push(with.connect(service));
    }
    let [no_proxy, direct, through] = [no_proxy, direct, through].map(Round::median);
    println!(
        "| {mode} | {size} | {} | {} | {} | {:.0} % | {} | {} | {} |",
        no_proxy.per_second,
        direct.per_second,
        through.per_second,
        f64::from(through.per_second) * 100.0 / f64::from(no_proxy.per_second),
        time(no_proxy.to_connect),
        time(direct.to_connect),
        time(through.to_connect),
    );
}

/// The number of rounds of each kind.
const ROUNDS: usize = 7;
