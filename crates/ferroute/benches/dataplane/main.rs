//! Measures the time from an event to the kernel's acknowledgement, and memory, by the size of the cluster: the change tracker
//! and the dataplane of each mode, with the real kernel, in a separate network namespace. Requires root. The benchmark `scale`
//! measures the whole program.
//!
//! ```text
//! cargo bench -p ferroute --bench dataplane                              # all modes and sizes
//! cargo bench -p ferroute --bench dataplane -- nftables 1000x10 5000x20  # these only
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is an interactive program")]

#[path = "../common/mod.rs"]
mod common;

use ferroute_core::NodeView;
use ferroute_testing::{MemoryPeak, NetNs, anonymous_memory};

use self::common::{
    arguments::{Case, Invocation, Mode, measure_in_process, parse_arguments},
    cluster::{self, Size, service_of_round},
    csv::Row,
    figures::{megabytes, percentiles, quantiles, time},
    pipeline::{Event, Pipeline},
    rules,
};

fn main() {
    match parse_arguments(default_sizes, &[]) {
        Invocation::Row(case) => measure(case),
        Invocation::Table(cases) => {
            println!(
                "| mode | cluster | first sync | kernel | Ferroute | endpoint replaced, p50 / p99 | port of Service changed, p50 / p99 | 1,000 endpoints of 1,000 Services | kernel | node relabelled | 5,000 slices listed again | memory | peak |"
            );
            println!("|{}", " --- |".repeat(13));
            cases.into_iter().for_each(|case| measure_in_process(case, &[]));
        }
    }
}

fn default_sizes(mode: Mode) -> Vec<Size> {
    let services: &[u32] = match mode {
        Mode::Iptables => &[100, 1_000, 10_000],
        Mode::Nftables => &[100, 1_000, 10_000, 50_000, 100_000],
    };
    services.iter().map(|services| Size::new(*services, 10)).collect()
}

fn measure(case: Case) {
    let Case { mode, size } = case;
    let namespace = NetNs::new();
    let process = std::process::id();
    let before = anonymous_memory(process);
    let line = namespace.run(|| {
        let mut pipeline = Pipeline::open(mode);
        pipeline.load(size);
        let peak = MemoryPeak::watch(process);
        let (first, report) = pipeline.first_sync();
        let (memory, peak) = (anonymous_memory(process), peak.stop());
        let zone = Some("zone-b".to_owned());
        let node = NodeView { name: cluster::NODE.into(), zone, ..NodeView::default() };
        let relabelled = pipeline.sync_same(std::iter::once(Event::Node(node)));
        let slices = (0..LISTED.min(size.services)).map(|number| Event::Slice(Box::new(cluster::slice(size, number))));
        let listed = pipeline.sync_same(slices);
        let singles = singles(mode);
        let mut endpoint = pipeline.repeat(singles, |round| {
            Event::Slice(Box::new(cluster::changed_slice(size, service_of_round(size, round), round)))
        });
        let mut service = pipeline.repeat(singles, |round| {
            // A new port whenever the same Service is selected again.
            let port = cluster::PORT + 1 + u16::try_from(round / size.services).unwrap();
            Event::Service(Box::new(cluster::service_at(service_of_round(size, round), port)))
        });
        let (many, many_report) =
            pipeline.sync((singles..singles + MANY.min(size.services)).map(|round| {
                Event::Slice(Box::new(cluster::changed_slice(size, service_of_round(size, round), round)))
            }));
        let (endpoint_p50, endpoint_p99) = quantiles(&mut endpoint);
        let (service_p50, service_p99) = quantiles(&mut service);
        Row::new(mode, size)
            .time("first_s", first)
            .time("kernel_s", report.kernel_time)
            .time("endpoint_p50_s", endpoint_p50)
            .time("endpoint_p99_s", endpoint_p99)
            .time("service_p50_s", service_p50)
            .time("service_p99_s", service_p99)
            .time("many_s", many)
            .with("memory_bytes", &memory.saturating_sub(before))
            .append("dataplane");
        format!(
            "| {mode} | {size} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            time(first),
            time(report.kernel_time),
            time(first.saturating_sub(report.kernel_time)),
            percentiles(&mut endpoint),
            percentiles(&mut service),
            time(many),
            time(many_report.kernel_time),
            time(relabelled),
            time(listed),
            megabytes(memory.saturating_sub(before)),
            megabytes(peak.saturating_sub(before)),
        )
    });
    rules::check(&namespace, mode, size);
    println!("{line}");
}

/// The number of single changes: enough for a 99th percentile, fewer for the slow mode.
fn singles(mode: Mode) -> u32 {
    match mode {
        Mode::Iptables => 30,
        Mode::Nftables => 1_000,
    }
}

/// The number of Services that change in one sync.
const MANY: u32 = 1_000;

/// The number of slices that an API server lists again, as after a watch that ended with status 410.
const LISTED: u32 = 5_000;
