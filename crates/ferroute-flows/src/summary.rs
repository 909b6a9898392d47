use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use ferroute_core::Protocol;
use serde::{Deserialize, Serialize};

use crate::{Change, FlowStart, FlowState, Peer, PeerKind};

/// The flows of the last five minutes, by client, service port and endpoint.
///
/// A connection counts once, by its last state, at the time of its beginning. If that was not in the last five minutes,
/// it counts when it fails.
///
/// Pure, with a limited number of edges: flows beyond the limit are only counted.
#[derive(Debug)]
pub struct Summary {
    edges: HashMap<Key, VecDeque<(Instant, Counts)>>,
    /// The connections that were counted and are not over, by the numbers of their flows.
    open: HashMap<u64, Counted>,
    omitted: VecDeque<(Instant, Counts)>,
    /// The time for which flows were received, in seconds.
    watched: VecDeque<(Instant, f64)>,
    last_tick: Option<Instant>,
    limit: usize,
}

/// The flows of the last minutes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowSummary {
    /// The seconds of the last five minutes for which flows were received.
    pub window_seconds: f64,
    /// The flows, by descending number of connections.
    pub edges: Vec<Edge>,
    /// Number of connections that are in no edge, because there are too many clients.
    pub omitted: u64,
}

/// The flows between a client and an endpoint through a service port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Edge {
    /// The client, without its port.
    pub client: Peer,
    /// Service port; `None` if there are no Services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_port: Option<Arc<str>>,
    /// The protocol.
    pub protocol: Protocol,
    /// Endpoint; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Peer>,
    /// The numbers.
    #[serde(flatten)]
    pub counts: Counts,
}

/// Numbers of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// New connections, regardless of their result, and older ones that failed.
    pub connections: u64,
    /// Connections without an answer for three seconds.
    pub unanswered: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Connections that were reset after an answer.
    pub reset: u64,
    /// Connections that a rule has rejected.
    pub rejected: u64,
    /// Connections that a rule has dropped.
    pub dropped: u64,
    /// Number of connections with a known time to the first answer.
    pub answered: u64,
    /// Sum of these times in seconds.
    pub answer_seconds: f64,
    /// Longest of these times in seconds.
    pub longest_answer_seconds: f64,
    /// Packets of ended connections, if the kernel counts them.
    pub packets: u64,
    /// The bytes in these packets.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    client: IpAddr,
    client_kind: Option<PeerKind>,
    service_port: Option<Arc<str>>,
    protocol: Protocol,
    endpoint: Option<SocketAddr>,
}

/// Place of a connection in the summary.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// The beginning of its bucket.
    start: Instant,
    is_omitted: bool,
    state: FlowState,
}

impl Summary {
    /// Creates a summary with this many combinations of client, service port and endpoint at most.
    pub fn new(limit: usize) -> Self {
        Self {
            edges: HashMap::new(),
            open: HashMap::new(),
            omitted: VecDeque::new(),
            watched: VecDeque::new(),
            last_tick: None,
            limit,
        }
    }

    /// Counts a change of a flow.
    pub fn add(&mut self, change: Change<'_>, now: Instant) {
        let Change { flow, is_new, has_ended } = change;
        let key = Key {
            client: flow.client.address,
            client_kind: flow.client.kind,
            service_port: flow.service_port.clone(),
            protocol: flow.protocol,
            endpoint: flow.endpoint.as_ref().and_then(socket),
        };
        let before = self.open.remove(&flow.id).filter(|before| is_recent(before.start, now));
        let is_omitted = match before {
            Some(before) => before.is_omitted,
            None => !self.edges.contains_key(&key) && self.edges.len() >= self.limit,
        };
        let buckets = if is_omitted { &mut self.omitted } else { self.edges.entry(key).or_default() };
        let current = bucket_start(buckets, now);
        let start = before.map_or(current, |before| before.start);
        if let Some(counts) = bucket_of(buckets, start) {
            let is_counted = before.is_some() || is_new || flow.state.is_failure();
            if let Some(before) = before {
                counts.failed(before.state).into_iter().for_each(|count| *count = count.saturating_sub(1));
            }
            counts.connections += u64::from(is_counted && before.is_none());
            counts.failed(flow.state).into_iter().for_each(|count| *count += 1);
            if let (FlowState::Open, Some(seconds)) = (flow.state, flow.answer_seconds) {
                counts.answered += 1;
                counts.answer_seconds += seconds;
                counts.longest_answer_seconds = counts.longest_answer_seconds.max(seconds);
            }
            if is_counted && !has_ended {
                self.open.insert(flow.id, Counted { start, is_omitted, state: flow.state });
            }
        }
        if let (true, Some(counts)) = (has_ended, bucket_of(buckets, current)) {
            counts.packets += flow.packets.unwrap_or_default();
            counts.bytes += flow.bytes.unwrap_or_default();
        }
    }

    /// Records that flows were received until now, and discards outdated ones.
    pub fn tick(&mut self, now: Instant) {
        let elapsed = self.last_tick.replace(now).map_or(Duration::ZERO, |last| now.duration_since(last));
        let current = bucket_start(&mut self.watched, now);
        if let Some(seconds) = bucket_of(&mut self.watched, current) {
            *seconds += elapsed.as_secs_f64();
        }
        self.watched.retain(|(start, _)| is_recent(*start, now));
        self.omitted.retain(|(start, _)| is_recent(*start, now));
        self.open.retain(|_, counted| is_recent(counted.start, now));
        self.edges.retain(|_, buckets| {
            buckets.retain(|(start, _)| is_recent(*start, now));
            !buckets.is_empty()
        });
    }

    /// Notes that no flows are received from now on.
    pub fn pause(&mut self) {
        self.last_tick = None;
    }

    /// Returns the flows of the last minutes.
    pub fn report(&self) -> FlowSummary {
        let mut edges: Vec<Edge> = self
            .edges
            .iter()
            .map(|(key, buckets)| Edge {
                client: Peer { address: key.client, port: None, kind: key.client_kind, name: None },
                service_port: key.service_port.clone(),
                protocol: key.protocol,
                endpoint: key.endpoint.map(Peer::new),
                counts: sum(buckets),
            })
            .collect();
        sort(&mut edges);
        let window_seconds = self.watched.iter().map(|(_, seconds)| seconds).sum();
        FlowSummary { window_seconds, edges, omitted: sum(&self.omitted).connections }
    }
}

impl FlowSummary {
    /// Merges the flows of several nodes. Edges between the same addresses become one edge, with the most complete
    /// information about each peer.
    pub fn merged(summaries: impl IntoIterator<Item = Self>) -> Self {
        let (mut merged, mut edges) = (Self::default(), HashMap::<Key, Edge>::new());
        for summary in summaries {
            merged.window_seconds = summary.window_seconds.max(merged.window_seconds);
            merged.omitted += summary.omitted;
            for edge in summary.edges {
                match edges.entry(edge.key()) {
                    Entry::Vacant(entry) => _ = entry.insert(edge),
                    Entry::Occupied(mut entry) => entry.get_mut().merge(edge),
                }
            }
        }
        merged.edges.extend(edges.into_values());
        sort(&mut merged.edges);
        merged
    }

    /// Removes times to answer that are too short for the clock of their node, which provides this data.
    #[must_use]
    pub fn measured(mut self, start: &FlowStart) -> Self {
        for Edge { counts, .. } in &mut self.edges {
            if !start.timestamps && counts.average_answer_seconds().is_some_and(|mean| mean < ACCURACY) {
                (counts.answered, counts.answer_seconds, counts.longest_answer_seconds) = (0, 0.0, 0.0);
            }
        }
        self
    }

    /// Returns new connections per second.
    pub fn per_second(&self, counts: &Counts) -> f64 {
        if self.window_seconds > 0.0 { counts.connections as f64 / self.window_seconds } else { 0.0 }
    }
}

impl Edge {
    fn key(&self) -> Key {
        Key {
            client: self.client.address,
            // Nodes may have different information about the client.
            client_kind: None,
            service_port: self.service_port.clone(),
            protocol: self.protocol,
            endpoint: self.endpoint.as_ref().and_then(socket),
        }
    }

    /// Adds the flows of another node between the same addresses.
    fn merge(&mut self, other: Self) {
        self.counts.merge(&other.counts);
        self.client.complete_with(other.client);
        if let (Some(endpoint), Some(other)) = (&mut self.endpoint, other.endpoint) {
            endpoint.complete_with(other);
        }
    }
}

impl Counts {
    /// Adds the numbers of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.connections += other.connections;
        self.unanswered += other.unanswered;
        self.refused += other.refused;
        self.reset += other.reset;
        self.rejected += other.rejected;
        self.dropped += other.dropped;
        self.answered += other.answered;
        self.answer_seconds += other.answer_seconds;
        self.longest_answer_seconds = self.longest_answer_seconds.max(other.longest_answer_seconds);
        self.packets += other.packets;
        self.bytes += other.bytes;
    }

    /// Returns the number of connections that failed in this way; `None` if the state is no failure.
    fn failed(&mut self, state: FlowState) -> Option<&mut u64> {
        match state {
            FlowState::Unanswered => Some(&mut self.unanswered),
            FlowState::Refused => Some(&mut self.refused),
            FlowState::Reset => Some(&mut self.reset),
            FlowState::Rejected => Some(&mut self.rejected),
            FlowState::Dropped => Some(&mut self.dropped),
            FlowState::Opening | FlowState::Open | FlowState::Closed => None,
        }
    }

    /// Returns the number of connections that failed.
    pub fn failures(&self) -> u64 {
        self.unanswered + self.refused + self.reset + self.rejected + self.dropped
    }

    /// Returns the average time to the first answer in seconds.
    pub fn average_answer_seconds(&self) -> Option<f64> {
        (self.answered > 0).then(|| self.answer_seconds / self.answered as f64)
    }
}

/// Sorts edges by descending number of connections, and then by name, so that the order is stable.
fn sort(edges: &mut [Edge]) {
    let name = |edge: &Edge| {
        (edge.service_port.clone(), edge.client.address, edge.endpoint.as_ref().map(|peer| (peer.address, peer.port)))
    };
    edges.sort_by(|one, other| {
        other.counts.connections.cmp(&one.counts.connections).then_with(|| name(one).cmp(&name(other)))
    });
}

fn socket(peer: &Peer) -> Option<SocketAddr> {
    Some(SocketAddr::new(peer.address, peer.port?))
}

fn sum(buckets: &VecDeque<(Instant, Counts)>) -> Counts {
    let mut sum = Counts::default();
    buckets.iter().for_each(|(_, counts)| sum.merge(counts));
    sum
}

/// Returns the beginning of the bucket of a time. Each begins when it is needed first.
fn bucket_start<T: Default>(buckets: &mut VecDeque<(Instant, T)>, now: Instant) -> Instant {
    match buckets.back() {
        Some((start, _)) if now.duration_since(*start) < BUCKET => *start,
        _ => {
            buckets.push_back((now, T::default()));
            now
        }
    }
}

/// Returns the bucket that begins at this time.
fn bucket_of<T>(buckets: &mut VecDeque<(Instant, T)>, start: Instant) -> Option<&mut T> {
    buckets.iter_mut().rev().find(|(of, _)| *of == start).map(|(_, value)| value)
}

/// Reports whether a bucket that begins at this time belongs to the last minutes.
fn is_recent(start: Instant, now: Instant) -> bool {
    now.duration_since(start) < WINDOW
}

/// Accuracy of times in seconds that are not the kernel's.
pub const ACCURACY: f64 = 0.001;
/// The time that is forgotten at once.
const BUCKET: Duration = Duration::from_secs(10);
/// The time for which flows are remembered.
const WINDOW: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::Flow;

    fn flow(client: &str, state: FlowState) -> Flow {
        Flow {
            id: 1,
            time: None,
            state,
            protocol: Protocol::Tcp,
            client: Peer::new(client.parse().unwrap()),
            service_port: Some("shop/web:http".into()),
            kind: None,
            destination: "10.96.0.1:80".parse().unwrap(),
            endpoint: Some(Peer::new("10.244.0.2:8080".parse().unwrap())),
            reason: None,
            answer_seconds: Some(0.25),
            duration_seconds: None,
            packets: Some(3),
            bytes: Some(120),
        }
    }

    fn at(seconds: u64) -> Instant {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        *START + Duration::from_secs(seconds)
    }

    #[test]
    fn connections_are_counted_once_and_forgotten_after_five_minutes() {
        let mut summary = Summary::new(10);
        let open = flow("10.244.0.9:1000", FlowState::Open);
        summary.add(Change { flow: &open, is_new: true, has_ended: false }, at(0));
        let reset = Flow { state: FlowState::Reset, ..open };
        summary.add(Change { flow: &reset, is_new: false, has_ended: true }, at(1));
        for second in 0..300 {
            summary.tick(at(second));
        }
        let report = summary.report();
        assert!((report.window_seconds - 299.0).abs() < 0.1, "{report:?}");
        let counts = report.edges[0].counts;
        assert_eq!((counts.connections, counts.reset, counts.answered, counts.packets), (1, 1, 1, 3));
        assert_eq!(counts.average_answer_seconds(), Some(0.25));
        summary.tick(at(330));
        assert_eq!(summary.report().edges, []);
    }

    #[test]
    fn connection_counts_once_by_its_last_state() {
        use FlowState::{Closed, Open, Refused, Reset, Unanswered};
        for (states, expected) in [
            (&[Unanswered, Open, Closed][..], (1, 0, 0, 0)),
            (&[Unanswered, Open, Reset], (1, 0, 0, 1)),
            (&[Unanswered, Refused], (1, 0, 1, 0)),
            (&[Unanswered, Unanswered], (1, 1, 0, 0)),
            (&[Open, Reset], (1, 0, 0, 1)),
        ] {
            let mut summary = Summary::new(1);
            let other = flow("10.244.0.9:2", Unanswered);
            summary.add(Change { flow: &Flow { id: 2, ..other }, is_new: true, has_ended: true }, at(0));
            for (number, state) in states.iter().enumerate() {
                let flow = flow("10.244.0.9:1", *state);
                let (is_new, has_ended) = (number == 0, number + 1 == states.len());
                // The states are in different buckets.
                let now = at(15 * (number as u64 + 1));
                summary.add(Change { flow: &flow, is_new, has_ended }, now);
                summary.tick(now);
                let report = summary.report();
                assert!(report.edges[0].counts.failures() <= report.edges[0].counts.connections, "{states:?}");
            }
            let Counts { connections, unanswered, refused, reset, .. } = summary.report().edges[0].counts;
            assert_eq!((connections - 1, unanswered - 1, refused, reset), expected, "{states:?}");
            assert!(summary.open.is_empty());
        }
    }

    #[test]
    fn older_connection_counts_when_it_fails() {
        let mut summary = Summary::new(10);
        let count = |summary: &Summary| summary.report().edges.first().map(|edge| edge.counts);
        let [open, closed, reset] =
            [FlowState::Open, FlowState::Closed, FlowState::Reset].map(|state| flow("10.244.0.9:1", state));
        // The end of a connection that existed before the first reader.
        summary.add(Change { flow: &closed, is_new: false, has_ended: true }, at(0));
        assert_eq!(count(&summary).map(|counts| counts.connections), Some(0));
        summary.add(Change { flow: &open, is_new: true, has_ended: false }, at(1));
        summary.tick(at(400));
        assert_eq!(count(&summary), None);
        summary.add(Change { flow: &reset, is_new: false, has_ended: true }, at(401));
        assert_eq!(count(&summary).map(|counts| (counts.connections, counts.reset)), Some((1, 1)));
    }

    #[test]
    fn further_clients_are_only_counted() {
        let mut summary = Summary::new(2);
        for client in 1..=5 {
            let flow = flow(&format!("10.244.0.{client}:1000"), FlowState::Closed);
            summary.add(Change { flow: &flow, is_new: true, has_ended: true }, at(0));
        }
        let report = summary.report();
        assert_eq!((report.edges.len(), report.omitted), (2, 3));
    }

    #[test]
    fn nodes_are_merged_by_the_ends_of_their_edges() {
        let report = |clients: &[&str]| {
            let mut summary = Summary::new(10);
            for client in clients {
                let flow = flow(client, FlowState::Refused);
                summary.add(Change { flow: &flow, is_new: true, has_ended: true }, at(0));
            }
            summary.report()
        };
        let nodes: [&[&str]; 2] = [&["10.244.0.1:1", "10.244.0.2:1"], &["10.244.0.2:2", "10.244.0.3:1"]];
        let all = FlowSummary::merged(nodes.map(report));
        let clients: Vec<(String, u64)> =
            all.edges.iter().map(|edge| (edge.client.to_string(), edge.counts.refused)).collect();
        assert_eq!(clients, [("10.244.0.2".into(), 2), ("10.244.0.1".into(), 1), ("10.244.0.3".into(), 1)]);
    }

    #[test]
    fn times_to_answer_that_a_node_cannot_measure_are_removed() {
        let answers = |seconds: f64, timestamps: bool| {
            let mut summary = Summary::new(10);
            let flow = Flow { answer_seconds: Some(seconds), ..flow("10.244.0.1:1", FlowState::Open) };
            summary.add(Change { flow: &flow, is_new: true, has_ended: false }, at(0));
            let counts = summary.report().measured(&FlowStart { timestamps, ..FlowStart::default() }).edges[0].counts;
            (counts.connections, counts.answered, counts.longest_answer_seconds)
        };
        assert_eq!(answers(0.0002, false), (1, 0, 0.0));
        assert_eq!(answers(0.0002, true), (1, 1, 0.0002));
        assert_eq!(answers(0.25, false), (1, 1, 0.25));
    }

    #[test]
    fn merged_ends_are_those_of_the_node_that_knows_most() {
        let report = |kind, name: Option<&str>| {
            let mut summary = Summary::new(10);
            let flow = flow("10.244.0.1:1", FlowState::Closed);
            summary.add(Change { flow: &flow, is_new: true, has_ended: true }, at(0));
            let mut report = summary.report();
            (report.edges[0].client.kind, report.edges[0].client.name) = (Some(kind), name.map(Into::into));
            report
        };
        let nodes =
            [report(PeerKind::Outside, None), report(PeerKind::Pod, Some("shop/a")), report(PeerKind::Pod, None)];
        for first in 0..nodes.len() {
            let mut nodes = nodes.clone();
            nodes.rotate_left(first);
            let merged = FlowSummary::merged(nodes);
            assert_eq!((merged.edges.len(), merged.edges[0].counts.connections), (1, 3));
            assert_eq!(merged.edges[0].client.name.as_deref(), Some("shop/a"));
        }
    }
}
