use std::sync::LazyLock;

use ferroute_core::{
    IpFamily, ModeTraits, ProxySettings,
    testing::{Cluster, pod, service, slice},
};
use ferroute_host::conntrack::{Entry, Traffic};

use super::*;

fn frontends() -> Frontends {
    let cluster = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80))
        .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2")));
    let mut frontends = no_frontends();
    frontends.set(&cluster.table(IpFamily::V4), &[]);
    frontends
}

fn no_frontends() -> Frontends {
    Frontends::new(&ModeTraits::IPTABLES, ProxySettings::default())
}

fn at(milliseconds: u64) -> Moment {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let time = Duration::from_millis(milliseconds);
    Moment { instant: *START + time, wall: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000) + time }
}

/// Returns a connection of this client port to the Service.
fn connection(port: u16, tcp: Option<TcpState>, is_answered: bool) -> Connection {
    let socket = |text: &str| text.parse::<SocketAddr>().unwrap();
    Connection {
        entry: Entry {
            protocol: Protocol::Tcp,
            original_source: SocketAddr::new("10.244.0.9".parse().unwrap(), port),
            original_destination: socket("10.96.0.1:80"),
            reply_source: socket("10.244.0.2:8080"),
            reply_destination: SocketAddr::new("10.244.0.9".parse().unwrap(), port),
            is_open: !matches!(tcp, Some(TcpState::Closed | TcpState::Reset)),
            is_answered,
        },
        id: port.into(),
        is_answered,
        tcp,
        traffic: None,
        started: None,
        reported: None,
    }
}

/// Handles events, and returns the reported states with `new` and `ended`.
struct Case {
    tracker: FlowTracker,
    frontends: Frontends,
    reported: Vec<String>,
    last: Option<Flow>,
}

impl Case {
    fn new(limit: usize) -> Self {
        let tracker = FlowTracker::new(limit, Services::Known);
        Self { tracker, frontends: frontends(), reported: Vec::new(), last: None }
    }

    fn step(&mut self, work: impl FnOnce(&mut FlowTracker, &Frontends, &mut dyn FnMut(Change<'_>))) {
        let Self { tracker, frontends, reported, last } = self;
        work(tracker, frontends, &mut |change| {
            let flags = [(change.is_new, " new"), (change.has_ended, " ended")];
            let flags: String = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, text)| text).collect();
            reported.push(format!("{}{flags}", change.flow.state));
            *last = Some(change.flow.clone());
        });
    }

    fn event(&mut self, kind: EventKind, connection: &Connection, milliseconds: u64) {
        self.step(|tracker, frontends, report| tracker.on_event(kind, connection, at(milliseconds), frontends, report));
    }

    fn tick(&mut self, milliseconds: u64) {
        self.step(|tracker, frontends, report| tracker.on_tick(at(milliseconds), frontends, report));
    }

    fn list(&mut self, listing: Listing, connections: &[Connection], milliseconds: u64) {
        self.step(|tracker, frontends, report| {
            tracker.begin_list();
            for connection in connections {
                tracker.on_listed(connection, listing, at(milliseconds), frontends, report);
            }
            tracker.end_list(at(milliseconds), report);
        });
    }

    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.reported)
    }
}

const SYN: Option<TcpState> = Some(TcpState::SynSent);
const OPEN: Option<TcpState> = Some(TcpState::Open);
const CLOSED: Option<TcpState> = Some(TcpState::Closed);
const RESET: Option<TcpState> = Some(TcpState::Reset);

#[test]
fn each_end_of_a_connection_is_reported_once() {
    use EventKind::{Destroy, New, Update};
    /// An event, with the state of TCP and whether the connection was answered.
    type Step = (EventKind, Option<TcpState>, bool);
    let cases: [(&str, &[Step], &[&str]); 7] = [
        (
            "closed",
            &[
                (New, SYN, false),
                (Update, OPEN, true),
                (Update, CLOSED, true),
                (Update, CLOSED, true),
                (Destroy, CLOSED, true),
            ],
            &["open new", "closed ended"],
        ),
        ("refused", &[(New, SYN, false), (Destroy, RESET, false)], &["refused new ended"]),
        ("refused, old kernel", &[(New, SYN, false), (Destroy, None, false)], &["refused new ended"]),
        (
            "reset",
            &[(New, SYN, false), (Update, OPEN, true), (Update, RESET, true), (Destroy, RESET, true)],
            &["open new", "reset ended"],
        ),
        ("given up", &[(New, SYN, false), (Destroy, SYN, false)], &["unanswered new ended"]),
        ("update lost", &[(New, SYN, false), (Destroy, CLOSED, true)], &["closed new ended"]),
        ("expired", &[(New, SYN, false), (Update, OPEN, true), (Destroy, OPEN, true)], &["open new", "closed ended"]),
    ];
    for (name, events, expected) in cases {
        let mut case = Case::new(10);
        for (step, (kind, tcp, is_answered)) in (0..).zip(events) {
            case.event(*kind, &connection(1, *tcp, *is_answered), step * 10);
        }
        assert_eq!(case.take(), expected, "{name}");
        assert_eq!(case.tracker.flows().count(), 0, "{name}");
        let flow = case.last.unwrap();
        assert_eq!((flow.service_port.as_deref(), flow.time), (Some("shop/web:http"), Some(at(0).wall)), "{name}");
    }
}

#[test]
fn wall_clock_steps_delay_and_hasten_nothing() {
    let hour = Duration::from_hours(1);
    for set in [SystemTime::checked_add, SystemTime::checked_sub] {
        let mut case = Case::new(10);
        let mut event = |kind, port, at: Moment| {
            let connection = connection(port, SYN, false);
            case.step(|tracker, frontends, report| tracker.on_event(kind, &connection, at, frontends, report));
        };
        event(EventKind::New, 1, at(0));
        let set = |at: Moment| Moment { wall: set(&at.wall, hour).unwrap(), ..at };
        event(EventKind::New, 2, set(at(1_000)));
        let mut tick = |milliseconds| {
            case.step(|tracker, frontends, report| tracker.on_tick(set(at(milliseconds)), frontends, report));
            case.take()
        };
        assert_eq!(tick(2_900), [""; 0]);
        assert_eq!(tick(3_000), ["unanswered new"]);
        assert_eq!(tick(3_900), [""; 0]);
        assert_eq!(tick(4_000), ["unanswered new"]);
    }
}

#[test]
fn connection_without_an_answer_is_unanswered_after_three_seconds_and_may_open_later() {
    let mut case = Case::new(10);
    case.event(EventKind::New, &connection(1, SYN, false), 0);
    case.tick(2_900);
    assert_eq!(case.take(), [""; 0]);
    case.tick(3_000);
    case.event(EventKind::Update, &connection(1, OPEN, true), 7_000);
    assert_eq!(case.take(), ["unanswered new", "open"]);
    assert_eq!(case.last.unwrap().answer_seconds, Some(7.0));
}

#[test]
fn times_and_counters_are_the_kernels() {
    let mut case = Case::new(10);
    case.event(EventKind::New, &Connection { started: Some(at(5).wall), ..connection(1, SYN, false) }, 100);
    case.event(EventKind::Update, &Connection { reported: Some(at(7).wall), ..connection(1, OPEN, true) }, 100);
    let traffic = Some(Traffic { packets: 10, bytes: 900 });
    case.event(
        EventKind::Update,
        &Connection { reported: Some(at(25).wall), traffic, ..connection(1, CLOSED, true) },
        100,
    );
    let flow = case.last.unwrap();
    assert_eq!((flow.time, flow.packets, flow.bytes), (Some(at(5).wall), Some(10), Some(900)));
    assert_eq!((flow.answer_seconds, flow.duration_seconds), (Some(0.002), Some(0.02)));
}

#[test]
fn connections_of_others_are_no_flows() {
    let mut case = Case::new(10);
    let mut direct = connection(1, SYN, false);
    direct.entry.original_destination = direct.entry.reply_source;
    let mut other = connection(2, SYN, false);
    other.entry.original_destination = "198.51.100.1:80".parse().unwrap();
    for connection in [direct, other] {
        case.event(EventKind::New, &connection, 0);
        case.event(EventKind::Destroy, &connection, 1);
    }
    case.tick(10_000);
    assert_eq!(case.take(), [""; 0]);
    assert!(case.tracker.tracked.is_empty());
}

#[test]
fn connection_is_matched_with_a_service_that_becomes_known_after_it_has_ended() {
    let mut case = Case::new(10);
    let known = std::mem::replace(&mut case.frontends, no_frontends());
    case.event(EventKind::New, &connection(1, SYN, false), 0);
    case.event(EventKind::Update, &connection(1, OPEN, true), 1);
    case.event(EventKind::Update, &connection(1, CLOSED, true), 2);
    assert_eq!(case.take(), [""; 0]);
    case.frontends = known;
    case.tick(3_000);
    assert_eq!(case.take(), ["closed new ended"]);
    assert!(case.tracker.tracked.is_empty());
}

#[test]
fn list_after_a_loss_adds_and_ends_connections() {
    let mut case = Case::new(10);
    for port in [1, 2] {
        case.event(EventKind::New, &connection(port, SYN, false), 0);
        case.event(EventKind::Update, &connection(port, OPEN, true), 1);
    }
    case.take();
    let listed = [connection(2, OPEN, true), connection(3, OPEN, true), connection(4, CLOSED, true)];
    case.list(Listing::AfterLoss, &listed, 10);
    assert_eq!(case.take(), ["open new", "closed ended"]);
    assert_eq!(case.tracker.flows().count(), 2);
}

#[test]
fn connections_of_the_first_list_are_no_news_until_they_change() {
    let mut case = Case::new(10);
    case.list(Listing::Initial, &[connection(1, OPEN, true), connection(2, SYN, false)], 0);
    assert_eq!(case.take(), [""; 0]);
    assert_eq!(case.tracker.flows().count(), 2);
    case.event(EventKind::Update, &connection(1, CLOSED, true), 10);
    case.tick(3_000);
    assert_eq!(case.take(), ["closed ended", "unanswered"]);
    // Connections that are over already are remembered.
    case.list(Listing::Initial, &[connection(3, CLOSED, true)], 4_000);
    assert!(case.take().contains(&"closed ended".to_owned()));
}

#[test]
fn connections_beyond_the_limit_are_counted() {
    let mut case = Case::new(3);
    for port in 1..=5 {
        case.event(EventKind::New, &connection(port, SYN, false), 0);
        case.event(EventKind::Update, &connection(port, OPEN, true), 1);
    }
    assert_eq!((case.tracker.flows().count(), case.tracker.untracked()), (3, 2));
    assert_eq!(case.take(), ["open new"; 3]);
}

#[test]
fn source_that_is_the_destination_is_the_node() {
    let mut case = Case::new(10);
    for (source, kind) in [("10.96.0.1", Some(crate::PeerKind::Node)), ("10.244.0.9", None)] {
        let mut connection = connection(1, SYN, false);
        connection.entry.original_source.set_ip(source.parse().unwrap());
        case.event(EventKind::New, &connection, 0);
        connection.tcp = OPEN;
        case.event(EventKind::Update, &connection, 1);
        assert_eq!(case.last.take().unwrap().client.kind, kind, "{source}");
        connection.tcp = CLOSED;
        case.event(EventKind::Destroy, &connection, 2);
    }
}
