//! Shows what connections through a Service experience while the proxy changes its mode. Requires root.
//!
//! ```text
//!   client ----- node (ferroute run) ----- pods      network namespaces connected by veth devices
//!
//! cargo bench -p ferroute --bench switch
//! ```
//!
//! The program runs with a configuration file, which selects iptables mode, then nftables mode, then iptables mode again.
//! Meanwhile clients connect, one connection after the other; each connection counts for the tenth of a second in which it began.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is an interactive program")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../connections/network.rs"]
mod network;

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use ferroute_testing::Running;

use self::{
    common::{
        arguments::Mode,
        cluster::{CLUSTER_CIDR, NODE, PORT, Size, cluster_ip, endpoint},
        csv::Row,
        figures::time,
        manifests::{Format, Manifests},
    },
    network::{Attempt, Network},
};

fn main() {
    let number = SIZE.services / 2;
    let pods: Vec<_> = (0..SIZE.endpoints).map(|i| endpoint(SIZE, number, i)).collect();
    let service = SocketAddr::from((cluster_ip(number), PORT));
    let network = Network::new(&pods);
    let directory = tempfile::tempdir().unwrap();
    let (manifests, config) = (directory.path().join("manifests"), directory.path().join("config.yaml"));
    fs::create_dir(&manifests).unwrap();
    Manifests::write(manifests.clone(), Format::Json, SIZE).unwrap();
    configure(&config, Mode::Iptables);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
    command.args(["run", "--config"]).arg(&config).arg("--manifests").arg(&manifests);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let _proxy = Running(network.node.run(|| command.spawn().unwrap()));
    network.wait_for(service);
    let attempts = thread::scope(|scope| {
        let attempts = scope.spawn(|| network.observe(service, PHASE * 3));
        for mode in [Mode::Nftables, Mode::Iptables] {
            thread::sleep(PHASE);
            configure(&config, mode);
        }
        attempts.join().unwrap()
    });
    write(&attempts);
}

/// Selects a mode. The proxy notices the changed file within a second.
fn configure(path: &Path, mode: Mode) {
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {mode}\n\
         hostnameOverride: {NODE}\nclusterCIDR: {CLUSTER_CIDR}\nconntrack: {{maxPerCore: 0}}\n"
    );
    let temporary = path.with_extension("new");
    fs::write(&temporary, text).unwrap();
    fs::rename(temporary, path).unwrap();
}

/// Prints the figures of all attempts, and those of each tenth of a second for the plot.
fn write(attempts: &[Attempt]) {
    let tenths = (PHASE * 3).as_millis() / STEP.as_millis();
    for tenth in 0..tenths {
        let within: Vec<&Attempt> =
            attempts.iter().filter(|of| of.began.as_millis() / STEP.as_millis() == tenth).collect();
        let failed = within.iter().filter(|attempt| attempt.took.is_none()).count();
        let slowest = within.iter().filter_map(|attempt| attempt.took).max().unwrap_or_default();
        Row::new("iptables nftables iptables", SIZE)
            .time("began_s", STEP * u32::try_from(tenth).unwrap())
            .with("answered", &(within.len() - failed))
            .with("failed", &failed)
            .time("slowest_s", slowest)
            .append("switch");
    }
    let failed = attempts.iter().filter(|attempt| attempt.took.is_none()).count();
    let slowest = attempts.iter().filter_map(|attempt| attempt.took).max().unwrap_or_default();
    println!(
        "{SIZE}: {} connections across two changes of the mode, {failed} failed, slowest {}",
        attempts.len(),
        time(slowest)
    );
}

const SIZE: Size = Size::new(1_000, 10);
/// The time for which each mode is configured.
const PHASE: Duration = Duration::from_secs(6);
const STEP: Duration = Duration::from_millis(100);
