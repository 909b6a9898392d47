//! The state behind the metrics address: metrics, history and values that are read for each request.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context;
use ferroute_admin::{
    AdminHandler, Pages,
    history::{History, ObjectChange, Synced},
    http::Handler,
    metrics::{ApiRequest, Connections, Metrics, ModeMetric, ModeValue, RefusedConnections, RelayedPort, Sampled},
};
use ferroute_config::Resolved;
use ferroute_core::{
    Dataplane, DataplaneError, IpFamily, ModeTraits, Progress, Tracker, error_chain, tracker::TrackerEvent,
};
use ferroute_host::{KernelCounters, Moment, PacketCounters, ProcessUsage};
use ferroute_kube::{RequestCounter, RequestResult};
use ferroute_modes::{Mode, RelayReader};
use ferroute_nftables::{ConnectionReader, ConnectionTotals, RefusalReader};
use tokio::{runtime::Handle, sync::mpsc::UnboundedSender};

use crate::{
    observers::{
        FamilySynced, Observer,
        drain::{DrainObserver, DrainState},
        ejection::{EjectionObserver, EjectionState},
        events::EventRecorder,
        flows::Flows,
        problems::Problems,
        traffic::TrafficSampler,
        watchdog::Watchdog,
    },
    process::tasks::Tasks,
    sync::Change,
};

/// The state behind the metrics address.
pub(crate) struct Status {
    metrics: Arc<Metrics>,
    history: Arc<History>,
    sampler: Arc<Sampler>,
    problems: Problems,
    handler: Arc<dyn Handler>,
}

impl Status {
    /// Creates the state of a starting proxy in this mode, whose source runs on the runtime `main` and whose sync thread
    /// `watchdog` watches. `service_status` serves the pages of Services, `profiling` lets requests change the log level.
    pub(crate) fn new(
        mode: &dyn Mode,
        pages: Pages,
        main: Handle,
        watchdog: Watchdog,
        service_status: bool,
        profiling: bool,
    ) -> Self {
        let metrics = Arc::new(Metrics::new(mode.metrics()));
        let history = Arc::new(History::new(SystemTime::now(), service_status));
        let problems = Problems::default();
        let sampler = Arc::new(Sampler::new(mode.metrics(), main, watchdog, problems.clone()));
        let handler = Arc::new(AdminHandler {
            metrics: metrics.clone(),
            history: history.clone(),
            pages: if service_status { pages.with_service_status() } else { pages },
            mode: mode.name().as_str(),
            sample: {
                let sampler = sampler.clone();
                move || sampler.sample()
            },
            set_verbosity: profiling.then_some(ferroute_logging::set_verbosity as fn(u32)),
        });
        Self { metrics, history, sampler, problems, handler }
    }

    /// Returns the metrics.
    pub(crate) fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// Returns the history of changes.
    pub(crate) fn history(&self) -> Arc<History> {
        self.history.clone()
    }

    /// Returns the problems of the node.
    pub(crate) fn problems(&self) -> Problems {
        self.problems.clone()
    }

    /// Returns a counter of requests to the API server.
    pub(crate) fn request_counter(&self) -> Arc<dyn RequestCounter> {
        Arc::new(ApiRequests(self.metrics()))
    }

    /// Starts to sample the dataplanes. Their IP families are not known earlier.
    pub(crate) fn dataplanes_open(
        &self,
        mode: &dyn Mode,
        dataplanes: &[(IpFamily, Box<dyn Dataplane>)],
        relay_reader: Option<RelayReader>,
        resolved: &Resolved,
        tasks: &Tasks,
    ) {
        let Sampler { progress, connections, refusals, .. } = &*self.sampler;
        let reported = dataplanes.iter().filter_map(|(family, dataplane)| Some((*family, dataplane.progress()?)));
        progress.get_or_init(|| reported.collect());
        let families: Vec<IpFamily> = dataplanes.iter().map(|(family, _)| *family).collect();
        if let Some(limit) = resolved.flags.connection_counters.filter(|_| mode.counts_connections())
            && let Err(error) = connections.start(&families, limit, tasks)
        {
            tracing::warn!("cannot count connections: {error:#}");
        }
        if mode.counts_connections() {
            refusals.open(&families);
        }
        if let Some(reader) = relay_reader
            && let Err(error) = self.sampler.relayed.start(reader, tasks)
        {
            tracing::warn!("cannot count relayed connections: {error:#}");
        }
    }

    /// Starts to count connections, packets and bytes by service port and endpoint.
    pub(crate) fn count_traffic(&self, flows: &Flows, tasks: &Tasks) {
        if let Err(error) = flows.count_traffic(&self.sampler.traffic, tasks) {
            tracing::warn!("cannot count traffic: {}", error_chain(&*error));
        }
    }

    /// Returns the traffic counts, for commands on this node.
    pub(crate) fn traffic(&self) -> TrafficSampler {
        self.sampler.traffic.clone()
    }

    /// Returns an observer that updates metrics and history.
    pub(crate) fn observer(&self) -> MetricsObserver {
        MetricsObserver::new(self.metrics.clone(), self.history.clone())
    }

    /// Returns an observer that counts open connections to terminating endpoints, and ends them after their deadline.
    pub(crate) fn drain_observer(&self, tasks: &Tasks, traits: &ModeTraits) -> DrainObserver {
        DrainObserver::new(Arc::clone(&self.sampler.draining), tasks.clone(), traits)
    }

    /// Returns an observer that ejects endpoints which do not answer. It sends all ejections when they change.
    pub(crate) fn ejection_observer(
        &self,
        tasks: &Tasks,
        events: EventRecorder,
        ejections: UnboundedSender<TrackerEvent>,
    ) -> EjectionObserver {
        EjectionObserver::new(Arc::clone(&self.sampler.ejections), tasks.clone(), events, ejections)
    }

    /// Returns the handler of the metrics address.
    pub(crate) fn handler(&self) -> Arc<dyn Handler> {
        self.handler.clone()
    }
}

#[derive(Debug)]
struct ApiRequests(Arc<Metrics>);

impl RequestCounter for ApiRequests {
    fn record(&self, request: &RequestResult<'_>) {
        let RequestResult { host, method, status, took } = *request;
        let code = status.map(|status| status.as_u16());
        self.0.requested(&ApiRequest { host, method: method.as_str(), code, took });
    }
}

/// Reports the sync loop's progress to metrics and history.
pub(crate) struct MetricsObserver {
    metrics: Arc<Metrics>,
    history: Arc<History>,
    /// Start of the current sync, and whether it is a full one.
    sync_start: (Instant, bool),
}

impl MetricsObserver {
    pub(crate) fn new(metrics: Arc<Metrics>, history: Arc<History>) -> Self {
        Self { metrics, history, sync_start: (Instant::now(), true) }
    }

    fn update_pending(&self) {
        let (services, slices) = self.history.pending_changes();
        self.metrics.set_pending(services, slices);
    }
}

impl Observer for MetricsObserver {
    fn on_change(&mut self, change: &Change, before: &Tracker) {
        let Change::Desired(event, origin) = change else { return };
        let Some(change) = ObjectChange::from_event(event, *origin, before) else { return };
        let kind = change.kind;
        self.history.received(change);
        // A request that sees the received change also sees that it is pending.
        self.update_pending();
        self.metrics.received(kind);
    }

    fn on_start(&mut self, families: &[IpFamily]) {
        self.metrics.set_families(families);
        self.history.set_families(families);
    }

    fn on_queued(&mut self, family: IpFamily) {
        self.metrics.queued(family, SystemTime::now());
    }

    fn on_sync_start(&mut self, family: IpFamily, full: bool) {
        self.sync_start = (Instant::now(), full);
        self.history.sync_started(family, self.sync_start.0);
    }

    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        let (family, outcome) = (sync.table.family, sync.outcome);
        let report = outcome.report.as_ref();
        let synced = Synced {
            ended: Moment::now(),
            took: outcome.took,
            full: self.sync_start.1 || report.is_some_and(|report| report.full),
            report,
            counts: outcome.counts,
            changed: &outcome.changes.services,
            unapplied: &outcome.unapplied,
            limited: &outcome.limited,
            conntrack: outcome.conntrack_took.map(|took| (took, outcome.conntrack_deleted)),
        };
        self.metrics.synced(family, &synced);
        self.history.synced(family, &synced, |change| self.metrics.applied(change));
        self.update_pending();
    }

    fn on_failure(&mut self, family: IpFamily, error: &DataplaneError) {
        let (start, full) = self.sync_start;
        self.metrics.failed(family, start.elapsed(), full, error);
        self.history.failed(family);
    }
}

/// Reads values for each request of `/metrics`.
struct Sampler {
    /// The nfacct counters of the mode's rules.
    counters: Vec<&'static str>,
    /// Counters of the kernel; `None` if the rules have no counters or the kernel does not support them.
    kernel: Option<Mutex<KernelCounters>>,
    /// The runtime of the source.
    main: Handle,
    watchdog: Watchdog,
    problems: Problems,
    /// Progress of each family's dataplane, once they are open.
    progress: OnceLock<Vec<(IpFamily, Progress)>>,
    connections: ConnectionSampler,
    relayed: RelaySampler,
    refusals: RefusalSampler,
    traffic: TrafficSampler,
    draining: Arc<DrainState>,
    ejections: Arc<EjectionState>,
}

impl Sampler {
    /// Creates a sampler for a mode with these metrics, in the network namespace of the calling thread.
    fn new(metrics: &[ModeMetric], main: Handle, watchdog: Watchdog, problems: Problems) -> Self {
        let counter = |metric: &ModeMetric| match metric.value {
            ModeValue::Packets(counter) => Some(counter),
            _ => None,
        };
        let counters: Vec<&'static str> = metrics.iter().filter_map(counter).collect();
        let open = || {
            KernelCounters::open().unwrap_or_else(|error| {
                tracing::warn!("packet metrics are unavailable: {}", error_chain(&error));
                None
            })
        };
        let kernel = if counters.is_empty() { None } else { open().map(Mutex::new) };
        let (connections, draining) = (ConnectionSampler::default(), Arc::default());
        let (progress, relayed) = (OnceLock::new(), RelaySampler::default());
        Self {
            counters,
            kernel,
            main,
            watchdog,
            problems,
            progress,
            connections,
            relayed,
            refusals: RefusalSampler::default(),
            traffic: TrafficSampler::default(),
            draining,
            ejections: Arc::default(),
        }
    }

    fn sample(&self) -> Sampled {
        let packets = |name: &&'static str| Some((*name, self.packets(name)?));
        Sampled {
            process: ok_or_log(ProcessUsage::current()),
            tasks: Some(self.tasks()),
            packets: self.counters.iter().filter_map(packets).collect(),
            progress: self.progress.get().cloned().unwrap_or_default(),
            connections: self.connections.get(),
            problems: self.problems.kinds(),
            sync_silence: self.watchdog.heartbeat().silence(),
            dropped_log_lines: ferroute_logging::dropped_lines(),
            draining: self.draining.counts(),
            ejected: self.ejections.counts(),
            refused: self.refusals.read(),
            traffic: self.traffic.totals(),
            relayed: self.relayed.get(),
        }
    }

    /// Counts the tasks of both runtimes: that of the source, and that of the calling HTTP thread.
    fn tasks(&self) -> u64 {
        let runtimes = [Some(self.main.clone()), Handle::try_current().ok()];
        let tasks = runtimes.iter().flatten().map(|runtime| runtime.metrics().num_alive_tasks());
        tasks.sum::<usize>() as u64
    }

    fn packets(&self, counter: &str) -> Option<u64> {
        let mut kernel = self.kernel.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        ok_or_log(kernel.read(counter)).flatten().map(|counter| counter.packets)
    }
}

/// Returns the value, or logs the error. Metrics are read every few seconds, so errors are logged at debug level only.
fn ok_or_log<T, E: std::error::Error>(result: Result<T, E>) -> Option<T> {
    result.inspect_err(|error| tracing::debug!("{}", error_chain(error))).ok()
}

/// Connections by service port and endpoint, read from the kernel periodically on a separate thread: reading takes a
/// while in large clusters, and must not delay syncs or health checks.
#[derive(Debug, Default)]
struct ConnectionSampler(OnceLock<Arc<Mutex<Vec<Connections>>>>);

impl ConnectionSampler {
    /// Starts to read in the calling thread's network namespace, until `self` is dropped. At most `limit` service ports of
    /// each family are counted separately.
    fn start(&self, families: &[IpFamily], limit: NonZeroUsize, tasks: &Tasks) -> anyhow::Result<()> {
        let open = |family: &IpFamily| ConnectionReader::open(*family, limit).map(|reader| (*family, reader));
        let readers: Vec<_> = families.iter().map(open).collect::<Result<_, _>>()?;
        let totals = Arc::downgrade(self.0.get_or_init(Arc::default));
        tasks
            .thread("connections", move || read_connections(readers, &totals))
            .context("cannot start the connection counter thread")?;
        Ok(())
    }

    /// Returns the totals that were read last.
    fn get(&self) -> Vec<Connections> {
        let totals = self.0.get().map(|totals| totals.lock().unwrap_or_else(PoisonError::into_inner).clone());
        totals.unwrap_or_default()
    }
}

/// Reads periodically until `totals` is dropped.
fn read_connections(mut readers: Vec<(IpFamily, ConnectionReader)>, totals: &Weak<Mutex<Vec<Connections>>>) {
    loop {
        let start = Instant::now();
        let read = readers.iter_mut().filter_map(|(family, reader)| match reader.read() {
            Ok(totals) => Some(connections(*family, totals)),
            Err(error) => {
                tracing::debug!(%family, "cannot count connections: {}", error_chain(&error));
                None
            }
        });
        let read: Vec<Connections> = read.collect();
        let Some(totals) = totals.upgrade() else { return };
        if read.len() == readers.len() {
            *totals.lock().unwrap_or_else(PoisonError::into_inner) = read;
        }
        drop(totals);
        std::thread::sleep(READ_INTERVAL.max(start.elapsed() * PAUSE_FACTOR));
    }
}

fn connections(family: IpFamily, totals: &ConnectionTotals) -> Connections {
    Connections {
        family,
        services: totals.services().map(|(name, count)| (name.to_owned(), count)).collect(),
        other_services: totals.other_services(),
        endpoints: totals.endpoints().map(|(name, at, count)| (name.to_owned(), at, count)).collect(),
        other_endpoints: totals.other_endpoints(),
    }
}

/// Connections beyond limits, read from the kernel for each request: few Services have limits.
#[derive(Default)]
struct RefusalSampler(OnceLock<Mutex<Vec<(IpFamily, RefusalReader)>>>);

impl RefusalSampler {
    /// Opens readers in the calling thread's network namespace.
    fn open(&self, families: &[IpFamily]) {
        let open = |family: &IpFamily| Some((*family, ok_or_log(RefusalReader::open(*family, MAX_REFUSALS))?));
        self.0.get_or_init(|| Mutex::new(families.iter().filter_map(open).collect()));
    }

    fn read(&self) -> Vec<RefusedConnections> {
        let Some(readers) = self.0.get() else { return Vec::new() };
        let mut readers = readers.lock().unwrap_or_else(PoisonError::into_inner);
        let read = readers.iter_mut().map(|(family, reader)| {
            ok_or_log(reader.read());
            let services = reader.totals().map(|(name, limit, count)| (name.to_owned(), limit.as_str(), count));
            RefusedConnections { family: *family, services: services.collect(), others: reader.others() }
        });
        read.collect()
    }
}

/// The number of separate counts of connections beyond limits, per IP family.
const MAX_REFUSALS: NonZeroUsize = NonZeroUsize::new(1_000).unwrap();

/// Connections that a process relays, read periodically on a separate thread, because the process may hang.
#[derive(Debug, Default)]
struct RelaySampler(OnceLock<Arc<Mutex<Vec<RelayedPort>>>>);

impl RelaySampler {
    /// Starts to read until `self` is dropped.
    fn start(&self, reader: RelayReader, tasks: &Tasks) -> anyhow::Result<()> {
        let ports = Arc::downgrade(self.0.get_or_init(Arc::default));
        tasks
            .thread("relay-counters", move || read_relayed(reader, &ports))
            .context("cannot start the thread that counts relayed connections")?;
        Ok(())
    }

    /// Returns the result of the last read.
    fn get(&self) -> Vec<RelayedPort> {
        let ports = self.0.get().map(|ports| ports.lock().unwrap_or_else(PoisonError::into_inner).clone());
        ports.unwrap_or_default()
    }
}

/// Reads periodically until `ports` is dropped.
fn read_relayed(mut reader: RelayReader, ports: &Weak<Mutex<Vec<RelayedPort>>>) {
    loop {
        let start = Instant::now();
        let read = reader();
        let Some(ports) = ports.upgrade() else { return };
        match read {
            Ok(read) => *ports.lock().unwrap_or_else(PoisonError::into_inner) = read,
            Err(error) => tracing::debug!("cannot count relayed connections: {error:#}"),
        }
        drop(ports);
        std::thread::sleep(READ_INTERVAL.max(start.elapsed() * PAUSE_FACTOR));
    }
}

/// Minimum pause between reads of connection counters; most scrape intervals are longer.
const READ_INTERVAL: Duration = Duration::from_secs(2);

/// Minimum ratio of the pause to the read before it, so that reads take a few percent of a CPU at most.
const PAUSE_FACTOR: u32 = 30;
