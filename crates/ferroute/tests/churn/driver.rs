//! Executes a schedule against a cluster.

use std::{
    collections::VecDeque,
    fs,
    net::IpAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use ferroute_config::ModeName;
use ferroute_core::{
    Protocol,
    testing::{Cluster, Edit},
};
use tempfile::TempDir;

use crate::{
    clients::{Clients, Outcome, Record, Targets, connect},
    clock::{OwnWaits, ProxyClock},
    kernel,
    network::{EXTRA_ADDRESSES, Network, node_addresses},
    objects,
    oracle::{Oracle, PROMISED_DELAY},
    process::{CONFIG, Files, Proxy, get},
    schedule::{Change, Iptables, Round, Schedule, Setting, Step},
    servers::Servers,
    source::Source,
};

/// The cluster, the proxy, and the observations.
pub(crate) struct Driver {
    pub(crate) network: Network,
    pub(crate) source: Source,
    pub(crate) files: Files,
    /// Dropped before the network and the files.
    pub(crate) proxy: Option<Proxy>,
    clock: ProxyClock,
    own_waits: OwnWaits,
    pub(crate) oracle: Oracle,
    pub(crate) schedule: Schedule,
    pub(crate) setting: Setting,
    pub(crate) mode: ModeName,
    pub(crate) cluster: Cluster,
    clients: Option<Clients>,
    _servers: Servers,
    barrier: usize,
    pub(crate) has_extra_addresses: bool,
    /// Addresses of Services, the most recent last.
    targets: VecDeque<(Protocol, std::net::SocketAddr)>,
    events: Vec<String>,
    start: Instant,
    counts: Counts,
    violations: Vec<String>,
    /// The last records, for reports: a violation of a flow may follow from what happened to its earlier datagrams.
    records: VecDeque<Record>,
    directory: TempDir,
}

/// The number of connections by result.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) endpoint: usize,
    pub(crate) refused: usize,
    pub(crate) unreachable: usize,
    pub(crate) timeout: usize,
    /// Unexpected timeouts that expired while a client or server had no processor, which are no violations.
    pub(crate) starved: usize,
    /// The most time that a change took while there was no fault.
    pub(crate) slowest: Duration,
}

/// A failure of a run.
pub(crate) type Failure = String;

impl Driver {
    /// Starts the cluster and the proxy.
    pub(crate) fn start(seed: u64, setting: &Setting) -> Result<Self, Failure> {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::new(directory.path());
        let schedule = Schedule::new(seed, setting);
        let network = Network::new();
        kernel::add_canaries(&network.node);
        let servers = Servers::start(&network);
        let options = &schedule.options;
        files.write_programs(options.iptables == Iptables::Legacy);
        files.configure(options, options.mode);
        let cluster = objects::initial(&schedule.initial, &schedule.steady);
        let mut source = if setting.api { Source::api(&network.node) } else { Source::manifests() };
        source.publish_all(&files, &cluster);
        let mut driver = Self {
            oracle: Oracle::new(options.settings(), options.mode, &cluster, Instant::now()),
            clients: Some(Clients::start(&network, seed)),
            mode: options.mode,
            setting: setting.clone(),
            proxy: None,
            clock: ProxyClock::new(),
            own_waits: OwnWaits::default(),
            barrier: 0,
            has_extra_addresses: false,
            targets: VecDeque::new(),
            events: Vec::new(),
            start: Instant::now(),
            counts: Counts::default(),
            violations: Vec::new(),
            records: VecDeque::new(),
            _servers: servers,
            network,
            source,
            files,
            schedule,
            cluster,
            directory,
        };
        driver.start_proxy();
        driver.settle(RECOVERY)?;
        driver.update_targets();
        Ok(driver)
    }

    /// Executes rounds until the time is over or all are done.
    pub(crate) fn run(&mut self, time: Duration) -> Result<usize, Failure> {
        let rounds = std::mem::take(&mut self.schedule.rounds);
        for (number, round) in rounds.iter().enumerate() {
            if self.start.elapsed() > time {
                return Ok(number);
            }
            self.note(format!("round {number}: {:?}", round.fault));
            self.print_progress();
            self.round(round)?;
        }
        Ok(rounds.len())
    }

    fn round(&mut self, round: &Round) -> Result<(), Failure> {
        self.execute(&round.before)?;
        match &round.fault {
            Some(fault) => self.execute_fault(fault, &round.during)?,
            None => self.execute(&round.during)?,
        }
        self.settle_in_time()?;
        self.pause(QUIET)?;
        self.source.set_checkpoint(&self.cluster);
        self.check_health()
    }

    /// Publishes changes.
    pub(crate) fn execute(&mut self, steps: &[Step]) -> Result<(), Failure> {
        for step in steps {
            self.pause(Duration::from_millis(step.pause))?;
            match &step.change {
                Change::Objects(edits) => edits.iter().for_each(|edit| self.edit(edit)),
                Change::Steady(steady) => {
                    let edits = steady.edits(&self.cluster);
                    self.note(format!("{steady:?}"));
                    edits.iter().for_each(|edit| self.publish(edit));
                }
                Change::Claim(claimant, claim) => {
                    self.note(format!("{claimant:?} {claim:?}"));
                    claimant.edits(*claim).iter().for_each(|edit| self.publish(edit));
                }
                Change::ExtraAddresses(present) => self.set_extra_addresses(*present),
            }
            self.update_targets();
        }
        Ok(())
    }

    fn edit(&mut self, edit: &Edit) {
        self.note(match edit {
            Edit::SetService(service) => format!("set Service {service:?}"),
            Edit::SetSlice(slice) => format!("set slice {slice:?}"),
            other => format!("{other:?}"),
        });
        self.publish(edit);
    }

    fn publish(&mut self, edit: &Edit) {
        objects::apply(&mut self.cluster, edit);
        let now = Instant::now();
        match edit {
            Edit::SetService(_) | Edit::RemoveService(_) => self.oracle.publish_services(&self.cluster.services, now),
            Edit::SetSlice(_) | Edit::RemoveSlice(_) => self.oracle.publish_slices(&self.cluster.slices, now),
            Edit::SetNode(_) => self.oracle.publish_node(&self.cluster.node, now),
        }
        self.source.publish(&self.files, edit, &self.cluster);
    }

    /// Replaces all objects by those to which the source has returned.
    pub(crate) fn replace_objects(&mut self, cluster: Cluster) {
        let now = Instant::now();
        self.oracle.publish_services(&cluster.services, now);
        self.oracle.publish_slices(&cluster.slices, now);
        self.oracle.publish_node(&cluster.node, now);
        self.cluster = cluster;
    }

    fn set_extra_addresses(&mut self, present: bool) {
        if present == self.has_extra_addresses {
            return;
        }
        self.note(format!("additional addresses: {present}"));
        self.has_extra_addresses = present;
        let mut addresses = node_addresses();
        if present {
            addresses.extend(EXTRA_ADDRESSES.map(|address| address.parse::<IpAddr>().unwrap()));
        }
        let now = Instant::now();
        // The kernel handles packets to the address differently while the proxy still has the old addresses.
        self.oracle.publish_host(&addresses, now);
        self.network.set_extra_addresses(present);
    }

    /// Updates the addresses of clients. They continue to use old ones for a while.
    fn update_targets(&mut self) {
        let current = self.oracle.targets();
        self.targets.retain(|target| !current.contains(target));
        self.targets.extend(current);
        while self.targets.len() > MAX_TARGETS {
            self.targets.pop_front();
        }
        let all = self.targets.iter().copied().collect();
        let steady = objects::steady_targets();
        self.clients.as_ref().expect("clients run until the end").set_targets(Targets { all, steady });
    }

    /// Waits for a change to be applied, which must happen within the promised delay.
    pub(crate) fn settle_in_time(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        self.settle(PROMISED_DELAY)?;
        self.counts.slowest = self.counts.slowest.max(start.elapsed());
        Ok(())
    }

    /// Publishes a change and waits until connections show that it has been applied. Then all earlier changes of Services
    /// and slices have been applied, too.
    pub(crate) fn settle(&mut self, limit: Duration) -> Result<(), Failure> {
        let published = self.pass_barrier(limit)?;
        self.oracle.applied(published);
        Ok(())
    }

    /// Publishes a change, waits until connections show that it has been applied, and returns when it was published.
    pub(crate) fn pass_barrier(&mut self, limit: Duration) -> Result<Instant, Failure> {
        self.barrier += 1;
        for edit in objects::barrier(self.barrier) {
            self.publish(&edit);
        }
        let published = Instant::now();
        let start = self.read_clock();
        for (target, v4) in objects::barrier_targets(self.barrier).into_iter().zip([true, false]) {
            let expected = objects::barrier_endpoint(self.barrier, v4);
            while self.probe(target) != Some(expected) {
                if self.read_clock() - start > limit {
                    let took = published.elapsed();
                    return Err(format!(
                        "a change was not applied within {limit:?} ({took:?} with the waits for a processor): no connection from \
                         {target} to {expected}"
                    ));
                }
                self.pause(Duration::from_millis(40))?;
            }
        }
        self.note(format!("settled after {:?}", published.elapsed()));
        Ok(published)
    }

    fn probe(&self, target: std::net::SocketAddr) -> Option<std::net::SocketAddr> {
        self.network.outside.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(connect(target, None)).ok().map(|connection| connection.reply.endpoint)
        })
    }

    /// Returns the time by which the proxy is measured.
    pub(crate) fn read_clock(&mut self) -> Duration {
        self.clock.read(self.proxy.as_ref().map(Proxy::id))
    }

    /// Waits until this time by the proxy's clock.
    pub(crate) fn pause_until(&mut self, time: Duration) -> Result<(), Failure> {
        while let Some(rest) = time.checked_sub(self.read_clock()).filter(|rest| !rest.is_zero()) {
            self.pause(rest)?;
        }
        Ok(())
    }

    /// Waits, and checks connections in the meantime.
    pub(crate) fn pause(&mut self, time: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            self.check_connections();
            let exited = self.proxy.as_mut().and_then(Proxy::exit_status);
            if let Some(status) = exited {
                return Err(format!("the proxy has exited: {status}"));
            }
            if self.violations.len() >= MAX_VIOLATIONS {
                return Err("too many violations".to_owned());
            }
            let Some(rest) = time.checked_sub(start.elapsed()) else { return Ok(()) };
            std::thread::sleep(rest.min(Duration::from_millis(50)));
        }
    }

    fn check_connections(&mut self) {
        let Some(clients) = &self.clients else { return };
        let records = clients.take_records();
        self.read_clock();
        self.own_waits.read();
        if let Some(superseded) = self.clock.before(PROMISED_DELAY) {
            self.oracle.tick(superseded);
        }
        for record in &records {
            self.records.push_back(record.clone());
            if self.records.len() > MAX_RECORDS {
                self.records.pop_front();
            }
            match record.outcome {
                Outcome::Endpoint(_) => self.counts.endpoint += 1,
                Outcome::Refused => self.counts.refused += 1,
                Outcome::Unreachable => self.counts.unreachable += 1,
                Outcome::Timeout => self.counts.timeout += 1,
                Outcome::Broken(_) => {}
            }
            if let Err(error) = self.oracle.check(record) {
                if self.was_starved(record) {
                    self.counts.starved += 1;
                    self.note(format!("a client or server had no processor: {record:?}"));
                    continue;
                }
                let start = self.start;
                let at = |time: Instant| time.saturating_duration_since(start).as_millis();
                let flow = kernel::flow(&self.network.node, record.protocol, record.port);
                let is_earlier = |other: &&Record| (other.port, other.target) == (record.port, record.target);
                let line =
                    |other: &Record| format!("\n  {}..{} ms: {:?}", at(other.start), at(other.end), other.outcome);
                let earlier: String = self.records.iter().filter(is_earlier).map(line).collect();
                self.violations.push(format!(
                    "{}..{} ms: {error}\n  {flow}{earlier}",
                    at(record.start),
                    at(record.end)
                ));
                self.note(format!("VIOLATION by a connection of {}..{} ms", at(record.start), at(record.end)));
            }
        }
    }

    /// Reports whether a timeout expired while a client or server waited for a processor half of the time.
    fn was_starved(&self, Record { outcome, start, end, .. }: &Record) -> bool {
        *outcome == Outcome::Timeout && self.own_waits.longest(*start, *end) > (*end - *start) / 2
    }

    fn check_health(&mut self) -> Result<(), Failure> {
        if let Some(violation) = self.violations.first() {
            return Err(format!("{} violations, the first one: {violation}", self.violations.len()));
        }
        let address = "127.0.0.1:10256".parse().unwrap();
        self.wait("the proxy is healthy", |driver| matches!(get(&driver.network.node, address, "/livez"), Ok((200, _))))
    }

    /// Starts the proxy.
    pub(crate) fn start_proxy(&mut self) {
        let arguments = self.arguments();
        self.proxy = Some(Proxy::start(&self.network.node, &self.files, CONFIG, &arguments, &self.log()));
    }

    /// Returns the arguments of a proxy, besides its configuration.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = self.source.arguments(&self.files);
        if self.schedule.options.iptables == Iptables::Programs {
            arguments.push("--iptables-programs".to_owned());
        }
        arguments
    }

    pub(crate) fn process(&mut self) -> &mut Proxy {
        self.proxy.as_mut().expect("the proxy runs except while a fault lasts")
    }

    /// Waits until a condition holds.
    pub(crate) fn wait(&mut self, what: &str, condition: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let start = Instant::now();
        while !condition(self) {
            if start.elapsed() > RECOVERY {
                return Err(format!("timeout after {RECOVERY:?}: {what}"));
            }
            self.pause(Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// Stops the clients after the last connections have been checked.
    pub(crate) fn stop_clients(&mut self) -> Result<Counts, Failure> {
        self.clients = None;
        self.check_health()?;
        Ok(self.counts)
    }

    /// Records an event.
    pub(crate) fn note(&mut self, event: impl std::fmt::Display) {
        self.events.push(format!("{:>7} ms  {event}", self.start.elapsed().as_millis()));
    }

    /// Prints the last event.
    pub(crate) fn print_progress(&self) {
        eprintln!("{}", self.events.last().expect("there are events"));
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("ferroute.log")
    }

    /// Returns the information that is needed to understand a failure, and keeps complete logs in a directory.
    pub(crate) fn report(&self, seed: u64) -> String {
        let source = if self.setting.api { "api" } else { "manifests" };
        let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("churn-{source}-{seed}"));
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        _ = fs::create_dir_all(&kept);
        _ = fs::write(kept.join("ferroute.log"), &log);
        _ = fs::write(kept.join("events.log"), self.events.join("\n"));
        _ = fs::write(kept.join("violations.log"), self.violations.join("\n"));
        _ = fs::write(kept.join("rules"), kernel::state(&self.network.node).join("\n"));
        let last = |lines: &[&str], number: usize| lines[lines.len().saturating_sub(number)..].join("\n");
        let events: Vec<&str> = self.events.iter().map(String::as_str).collect();
        let log: Vec<&str> = log.lines().collect();
        format!(
            "options: {:?}\nmode: {}\n{}\n{:?}\nlast events:\n{}\nlog of the proxy:\n{}\nviolations:\n{}\nfiles: {}",
            self.schedule.options,
            self.mode,
            self.oracle.describe(),
            self.counts,
            last(&events, 25),
            last(&log, 30),
            self.violations.iter().take(4).cloned().collect::<Vec<_>>().join("\n"),
            kept.display(),
        )
    }
}

/// Time in which the proxy must recover from a fault that has ended.
pub(crate) const RECOVERY: Duration = Duration::from_secs(60);
/// The time without changes after each round.
const QUIET: Duration = Duration::from_millis(900);
const MAX_TARGETS: usize = 90;
const MAX_VIOLATIONS: usize = 10;
/// Those of some minutes.
const MAX_RECORDS: usize = 50_000;
