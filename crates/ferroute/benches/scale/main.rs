//! The whole program by size of the cluster: `ferroute run` reads manifests, or an API server that a double plays in
//! another process, and writes rules in a network namespace of its own; its log tells how long syncs took, and `/proc` how much memory it has. Needs root.
//!
//! ```text
//! cargo bench -p ferroute --bench scale                                   # all modes and sizes, manifests as JSON
//! cargo bench -p ferroute --bench scale -- yaml iptables 1000x10 5000x20  # these only, manifests as YAML
//! cargo bench -p ferroute --bench scale -- api nftables 10000x10          # from an API server
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is a program for people at a terminal")]

#[path = "../common/mod.rs"]
mod common;
mod proxy;
mod source;

use std::{fs, thread, time::Duration};

use ferroute_testing::NetNs;

use self::{
    common::{
        arguments::{Asked, Case, Mode, asked, measure_apart},
        cluster::{CLUSTER_CIDR, NODE, Size, any_service},
        figures::{Memory, median, megabytes, time},
        manifests::Format,
        rules,
    },
    proxy::{Proxy, Sync},
    source::Source,
};

fn main() {
    source::serve_if_asked();
    match asked(default_sizes, &SOURCES) {
        Asked::Line(case) => measure(case),
        Asked::Table(cases) => {
            println!(
                "| mode | cluster | read after | first sync | of it kernel | of it Ferroute | endpoint replaced, source to kernel | of it sync | of it kernel | memory | peak |"
            );
            println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
            cases.into_iter().for_each(|case| measure_apart(case, &SOURCES));
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
    let is_asked = |source: &str| std::env::args().any(|word| word == source);
    let mut source = match (is_asked(API), is_asked(YAML)) {
        (true, _) => Source::api_server(&namespace, size),
        (false, yaml) => Source::manifests(if yaml { Format::Yaml } else { Format::Json }, size),
    };
    let mut proxy = Proxy::start(&namespace, &source.arguments(), &config);
    let first = proxy.next_sync();
    assert!(first.full, "{first:?}");
    proxy.wait_until_quiet();
    thread::sleep(SETTLE);
    let memory = Memory::of(proxy.id());
    let mut changes = Vec::new();
    for turn in 0..CHANGES {
        let change = source.prepare_change(any_service(size, turn), turn);
        thread::sleep(PAUSE);
        changes.push(proxy.next_sync_after(change));
    }
    rules::check(&namespace, mode, size);
    let of = |figure: fn(&Sync) -> Duration| time(median(changes.iter().map(figure).collect()));
    println!(
        "| {mode} | {size} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        time(first.waited.saturating_sub(first.took)),
        time(first.took),
        time(first.kernel),
        time(first.took.saturating_sub(first.kernel)),
        of(|sync| sync.waited),
        of(|sync| sync.took),
        of(|sync| sync.kernel),
        megabytes(memory.resident),
        megabytes(memory.peak),
    );
}

/// kubeadm's, but that changes do not wait for each other and logs are to be read by a program.
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

/// Words for where Services come from; manifests as JSON where there is none.
const SOURCES: [&str; 3] = [YAML, JSON, API];
const YAML: &str = "yaml";
const JSON: &str = "json";
const API: &str = "api";
/// Single changes.
const CHANGES: u32 = 11;
/// Nothing is under way any more.
const PAUSE: Duration = Duration::from_millis(200);
/// Time to give memory back.
const SETTLE: Duration = Duration::from_secs(2);
