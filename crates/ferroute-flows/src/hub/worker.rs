use std::{
    collections::{HashSet, VecDeque},
    net::SocketAddr,
    os::fd::AsFd,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use ferroute_core::{IpFamily, Protocol, error_chain};
use ferroute_host::{
    Moment, Sysctls,
    conntrack::{
        Connection, ConnectionEvents, ConnectionReader, Entry, Error, EventKind, Received, TcpState, list_connections,
    },
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{
    HubThread,
    readers::{Line, Reader},
    refused::RefusedPackets,
};
use crate::{Change, Flow, FlowStart, FlowTracker, Listing, Losses, Peer, RecentEnd, Services, Summary};

/// The state of the thread.
pub(super) struct Worker {
    shared: Arc<HubThread>,
    queue: mpsc::Receiver<Reader>,
    readers: Vec<Reader>,
    tracker: FlowTracker,
    output: Output,
    overruns: u64,
    /// Buffer for the events of one message.
    events: Vec<(EventKind, Connection)>,
}

/// Destination of changes.
struct Output {
    recent: VecDeque<Flow>,
    limit: usize,
    /// The limit of bytes that wait for a reader.
    lines: usize,
    summary: Summary,
}

/// An open subscription.
struct Subscription {
    events: ConnectionEvents,
    /// Reader of the counters of ended connections; `None` if the kernel does not count.
    reader: Option<ConnectionReader>,
    /// Receiver of refused packets; `None` if the kernel does not support it, or if there are no Services.
    refused: Option<RefusedPackets>,
    start: FlowStart,
    /// When the connections are listed again, because events were lost.
    list_at: Option<Instant>,
    listed: Instant,
}

impl Worker {
    pub(super) fn new(shared: Arc<HubThread>, queue: mpsc::Receiver<Reader>) -> Self {
        let limits = shared.limits;
        let tracker = FlowTracker::new(limits.open, shared.services);
        let output = Output {
            recent: VecDeque::new(),
            limit: limits.recent,
            lines: limits.lines,
            summary: Summary::new(limits.edges),
        };
        Self { shared, queue, readers: Vec::new(), tracker, output, overruns: 0, events: Vec::new() }
    }

    /// Serves readers until there have been none for a while.
    pub(super) fn run(mut self) {
        while let Some(reader) = self.wait_for_reader() {
            match self.subscribe() {
                Ok(mut subscription) => {
                    self.add(reader, &subscription.start);
                    self.serve(&mut subscription);
                    self.output.summary.pause();
                }
                Err(error) => reader.refuse(&error_chain(&error)),
            }
        }
    }

    /// Waits for a reader. Ends the queue if none comes while the remembered flows are recent enough.
    fn wait_for_reader(&self) -> Option<Reader> {
        if let Ok(reader) = self.queue.recv_timeout(KEPT) {
            return Some(reader);
        }
        let mut queue = self.shared.queue();
        let last = self.queue.try_recv().ok();
        if last.is_none() {
            *queue = None;
        }
        last
    }

    fn subscribe(&mut self) -> Result<Subscription, Error> {
        let sysctls = Sysctls::from_kernel();
        let is_on = |name| sysctls.read(name).is_ok_and(|value| value.trim() == "1");
        let refused = self.refused_packets();
        let start = FlowStart {
            counts: is_on("net/netfilter/nf_conntrack_acct"),
            timestamps: is_on("net/netfilter/nf_conntrack_timestamp"),
            refusals: refused.is_some(),
        };
        let events = ConnectionEvents::open(self.shared.limits.buffer)?;
        // Events that arrive while connections are listed count, so the time does, too.
        self.output.summary.tick(Instant::now());
        let reader = start.counts.then(ConnectionReader::open).transpose()?;
        self.list(Listing::Initial)?;
        Ok(Subscription { events, reader, refused, start, list_at: None, listed: Instant::now() })
    }

    fn refused_packets(&self) -> Option<RefusedPackets> {
        if self.shared.services == Services::Unknown {
            return None;
        }
        let opened = RefusedPackets::open(&self.shared.frontends);
        opened.inspect_err(|error| tracing::info!("flows without refused packets: {}", error_chain(error))).ok()
    }

    /// Compares the flows with the connections that exist.
    fn list(&mut self, listing: Listing) -> Result<(), Error> {
        let now = Moment::now();
        let Self { shared, tracker, output, readers, .. } = self;
        let frontends = shared.frontends.lock();
        // The end of a listed connection may have been reported by an earlier subscription.
        let reported: HashSet<_> = output.recent.iter().map(addresses).collect();
        let mut report = |change: Change<'_>| match listing {
            Listing::AfterLoss => output.report(change, now, readers),
            Listing::Initial => output.remember(change),
        };
        tracker.begin_list();
        for family in IpFamily::BOTH {
            list_connections(family, |connection| {
                let Entry { protocol, original_source, original_destination, is_open, .. } = connection.entry;
                if is_open || !reported.contains(&(protocol, original_source, original_destination)) {
                    tracker.on_listed(connection, listing, now, &frontends, &mut report);
                }
            })?;
        }
        tracker.end_list(now, &mut report);
        Ok(())
    }

    /// Adds a reader, and sends it the initial lines that it requested.
    fn add(&mut self, mut reader: Reader, start: &FlowStart) {
        reader.push(&Line::Start(start));
        if reader.request.recent {
            let mut flows: Vec<&Flow> = self.tracker.flows().chain(&self.output.recent).collect();
            // Without the kernel's times, those of older connections are unknown.
            flows.sort_by_key(|flow| (flow.time.filter(|_| start.timestamps), flow.id));
            let flows = flows.into_iter().filter(|flow| reader.add(flow)).count();
            reader.push(&Line::RecentEnd(&RecentEnd { flows }));
        }
        reader.flush(Losses::default());
        if reader.request.follow || reader.request.summary_seconds > 0 {
            self.readers.push(reader);
        }
    }

    /// Handles events while there are readers.
    fn serve(&mut self, subscription: &mut Subscription) {
        while !self.readers.is_empty() {
            let timeout = PollTimeout::try_from(TICK).unwrap_or(PollTimeout::MAX);
            // A failure is that of the next receive.
            let sources = [Some(subscription.events.as_fd()), subscription.refused.as_ref().map(AsFd::as_fd)];
            let mut sources: Vec<PollFd<'_>> =
                sources.into_iter().flatten().map(|source| PollFd::new(source, PollFlags::POLLIN)).collect();
            let _ = poll(&mut sources, timeout);
            let result = self.receive(subscription).and_then(|()| self.list_again(subscription));
            self.receive_refused(subscription);
            if let Err(error) = result {
                let reason = error_chain(&error);
                return self.readers.drain(..).for_each(|reader| reader.refuse(&reason));
            }
            let now = Moment::now();
            let Self { shared, tracker, output, readers, .. } = self;
            tracker.on_tick(now, &shared.frontends.lock(), &mut |change| output.report(change, now, readers));
            output.summary.tick(now.instant);
            self.flush(subscription);
            while let Ok(reader) = self.queue.try_recv() {
                self.add(reader, &subscription.start);
            }
            self.readers.retain(|reader| !reader.is_gone());
        }
    }

    /// Handles the events that have arrived, in batches, so that readers get lines in between.
    fn receive(&mut self, subscription: &mut Subscription) -> Result<(), Error> {
        for _ in 0..MAX_BATCHES {
            self.events.clear();
            let events = &mut self.events;
            let received = subscription.events.receive(BATCH, |kind, connection| events.push((kind, *connection)))?;
            let (now, count) = (Moment::now(), self.events.len());
            let Self { shared, tracker, output, readers, events, .. } = self;
            let frontends = shared.frontends.lock();
            for (kind, connection) in events {
                subscription.count(*kind, connection, tracker);
                let mut report = |change: Change<'_>| output.report(change, now, readers);
                tracker.on_event(*kind, connection, now, &frontends, &mut report);
            }
            drop(frontends);
            self.flush(subscription);
            if received == Received::Lost {
                self.overruns += 1;
                subscription.list_at.get_or_insert(subscription.listed + LIST_INTERVAL);
            }
            if count < BATCH {
                return Ok(());
            }
            // There are many connections: waking up for each event would cost more than the events.
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Reports the connections that rules have refused. If this fails, other flows are still reported.
    fn receive_refused(&mut self, subscription: &mut Subscription) {
        let Some(refused) = &mut subscription.refused else { return };
        let now = Moment::now();
        let Self { shared, tracker, output, readers, .. } = self;
        let report = |change: Change<'_>| output.report(change, now, readers);
        let received = refused.receive(now, &shared.frontends.lock(), || tracker.next_id(), report);
        if let Err(error) = received.and_then(|()| refused.update(&shared.frontends)) {
            tracing::warn!("no more refused packets among flows: {}", error_chain(&error));
            subscription.refused = None;
        }
    }

    fn list_again(&mut self, subscription: &mut Subscription) -> Result<(), Error> {
        if subscription.list_at.is_some_and(|at| at <= Instant::now()) {
            self.list(Listing::AfterLoss)?;
            (subscription.list_at, subscription.listed) = (None, Instant::now());
        }
        Ok(())
    }

    fn flush(&mut self, subscription: &Subscription) {
        let unread = subscription.refused.as_ref().map_or(0, RefusedPackets::lost);
        let losses = Losses { overruns: self.overruns, untracked: self.tracker.untracked(), unread, missed: 0 };
        let (now, summary) = (Instant::now(), &self.output.summary);
        for reader in &mut self.readers {
            if reader.takes_summary(now) {
                let mut report = summary.report();
                report.edges.retain(|edge| reader.request.wants_port(edge.service_port.as_deref()));
                reader.push(&Line::Summary(&report));
            }
            reader.flush(losses);
        }
    }
}

impl Output {
    /// Sends a change to the readers that follow, and remembers the flow if it is over.
    fn report(&mut self, change: Change<'_>, now: Moment, readers: &mut [Reader]) {
        for reader in readers.iter_mut().filter(|reader| reader.request.follow) {
            reader.offer(change.flow, self.lines);
        }
        self.summary.add(change, now.instant);
        self.remember(change);
    }

    /// Remembers a flow that is over.
    fn remember(&mut self, change: Change<'_>) {
        if change.has_ended {
            if self.recent.len() == self.limit {
                self.recent.pop_front();
            }
            self.recent.push_back(change.flow.clone());
        }
    }
}

/// Returns what identifies the connection of a flow at a time.
fn addresses(flow: &Flow) -> (Protocol, SocketAddr, SocketAddr) {
    let Peer { address, port, .. } = flow.client;
    (flow.protocol, SocketAddr::new(address, port.unwrap_or_default()), flow.destination)
}

impl Subscription {
    /// Adds the counters to the event by which a flow ends, because the kernel's last event comes minutes later.
    fn count(&mut self, kind: EventKind, connection: &mut Connection, tracker: &FlowTracker) {
        if let Some(reader) = &mut self.reader
            && kind == EventKind::Update
            && matches!(connection.tcp, Some(TcpState::Closed | TcpState::Reset))
            && tracker.is_tracked(connection)
        {
            connection.traffic = reader.traffic(connection);
        }
    }
}

/// The longest time without a check for unanswered connections and new readers.
const TICK: Duration = Duration::from_millis(200);
/// Time for which flows are remembered without a reader, which is the period of the summary.
const KEPT: Duration = Duration::from_secs(300);
/// Number of events that are handled at once.
const BATCH: usize = 256;
/// Number of batches between two checks for unanswered connections and new readers.
const MAX_BATCHES: usize = 64;
/// Pause after a full batch, in which the kernel's buffer has space for the events of more than 100,000 connections per
/// second.
const PAUSE: Duration = Duration::from_millis(1);
/// Minimum time between two lists of all connections.
const LIST_INTERVAL: Duration = Duration::from_secs(5);
