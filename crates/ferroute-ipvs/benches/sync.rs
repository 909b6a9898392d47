//! Duration of syncs with an in-memory kernel, which is the time of Ferroute's code, and with the real kernel in
//! network namespaces, compared with the tools for the same state. The latter needs root and a kernel with ipvs, such
//! as the one of `make vm-bench`.
//!
//! `cargo bench -p ferroute-ipvs` measures 1,000 and 10,000 Services with 10 endpoints each; `cargo bench -p ferroute-ipvs
//! -- 5000x20` another cluster.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "the benchmark prints to the terminal")]

use std::{
    io::Write,
    net::Ipv4Addr,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use ferroute_core::{
    Changes, Dataplane, DataplaneError, HostState, IpFamily, ServicePortEntry, ServicePortName, ServiceTable,
    testing::{endpoint, entry, node, port_name, replace_endpoint, service_port},
};
use ferroute_host::{HostAddresses, KernelAddresses};
use ferroute_iptables::{
    GenerationTracker, HostExec, IptablesPrograms,
    exec::{GroupReport, GroupWriter, RuleAccess, RuleWriter, search_path},
    plan::ChainGroup,
};
use ferroute_ipvs::{
    IpvsDataplane, VirtualServers,
    kernel::{Kernel, KernelError, KernelRealServer, KernelState, MemoryKernel, NetlinkKernel, Operation, Refused},
    plan::{IpvsSettings, ServerKey, SetKind},
};
use ferroute_testing::{NetNs, anonymous_memory};

/// The kernel, with the number of operations.
struct Counted {
    kernel: NetlinkKernel,
    operations: usize,
}

impl Kernel for Counted {
    type Error = KernelError;

    fn prepare(&mut self) -> Result<(), KernelError> {
        self.kernel.prepare()
    }

    fn reserve(&mut self, kind: SetKind, entries: usize) -> Result<(), KernelError> {
        self.kernel.reserve(kind, entries)
    }

    fn read(&mut self, is_wanted: &dyn Fn(&ServerKey) -> bool) -> Result<KernelState, KernelError> {
        self.kernel.read(is_wanted)
    }

    fn real_servers(&mut self, key: ServerKey) -> Result<Vec<KernelRealServer>, KernelError> {
        self.operations += 1;
        self.kernel.real_servers(key)
    }

    fn write(&mut self, operation: Operation) -> Result<(), KernelError> {
        self.operations += 1;
        self.kernel.write(operation)
    }

    fn flush(&mut self) -> Result<Vec<Refused<KernelError>>, KernelError> {
        self.kernel.flush()
    }
}

type Bench = IpvsDataplane<Counted, GroupWriter>;

fn open() -> Bench {
    let settings = IpvsSettings::default();
    let programs = IptablesPrograms::find(IpFamily::V4, &HostExec, &search_path()).unwrap();
    let rules =
        GroupWriter::new(RuleAccess::programs(programs, Arc::new(HostExec)), GenerationTracker::open().unwrap());
    let kernel = Counted { kernel: NetlinkKernel::open(IpFamily::V4, "rr").unwrap(), operations: 0 };
    let addresses = KernelAddresses::open().unwrap().list().unwrap();
    let host = HostState { addresses, random_fully: true, ..HostState::default() };
    IpvsDataplane::new(IpFamily::V4, settings, kernel, rules, host)
}

fn main() {
    let sizes: Vec<(u32, u32)> = std::env::args().filter_map(|argument| parse(&argument)).collect();
    let sizes = if sizes.is_empty() { vec![(1_000, 10), (10_000, 10)] } else { sizes };
    println!("| cluster, kernel in memory | first sync | endpoint replaced, p50 / p99 |");
    println!("| --- | --- | --- |");
    sizes.iter().for_each(|(services, endpoints)| measure_in_memory(*services, *endpoints));
    println!();
    if VirtualServers::open().unwrap().is_none() {
        println!("the rest is not measured: this kernel does not support ipvs");
        return;
    }
    println!(
        "| cluster | first sync | restart | endpoint replaced, p50 / p99 | changes of objects | memory | ipvsadm -R | ipset restore | ip -batch |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (services, endpoints) in sizes {
        measure(services, endpoints);
    }
}

fn parse(argument: &str) -> Option<(u32, u32)> {
    let (services, endpoints) = argument.split_once('x')?;
    Some((services.parse().ok()?, endpoints.parse().ok()?))
}

/// Rules in memory.
struct NoRules;

impl RuleWriter for NoRules {
    fn apply(&mut self, _: &ChainGroup, _: bool) -> Result<GroupReport, DataplaneError> {
        Ok(GroupReport::default())
    }

    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        Ok(false)
    }
}

fn measure_in_memory(services: u32, endpoints: u32) {
    let mut table = table(services, endpoints);
    let kernel = MemoryKernel::new(IpFamily::V4, "rr");
    let (settings, host) = (IpvsSettings::default(), HostState::default());
    let mut dataplane = IpvsDataplane::new(IpFamily::V4, settings, kernel, NoRules, host);
    let start = Instant::now();
    dataplane.resync(&table).unwrap();
    let first = start.elapsed();
    let mut replaced: Vec<Duration> = Vec::new();
    for i in 0..1000 {
        let changes = replace(&mut table, i * 7_919 % services, i);
        let start = Instant::now();
        dataplane.sync(&table, &changes).unwrap();
        replaced.push(start.elapsed());
    }
    println!("| {services}×{endpoints} | {first:.1?} | {} |", percentiles(replaced));
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    format!("{:.0?} / {:.0?}", times[times.len() / 2], times[times.len() * 99 / 100])
}

fn table(services: u32, endpoints: u32) -> ServiceTable {
    let mut table = ServiceTable::new(IpFamily::V4, Arc::new(node("node-1")));
    table.entries = (0..services).map(|i| (name(i), service(i, endpoints))).collect();
    table
}

fn measure(services: u32, endpoints: u32) {
    let mut table = table(services, endpoints);
    let namespace = NetNs::new();
    let before = anonymous_memory(std::process::id());
    let mut dataplane = namespace.run(open);
    let start = Instant::now();
    namespace.run(|| dataplane.resync(&table)).unwrap();
    let (first, memory) = (start.elapsed(), anonymous_memory(std::process::id()).saturating_sub(before));
    let text = dataplane.state().unwrap().to_string();
    dataplane.kernel_mut().operations = 0;
    let mut replaced: Vec<Duration> = Vec::new();
    for i in 0..200 {
        let changes = replace(&mut table, i * 7_919 % services, i);
        let start = Instant::now();
        namespace.run(|| dataplane.sync(&table, &changes)).unwrap();
        replaced.push(start.elapsed());
    }
    let operations = dataplane.kernel_mut().operations / replaced.len();
    let start = Instant::now();
    namespace.run(|| open().resync(&table)).unwrap();
    let restart = start.elapsed();
    let tools = NetNs::new();
    tools.command("ip", &["link", "add", "kube-ipvs0", "type", "dummy"]);
    let times = [
        ("ipvsadm --restore", &["ipvsadm", "-R"][..]),
        ("ipset restore", &["ipset", "restore"]),
        ("ip -batch", &["ip", "-batch", "-"]),
    ]
    .map(|(section, command)| format!("{:.1?}", tools.run(|| feed(command, &section_of(&text, section)))));
    let percentiles = percentiles(replaced);
    println!(
        "| {services}×{endpoints} | {first:.1?} | {restart:.1?} | {percentiles} | {operations} | {:.1} MB | {} |",
        memory as f64 / 1e6,
        times.join(" | ")
    );
}

/// Returns the lines of a part of the plan's text.
fn section_of(text: &str, section: &str) -> String {
    let lines = text.lines().skip_while(|line| *line != format!("# {section}")).skip(1);
    lines.take_while(|line| !line.starts_with("# ")).flat_map(|line| [line, "\n"]).collect()
}

/// Runs a program with this input and returns the time that it takes.
fn feed(command: &[&str], input: &str) -> Duration {
    let start = Instant::now();
    let mut child = Command::new(command[0]).args(&command[1..]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{command:?}");
    start.elapsed()
}

fn replace(table: &mut ServiceTable, service: u32, number: u32) -> Changes {
    let mut entry = table.entries[&name(service)].clone();
    let another = endpoint(&format!("172.16.{}.{}:8080", number >> 8 & 255, number & 255));
    replace_endpoint(&mut entry, 3, another);
    let mut changes = Changes::default();
    changes.services.insert(name(service).service);
    let old = table.entries.insert(name(service), entry);
    changes.previous.insert(name(service), old);
    changes
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
