//! Runs the daemon.
//!
//! ```text
//!   source --> Feed --> sync loop (a thread) --> kernel
//!                            `--> HTTP servers (a thread)
//! ```
//!
//! The main thread handles events of the source, the host's addresses and the configuration file. The daemon exits on SIGTERM
//! or SIGINT (see [`Shutdown`]), on errors that it cannot recover from, and if a task or thread is lost; a changed
//! configuration makes it execute itself again. In all cases the rules stay in the kernel, so the data path works while no
//! proxy runs.

use std::{
    mem::ManuallyDrop,
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context;
use ferroute_admin::{
    Pages,
    health::{Health, HealthzHandler},
    http::{self, Budget, Handler, HttpThread, ListenError, ListenScope, Server, listen},
};
use ferroute_config::{
    ClientConnectionConfiguration, KubeProxyConfiguration,
    flags::{RawArgs, RunArgs},
    settings::Settings,
};
use ferroute_core::error_chain;
use ferroute_host::{
    AddressError, AddressWatch, Sysctls, program::kill_programs, raise_descriptor_limit, watch_firewalld,
};
use ferroute_kube::{ApiServer, ApiWriter, RequestCounter};
use ferroute_modes::{Reason, Registry};
use ferroute_source::{Event, Manifests, WatchError};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use crate::{
    control::{self, Control, SourceInfo},
    feed::{Feed, next_hops, node_wait::NodeWait},
    host_setup::{HostSetup, relied_on},
    observers::{
        ObservedTracker, Observer, SyncLog,
        applied::VersionsObserver,
        events::{EventRecorder, EventsObserver},
        flows::Flows,
        health::HealthObserver,
        held_node_ports::HeldNodePorts,
        localhost::LocalhostObserver,
        observed::Observed,
        other_proxies::{self, ContestObserver},
        shares::SharesObserver,
        startup_taint::{self, FirstSync},
        status::Status,
        sysctl_watch::SysctlWatch,
        watchdog::Watchdog,
    },
    process::{
        config_watch::{ConfigWatch, re_exec},
        shutdown::{SYNC_GRACE, Shutdown},
        tasks::{LostTasks, Tasks, Work},
    },
    recording::RecordingObserver,
    sync::{
        Change,
        thread::{DaemonParts, QUEUE, SyncThread},
    },
    this_host::{ThisHost, node_name},
};

/// Runs the proxy, with a mode of `registry`, until a signal or an error ends it.
///
/// # Errors
/// If the proxy cannot start, or cannot continue.
pub fn run(
    registry: &'static Registry,
    args: &RawArgs<RunArgs>,
    settings: &Settings,
    reason: &Reason,
    setup: &HostSetup,
    more_observers: Vec<Box<dyn Observer>>,
    shutdown: &Shutdown,
) -> anyhow::Result<ExitCode> {
    let Settings { config, resolved, .. } = settings;
    let active = KubeProxyConfiguration { mode: resolved.mode.as_str().to_owned(), ..config.clone() };
    let pages = Pages::new(&active, args.flags.iter()).with_host(setup.lines().collect());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let watchdog = Watchdog::default();
    let (mode, main) = (registry.active(resolved.mode), runtime.handle().clone());
    let (service_status, profiling) = (args.args.enable_service_status.0, config.enable_profiling);
    let status = Status::new(mode, pages, main, watchdog.clone(), service_status, profiling);
    let (tasks, lost) = Tasks::new();
    let daemon = Daemon { registry, args, settings, reason, setup, status, watchdog, tasks, shutdown };
    let end = runtime.block_on(daemon.run(more_observers, lost));
    // Neither a program nor blocking work may outlive the process or delay its end.
    kill_programs();
    runtime.shutdown_background();
    match end? {
        End::Signal(signal) => tracing::info!("received {signal}; exiting, rules stay active"),
        End::ConfigChanged => {
            ferroute_logging::flush(ferroute_logging::EXIT_FLUSH);
            re_exec().context("cannot restart with the new configuration")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The daemon before its start.
struct Daemon<'a> {
    registry: &'static Registry,
    args: &'a RawArgs<RunArgs>,
    settings: &'a Settings,
    reason: &'a Reason,
    setup: &'a HostSetup,
    status: Status,
    watchdog: Watchdog,
    tasks: Tasks,
    shutdown: &'a Shutdown,
}

/// Reason why the proxy exits without an error.
enum End {
    Signal(&'static str),
    ConfigChanged,
}

/// A source of Kubernetes objects.
enum Source {
    Manifests(Manifests),
    ApiServer(ApiServer),
}

impl Source {
    async fn new(
        args: &RunArgs,
        connection: &ClientConnectionConfiguration,
        node: &str,
        all_nodes: bool,
        counter: Arc<dyn RequestCounter>,
    ) -> anyhow::Result<Self> {
        if let Some(path) = &args.manifests {
            return Ok(Self::Manifests(Manifests::new(path)));
        }
        let server = ApiServer::new(connection, Some(&args.proxy.client.master), node).await;
        let server = server.map(|server| Self::ApiServer(server.with_all_nodes(all_nodes).with_counter(counter)));
        server.context("no source of Services (use --manifests to run without an API server)")
    }

    /// Returns a writer to the API server, if the source is one.
    fn writer(&self) -> Option<ApiWriter> {
        match self {
            Self::Manifests(_) => None,
            Self::ApiServer(server) => Some(server.writer()),
        }
    }

    /// Reports whether the source is expected to have a Node for this host.
    fn has_nodes(&self) -> bool {
        matches!(self, Self::ApiServer(_))
    }

    async fn watch(self, batches: mpsc::Sender<Vec<Event>>) -> Result<(), WatchError> {
        match self {
            Self::Manifests(manifests) => manifests.watch(batches).await,
            Self::ApiServer(server) => {
                server.follow(batches).await;
                Ok(())
            }
        }
    }
}

impl Daemon<'_> {
    /// Runs until a signal, a changed configuration, a loss or another error.
    async fn run(self, more_observers: Vec<Box<dyn Observer>>, mut lost: LostTasks) -> anyhow::Result<End> {
        let Self { registry, args, settings, reason, setup, status, watchdog, tasks, shutdown } = self;
        let resolved = &settings.resolved;
        let hold_node_ports = args.args.hold_node_ports.0;
        let (node, counter) = (node_name(resolved)?, status.request_counter());
        let mode = registry.active(resolved.mode);
        let (traits, binds_addresses) = (mode.traits(), mode.traits().binds_service_addresses);
        let connection = &settings.config.client_connection;
        let source = Source::new(&args.args, connection, &node, binds_addresses, counter).await?;
        let source_info = source_info(&args.args);
        let config = ConfigWatch::new(registry, args, settings);
        let http_tasks = tasks.clone();
        let http = HttpThread::start_reporting(http_budget(), move || http_tasks.report("HTTP thread", true));
        let http = Arc::new(http.context("cannot start the HTTP thread")?);
        // Threads and servers are never dropped, because that waits for a thread, which may hang. They stop when the
        // process ends.
        let _http = ManuallyDrop::new(http.clone());
        // As in kube-proxy, a family is unhealthy if a change has been queued for twice the sync period.
        let health = Health::new(resolved.sync.period * 2).with_heartbeat(watchdog.heartbeat().clone());
        let health = Arc::new(health);
        let hard_fail = resolved.bind_address_hard_fail;
        let healthz = Arc::new(HealthzHandler::new(health.clone(), status.metrics()));
        // A separate thread renders pages, so that health checks never wait for them.
        let pages = http.start_beside("metrics").context("cannot start the thread of the metrics address")?;
        let pages = ManuallyDrop::new(pages);
        let serve_health = |address| serve(&http, "health checks", healthz.clone(), address, hard_fail);
        let _healthz = resolved.healthz.map(serve_health).transpose()?.map(ManuallyDrop::new);
        let serve_metrics = |address| serve(&pages, "metrics", status.handler(), address, hard_fail);
        let _metrics = resolved.metrics.map(serve_metrics).transpose()?.map(ManuallyDrop::new);
        let ThisHost { node, .. } = ThisHost::read(resolved)?;
        let events = EventRecorder::start(source.writer(), &node.name, &tasks);
        events.starting(setup, reason);
        let mut feed = Feed::new(resolved, traits, node).with_reports(events.clone(), status.problems());
        let (next_hop_sender, mut next_hops) = mpsc::channel(1);
        let (first_sync, first_synced) = FirstSync::new();
        if let Some((key, writer)) = args.args.startup_taint.as_deref().zip(source.writer()) {
            let removal = startup_taint::remove_taint(first_synced, writer, key.to_owned());
            tasks.spawn("task that removes the startup taint", Work::Finite, removal);
        }
        let (batch_sender, mut batches) = mpsc::channel(QUEUE);
        let mut wait = NodeWait::new(&feed.node().name, source.has_nodes());
        // Its end is handled below, with its error.
        let mut source = tokio::spawn(source.watch(batch_sender));
        let stop = async {
            tokio::select! {
                signal = shutdown.requested() => End::Signal(signal),
                () = config.changed() => End::ConfigChanged,
            }
        };
        tokio::pin!(stop);

        let recording = RecordingObserver::new();
        let versions = VersionsObserver::new(status.history());
        let flows = Flows::new(traits, &resolved.settings);
        if resolved.flags.count_traffic {
            status.count_traffic(&flows, &tasks);
        }
        let observed = Observed::default();
        let control = Control {
            mode: mode.name().as_str(),
            configuration: settings.config.to_yaml(),
            flags: resolved.flags.clone(),
            sync: resolved.sync,
            source: source_info,
            node: feed.node().name.clone(),
            health: health.clone(),
            problems: status.problems(),
            history: status.history(),
            bundles: recording.requests(),
            unused: feed.unused(),
            versions: versions.requests(),
            flows: flows.clone(),
            observed: observed.clone(),
            traffic: status.traffic(),
        };
        tasks.spawn("task that serves @ferroute", Work::Finite, control::serve(control));
        let addresses = [resolved.metrics, resolved.healthz].into_iter().flatten().collect();
        // Other programs may have changed or removed the rules.
        let (recheck, mut rechecks) = mpsc::channel(1);
        let search = other_proxies::watch(addresses, status.problems(), events.clone(), recheck.clone());
        tasks.spawn("task that looks for other proxies", Work::Endless, search);
        let (observe, mut observations) = mpsc::unbounded_channel();
        let health_observer =
            HealthObserver::new(http.clone(), health.clone(), resolved.settings.clone(), events.clone());
        let mut observers: Vec<Box<dyn Observer>> = vec![
            Box::new(SyncLog),
            Box::new(watchdog.clone()),
            Box::new(EventsObserver::new(events.clone(), resolved.settings.clone(), !hold_node_ports)),
            Box::new(status.problems()),
            Box::new(ContestObserver::new(status.problems(), events.clone())),
            Box::new(first_sync),
            Box::new(recording),
            Box::new(versions),
            Box::new(flows.observer()),
            Box::new(observed),
            Box::new(status.observer()),
            Box::new(status.drain_observer(&tasks, traits)),
            Box::new(status.ejection_observer(&tasks, events.clone(), observe.clone())),
            Box::new(SharesObserver::new(tasks.clone(), observe, traits)),
            Box::new(SysctlWatch::new(Sysctls::from_kernel(), relied_on(resolved, mode))),
        ];
        if hold_node_ports {
            observers.push(Box::new(HeldNodePorts::new(resolved.settings.clone(), events.clone(), http)));
        }
        let localhost = LocalhostObserver::new(&resolved.settings, traits, status.metrics());
        observers.extend(localhost.map(|observer| Box::new(observer) as _));
        observers.extend(more_observers);
        // Must be the last observer: clients that read that a sync has ended must find its results in all other data.
        observers.push(Box::new(health_observer));
        let mut state = ObservedTracker::new(feed.tracker(), observers);
        // The IP families depend on the node, so dataplanes are opened only after the initial lists.
        let mut other_changes = Vec::new();
        if binds_addresses {
            let known = next_hops::read().await.and_then(|known| feed.set_next_hops(known));
            other_changes.extend(known.and_then(|change| state.apply(change)));
            tasks.spawn("task that reads routes", Work::Endless, next_hops::watch(next_hop_sender));
        }
        while !feed.is_synced() || wait.must_wait(feed.missing())? {
            tokio::select! {
                () = wait.timeout() => {}
                Some(batch) = batches.recv() => {
                    other_changes.extend(feed.translate(batch).into_iter().filter_map(|change| state.apply(change)));
                }
                end = &mut source => return source_ended(end),
                end = &mut stop => return Ok(end),
                lost = lost.next() => return Err(lost.into()),
            }
        }
        let shared = DaemonParts { status: &status, health, events: &events, watchdog: &watchdog, tasks: &tasks };
        let mut sync = SyncThread::start(registry, resolved, feed.node(), state, other_changes, shared)?;
        let mut addresses = AddressWatch::open()?;
        let mut addresses_at = None;
        tasks.spawn("task that watches firewalld", Work::Endless, watch_firewalld(recheck));
        tasks.spawn("watchdog", Work::Endless, async move { watchdog.watch().await });
        let end = loop {
            let log_due = feed.repeated_log_due();
            tokio::select! {
                passed = sync.pass(), if sync.has_pending() => passed?,
                Some(batch) = batches.recv(), if !sync.has_pending() => sync.queue(feed.translate(batch)),
                end = &mut source => return source_ended(end),
                Some(()) = rechecks.recv() => sync.queue(vec![Change::Host]),
                Some(event) = observations.recv() => sync.queue(vec![Change::observed(event)]),
                Some(known) = next_hops.recv() => sync.queue(feed.set_next_hops(known).into_iter().collect()),
                change = next_change(&mut addresses, addresses_at) => match change {
                    Ok(()) => {
                        addresses_at = None;
                        sync.queue(vec![Change::Host]);
                    }
                    Err(error) => {
                        tracing::warn!("{}", error_chain(&error));
                        addresses_at = Some(Instant::now() + ADDRESS_RETRY);
                    }
                },
                () = sleep_until(log_due.map_or_else(Instant::now, Instant::from_std)), if log_due.is_some() => {
                    feed.log_repeated();
                }
                end = &mut stop => break end,
                lost = lost.next() => return Err(lost.into()),
            }
        };
        source.abort();
        let grace = match end {
            End::Signal(_) => SYNC_GRACE,
            End::ConfigChanged => RESTART_GRACE,
        };
        sync.finish(grace).await;
        Ok(end)
    }
}

/// Describes the source for commands, which run in another working directory.
fn source_info(args: &RunArgs) -> SourceInfo {
    match &args.manifests {
        Some(path) => SourceInfo::Manifests(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
        None => SourceInfo::ApiServer(args.proxy.client.master.clone()),
    }
}

/// Returns the ports and connections that HTTP servers may have open, after the limit of open files has been raised.
fn http_budget() -> Budget {
    match raise_descriptor_limit() {
        Ok(limit) => Budget::for_descriptor_limit(limit),
        Err(error) => {
            tracing::warn!("{}", error_chain(&error));
            Budget::default()
        }
    }
}

/// Waits for a change of the host's addresses, but reads them again only at `retry_at`. This method is cancel safe.
async fn next_change(addresses: &mut AddressWatch, retry_at: Option<Instant>) -> Result<(), AddressError> {
    if let Some(at) = retry_at {
        sleep_until(at).await;
    }
    addresses.changed().await.map(|_| ())
}

/// Returns the error of a source. A source runs until its receiver is dropped, so any earlier end is an error.
fn source_ended(end: Result<Result<(), WatchError>, tokio::task::JoinError>) -> anyhow::Result<End> {
    end.context("the source panicked")?.context("cannot watch the manifests")?;
    anyhow::bail!("the source ended unexpectedly")
}

/// Serves HTTP requests at an address. If the address is not available, `hard_fail` makes this an error; otherwise a
/// warning is logged once, and opening is retried until it succeeds.
fn serve(
    http: &HttpThread,
    purpose: &'static str,
    handler: Arc<dyn Handler>,
    address: SocketAddr,
    hard_fail: bool,
) -> anyhow::Result<Server> {
    let scope = ListenScope::from_bind_address(address.ip());
    let limits = http::Limits::default();
    if hard_fail {
        let listener = listen(scope, address.port()).with_context(|| format!("cannot serve {purpose}"))?;
        return Ok(http.serve(listener, handler, limits)?);
    }
    let is_reported = AtomicBool::new(false);
    let report = move |error: &ListenError| {
        if is_reported.swap(true, Relaxed) {
            tracing::debug!("still cannot serve {purpose}: {}", error_chain(error));
        } else {
            tracing::warn!("cannot serve {purpose}; retrying: {}", error_chain(error));
        }
    };
    Ok(http.serve_when_free(scope, address.port(), handler, limits, LISTEN_RETRY, report))
}

/// Time that a sync in progress may take to complete before the program executes itself again. The new process repeats
/// a cancelled sync.
const RESTART_GRACE: Duration = Duration::from_secs(10);

/// Delay after the host's addresses could not be watched.
const ADDRESS_RETRY: Duration = Duration::from_secs(1);

/// Interval of attempts to listen; kube-proxy's value.
const LISTEN_RETRY: Duration = Duration::from_secs(5);
