//! `ferroute run`: everything put together.
//!
//! ```text
//!   source ──► Feed ──► sync loop (a thread) ──► kernel
//!                            └──► health servers (a thread)
//! ```
//!
//! The main thread follows the source, the host's addresses, the configuration file and signals. It ends by itself only
//! when the sync loop cannot go on; a signal ends it at once, and when the configuration has changed everything starts
//! anew. The rules stay in either case, so that traffic goes on while no proxy runs.

use std::{
    net::{IpAddr, UdpSocket},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use ferroute_config::{
    ClientConnectionConfiguration, KubeProxyConfiguration, Resolved, canonical_node_name,
    flags::{RunArgs, Typed},
    settings::Settings,
};
use ferroute_core::{NodeView, Tracker};
use ferroute_admin::{health::{Health, HealthzHandler}, http::{Handler, HttpThread}};
use ferroute_admin::status::Pages;
use ferroute_host::{AddressWatch, HostAddresses, KernelAddresses, watch_firewalld};
use ferroute_kube::{ApiServer, ApiWriter, RequestCounter};
use ferroute_source::{Event, WatchError, Manifests};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot},
};

use crate::{
    config_watch::{ConfigWatch, start_anew},
    events::{Events, EventsWatcher},
    feed::Feed,
    flows::KernelFlows,
    startup_taint::{self, Gate},
    health::HealthObserver,
    host_setup::HostSetup,
    logging::{SyncLog, chain},
    node_wait::NodeWait,
    observer::Observer,
    modes::{OpenMode, REGISTRY},
    recording::{self, About, Recording},
    serving::serve,
    status::{self, Status},
    sync::{Change, FamilySync, Intake, Limits, SyncLoop},
};

/// Runs the proxy until a signal ends it.
pub fn run(
    args: &Typed<RunArgs>,
    settings: &Settings,
    setup: &HostSetup,
    more_observers: Vec<Box<dyn Observer>>,
) -> anyhow::Result<ExitCode> {
    let Settings { config, resolved, .. } = settings;
    let in_force = KubeProxyConfiguration { mode: resolved.mode.as_str().to_owned(), ..config.clone() };
    let pages = Pages::new(&in_force, args.flags.iter()).with_host(setup.lines().collect());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let status = Status::new(resolved, pages, runtime.handle().clone());
    let end = runtime.block_on(async {
        let (node, counter) = (node_name(resolved)?, status.request_counter());
        let source = Source::new(&args.args, &config.client_connection, &node, counter).await?;
        let taint = args.args.startup_taint.as_deref();
        supervise(source, settings, setup, &status, ConfigWatch::new(args, settings), taint, more_observers).await
    })?;
    match end {
        End::Signal(signal) => tracing::info!("{signal}: ending, rules stay in force"),
        End::ConfigChanged => {
            start_anew().context("cannot start anew with the changed configuration")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Why the proxy ends although nothing is wrong.
enum End {
    Signal(&'static str),
    ConfigChanged,
}

/// Where Services come from.
enum Source {
    Manifests(Manifests),
    ApiServer(ApiServer),
}

impl Source {
    async fn new(
        args: &RunArgs,
        connection: &ClientConnectionConfiguration,
        node: &str,
        counter: Arc<dyn RequestCounter>,
    ) -> anyhow::Result<Self> {
        if let Some(path) = &args.manifests {
            return Ok(Self::Manifests(Manifests::new(path)));
        }
        let server = ApiServer::new(connection, Some(&args.proxy.client.master), node).await;
        let server = server.map(|server| Self::ApiServer(server.with_counter(counter)));
        server.context("no source of Services (give --manifests to do without an API server)")
    }

    /// Writes to where it reads, where that is an API server.
    fn writer(&self) -> Option<ApiWriter> {
        match self {
            Self::Manifests(_) => None,
            Self::ApiServer(server) => Some(server.writer()),
        }
    }

    /// Each node has its Node there.
    fn has_node(&self) -> bool {
        matches!(self, Self::ApiServer(_))
    }

    async fn follow(self, batches: mpsc::Sender<Vec<Event>>) -> Result<(), WatchError> {
        match self {
            Self::Manifests(manifests) => manifests.watch(batches).await,
            Self::ApiServer(server) => {
                server.follow(batches).await;
                Ok(())
            }
        }
    }
}

async fn supervise(
    source: Source,
    settings: &Settings,
    setup: &HostSetup,
    status: &Status,
    config: ConfigWatch<'_>,
    startup_taint: Option<&str>,
    more_observers: Vec<Box<dyn Observer>>,
) -> anyhow::Result<End> {
    let resolved = &settings.resolved;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let http = Arc::new(HttpThread::start().context("cannot start the thread for HTTP")?);
    // As in kube-proxy, a family is unhealthy when something has been waiting for twice the sync period.
    let health = Arc::new(Health::new(resolved.sync.period * 2));
    let hard_fail = resolved.bind_address_hard_fail;
    let healthz = Arc::new(status::counted(HealthzHandler::new(health.clone()), status.metrics()));
    let serve = |what, handler: Arc<dyn Handler>, address| serve(&http, what, handler, address, hard_fail);
    let _healthz = resolved.healthz.map(|address| serve("health checks", healthz, address)).transpose()?;
    let _metrics = resolved.metrics.map(|address| serve("metrics", status.handler(), address)).transpose()?;
    let node = first_node(resolved)?;
    let notices = Events::start(source.writer(), &node.name);
    notices.starting(setup);
    let mut feed = Feed::new(resolved, node).with_events(notices.clone());
    let (gate, opened) = Gate::new();
    if let Some((key, writer)) = startup_taint.zip(source.writer()) {
        tokio::spawn(startup_taint::remove_taint(opened, writer, key.to_owned()));
    }
    let (events, mut batches) = mpsc::channel(QUEUE);
    let mut wait = NodeWait::new(&feed.node().name, source.has_node());
    let mut source = tokio::spawn(source.follow(events));
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => End::Signal("SIGTERM"),
            _ = interrupt.recv() => End::Signal("SIGINT"),
            () = config.changed() => End::ConfigChanged,
        }
    };
    tokio::pin!(stop);

    // Which families there are depends on the node, so everything is listed before anything is planned.
    let recording = Recording::new();
    let answers = tokio::spawn(recording::serve(recording.inbox(), About::of(settings)));
    let mut observers: Vec<Box<dyn Observer>> = vec![
        Box::new(SyncLog),
        Box::new(HealthObserver::new(http, health, resolved.settings.clone(), notices.clone())),
        Box::new(EventsWatcher::new(notices)),
        Box::new(gate),
        Box::new(recording),
        Box::new(status.observer()),
    ];
    observers.extend(more_observers);
    let mut intake = Intake::new(Tracker::new(feed.node().clone()), observers);
    let mut others = Vec::new();
    while !feed.is_listed() || wait.is_on(feed.missing())? {
        tokio::select! {
            () = wait.time_is_up() => {}
            Some(batch) = batches.recv() => {
                others.extend(feed.take(batch).into_iter().filter_map(|change| intake.take(change)));
            }
            end = &mut source => return source_ended(end),
            end = &mut stop => return Ok(end),
        }
    }
    let mut sync = SyncThread::start(resolved, feed.node(), intake, status)?;
    sync.send(others).await?;
    let mut addresses = AddressWatch::open()?;
    let (reload, mut reloads) = mpsc::channel(1);
    let firewall = tokio::spawn(watch_firewalld(reload));
    let end = loop {
        tokio::select! {
            Some(batch) = batches.recv() => sync.send(feed.take(batch)).await?,
            end = &mut source => return source_ended(end),
            Some(()) = reloads.recv() => sync.send(vec![Change::Host]).await?,
            change = addresses.changed() => match change {
                Ok(_) => sync.send(vec![Change::Host]).await?,
                Err(error) => {
                    tracing::warn!("{}", chain(&error));
                    tokio::time::sleep(ADDRESS_PAUSE).await;
                }
            },
            end = &mut stop => break end,
            () = sync.ended() => anyhow::bail!("the sync loop has ended"),
        }
    };
    source.abort();
    firewall.abort();
    answers.abort();
    sync.finish();
    Ok(end)
}

/// A source goes on for as long as somebody takes what it tells, so its end is a failure.
fn source_ended(end: Result<Result<(), WatchError>, tokio::task::JoinError>) -> anyhow::Result<End> {
    end.context("the source has panicked")?.context("cannot follow the manifests")?;
    anyhow::bail!("the source has ended")
}

/// The name of this node: as configured, else the host's.
///
/// # Errors
/// If none is configured and the host has no usable name.
pub fn node_name(resolved: &Resolved) -> anyhow::Result<String> {
    match &resolved.node_name {
        Some(name) => Ok(name.clone()),
        None => {
            let host = ferroute_host::node_name("")?;
            canonical_node_name(&host).context("the host has no name; set one with --hostname-override")
        }
    }
}

/// What is known of the node before its Node has been told: its name, and as addresses those of the host, for hosts
/// that have no Node at all. First comes the one of each family that the host shows to others, not that of a bridge.
fn first_node(resolved: &Resolved) -> anyhow::Result<NodeView> {
    let is_usable = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    };
    let mut addresses: Vec<IpAddr> = KernelAddresses::open()?.list()?.into_iter().filter(is_usable).collect();
    let to_others = [source_towards("192.0.2.1:9"), source_towards("[2001:db8::1]:9")];
    addresses.sort_by_key(|address| !to_others.contains(&Some(*address)));
    let node = NodeView { name: node_name(resolved)?, addresses, ..NodeView::default() };
    Ok(resolved.effective_node(node))
}

/// The address that the host shows to others: the one that it would use towards `stranger`, an address that is kept for
/// documentation. To connect a UDP socket sends nothing, it only asks for a route.
fn source_towards(stranger: &str) -> Option<IpAddr> {
    let any = if stranger.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(stranger).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The sync loop on a thread of its own.
struct SyncThread {
    changes: mpsc::Sender<Vec<Change>>,
    thread: std::thread::JoinHandle<()>,
    ended: oneshot::Receiver<()>,
}

impl SyncThread {
    fn start(resolved: &Resolved, node: &NodeView, intake: Intake, status: &Status) -> anyhow::Result<Self> {
        let OpenMode { dataplanes, leftovers } = REGISTRY.open(resolved, node)?;
        status.dataplanes_open(&dataplanes, resolved);
        let mut addresses = KernelAddresses::open()?;
        let mut known = addresses.list()?;
        let host_addresses = move || {
            match addresses.list() {
                Ok(listed) => known = listed,
                Err(error) => tracing::warn!("{}: going on with those known", chain(&error)),
            }
            known.clone()
        };
        let limits = Limits {
            min_interval: resolved.sync.min_period,
            burst: BURST,
            first_retry: FIRST_RETRY,
            longest_retry: resolved.sync.period,
        };
        let (changes, receiver) = mpsc::channel(QUEUE);
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let sync = SyncLoop::new(
            intake,
            dataplanes.into_iter().map(|(family, dataplane)| FamilySync::new(family, dataplane)).collect(),
            leftovers,
            Box::new(KernelFlows),
            Box::new(host_addresses),
            limits,
        );
        let thread = std::thread::Builder::new().name("sync".to_owned()).spawn(move || {
            // Dropped when the loop ends, also by a panic.
            let _end = end;
            runtime.block_on(sync.run(receiver));
        })?;
        Ok(Self { changes, thread, ended })
    }

    async fn send(&self, changes: Vec<Change>) -> anyhow::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        self.changes.send(changes).await.ok().context("the sync loop has ended")
    }

    /// Waits until the loop has ended by itself.
    async fn ended(&mut self) {
        // Either way it is over.
        let _ = (&mut self.ended).await;
    }

    /// Lets a sync that is under way come to its end.
    fn finish(self) {
        drop(self.changes);
        if self.thread.join().is_err() {
            tracing::error!("the sync loop has panicked");
        }
    }
}

/// Batches that may wait for the next room. Few, for each holds whole objects while a large cluster is listed.
const QUEUE: usize = 4;

/// Syncs that may follow each other at once after a quiet time.
const BURST: u32 = 2;

/// First wait after a failed sync; it doubles from there up to the sync period.
const FIRST_RETRY: Duration = Duration::from_millis(500);

/// Pause after the host's addresses could not be listed.
const ADDRESS_PAUSE: Duration = Duration::from_secs(1);
