//! Clients that run TCP connections and UDP flows to all addresses of Services and record every result.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ferroute_core::Protocol;
use ferroute_testing::NetNs;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpSocket, TcpStream, UdpSocket},
    time::{sleep, timeout, timeout_at},
};

use crate::{
    network::{Network, pod_address},
    world::Client,
};

/// A new connection or flow, and its result.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) client: Client,
    pub(crate) protocol: Protocol,
    pub(crate) target: SocketAddr,
    /// The source port.
    pub(crate) port: u16,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
    pub(crate) outcome: Outcome,
}

/// The result of a new connection or flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// This endpoint replied.
    Endpoint(SocketAddr),
    /// Rejected by a rule or by the host with this address.
    Refused,
    /// No rule translated the packet, so it left the node for `world`.
    Unreachable,
    /// No reply.
    Timeout,
    /// An established connection broke.
    Broken(String),
}

/// What clients connect to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets {
    /// All addresses of Services, also some that were removed recently.
    pub(crate) all: Vec<(Protocol, SocketAddr)>,
    /// TCP addresses that always have endpoints: some connections to them stay open.
    pub(crate) steady: Vec<SocketAddr>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    targets: Mutex<Targets>,
    records: Mutex<Vec<Record>>,
}

/// The clients, which stop on drop.
pub(crate) struct Clients {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Starts the clients: outside, on the node, and two pods, which are endpoints as well.
    pub(crate) fn start(network: &Network, seed: u64) -> Self {
        let shared = Arc::new(Shared::default());
        let pods = network.pods[..2].iter();
        let pods = pods.map(|(pod, namespace)| (namespace, [true, false].map(|v4| Client::Pod(pod_address(*pod, v4)))));
        let outside = ["192.168.0.9", "fd00:168::9"].map(|ip| Client::Elsewhere(ip.parse().unwrap()));
        let clients = [(&network.outside, outside), (&network.node, [Client::Node, Client::Node])];
        let threads = clients.into_iter().chain(pods).zip(seed..).map(|((namespace, families), seed)| {
            let machine = Machine { families, shared: shared.clone(), flows: AtomicU32::new(0) };
            machine.spawn(namespace, seed)
        });
        Self { threads: threads.collect(), shared }
    }

    /// Changes the addresses that clients connect to.
    pub(crate) fn set_targets(&self, targets: Targets) {
        *self.shared.targets.lock().unwrap() = targets;
    }

    /// Returns the records since the last call.
    pub(crate) fn take_records(&self) -> Vec<Record> {
        std::mem::take(&mut *self.shared.records.lock().unwrap())
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of the thread has been printed.
            _ = thread.join();
        }
    }
}

/// A machine with clients.
struct Machine {
    /// The client with its IPv4 and its IPv6 address.
    families: [Client; 2],
    shared: Arc<Shared>,
    /// The number of connections and flows so far, which determines their source ports: one with a port that was used recently
    /// could belong to the connection tracking entry of an earlier one, and follow the rules of that time.
    flows: AtomicU32,
}

impl Machine {
    fn spawn(self, namespace: &NetNs, seed: u64) -> JoinHandle<()> {
        let machine = Arc::new(self);
        // A thread inherits the network namespace.
        namespace.run(|| {
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let mut seeds = fastrand::Rng::with_seed(seed);
                let mut tasks = tokio::task::JoinSet::new();
                for _ in 0..CONCURRENCY {
                    tasks.spawn_on(machine.clone().connect_repeatedly(seeds.fork()), runtime.handle());
                }
                for _ in 0..HELD {
                    tasks.spawn_on(machine.clone().hold_repeatedly(seeds.fork()), runtime.handle());
                }
                runtime.block_on(async { while tasks.join_next().await.is_some_and(|end| end.is_ok()) {} });
            })
        })
    }

    fn is_stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    async fn connect_repeatedly(self: Arc<Self>, mut random: fastrand::Rng) {
        while !self.is_stopped() {
            sleep(Duration::from_millis(random.u64(PAUSE))).await;
            let target = {
                let targets = self.shared.targets.lock().unwrap();
                random.choice(&targets.all).copied()
            };
            let Some((protocol, target)) = target else { continue };
            let port = self.next_port();
            let start = Instant::now();
            let result = match protocol {
                Protocol::Tcp => connect(target, Some(port)).await.map(|(endpoint, stream)| {
                    reset(stream.get_ref());
                    endpoint
                }),
                _ => request(target, port).await,
            };
            self.record(protocol, target, port, start, result);
        }
    }

    fn record(
        &self,
        protocol: Protocol,
        target: SocketAddr,
        port: u16,
        start: Instant,
        result: io::Result<SocketAddr>,
    ) {
        let outcome = match result {
            Ok(endpoint) => Outcome::Endpoint(endpoint),
            Err(error) => match error.kind() {
                ErrorKind::ConnectionRefused => Outcome::Refused,
                // ICMP "administratively prohibited" is EHOSTUNREACH in IPv4 and EACCES in IPv6.
                ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::PermissionDenied => {
                    Outcome::Unreachable
                }
                ErrorKind::TimedOut => Outcome::Timeout,
                _ => Outcome::Broken(error.to_string()),
            },
        };
        let client = self.families[usize::from(target.is_ipv6())].clone();
        let end = Instant::now();
        let record = Record { client, protocol, target, port, start, end, outcome };
        self.shared.records.lock().unwrap().push(record);
    }

    /// Keeps connections to steady addresses open, and uses them. Only a failure is recorded.
    async fn hold_repeatedly(self: Arc<Self>, mut random: fastrand::Rng) {
        while !self.is_stopped() {
            sleep(Duration::from_millis(random.u64(PAUSE))).await;
            let target = random.choice(&self.shared.targets.lock().unwrap().steady).copied();
            let Some(target) = target else { continue };
            let port = self.next_port();
            let start = Instant::now();
            // Failures to connect are recorded by the other tasks.
            let Ok((_, mut stream)) = connect(target, Some(port)).await else { continue };
            for _ in 0..random.u32(4..60) {
                if self.is_stopped() {
                    break;
                }
                sleep(HOLD_PAUSE).await;
                if let Err(error) = echo(&mut stream).await {
                    let text = format!("after {:?}: {error}", start.elapsed());
                    self.record(Protocol::Tcp, target, port, start, Err(io::Error::other(text)));
                    break;
                }
            }
            reset(stream.get_ref());
        }
    }

    /// Returns a source port that has not been used for minutes.
    fn next_port(&self) -> u16 {
        let flow = self.flows.fetch_add(1, Ordering::Relaxed) % u32::from(u16::MAX - FIRST_PORT);
        FIRST_PORT + u16::try_from(flow).expect("the remainder is a port")
    }
}

/// Sends datagrams until one is replied to.
async fn request(target: SocketAddr, port: u16) -> io::Result<SocketAddr> {
    let socket = UdpSocket::bind((any_address(target), port)).await?;
    socket.connect(target).await?;
    let mut buffer = [0; 128];
    for number in 0..DATAGRAMS {
        match socket.send(number.to_string().as_bytes()).await {
            // The rules of the output hook drop the packet, or reject it, which a subsequent ICMP error shows.
            Err(error) if error.raw_os_error() == Some(EPERM) => {}
            sent => _ = sent?,
        }
        let Ok(received) = timeout(DATAGRAM_TIMEOUT, socket.recv(&mut buffer)).await else { continue };
        let reply = String::from_utf8_lossy(&buffer[..received?]);
        let endpoint = reply.split(' ').next().and_then(|endpoint| endpoint.parse().ok());
        return endpoint.ok_or_else(|| io::Error::other(format!("received {reply:?}")));
    }
    Err(ErrorKind::TimedOut.into())
}

fn any_address(target: SocketAddr) -> IpAddr {
    if target.is_ipv4() { [0; 4].into() } else { [0; 16].into() }
}

/// Connects, from a source port or from any, and returns the endpoint that accepted the connection.
pub(crate) async fn connect(target: SocketAddr, port: Option<u16>) -> io::Result<(SocketAddr, BufReader<TcpStream>)> {
    let deadline = tokio::time::Instant::now() + TCP_TIMEOUT;
    let socket = if target.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if let Some(port) = port {
        socket.bind((any_address(target), port).into())?;
    }
    let stream = timeout_at(deadline, socket.connect(target)).await.map_err(|_| ErrorKind::TimedOut)??;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    let read = timeout_at(deadline + TCP_TIMEOUT, stream.read_line(&mut line)).await;
    read.map_err(|_| io::Error::other("connected, and received nothing"))?.map_err(io::Error::other)?;
    let endpoint = line.trim().parse().map_err(|_| io::Error::other(format!("received {line:?}")))?;
    Ok((endpoint, stream))
}

async fn echo(stream: &mut BufReader<TcpStream>) -> io::Result<()> {
    stream.get_mut().write_all(b"hello\n").await?;
    let mut line = String::new();
    timeout(ECHO_TIMEOUT, stream.read_line(&mut line)).await.map_err(|_| ErrorKind::TimedOut)??;
    if line == "hello\n" { Ok(()) } else { Err(io::Error::other(format!("received {line:?}"))) }
}

/// Makes the end of a connection leave no state behind.
fn reset(stream: &TcpStream) {
    // A connection that has failed already has no state either.
    _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Concurrent tasks per machine: four machines with 140 ms per connection result in up to 170 connections per second.
const CONCURRENCY: usize = 6;
/// Milliseconds between the connections of a task.
const PAUSE: std::ops::Range<u64> = 50..230;
/// Open connections per machine.
const HELD: usize = 3;
const HOLD_PAUSE: Duration = Duration::from_millis(400);
/// Long enough for three repetitions of the first packet. The kernel may ignore the ICMP error of a first packet,
/// because it handles the error while it still sends the packet.
const TCP_TIMEOUT: Duration = Duration::from_millis(3_600);
const ECHO_TIMEOUT: Duration = Duration::from_secs(20);
const EPERM: i32 = 1;
const DATAGRAMS: u32 = 3;
const DATAGRAM_TIMEOUT: Duration = Duration::from_millis(700);
/// Above the ports of the servers, node ports and the ports that the kernel chooses (`network`): no other socket has one of them.
const FIRST_PORT: u16 = 32_768;
