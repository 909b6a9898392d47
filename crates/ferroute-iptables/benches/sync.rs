//! Duration and memory of syncs in a network namespace with the real iptables programs of each backend, and by netlink, by
//! size of the cluster. `cargo bench -p ferroute-iptables --bench sync [NAME...]`, as root; a name is `nft`, `legacy` or
//! `netlink`, or a size such as `1000x10`.
//!
//! "own" is the CPU time of the process without the iptables programs, including the kernel's work for the process.
//! "kernel" is the duration of `iptables-save` and `iptables-restore`, or of the exchange with the kernel, which
//! includes encoding and decoding. "peak" is the peak memory of the process during the sync, most of it for Services
//! and endpoints.

#![expect(clippy::print_stdout, reason = "its output is a table")]
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on must stop")]

use std::{env, sync::Arc, time::Duration};

use ferroute_api::{EndpointSlice, Service};
use ferroute_core::{
    Dataplane, IpFamily, LocalTrafficDetector, ProxySettings, SyncReport, Tracker,
    testing::{Edit, namespaced_name, node, pod, service, slice},
};
use ferroute_iptables::{
    GenerationTracker, HostAccess, HostExec, IptablesDataplane, IptablesPrograms,
    exec::{Backend, RuleAccess, search_path},
    native::NativeRules,
};
use ferroute_testing::{MemoryPeak, NetNs};
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};

/// Services and endpoints of each.
const SIZES: [(usize, usize); 3] = [(100, 10), (1_000, 10), (10_000, 10)];

fn main() {
    let names: Vec<String> = env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let wanted = |all: &[&str], name: &str| {
        !names.iter().any(|wanted| all.contains(&&**wanted)) || names.iter().any(|wanted| wanted == name)
    };
    let sizes = SIZES.map(|(services, endpoints)| format!("{services}x{endpoints}"));
    let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
    println!("backend  size      sync                      own      kernel    written      of all   peak");
    let ways = [(Some(Backend::NfTables), "nft"), (Some(Backend::Legacy), "legacy"), (None, "netlink")];
    for (backend, name) in ways {
        for ((services, endpoints), size) in SIZES.into_iter().zip(&sizes) {
            if wanted(&["nft", "legacy", "netlink"], name) && wanted(&sizes, size) {
                NetNs::new().run(|| measure(backend, name, size, services, endpoints));
            }
        }
    }
}

/// Measures a way: the programs of a backend, or netlink.
fn measure(backend: Option<Backend>, name: &str, size: &str, services: usize, endpoints: usize) {
    let access = || match backend {
        Some(backend) => {
            let programs = IptablesPrograms::find_backend(IpFamily::V4, backend, &HostExec, &search_path()).unwrap();
            RuleAccess::programs(programs, Arc::new(HostExec))
        }
        None => RuleAccess::netlink(NativeRules::open(IpFamily::V4).unwrap()),
    };
    let detector = LocalTrafficDetector::ClusterCidr(vec!["10.0.0.0/8".parse().unwrap()]);
    let settings = ProxySettings { detector, ..ProxySettings::default() };
    let new = || {
        let host = HostAccess::open().unwrap();
        let generations = GenerationTracker::open().unwrap();
        IptablesDataplane::new(access(), settings.clone(), host, generations)
    };
    let mut tracker = tracker(services, endpoints);
    let line = |what: &str, (report, own, peak): (SyncReport, Duration, usize)| {
        let SyncReport { written, total, kernel_time, .. } = report;
        println!(
            "{name:8} {size:9} {what:17} {:>8.1} ms {:>8.0} ms {written:>10} {total:>11} {:>4} MB",
            own.as_secs_f64() * 1e3,
            kernel_time.as_secs_f64() * 1e3,
            peak >> 20
        );
    };
    let mut dataplane = new();
    line("first", timed(&mut tracker, |tracker| dataplane.resync(tracker.table(IpFamily::V4)).unwrap()));
    let middle = services / 2;
    let slice = endpoint_slice(middle, endpoints, endpoints - 1);
    let edits = [
        ("one endpoint less", vec![Edit::SetSlice(slice.clone())]),
        (
            "one Service less",
            vec![
                Edit::RemoveService(namespaced_name(&service_name(middle))),
                Edit::RemoveSlice(namespaced_name(&slice_name(middle))),
            ],
        ),
        ("one Service more", vec![Edit::SetService(cluster_service(middle)), Edit::SetSlice(slice)]),
    ];
    for (what, edits) in edits {
        let sync = |tracker: &mut Tracker| {
            edits.iter().for_each(|edit| edit.apply_to(tracker));
            let changes = tracker.update(IpFamily::V4);
            dataplane.sync(tracker.table(IpFamily::V4), &changes).unwrap()
        };
        line(what, timed(&mut tracker, sync));
    }
    line("nothing to repair", timed(&mut tracker, |tracker| dataplane.resync(tracker.table(IpFamily::V4)).unwrap()));
    drop(dataplane);
    let mut dataplane = new();
    line("after a restart", timed(&mut tracker, |tracker| dataplane.resync(tracker.table(IpFamily::V4)).unwrap()));
    line(
        "check for drift",
        timed(&mut tracker, |_| {
            assert!(!dataplane.was_modified_externally().unwrap());
            SyncReport::default()
        }),
    );
}

/// Returns a tracker with a cluster, fed object by object as by an API server, so that memory contains no more than in a
/// proxy.
fn tracker(services: usize, endpoints: usize) -> Tracker {
    let mut tracker = Tracker::new(node("node-1"));
    for i in 0..services {
        Edit::SetService(cluster_service(i)).apply_to(&mut tracker);
        Edit::SetSlice(endpoint_slice(i, endpoints, endpoints)).apply_to(&mut tracker);
    }
    tracker.update(IpFamily::V4);
    tracker
}

fn service_name(service: usize) -> String {
    format!("bench/svc-{service:05}")
}

fn slice_name(service: usize) -> String {
    format!("{}-a", service_name(service))
}

/// Returns a Service.
fn cluster_service(n: usize) -> Box<Service> {
    Box::new(service(&service_name(n)).cluster_ip(&address(11, n)).port("http", 80).build())
}

/// Returns the slice of a Service with its first endpoints.
fn endpoint_slice(service: usize, endpoints: usize, wanted: usize) -> EndpointSlice {
    let slice = slice(&slice_name(service), &format!("svc-{service:05}")).port("http", 8080);
    let pods = (0..wanted).map(|j| pod(&address(10, service * endpoints + j)).on(&format!("node-{}", j + 2)));
    pods.fold(slice, |slice, pod| slice.pod(pod)).build()
}

/// Returns the `n`th address of a /8 network.
fn address(network: u8, n: usize) -> String {
    let [_, b, c, d] = u32::try_from(n + 1).unwrap().to_be_bytes();
    format!("{network}.{b}.{c}.{d}")
}

/// Runs a sync and returns the CPU time and the peak memory of this process, without the programs that it runs.
fn timed(tracker: &mut Tracker, sync: impl FnOnce(&mut Tracker) -> SyncReport) -> (SyncReport, Duration, usize) {
    let peak = MemoryPeak::watch(std::process::id());
    let start = cpu_time();
    let report = sync(tracker);
    (report, cpu_time() - start, peak.stop())
}

/// Returns the CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let micros = [usage.user_time(), usage.system_time()].map(|time| u64::try_from(time.num_microseconds()).unwrap());
    Duration::from_micros(micros.iter().sum())
}
