//! Connections from a client through a node to pods.

#![allow(dead_code, reason = "each benchmark uses a part")]

use std::{
    io::{ErrorKind, Read},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use ferroute_testing::NetNs;
use socket2::SockRef;

use crate::common::{cluster::TARGET_PORT, figures, network::Row};

/// A client, a node, and pods that accept connections.
pub(crate) struct Network {
    client: NetNs,
    pub(crate) node: NetNs,
}

/// The result of a round of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) per_second: u32,
    /// The median time to establish a connection.
    pub(crate) to_connect: Duration,
}

/// A connection or a failure, of a client that connects again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// Since the first attempt.
    pub(crate) began: Duration,
    /// The time to establish the connection; `None` if that failed.
    pub(crate) took: Option<Duration>,
}

impl Network {
    /// Waits until connections are answered, for a minute at most.
    pub(crate) fn wait_for(&self, to: SocketAddr) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.client.run(|| attempt(to)).is_none() {
            assert!(Instant::now() < end, "no connection to {to} is answered");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Connects for some time, one connection after the other by each client.
    pub(crate) fn observe(&self, to: SocketAddr, time: Duration) -> Vec<Attempt> {
        let first = Instant::now();
        let observe = || {
            let mut attempts = Vec::new();
            while first.elapsed() < time {
                attempts.push(Attempt { began: first.elapsed(), took: attempt(to) });
                thread::sleep(Duration::from_millis(1));
            }
            attempts
        };
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| self.client.run(observe))).collect();
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        })
    }

    /// Creates pods at these addresses, which accept and close connections on the cluster's target port.
    pub(crate) fn new(pods: &[Ipv4Addr]) -> Self {
        let Row { client, node, server } = Row::new(pods.iter().copied());
        for pod in pods {
            server.add_address(&format!("{pod}/32"), "lo");
        }
        // A round may open more connections than the default range has ports.
        client.command("sysctl", &["-qw", "net.ipv4.ip_local_port_range=1024 65535"]);
        // By default, conntrack keeps closed connections for ten seconds, which fills its table.
        node.command("sysctl", &["-qw", "net.netfilter.nf_conntrack_tcp_timeout_close=1"]);
        let listener = server.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, TARGET_PORT)).unwrap());
        // The thread runs until the process exits.
        thread::spawn(move || listener.incoming().for_each(drop));
        Self { client, node }
    }

    /// Connects as fast as possible for a round.
    pub(crate) fn connect(&self, to: SocketAddr) -> Round {
        let times: Vec<Duration> = thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| self.client.run(|| connections(to)))).collect();
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        let per_second = times.len() as f64 / ROUND.as_secs_f64();
        Round { per_second: per_second as u32, to_connect: figures::median(times) }
    }
}

impl Round {
    /// Returns the round with the median number of connections.
    pub(crate) fn median(mut rounds: Vec<Self>) -> Self {
        rounds.sort_unstable_by_key(|round| round.per_second);
        rounds[rounds.len() / 2]
    }
}

/// Connects repeatedly for a round, and returns the time to establish each connection.
fn connections(to: SocketAddr) -> Vec<Duration> {
    let mut times = Vec::new();
    let end = Instant::now() + ROUND;
    loop {
        let start = Instant::now();
        if start >= end {
            return times;
        }
        let mut stream = match TcpStream::connect_timeout(&to, TIMEOUT) {
            Ok(stream) => stream,
            Err(error) => panic!("cannot connect to {to}: {error}"),
        };
        times.push(start.elapsed());
        // A reset after the pod's close avoids TIME_WAIT.
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        match stream.read(&mut [0]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            result => panic!("unexpected data or error from {to}: {result:?}"),
        }
    }
}

/// Returns the time to establish a connection; `None` if it fails.
fn attempt(to: SocketAddr) -> Option<Duration> {
    let start = Instant::now();
    let mut stream = TcpStream::connect_timeout(&to, TIMEOUT).ok()?;
    let took = start.elapsed();
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).ok()?;
    _ = stream.read(&mut [0]);
    Some(took)
}

/// The number of concurrent clients.
const CLIENTS: usize = 4;
const ROUND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(5);
