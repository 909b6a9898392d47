//! Measures the whole program by the size of the cluster: `ferroute run` reads manifests, or watches a fake API server in another
//! process, and writes rules in a separate network namespace. Durations are from its log, memory is `RssAnon`. Requires
//! root.
//!
//! ```text
//! cargo bench -p ferroute --bench scale                                   # all modes and sizes, manifests as JSON
//! cargo bench -p ferroute --bench scale -- yaml iptables 1000x10 5000x20  # only these, manifests as YAML
//! cargo bench -p ferroute --bench scale -- api nftables 10000x10          # from an API server
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is an interactive program")]

#[path = "../common/mod.rs"]
mod common;
mod proxy;
mod source;

use std::{fs, thread, time::Duration};

use ferroute_testing::{MemoryPeak, NetNs, anonymous_memory};

use self::{
    common::{
        arguments::{Case, Invocation, Mode, measure_in_process, parse_arguments},
        cluster::{CLUSTER_CIDR, NODE, Size, service_of_round},
        csv::Row,
        figures::{median, megabytes, time},
        manifests::Format,
        rules,
    },
    proxy::{Proxy, Sync},
    source::Source,
};

fn main() {
    source::serve_if_requested();
    match parse_arguments(default_sizes, &SOURCES) {
        Invocation::Row(case) => measure(case),
        Invocation::Table(cases) => {
            println!(
                "| mode | cluster | read after | first sync | kernel | Ferroute | endpoint replaced, source to kernel | sync | kernel | memory | peak |"
            );
            println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
            cases.into_iter().for_each(|case| measure_in_process(case, &SOURCES));
        }
    }
}

fn default_sizes(mode: Mode) -> Vec<Size> {
    let services: &[u32] = match mode {
        Mode::Iptables => &[100, 1_000, 10_000],
        Mode::Nftables => &[100, 1_000, 10_000, 100_000],
    };
    services.iter().map(|services| Size::new(*services, 10)).collect()
}

fn measure(case: Case) {
    let Case { mode, size } = case;
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    fs::write(&config, configuration(mode)).unwrap();
    let namespace = NetNs::new();
    let is_requested = |source: &str| std::env::args().any(|word| word == source);
    let mut source = match (is_requested(API), is_requested(YAML)) {
        (true, _) => Source::api_server(&namespace, size),
        (false, yaml) => Source::manifests(if yaml { Format::Yaml } else { Format::Json }, size),
    };
    let mut proxy = Proxy::start(&namespace, &source.arguments(), &config);
    let peak = MemoryPeak::watch(proxy.id());
    let first = proxy.next_sync();
    assert!(first.full, "{first:?}");
    proxy.wait_until_quiet();
    thread::sleep(SETTLE);
    let (memory, peak) = (anonymous_memory(proxy.id()), peak.stop());
    let mut changes = Vec::new();
    for round in 0..CHANGES {
        let change = source.prepare_change(service_of_round(size, round), round);
        thread::sleep(PAUSE);
        changes.push(proxy.next_sync_after(change));
    }
    rules::check(&namespace, mode, size);
    let of = |figure: fn(&Sync) -> Duration| median(changes.iter().map(figure).collect());
    Row::new(mode, size)
        .with("source", &source.name())
        .time("read_s", first.waited.saturating_sub(first.took))
        .time("first_s", first.took)
        .time("kernel_s", first.kernel)
        .time("endpoint_p50_s", of(|sync| sync.waited))
        .with("memory_bytes", &memory)
        .with("peak_bytes", &peak)
        .append("scale");
    println!(
        "| {mode} | {size} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        time(first.waited.saturating_sub(first.took)),
        time(first.took),
        time(first.kernel),
        time(first.took.saturating_sub(first.kernel)),
        time(of(|sync| sync.waited)),
        time(of(|sync| sync.took)),
        time(of(|sync| sync.kernel)),
        megabytes(memory),
        megabytes(peak),
    );
}

/// Returns kubeadm's configuration, without a delay between syncs and with a JSON log.
fn configuration(mode: Mode) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n\
         kind: KubeProxyConfiguration\n\
         mode: {mode}\n\
         hostnameOverride: {NODE}\n\
         clusterCIDR: {CLUSTER_CIDR}\n\
         iptables: {{ minSyncPeriod: 1ms }}\n\
         nftables: {{ minSyncPeriod: 1ms }}\n\
         logging: {{ format: json }}\n"
    )
}

/// Arguments that select the source; JSON manifests by default.
const SOURCES: [&str; 3] = [YAML, JSON, API];
const YAML: &str = "yaml";
const JSON: &str = "json";
const API: &str = "api";
/// The number of single changes.
const CHANGES: u32 = 11;
/// The time to become idle before a change.
const PAUSE: Duration = Duration::from_millis(200);
/// The time to release memory.
const SETTLE: Duration = Duration::from_secs(2);
