//! Connections per second through a Service, by size of the cluster, and what rules cost those who use no Service.
//! Needs root.
//!
//! ```text
//!   client ───── node (rules) ───── pods      network namespaces joined by virtual Ethernet devices
//!
//! cargo bench -p ferroute --bench connections
//! cargo bench -p ferroute --bench connections -- nftables 1000x10
//! ```
//!
//! Clients connect, wait until the pod closes, and begin anew, all as fast as they can. Three ways are measured by turns,
//! so that what else the machine does meets all of them: straight to a pod while the node has no rules, straight to a
//! pod past the rules, and through the Service in the middle of the cluster.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is a program for people at a terminal")]

#[path = "../common/mod.rs"]
mod common;
mod lab;

use std::net::SocketAddr;

use self::{
    common::{
        arguments::{Asked, Case, Mode, asked, measure_apart},
        cluster::{PORT, Size, TARGET_PORT, cluster_ip, endpoint},
        figures::time,
        pipeline::Pipeline,
        rules,
    },
    lab::{Lab, Round},
};

fn main() {
    match asked(default_sizes, &[]) {
        Asked::Line(case) => measure(case),
        Asked::Table(cases) => {
            println!(
                "| mode | cluster | no proxy | pod, past the rules | Service | Service against no proxy | time to connect: no proxy | pod | Service |"
            );
            println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
            cases.into_iter().for_each(|case| measure_apart(case, &[]));
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
    let (without, with) = (Lab::new(&pods), Lab::new(&pods));
    with.node.run(|| {
        let mut pipeline = Pipeline::open(mode);
        pipeline.tell_all(size);
        pipeline.first_sync();
    });
    rules::check(&with.node, mode, size);
    let (mut no_proxy, mut past, mut through) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        no_proxy.push(without.connect(pod));
        past.push(with.connect(pod));
        through.push(with.connect(service));
    }
    let [no_proxy, past, through] = [no_proxy, past, through].map(Round::median);
    println!(
        "| {mode} | {size} | {} | {} | {} | {:.0} % | {} | {} | {} |",
        no_proxy.per_second,
        past.per_second,
        through.per_second,
        f64::from(through.per_second) * 100.0 / f64::from(no_proxy.per_second),
        time(no_proxy.to_connect),
        time(past.to_connect),
        time(through.to_connect),
    );
}

/// Of each way.
const ROUNDS: usize = 7;
