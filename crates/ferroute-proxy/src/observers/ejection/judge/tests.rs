use std::{collections::BTreeSet, net::IpAddr};

use ferroute_core::testing::{port_name, service_port};

use super::*;

/// A Service with these endpoints, their unanswered and answered connections, and the time.
struct Case {
    judge: Judge,
    port: EjectionPort,
    unanswered: HashSet<Connection>,
    refused: Vec<Connection>,
    answered: HashSet<Connection>,
    start: Instant,
    elapsed: Duration,
    clients: u16,
}

fn endpoint(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 244, 0, number], 8080))
}

impl Case {
    fn new(endpoints: u8) -> Self {
        let port = EjectionPort {
            name: port_name("shop/web:http"),
            service: service_port("10.96.0.1:80").into(),
            endpoints: (1..=endpoints).map(|number| (endpoint(number), Use::Used)).collect(),
        };
        Self {
            judge: Judge::default(),
            port,
            unanswered: HashSet::new(),
            refused: Vec::new(),
            answered: HashSet::new(),
            start: Instant::now(),
            elapsed: Duration::ZERO,
            clients: 1_000,
        }
    }

    fn connection(&mut self, number: u8) -> Connection {
        self.clients += 1;
        let client = SocketAddr::from(([192, 0, 2, 1], self.clients));
        Connection { client, frontend: "10.96.0.1:80".parse().unwrap(), endpoint: endpoint(number) }
    }

    /// Adds connections that an endpoint does not answer.
    fn lose(&mut self, number: u8, connections: usize) {
        for _ in 0..connections {
            let connection = self.connection(number);
            self.unanswered.insert(connection);
        }
    }

    /// Adds connections that an endpoint refuses.
    fn refuse(&mut self, number: u8, connections: usize) {
        for _ in 0..connections {
            let connection = self.connection(number);
            self.refused.push(connection);
        }
    }

    /// Adds a connection that an endpoint answers.
    fn answer(&mut self, number: u8) {
        let connection = self.connection(number);
        self.answered.insert(connection);
    }

    /// Reads once after each step of 400 ms until this time has passed. Returns the changes: the endpoint, and the
    /// seconds for which it is ejected.
    fn pass(&mut self, time: Duration) -> Vec<(u8, Option<u64>)> {
        let end = self.elapsed + time;
        let mut verdicts = Vec::new();
        while self.elapsed < end {
            self.elapsed += Duration::from_millis(400);
            let now = self.start + self.elapsed;
            let suspects = self.judge.suspects(now, self.unanswered.clone(), self.refused.drain(..));
            let of = |endpoint| self.answered.iter().filter(|it| it.endpoint == endpoint).copied().collect();
            let answered = suspects.into_iter().map(|endpoint| (endpoint, of(endpoint))).collect();
            verdicts.extend(self.judge.judge(now, std::slice::from_ref(&self.port), answered));
        }
        let number = |socket: SocketAddr| match socket.ip() {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => unreachable!("all are IPv4"),
        };
        verdicts.iter().map(|it| (number(it.endpoint), it.ejected_for.map(|pause| pause.as_secs()))).collect()
    }

    fn ejected(&self) -> usize {
        let mut ejections = Ejections::new();
        self.judge.add_ejected(&mut ejections);
        ejections.values().map(BTreeSet::len).sum()
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn endpoint_that_does_not_answer_is_ejected_within_two_seconds() {
    let mut case = Case::new(3);
    case.lose(2, 2);
    assert_eq!(case.pass(2 * SECOND), [(2, Some(10))]);
}

#[test]
fn one_lost_connection_takes_longer() {
    let mut case = Case::new(3);
    case.lose(2, 1);
    assert_eq!(case.pass(2 * SECOND), []);
    assert_eq!(case.pass(2 * SECOND), [(2, Some(10))]);
}

#[test]
fn endpoint_that_answers_others_is_not_ejected() {
    // A policy drops the connections of one client.
    let mut case = Case::new(3);
    case.answer(2);
    case.lose(2, 5);
    for _ in 0..10 {
        case.answer(2);
        assert_eq!(case.pass(SECOND), []);
        case.lose(2, 1);
    }
    // Connections from before it stopped do not count; later ones do.
    assert_eq!(case.pass(15 * SECOND), [(2, Some(10)), (2, None)]);
}

#[test]
fn endpoint_that_refuses_connections_is_ejected_within_two_seconds() {
    let mut case = Case::new(3);
    case.refuse(2, 2);
    assert_eq!(case.pass(2 * SECOND), [(2, Some(10))]);
    // On trial, the first refusal ejects it again.
    assert_eq!(case.pass(11 * SECOND), [(2, None)]);
    case.refuse(2, 1);
    assert_eq!(case.pass(2 * SECOND), [(2, Some(20))]);
}

#[test]
fn refused_connections_among_answered_ones_eject_no_endpoint() {
    // A client that resets its own connections at once, for example.
    let mut case = Case::new(3);
    for _ in 0..20 {
        case.refuse(2, 5);
        assert_eq!(case.pass(SECOND), []);
        case.answer(2);
    }
}

#[test]
fn late_replies_are_no_failures() {
    let mut case = Case::new(3);
    case.lose(2, 5);
    assert_eq!(case.pass(SECOND), []);
    case.unanswered.clear();
    assert_eq!(case.pass(5 * SECOND), []);
}

#[test]
fn at_most_half_of_the_endpoints_are_ejected_and_never_the_last() {
    for (endpoints, most) in [(1, 0), (2, 1), (3, 1), (4, 2), (7, 3)] {
        let mut case = Case::new(endpoints);
        (1..=endpoints).for_each(|number| case.lose(number, 3));
        case.pass(3 * SECOND);
        assert_eq!(case.ejected(), most, "of {endpoints}");
    }
}

#[test]
fn ejected_endpoint_is_tried_again_after_a_time_that_doubles() {
    let mut case = Case::new(2);
    case.lose(1, 2);
    assert_eq!(case.pass(2 * SECOND), [(1, Some(10))]);
    // The client's packets to the ejected endpoint do not count when it is tried again.
    assert_eq!(case.pass(11 * SECOND), [(1, None)]);
    assert_eq!(case.pass(10 * SECOND), []);
    for pause in [20, 40, 80, 160, 300, 300] {
        case.unanswered.clear();
        case.lose(1, 1);
        assert_eq!(case.pass(2 * SECOND), [(1, Some(pause))], "one connection is enough");
        assert_eq!(case.pass((pause + 1) as u32 * SECOND), [(1, None)]);
    }
    // It answers again, and starts from scratch.
    case.unanswered.clear();
    case.answer(1);
    assert_eq!(case.pass(SECOND), []);
    case.lose(1, 2);
    assert_eq!(case.pass(2 * SECOND), [(1, Some(10))]);
}

#[test]
fn removed_endpoint_is_forgotten() {
    let mut case = Case::new(2);
    case.lose(1, 2);
    assert_eq!(case.pass(2 * SECOND), [(1, Some(10))]);
    case.port.endpoints.remove(&endpoint(1));
    assert_eq!((case.pass(SECOND), case.ejected()), (vec![], 0));
}
