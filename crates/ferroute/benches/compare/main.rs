//! Compares Ferroute with kube-proxy, on one machine in one run, with an API server and etcd of a Kubernetes release:
//! the first sync, a restart, a change at rest, and the time from the API server's answer to the first connection that
//! reaches a changed endpoint while others change. Requires root, and `KUBERNETES`, the directory with the programs
//! (see [`programs`]), unless `fake` is given.
//!
//! ```text
//!   client ----- node (proxy) ----- pods      network namespaces connected by veth devices
//!                  |
//!               control (etcd, API server)
//!
//! KUBERNETES=~/kubernetes cargo bench -p ferroute --bench compare
//! KUBERNETES=~/kubernetes cargo bench -p ferroute --bench compare -- nftables 1000x10 20/s   # minutes
//! KUBERNETES=~/kubernetes cargo bench -p ferroute --bench compare -- public                  # clusters of public reports
//! cargo bench -p ferroute --bench compare -- fake ipvs 1000x10 20/s   # Ferroute alone, with a fake API server
//! ```
//!
//! `FERROUTE` names another build of Ferroute, to compare two of them. Both proxies get the same configuration file, in which the time between syncs is the default. A change replaces all endpoints of a
//! Service. New ones accept connections and old ones refuse them.

#![allow(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used, reason = "it is an interactive program")]

mod api;
#[path = "../common/mod.rs"]
mod common;
mod control_plane;
mod node;
mod prober;
mod programs;
mod proxy;
mod request;

use std::{
    fs,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use ferroute_testing::NetNs;

use self::{
    api::Cluster,
    common::{
        csv::Row,
        figures::{megabytes, quantile, time},
    },
    control_plane::ControlPlane,
    node::Node,
    prober::Prober,
    programs::{Directory, Programs},
    proxy::{Program, Proxy},
    request::{Measurement, Request},
};

fn main() -> ExitCode {
    let parsed = Request::parse().and_then(|request| {
        let programs = if request.fake { Programs::Fake } else { Programs::Kubernetes(Directory::find()?) };
        Ok((programs, request))
    });
    let (programs, request) = match parsed {
        Ok(parsed) => parsed,
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::FAILURE;
        }
    };
    // The API server's clients in this process run in its namespace.
    let control = NetNs::new();
    for measurement in request.measurements() {
        control.run(|| measure_cluster(&control, &programs, &measurement));
    }
    ExitCode::SUCCESS
}

/// Measures both proxies in all modes of a measurement, with the same API server.
fn measure_cluster(control: &NetNs, programs: &Programs, measurement: &Measurement) {
    let size = measurement.size;
    println!("\n{size}{}", measurement.origin.map(|origin| format!(" (as in {origin})")).unwrap_or_default());
    let control_plane = ControlPlane::start(programs);
    let start = Instant::now();
    let mut cluster = Cluster::create(&control_plane, size);
    println!("  the API server has all objects after {}", time(start.elapsed()));
    for mode in &measurement.modes {
        for program in programs.measured() {
            println!("{mode}, {program}");
            measure(control, &control_plane, &mut cluster, measurement, (mode, *program));
        }
    }
}

/// Measures one proxy in one mode.
fn measure(
    control: &NetNs,
    control_plane: &ControlPlane,
    cluster: &mut Cluster,
    measurement: &Measurement,
    (mode, program): (&str, Program),
) {
    let size = measurement.size;
    let node = Node::new(control, size);
    let row = || Row::new(mode, size).with("proxy", &program);
    let start = || (Instant::now(), Proxy::start(program, mode, control_plane, &node));
    cluster.set_reachable(true);
    let (started, proxy) = start();
    let first = node.wait_until(cluster.spread(), true).duration_since(started);
    thread::sleep(SETTLE);
    let memory = proxy.memory();
    let at_rest = Prober::start(&node.client).finish_after(|probes| {
        for _ in 0..CHANGES {
            cluster.change(probes);
            thread::sleep(PAUSE);
        }
    });
    for rate in &measurement.rates {
        churn(&node, &proxy, cluster, *rate, &row);
    }
    cluster.set_reachable(false);
    node.wait_until(cluster.spread(), false);
    proxy.stop();
    cluster.set_reachable(true);
    let (started, _proxy) = start();
    let restart = node.wait_until(cluster.spread(), true).duration_since(started);
    let rest = quantile(&at_rest, 0.5);
    println!(
        "| {mode} | {program} | {} | {} | {} | {} | {} |",
        time(first),
        time(restart),
        time(rest),
        megabytes(memory),
        load()
    );
    row()
        .time("first_s", first)
        .time("restart_s", restart)
        .time("rest_p50_s", rest)
        .with("memory_bytes", &memory)
        .append("compare");
}

/// Measures a proxy while endpoints change.
fn churn(node: &Node, proxy: &Proxy, cluster: &mut Cluster, rate: u32, row: &dyn Fn() -> Row) {
    let (before, mut took) = (proxy.processor_time(), Duration::ZERO);
    let latencies = Prober::start(&node.client).finish_after(|probes| took = cluster.churn(rate, CHURN, probes));
    let busy = (proxy.processor_time() - before).as_secs_f64() / took.as_secs_f64();
    let [p50, p90, p99, longest] = [0.5, 0.9, 0.99, 1.0].map(|part| quantile(&latencies, part));
    println!(
        "  {rate} changes per second: p50 {}, p90 {}, p99 {}, longest {} ({} probes); {:.1} % of a processor, {}; load {}",
        time(p50),
        time(p90),
        time(p99),
        time(longest),
        latencies.len(),
        busy * 100.0,
        megabytes(proxy.memory()),
        load()
    );
    if p90 >= cluster.until_changed_again(rate) {
        println!("  not recorded: Services changed again before the proxy had applied the change before");
        return;
    }
    row()
        .with("rate", &rate)
        .time("p50_s", p50)
        .time("p90_s", p90)
        .time("p99_s", p99)
        .time("longest_s", longest)
        .with("processor", &busy)
        .with("memory_bytes", &proxy.memory())
        .append("churn");
    for percent in 0..=100 {
        let latency = quantile(&latencies, f64::from(percent) / 100.0);
        row().with("rate", &rate).with("percent", &percent).time("latency_s", latency).append("latency");
    }
}

/// Returns the machine's load over the last minute, which figures depend on.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// The number of changes at rest.
const CHANGES: u32 = 10;
/// The time between them: more than kube-proxy's time between syncs.
const PAUSE: Duration = Duration::from_millis(1_500);
/// The time to release memory.
const SETTLE: Duration = Duration::from_secs(5);
/// The time for which endpoints change.
const CHURN: Duration = Duration::from_secs(30);
