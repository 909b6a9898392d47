use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    time::{Duration, Instant, SystemTime},
};

use ferroute_core::Protocol;
use ferroute_host::{
    Moment,
    conntrack::{Connection, EventKind, TcpState},
};

use crate::{Flow, FlowState, Frontends, Peer, frontends::FrontendOwner};

/// Follows connections from their first packet to their end.
///
/// Pure: events, lists of connections and the time are its input, changes of flows its output. Only open connections
/// are kept, up to a limit.
#[derive(Debug)]
pub struct FlowTracker {
    tracked: HashMap<Key, Tracked>,
    /// Unanswered connections, by the time at which they count as such.
    deadlines: VecDeque<(Instant, Key)>,
    next_id: u64,
    limit: usize,
    untracked: u64,
    /// The number of the last list.
    list: u32,
    services: Services,
}

/// Which connections are flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Services {
    /// Connections to a frontend of a Service.
    Known,
    /// Connections whose destination is translated, because there are no Services.
    Unknown,
}

/// A change of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change<'a> {
    /// The flow after the change.
    pub flow: &'a Flow,
    /// Whether the flow is new.
    pub is_new: bool,
    /// Whether the connection is over.
    pub has_ended: bool,
}

/// Interpretation of connections in a list that the tracker does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// The first list of a subscription: they are older, and are not reported as new.
    Initial,
    /// A list after lost events: they are new.
    AfterLoss,
}

/// A connection that is not over.
#[derive(Clone, Debug)]
struct Tracked {
    flow: Flow,
    /// Whether it belongs to a Service. Rules become active a moment before their frontends are available here.
    is_matched: bool,
    /// Whether the connection is over. It is kept only until it is matched.
    has_ended: bool,
    /// Whether it has been reported to readers.
    is_reported: bool,
    /// Whether its state has to be reported.
    is_changed: bool,
    /// Number of the last list that contained it.
    list: u32,
}

/// Identifies a connection among those that exist at the same time, and with high probability among all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    id: u32,
    client: SocketAddr,
    protocol: Protocol,
}

impl FlowTracker {
    /// Creates a tracker that follows this many connections at most.
    pub fn new(limit: usize, services: Services) -> Self {
        Self { tracked: HashMap::new(), deadlines: VecDeque::new(), next_id: 1, limit, untracked: 0, list: 0, services }
    }

    /// Returns the number of new connections that were not followed because of the limit.
    pub fn untracked(&self) -> u64 {
        self.untracked
    }

    /// Returns the flows that are not over.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.tracked.values().filter(|tracked| tracked.is_matched && !tracked.has_ended).map(|tracked| &tracked.flow)
    }

    /// Reports whether a connection is followed.
    pub fn is_tracked(&self, connection: &Connection) -> bool {
        self.tracked.contains_key(&Key::of(connection))
    }

    /// Returns the number for a new flow that is not a connection.
    pub fn next_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Handles an event of the kernel.
    pub fn on_event(
        &mut self,
        kind: EventKind,
        connection: &Connection,
        now: Moment,
        frontends: &Frontends,
        report: &mut dyn FnMut(Change<'_>),
    ) {
        let (key, time) = (Key::of(connection), connection.reported.unwrap_or(now.wall));
        if !self.tracked.contains_key(&key) {
            // The last events of a connection whose end was reported are ignored.
            let may_begin = match (kind, connection.tcp) {
                (EventKind::New, _) => true,
                (EventKind::Update, Some(state)) => matches!(state, TcpState::SynSent | TcpState::Open),
                (EventKind::Update, None) => connection.entry.protocol != Protocol::Tcp && !connection.is_answered,
                (EventKind::Destroy, _) => false,
            };
            let began = connection.started.unwrap_or(time);
            if !may_begin || !self.begin(key, connection, Some(began), now, frontends, kind == EventKind::New) {
                return;
            }
        }
        let Some(tracked) = self.tracked.get_mut(&key) else { return };
        tracked.match_with(frontends);
        tracked.advance(kind, connection, time);
        if tracked.report(report) {
            self.tracked.remove(&key);
        }
    }

    /// Starts a list of all connections. Connections that it does not contain are over.
    pub fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
    }

    /// Handles a connection of a list.
    pub fn on_listed(
        &mut self,
        connection: &Connection,
        listing: Listing,
        now: Moment,
        frontends: &Frontends,
        report: &mut dyn FnMut(Change<'_>),
    ) {
        let key = Key::of(connection);
        if !self.tracked.contains_key(&key) {
            // After a loss, it is unknown whether the end of a connection was reported.
            let is_over = !connection.entry.is_open;
            if is_over && listing != Listing::Initial {
                return;
            }
            let began = connection.started.or((listing == Listing::AfterLoss).then_some(now.wall));
            if !self.begin(key, connection, began, now, frontends, listing == Listing::AfterLoss) {
                return;
            }
        }
        let list = self.list;
        let Some(tracked) = self.tracked.get_mut(&key) else { return };
        tracked.list = list;
        tracked.match_with(frontends);
        // Flows that a reader may want, but not as news.
        tracked.is_reported |= listing != Listing::AfterLoss;
        tracked.advance(EventKind::Update, connection, now.wall);
        tracked.is_changed &= tracked.has_ended || listing == Listing::AfterLoss;
        if tracked.report(report) {
            self.tracked.remove(&key);
        }
    }

    /// Ends the connections that the list does not contain.
    pub fn end_list(&mut self, now: Moment, report: &mut dyn FnMut(Change<'_>)) {
        let list = self.list;
        self.tracked.retain(|_, tracked| {
            if tracked.list == list {
                return true;
            }
            let state = match tracked.flow.state {
                FlowState::Opening => FlowState::Unanswered,
                FlowState::Open => FlowState::Closed,
                state => state,
            };
            tracked.set(state, now.wall);
            (tracked.has_ended, tracked.is_changed) = (true, true);
            tracked.report(report);
            false
        });
    }

    /// Reports the connections that have had no answer for a while.
    pub fn on_tick(&mut self, now: Moment, frontends: &Frontends, report: &mut dyn FnMut(Change<'_>)) {
        while self.deadlines.front().is_some_and(|(deadline, _)| *deadline <= now.instant) {
            let Some((_, key)) = self.deadlines.pop_front() else { return };
            let Some(tracked) = self.tracked.get_mut(&key) else { continue };
            tracked.match_with(frontends);
            if tracked.flow.state == FlowState::Opening {
                tracked.set(FlowState::Unanswered, now.wall);
            }
            if !tracked.is_matched || tracked.report(report) {
                self.tracked.remove(&key);
            }
        }
    }

    /// Follows a connection if it may be a flow. Reports whether it does.
    fn begin(
        &mut self,
        key: Key,
        connection: &Connection,
        began: Option<SystemTime>,
        now: Moment,
        frontends: &Frontends,
        counts: bool,
    ) -> bool {
        let entry = &connection.entry;
        // Rules of Services translate the destination. Connections without translation go to endpoints directly, or
        // through nodes without rules.
        if entry.original_destination == entry.reply_source {
            return false;
        }
        if self.tracked.len() >= self.limit {
            let is_flow = || self.services == Services::Unknown || owner(connection, frontends).is_some();
            self.untracked += u64::from(counts && is_flow());
            return false;
        }
        let endpoint = (!frontends.is_relayed()).then(|| Peer::new(entry.reply_source));
        let flow = Flow {
            id: self.next_id(),
            time: began,
            state: FlowState::Opening,
            protocol: entry.protocol,
            client: Peer::client(entry.original_source, entry.original_destination),
            service_port: None,
            kind: None,
            destination: entry.original_destination,
            endpoint,
            reason: None,
            answer_seconds: None,
            duration_seconds: None,
            packets: None,
            bytes: None,
        };
        let is_matched = self.services == Services::Unknown;
        let (has_ended, is_reported, is_changed) = (false, false, false);
        let tracked = Tracked { flow, is_matched, has_ended, is_reported, is_changed, list: self.list };
        self.tracked.insert(key, tracked);
        self.deadlines.push_back((now.instant + ANSWER_TIME, key));
        true
    }
}

impl Tracked {
    /// Looks up the Service, unless it has been found already.
    fn match_with(&mut self, frontends: &Frontends) {
        if !self.is_matched
            && let Some(owner) = frontends.find(self.flow.destination, self.flow.protocol)
        {
            let FrontendOwner { service_port, kind, .. } = owner;
            (self.flow.service_port, self.flow.kind) = (Some(service_port.clone()), Some(*kind));
            let address = |peer: &Peer| Some(SocketAddr::new(peer.address, peer.port?));
            let is_endpoint =
                |peer: &Peer| address(peer).is_some_and(|address| frontends.endpoint(owner, address).is_some());
            self.flow.endpoint = self.flow.endpoint.take().filter(is_endpoint);
            self.is_matched = true;
        }
    }

    /// Changes the state according to an event of the kernel.
    fn advance(&mut self, kind: EventKind, connection: &Connection, time: SystemTime) {
        if let Some(traffic) = connection.traffic {
            (self.flow.packets, self.flow.bytes) = (Some(traffic.packets), Some(traffic.bytes));
        }
        let (state, has_ended) = next_state(self.flow.state, kind, connection);
        self.set(state, time);
        self.is_changed |= has_ended;
        self.has_ended |= has_ended;
    }

    fn set(&mut self, state: FlowState, time: SystemTime) {
        if self.flow.state == state {
            return;
        }
        let elapsed =
            self.flow.time.and_then(|began| time.duration_since(began).ok()).map(|elapsed| elapsed.as_secs_f64());
        // The first answer of an older connection was earlier.
        if state == FlowState::Open && !self.is_reported || self.flow.state == FlowState::Unanswered {
            self.flow.answer_seconds = elapsed.filter(|_| state == FlowState::Open);
        }
        self.flow.duration_seconds = elapsed;
        self.flow.state = state;
        self.is_changed = true;
    }

    /// Reports a change. Returns whether the flow can be forgotten.
    fn report(&mut self, report: &mut dyn FnMut(Change<'_>)) -> bool {
        if self.is_matched && self.is_changed && self.flow.state != FlowState::Opening {
            let is_new = !std::mem::replace(&mut self.is_reported, true);
            self.is_changed = false;
            report(Change { flow: &self.flow, is_new, has_ended: self.has_ended });
        }
        self.is_matched && self.has_ended
    }
}

/// Returns the state of a flow after an event, and whether the connection is over.
fn next_state(state: FlowState, kind: EventKind, connection: &Connection) -> (FlowState, bool) {
    let is_waiting = matches!(state, FlowState::Opening | FlowState::Unanswered);
    match (kind, connection.tcp) {
        (_, Some(TcpState::Reset)) if is_waiting && !connection.is_answered => (FlowState::Refused, true),
        (_, Some(TcpState::Reset)) => (FlowState::Reset, true),
        (EventKind::Destroy, _) if is_waiting && connection.is_answered => (FlowState::Closed, true),
        // Kernels before 5.13 do not report the state of an entry that they delete. They delete an entry without an
        // answer this early only if the connection is refused.
        (EventKind::Destroy, None) if state == FlowState::Opening && connection.entry.protocol == Protocol::Tcp => {
            (FlowState::Refused, true)
        }
        (EventKind::Destroy, _) if is_waiting => (FlowState::Unanswered, true),
        (EventKind::Destroy, _) | (_, Some(TcpState::Closed)) => (FlowState::Closed, true),
        (_, Some(TcpState::Open)) => (FlowState::Open, false),
        (_, None) if is_waiting && connection.is_answered => (FlowState::Open, false),
        (_, Some(TcpState::SynSent) | None) => (state, false),
    }
}

impl Key {
    pub(crate) fn of(connection: &Connection) -> Self {
        let entry = &connection.entry;
        Self { id: connection.id, client: entry.original_source, protocol: entry.protocol }
    }
}

fn owner<'a>(connection: &Connection, frontends: &'a Frontends) -> Option<&'a FrontendOwner> {
    frontends.find(connection.entry.original_destination, connection.entry.protocol)
}

/// Time without an answer after which a connection counts as unanswered: a client has repeated its first TCP segment
/// twice by then.
const ANSWER_TIME: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests;
