//! Duration of syncs of Services with very many addresses, endpoints or source ranges, with the kernel, in a network
//! namespace. Needs root.
//!
//! `cargo bench -p ferroute-nftables --bench large_services` prints a Markdown table; an argument selects cases by name. Each
//! case is among 100 small Services. "Longest" is the longest transaction of the first sync, for which other programs that
//! change rules have to wait.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "the benchmark prints to the terminal")]

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use ferroute_core::{
    Changes, Dataplane, IpFamily, ServicePort, ServicePortEntry, ServicePortName, ServiceTable,
    testing::{endpoint, entry, node, port_name, replace_endpoint, service_port},
};
use ferroute_nftables::{
    NftablesDataplane,
    kernel::{InterceptedKernel, Kernel, NetlinkKernel},
    model::Transaction,
    plan::NftablesSettings,
};
use ferroute_testing::NetNs;

/// A Service, and the number of its endpoints.
struct Case {
    name: &'static str,
    service: ServicePort,
    endpoints: u32,
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    println!(
        "| Service | elements | first sync | kernel | longest | endpoint replaced, p50 / p99 | added or removed, p50 / p99 | another Service's endpoint, p50 |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for case in cases() {
        if wanted.is_empty() || wanted.iter().any(|name| case.name.contains(name.as_str())) {
            measure(case);
        }
    }
}

fn cases() -> Vec<Case> {
    let plain = || service_port("10.96.0.1:80");
    let with_ips = |count: u32| ServicePort {
        external_ips: (0..count).map(|i| Ipv4Addr::from(0xcb00_0000 + i).into()).collect(),
        ..plain()
    };
    let with_ranges = |count: u32| ServicePort {
        load_balancer_vips: vec![Ipv4Addr::new(198, 51, 100, 1).into()],
        // Only every second address, so that no two ranges can be merged.
        load_balancer_source_ranges: (0..count)
            .map(|i| format!("{}/32", Ipv4Addr::from(0x0a00_0000 + 2 * i)).parse().unwrap())
            .collect(),
        ..plain()
    };
    vec![
        Case { name: "1 address, 10 endpoints", service: plain(), endpoints: 10 },
        Case { name: "1,000 external IPs, 50 endpoints", service: with_ips(1_000), endpoints: 50 },
        Case { name: "20,000 external IPs, 2 endpoints", service: with_ips(20_000), endpoints: 2 },
        Case { name: "1 address, 10,000 endpoints", service: plain(), endpoints: 10_000 },
        Case { name: "100,000 source ranges, 10 endpoints", service: with_ranges(100_000), endpoints: 10 },
    ]
}

fn measure(Case { name: label, service, endpoints }: Case) {
    let name = port_name("bench/large:http");
    let mut table = ServiceTable::new(IpFamily::V4, Arc::new(node("node-1")));
    table.entries = (0..100).map(small).collect();
    let namespace = NetNs::new();
    let longest = Arc::new(Mutex::new(Duration::ZERO));
    let writer = longest.clone();
    let kernel = InterceptedKernel::new(
        namespace.run(|| NetlinkKernel::open().unwrap()),
        move |kernel: &mut NetlinkKernel, transaction: &Transaction| {
            let start = Instant::now();
            let result = kernel.commit(transaction);
            let mut longest = writer.lock().unwrap();
            *longest = start.elapsed().max(*longest);
            result
        },
    );
    let mut dataplane =
        NftablesDataplane::with_kernel(kernel, IpFamily::V4, NftablesSettings::default(), Box::new(Vec::new()));
    dataplane.resync(&table).unwrap();
    *longest.lock().unwrap() = Duration::ZERO;
    let all: Vec<_> = (0..endpoints).map(|i| endpoint(&format!("{}:8080", Ipv4Addr::from(0x6440_0001 + i)))).collect();
    let service = Arc::new(service);
    let large = ServicePortEntry { service, ..entry(service_port("10.96.0.1:80"), all) };
    let mut sync = |name: &ServicePortName, entry: ServicePortEntry| {
        let previous = table.entries.insert(name.clone(), entry);
        let changes = Changes { previous: [(name.clone(), previous)].into(), ..Changes::default() };
        let start = Instant::now();
        let report = dataplane.sync(&table, &changes).unwrap();
        (start.elapsed(), report)
    };
    let (first, report) = sync(&name, large.clone());
    let longest = *longest.lock().unwrap();
    let rounds = if first > Duration::from_millis(50) { 50 } else { 500 };
    let spare = endpoint("172.16.0.1:8080");
    let mut replaced = Vec::new();
    let mut resized = Vec::new();
    let mut others = Vec::new();
    for round in 0..rounds {
        let mut changed = large.clone();
        replace_endpoint(&mut changed, 1, spare.clone());
        replaced.extend([sync(&name, changed).0, sync(&name, large.clone()).0]);
        let fewer = ServicePortEntry { endpoints: large.endpoints.iter().skip(1).collect(), ..large.clone() };
        resized.extend([sync(&name, fewer).0, sync(&name, large.clone()).0]);
        let (other, mut entry) = small(round % 100);
        let another = endpoint(&format!("172.17.{}.{}:80", round / 100, 1 + round % 100));
        replace_endpoint(&mut entry, 3, another);
        others.push(sync(&other, entry).0);
    }
    println!(
        "| {label} | {} | {first:.1?} | {:.1?} | {longest:.1?} | {} | {} | {:.1?} |",
        report.written,
        report.kernel_time,
        percentiles(replaced),
        percentiles(resized),
        median(others),
    );
}

fn small(i: u32) -> (ServicePortName, ServicePortEntry) {
    let first = 0x6540_0001 + 10 * i;
    let endpoints = (first..first + 10).map(|address| endpoint(&format!("{}:8080", Ipv4Addr::from(address))));
    let service = service_port(&format!("{}:80", Ipv4Addr::from(0x0a61_0001 + i)));
    (port_name(&format!("bench/svc-{i:03}:http")), entry(service, endpoints))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    format!("{:.1?} / {:.1?}", times[times.len() / 2], times[times.len() * 99 / 100])
}
