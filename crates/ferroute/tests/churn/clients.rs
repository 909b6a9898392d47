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

/// A connection, or a datagram of a flow, and its result.
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
    /// Whether it is a later datagram of a flow, whose connection tracking entry may exist.
    pub(crate) continues: bool,
    /// Whether the first segment of the connection was sent again.
    pub(crate) was_repeated: bool,
}

/// Reply of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) endpoint: SocketAddr,
    /// The client's address as the server sees it.
    pub(crate) source: IpAddr,
}

/// The result of a new connection or flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// An endpoint replied.
    Endpoint(Reply),
    /// Rejected by a rule or by the host with this address.
    Refused,
    /// No rule translated the packet, so it left the node for `world`.
    Unreachable,
    /// No reply.
    Timeout,
    /// An established connection broke.
    Broken(String),
}

/// Addresses that clients connect to.
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
        let first_ports = (FIRST_PORT..).step_by(PORTS.into());
        let machines = clients.into_iter().chain(pods).zip(first_ports).zip(seed..);
        let threads = machines.map(|(((namespace, families), first_port), seed)| {
            let machine = Machine { families, shared: shared.clone(), first_port, flows: AtomicU32::new(0) };
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
    /// First of the source ports. Machines do not share ports: masqueraded connections would compete for them.
    first_port: u16,
    /// Number of connections and flows so far, which determines their source ports: a connection with a recently used
    /// port could match the connection tracking entry of an earlier one, and follow the rules of that time.
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
                for _ in 0..FLOWS {
                    tasks.spawn_on(machine.clone().flow_repeatedly(seeds.fork()), runtime.handle());
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
            let flow = Flow { protocol, target, port: self.next_port() };
            let start = Instant::now();
            match protocol {
                Protocol::Tcp => {
                    _ = self.connect(flow).await.map(|connection| reset(connection.stream.get_ref()));
                }
                _ => {
                    let result = async { request(&bind(flow).await?, 0).await }.await;
                    self.record(flow, start, result, false, false);
                }
            }
        }
    }

    /// Opens a connection and records the result.
    async fn connect(&self, flow: Flow) -> Option<Connection> {
        let start = Instant::now();
        match connect(flow.target, Some(flow.port)).await {
            Ok(connection) => {
                // On a busy machine, only the kernel shows why a connection took so long.
                let was_repeated = start.elapsed() >= FIRST_REPETITION && has_repeated(flow.port);
                self.record(flow, start, Ok(connection.reply), false, was_repeated);
                Some(connection)
            }
            Err(error) => {
                self.record(flow, start, Err(error), false, false);
                None
            }
        }
    }

    /// Keeps flows of datagrams in use for a while: their connection tracking entries stay unless the proxy removes them.
    async fn flow_repeatedly(self: Arc<Self>, mut random: fastrand::Rng) {
        while !self.is_stopped() {
            sleep(Duration::from_millis(random.u64(PAUSE))).await;
            let target = {
                let targets = self.shared.targets.lock().unwrap();
                let is_udp = |(protocol, _): &&(Protocol, SocketAddr)| *protocol == Protocol::Udp;
                random.choice(targets.all.iter().filter(is_udp).copied().collect::<Vec<_>>())
            };
            let Some((protocol, target)) = target else { continue };
            let flow = Flow { protocol, target, port: self.next_port() };
            let Ok(socket) = bind(flow).await else { continue };
            for number in 0..random.u32(10..80) {
                if self.is_stopped() {
                    break;
                }
                let start = Instant::now();
                let result = request(&socket, number * DATAGRAMS).await;
                self.record(flow, start, result, number > 0, false);
                sleep(FLOW_PAUSE).await;
            }
        }
    }

    fn record(&self, flow: Flow, start: Instant, result: io::Result<Reply>, continues: bool, was_repeated: bool) {
        let Flow { protocol, target, port } = flow;
        let outcome = match result {
            Ok(reply) => Outcome::Endpoint(reply),
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
        let record = Record { client, protocol, target, port, start, end, outcome, continues, was_repeated };
        self.shared.records.lock().unwrap().push(record);
    }

    /// Keeps connections to steady addresses open, and uses them.
    async fn hold_repeatedly(self: Arc<Self>, mut random: fastrand::Rng) {
        while !self.is_stopped() {
            sleep(Duration::from_millis(random.u64(PAUSE))).await;
            let target = random.choice(&self.shared.targets.lock().unwrap().steady).copied();
            let Some(target) = target else { continue };
            let flow = Flow { protocol: Protocol::Tcp, target, port: self.next_port() };
            let start = Instant::now();
            let Some(Connection { mut stream, .. }) = self.connect(flow).await else { continue };
            for _ in 0..random.u32(4..60) {
                if self.is_stopped() {
                    break;
                }
                sleep(HOLD_PAUSE).await;
                if let Err(error) = echo(&mut stream).await {
                    let text = format!("after {:?}: {error}", start.elapsed());
                    self.record(flow, start, Err(io::Error::other(text)), false, false);
                    break;
                }
            }
            reset(stream.get_ref());
        }
    }

    /// Returns a source port that has not been used for minutes.
    fn next_port(&self) -> u16 {
        let flow = self.flows.fetch_add(1, Ordering::Relaxed) % u32::from(PORTS);
        self.first_port + u16::try_from(flow).expect("the remainder is a port")
    }
}

/// A connection or flow of a machine.
#[derive(Clone, Copy)]
struct Flow {
    protocol: Protocol,
    target: SocketAddr,
    /// The source port.
    port: u16,
}

async fn bind(flow: Flow) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((any_address(flow.target), flow.port)).await?;
    socket.connect(flow.target).await?;
    Ok(socket)
}

/// Sends datagrams, numbered from `first`, until one is replied to.
async fn request(socket: &UdpSocket, first: u32) -> io::Result<Reply> {
    let mut buffer = [0; 128];
    for number in first..first + DATAGRAMS {
        match socket.send(number.to_string().as_bytes()).await {
            // The rules of the output hook drop the packet, or reject it, which a subsequent ICMP error shows.
            Err(error) if error.raw_os_error() == Some(EPERM) => {}
            sent => _ = sent?,
        }
        let deadline = tokio::time::Instant::now() + DATAGRAM_TIMEOUT;
        while let Ok(received) = timeout_at(deadline, socket.recv(&mut buffer)).await {
            let text = String::from_utf8_lossy(&buffer[..received?]).into_owned();
            let parsed = text.rsplit_once(' ').and_then(|(reply, of)| Some((parse(reply)?, of.parse::<u32>().ok()?)));
            let (reply, of) = parsed.ok_or_else(|| io::Error::other(format!("received {text:?}")))?;
            // Replies to earlier requests may be late.
            if of >= first {
                return Ok(reply);
            }
        }
    }
    Err(ErrorKind::TimedOut.into())
}

fn parse(reply: &str) -> Option<Reply> {
    let (endpoint, source) = reply.split_once(' ')?;
    let source: IpAddr = source.parse().ok()?;
    Some(Reply { endpoint: endpoint.parse().ok()?, source: source.to_canonical() })
}

fn any_address(target: SocketAddr) -> IpAddr {
    if target.is_ipv4() { [0; 4].into() } else { [0; 16].into() }
}

/// An established connection.
pub(crate) struct Connection {
    pub(crate) reply: Reply,
    stream: BufReader<TcpStream>,
}

/// Connects, from a source port or from any.
pub(crate) async fn connect(target: SocketAddr, port: Option<u16>) -> io::Result<Connection> {
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
    let reply = parse(line.trim()).ok_or_else(|| io::Error::other(format!("received {line:?}")))?;
    Ok(Connection { reply, stream })
}

/// Reports whether this machine has sent a segment of an open connection again.
fn has_repeated(port: u16) -> bool {
    let output = std::process::Command::new("ss").args(["-Htni", "sport", "=", &port.to_string()]).output();
    // As in `retrans:0/1`: now and in total.
    String::from_utf8_lossy(&output.expect("iproute2 is installed").stdout).contains(" retrans:")
}

async fn echo(stream: &mut BufReader<TcpStream>) -> io::Result<()> {
    stream.get_mut().write_all(b"hello\n").await?;
    let mut line = String::new();
    timeout(ECHO_TIMEOUT, stream.read_line(&mut line)).await.map_err(|_| ErrorKind::TimedOut)??;
    if line == "hello\n" { Ok(()) } else { Err(io::Error::other(format!("received {line:?}"))) }
}

/// Makes the end of a connection leave no state behind.
fn reset(stream: &TcpStream) {
    // A connection that has failed already has no state to remove.
    _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Concurrent tasks per machine: four machines with 140 ms per connection result in up to 170 connections per second.
const CONCURRENCY: usize = 6;
/// Milliseconds between the connections of a task.
const PAUSE: std::ops::Range<u64> = 50..230;
/// Open connections per machine.
const HELD: usize = 3;
/// Flows of datagrams per machine that are kept in use.
const FLOWS: usize = 3;
const FLOW_PAUSE: Duration = Duration::from_millis(150);
const HOLD_PAUSE: Duration = Duration::from_millis(400);
/// Long enough for three repetitions of the first packet. The kernel may ignore the ICMP error of a first packet,
/// because it handles the error while it is still sending the packet.
const TCP_TIMEOUT: Duration = Duration::from_millis(3_600);
/// The kernel repeats the first segment of a connection after a second (`TCP_TIMEOUT_INIT`).
const FIRST_REPETITION: Duration = Duration::from_secs(1);
const ECHO_TIMEOUT: Duration = Duration::from_secs(20);
const EPERM: i32 = 1;
const DATAGRAMS: u32 = 3;
const DATAGRAM_TIMEOUT: Duration = Duration::from_millis(700);
/// The number of source ports of a machine.
const PORTS: u16 = 8_192;
/// Above the ports of the servers, node ports and the ports that the kernel chooses (`network`): no other socket uses
/// them.
const FIRST_PORT: u16 = 32_768;
