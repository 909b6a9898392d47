use std::time::SystemTime;

use ferroute_core::IpFamily;
use prometheus::{IntCounter, IntCounterVec, Registry, TextEncoder};

use crate::{
    ApiRequest, Build, Connections, Failed, Finished, Process, Progress, Synced, connections::ConnectionCounters,
    make::Maker, own::Own, platform::Platform, rules::Rules,
};

/// All metrics. It can be told from any thread, and telling never waits for a reader.
pub struct Metrics {
    registry: Registry,
    rules: Rules,
    platform: Platform,
    own: Own,
    connections: ConnectionCounters,
    healthz: IntCounterVec,
    livez: IntCounterVec,
    packets: Option<Packets>,
}

/// How rules are written: as in kube-proxy, each mode has some metrics that the others have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// With iptables.
    Iptables,
    /// With nftables.
    Nftables,
    /// With the kernel's virtual servers.
    Ipvs,
}

/// What asks whether the proxy is healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// `/healthz`.
    Healthz,
    /// `/livez`.
    Livez,
}

/// What is looked up when somebody asks for metrics. What could not be looked up keeps its last value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// What the process uses.
    pub process: Option<Process>,
    /// Tasks of asynchronous runtimes that are alive.
    pub tasks: Option<u64>,
    /// Packets that iptables rules have dropped because the kernel could not place them in a connection.
    pub invalid_dropped: Option<u64>,
    /// Packets to node ports on loopback addresses that iptables rules have accepted.
    pub localhost_accepted: Option<u64>,
    /// How far syncs are, for each family where that can be told.
    pub progress: Vec<Progress>,
    /// Connections of each family, if somebody counts them.
    pub connections: Vec<Connections>,
}

/// The kernel's packet counters that iptables rules have.
struct Packets {
    invalid_dropped: IntCounter,
    localhost_accepted: IntCounter,
}

impl Metrics {
    /// Those of a proxy that writes rules with `engine`.
    pub fn new(engine: Engine, build: &Build<'_>) -> Self {
        let registry = Registry::new();
        let make = Maker(&registry);
        let metrics = Self {
            rules: Rules::new(&make, engine),
            platform: Platform::new(&make, build),
            own: Own::new(&make, build),
            connections: ConnectionCounters::new(&make),
            healthz: make.counters("kubeproxy_proxy_healthz_total", "Answers to /healthz, by status.", &["code"]),
            livez: make.counters("kubeproxy_proxy_livez_total", "Answers to /livez, by status.", &["code"]),
            packets: (engine == Engine::Iptables).then(|| Packets::new(&make)),
            registry: registry.clone(),
        };
        for counters in [&metrics.healthz, &metrics.livez] {
            ["200", "503"].iter().for_each(|code| drop(counters.with_label_values(&[code])));
        }
        metrics
    }

    /// These families are served. Their counters show from now on, so that a rate can be told from the first count on.
    pub fn serve(&self, families: &[IpFamily]) {
        self.rules.serve(families);
        self.own.serve(families);
    }

    /// A change of a Service was received.
    pub fn service_changed(&self) {
        self.rules.service_changed();
    }

    /// A change of an endpoint slice was received.
    pub fn endpoints_changed(&self) {
        self.rules.endpoints_changed();
    }

    /// So many changes are not in force yet.
    pub fn pending(&self, services: usize, slices: usize) {
        self.rules.pending(services, slices);
    }

    /// A sync of a family was asked for.
    pub fn queued(&self, family: IpFamily, at: SystemTime) {
        self.rules.queued(family, at);
    }

    /// A sync of a family has succeeded.
    pub fn synced(&self, family: IpFamily, sync: &Synced<'_>) {
        self.rules.synced(family, sync);
        self.own.synced(family, sync.report);
    }

    /// A sync of a family has failed.
    pub fn failed(&self, family: IpFamily, failed: &Failed) {
        self.rules.failed(family, failed);
    }

    /// A change has come into force.
    pub fn finished(&self, finished: &Finished) {
        if let Some(took) = finished.programming() {
            self.rules.programmed(finished.family, took);
        }
        self.own.finished(finished);
    }

    /// A probe was answered with this status.
    pub fn probed(&self, probe: Probe, code: u16) {
        let counters = match probe {
            Probe::Healthz => &self.healthz,
            Probe::Livez => &self.livez,
        };
        counters.with_label_values(&[&code.to_string()]).inc();
    }

    /// A request to the API server is over.
    pub fn requested(&self, request: &ApiRequest<'_>) {
        self.platform.request(request);
    }

    /// All metrics in Prometheus' classic text form, of the type [`Metrics::CONTENT_TYPE`].
    pub fn render(&self, sampled: &Sampled) -> String {
        sampled.process.iter().for_each(|process| self.platform.process(process));
        sampled.tasks.iter().for_each(|tasks| self.platform.tasks(*tasks));
        sampled.progress.iter().for_each(|progress| self.own.progress(progress));
        self.connections.set(&sampled.connections);
        if let Some(packets) = &self.packets {
            packets.set(sampled);
        }
        let families = self.registry.gather();
        TextEncoder::new().encode_to_string(&families).expect("bug: metrics that nobody has told a wrong name of")
    }

    /// The type of the text.
    pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
}

impl Packets {
    fn new(make: &Maker<'_>) -> Self {
        Self {
            invalid_dropped: make.counter(
                "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
                "Packets that iptables has dropped because the kernel could not place them in a connection.",
            ),
            localhost_accepted: make.counter(
                "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
                "Packets to node ports on loopback addresses that iptables has accepted.",
            ),
        }
    }

    /// The kernel counts; here its numbers are only shown.
    fn set(&self, sampled: &Sampled) {
        for (counter, packets) in
            [(&self.invalid_dropped, sampled.invalid_dropped), (&self.localhost_accepted, sampled.localhost_accepted)]
        {
            if let Some(packets) = packets {
                counter.reset();
                counter.inc_by(packets);
            }
        }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
