//! Duration of syncs with the kernel, in a network namespace. Needs root.
//!
//! `cargo bench -p ferroute-nftables` measures 1,000, 10,000 and 100,000 Services with 10 endpoints each; `cargo bench
//! -p ferroute-nftables -- 5000x20` another cluster. Prints a Markdown table.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "the benchmark prints to the terminal")]

use std::{
    fs,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use ferroute_core::{
    Changes, Dataplane, Endpoint, IpFamily, ServicePortEntry, ServicePortName, ServiceTable,
    testing::{endpoint, entry, node, port_name, replace_endpoint, service_port},
};
use ferroute_nftables::{
    NftablesDataplane,
    kernel::{InterceptedKernel, Kernel, NetlinkError, NetlinkKernel},
    model::Transaction,
    plan::NftablesSettings,
};
use ferroute_testing::{NetNs, anonymous_memory};

/// The kernel, with the duration of each transaction.
type Timed = InterceptedKernel<
    NetlinkKernel,
    Box<dyn FnMut(&mut NetlinkKernel, &Transaction) -> Result<(), NetlinkError> + Send>,
>;

fn timed(kernel: NetlinkKernel, times: Arc<Mutex<Vec<Duration>>>) -> Timed {
    InterceptedKernel::new(
        kernel,
        Box::new(move |kernel, transaction| {
            let start = Instant::now();
            let result = kernel.commit(transaction);
            times.lock().unwrap().push(start.elapsed());
            result
        }),
    )
}

fn main() {
    let sizes: Vec<(u32, u32)> = std::env::args().filter_map(|argument| parse(&argument)).collect();
    let sizes = if sizes.is_empty() { vec![(1_000, 10), (10_000, 10), (100_000, 10)] } else { sizes };
    println!(
        "| cluster | first sync | CPU | of it kernel | longest transaction | restart | endpoint replaced, p50 / p99 | added or removed | service added or removed | 1,000 services changed | memory |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (services, endpoints) in sizes {
        measure(services, endpoints);
    }
}

fn parse(argument: &str) -> Option<(u32, u32)> {
    let (services, endpoints) = argument.split_once('x')?;
    Some((services.parse().ok()?, endpoints.parse().ok()?))
}

fn measure(services: u32, endpoints: u32) {
    let mut table = ServiceTable::new(IpFamily::V4, Arc::new(node("node-1")));
    table.entries = (0..services).map(|i| (name(i), service(i, endpoints))).collect();
    let namespace = NetNs::new();
    let times = Arc::new(Mutex::new(Vec::new()));
    let open = || {
        let kernel = timed(namespace.run(|| NetlinkKernel::open().unwrap()), times.clone());
        NftablesDataplane::with_kernel(kernel, IpFamily::V4, NftablesSettings::default(), Box::new(Vec::new()))
    };
    let before = anonymous_memory(std::process::id());
    let mut dataplane = open();
    let (start, cpu) = (Instant::now(), cpu_time());
    let report = dataplane.resync(&table).unwrap();
    let (first, cpu) = (start.elapsed(), cpu_time() - cpu);
    let (kernel, memory) = (report.kernel_time, anonymous_memory(std::process::id()).saturating_sub(before));
    let longest = times.lock().unwrap().iter().max().copied().unwrap_or_default();
    let mut bench = Bench { table, dataplane };
    let mut i = 0;
    let mut next = || {
        i = (i + 7_919) % services;
        i
    };
    let replaced = bench.repeat(|table| table.change(next(), |entry, n| replace_endpoint(entry, 3, spare(n))));
    let resized = bench.repeat(|table| {
        table.change(next(), |entry, n| {
            let mut endpoints = entry.endpoints.iter().collect::<Vec<_>>();
            if endpoints.len() > 9 {
                drop(endpoints.remove(3));
            } else {
                endpoints.push(spare(n));
            }
            entry.endpoints = endpoints.into();
        })
    });
    let mut exists = false;
    let service = bench.repeat(|table| {
        exists = !exists;
        table.put(name(services), exists.then(|| service(services, endpoints)))
    });
    let many = bench.time(|table| {
        let mut changes = Changes::default();
        for _ in 0..1_000.min(services) {
            changes.previous.extend(table.change(next(), |entry, n| replace_endpoint(entry, 5, spare(n))).previous);
        }
        changes
    });
    let start = Instant::now();
    open().resync(&bench.table).unwrap();
    let restart = start.elapsed();
    println!(
        "| {services}×{endpoints} | {first:.1?} | {cpu:.1?} | {kernel:.1?} | {longest:.1?} | {restart:.1?} | {} | {} | {} | {many:.1?} | {} MB |",
        percentiles(replaced),
        percentiles(resized),
        percentiles(service),
        memory / 1_000_000,
    );
}

struct Bench {
    table: ServiceTable,
    dataplane: NftablesDataplane<Timed>,
}

impl Bench {
    fn time(&mut self, change: impl FnOnce(&mut ServiceTable) -> Changes) -> Duration {
        let changes = change(&mut self.table);
        let start = Instant::now();
        self.dataplane.sync(&self.table, &changes).unwrap();
        start.elapsed()
    }

    fn repeat(&mut self, mut change: impl FnMut(&mut ServiceTable) -> Changes) -> Vec<Duration> {
        (0..1_000).map(|_| self.time(&mut change)).collect()
    }
}

trait Change {
    fn put(&mut self, name: ServicePortName, entry: Option<ServicePortEntry>) -> Changes;
    fn change(&mut self, service: u32, change: impl FnOnce(&mut ServicePortEntry, u32)) -> Changes;
}

impl Change for ServiceTable {
    fn put(&mut self, name: ServicePortName, entry: Option<ServicePortEntry>) -> Changes {
        let mut changes = Changes::default();
        changes.services.insert(name.service.clone());
        let old = match entry {
            Some(entry) => self.entries.insert(name.clone(), entry),
            None => self.entries.remove(&name),
        };
        changes.previous.insert(name, old);
        changes
    }

    fn change(&mut self, service: u32, change: impl FnOnce(&mut ServicePortEntry, u32)) -> Changes {
        let mut entry = self.entries[&name(service)].clone();
        change(&mut entry, service);
        self.put(name(service), Some(entry))
    }
}

fn name(i: u32) -> ServicePortName {
    port_name(&format!("bench/svc-{i:06}:http"))
}

fn service(i: u32, endpoints: u32) -> ServicePortEntry {
    let cluster_ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + i);
    let first = u32::from(Ipv4Addr::new(100, 64, 0, 1)) + i * endpoints;
    let endpoints = (first..first + endpoints).map(|address| endpoint(&format!("{}:8080", Ipv4Addr::from(address))));
    entry(service_port(&format!("{cluster_ip}:80")), endpoints.collect::<Vec<_>>())
}

/// Returns a new endpoint at each call.
fn spare(n: u32) -> Endpoint {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    endpoint(&format!("172.{}.{}.{}:{}", 16 + n % 16, count >> 8 & 255, count & 255, 1024 + (count >> 16)))
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    format!("{:.0?} / {:.0?}", times[times.len() / 2], times[times.len() * 99 / 100])
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let statistics = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(statistics.split(' ').next().unwrap().parse().unwrap())
}
