//! How long rules take from an event to the kernel's acknowledgement, by size of the cluster, and how much memory what
//! is remembered takes: the change tracker and the dataplane of each mode, against the real kernel, in a network
//! namespace of its own. Needs root. What is *not* here: reading manifests, scheduling, logs; see the bench `scale`.
//!
//! ```text
//! cargo bench -p ferroute --bench dataplane                              # all modes and sizes
//! cargo bench -p ferroute --bench dataplane -- nftables 1000x10 5000x20  # these only
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is a program for people at a terminal")]

#[path = "../common/mod.rs"]
mod common;

use ferroute_testing::NetNs;

use self::common::{
    arguments::{Asked, Case, Mode, asked, measure_apart},
    cluster::{self, Size, any_service},
    figures::{Memory, megabytes, percentiles, time},
    pipeline::{Event, Pipeline},
    rules,
};

fn main() {
    match asked(default_sizes, &[]) {
        Asked::Line(case) => measure(case),
        Asked::Table(cases) => {
            println!(
                "| mode | cluster | first sync | of it kernel | of it Ferroute | endpoint replaced, p50 / p99 | port of Service changed, p50 / p99 | 1,000 endpoints of 1,000 Services | of it kernel | memory | peak |"
            );
            println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
            cases.into_iter().for_each(|case| measure_apart(case, &[]));
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
    let before = Memory::of(std::process::id()).resident;
    let line = namespace.run(|| {
        let mut pipeline = Pipeline::open(mode);
        pipeline.tell_all(size);
        let (first, report) = pipeline.first_sync();
        let memory = Memory::of(std::process::id());
        let singles = singles(mode);
        let mut endpoint = pipeline.repeat(singles, |turn| {
            Event::Slice(Box::new(cluster::changed_slice(size, any_service(size, turn), turn)))
        });
        let mut service = pipeline.repeat(singles, |turn| {
            // Another one each time that the same Service has its turn.
            let port = cluster::PORT + 1 + u16::try_from(turn / size.services).unwrap();
            Event::Service(Box::new(cluster::service_at(any_service(size, turn), port)))
        });
        let (many, many_report) = pipeline.sync(
            (singles..singles + MANY.min(size.services))
                .map(|turn| Event::Slice(Box::new(cluster::changed_slice(size, any_service(size, turn), turn)))),
        );
        format!(
            "| {mode} | {size} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            time(first),
            time(report.kernel_time),
            time(first.saturating_sub(report.kernel_time)),
            percentiles(&mut endpoint),
            percentiles(&mut service),
            time(many),
            time(many_report.kernel_time),
            megabytes(memory.resident.saturating_sub(before)),
            megabytes(memory.peak.saturating_sub(before)),
        )
    });
    rules::check(&namespace, mode, size);
    println!("{line}");
}

/// Single changes, enough for a 99th percentile; where each of them takes long, fewer.
fn singles(mode: Mode) -> u32 {
    match mode {
        Mode::Iptables => 30,
        Mode::Nftables => 1_000,
    }
}

/// Services that change at once.
const MANY: u32 = 1_000;
