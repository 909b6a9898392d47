//! TCP connections and UDP flows through the cluster.

use std::{
    cell::Cell,
    io::{self, BufRead, BufReader, ErrorKind, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use ferroute_testing::{NetNs, restart};

use crate::{cluster::pod_at, wait, web_tcp, web_udp};

/// An open TCP connection.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    /// The pod at the other end.
    pub(crate) pod: u8,
}

impl Connection {
    /// Connects, and reads the pod's address.
    pub(crate) fn open(from: &NetNs, to: SocketAddr) -> io::Result<Self> {
        from.run(|| Self::open_here(to))
    }

    /// Like `open`, from this address.
    pub(crate) fn open_from(from: &NetNs, source: SocketAddr, to: SocketAddr) -> io::Result<Self> {
        from.run(|| Self::greeted(connect_from_here(source, to, TIMEOUT)?))
    }

    /// Connects from this thread's network namespace.
    fn open_here(to: SocketAddr) -> io::Result<Self> {
        Self::greeted(TcpStream::connect_timeout(&to, TIMEOUT)?)
    }

    fn greeted(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let pod = pod_at(line.trim()).ok_or_else(|| io::Error::other(format!("not the address of a pod: {line:?}")))?;
        Ok(Self { stream, pod })
    }

    /// Sends a line and waits for its echo.
    pub(crate) fn echo(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stream.get_mut(), "{line}")?;
        let mut echo = String::new();
        self.stream.read_line(&mut echo)?;
        if echo.trim_end() == line {
            Ok(())
        } else {
            Err(io::Error::other(format!("sent {line:?}, received {echo:?}")))
        }
    }
}

/// Opens a new connection, exchanges data and returns the pod.
pub(crate) fn connect(from: &NetNs, to: SocketAddr) -> io::Result<u8> {
    from.run(|| connect_here(to))
}

fn connect_here(to: SocketAddr) -> io::Result<u8> {
    let mut connection = Connection::open_here(to)?;
    connection.echo("hello")?;
    Ok(connection.pod)
}

/// Opens a connection in this thread's network namespace that is a flow of its own, also if it fails.
///
/// Where nothing answered, the kernel takes a second connection from the same port for the same flow, and the ports that it
/// selects repeat at times: it selects them from numbers that all namespaces share, without a lock.
pub(crate) fn open_flow_here(to: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    static OPENED: AtomicU16 = AtomicU16::new(0);
    // Ports that neither the proxy nor the kernel selects.
    const PORTS: Range<u16> = 11_000..30_000;
    let port = PORTS.start + OPENED.fetch_add(1, Ordering::Relaxed) % PORTS.len() as u16;
    connect_from_here(SocketAddr::new(any(to).ip(), port), to, timeout)
}

/// Connects from this address in this thread's network namespace.
pub(crate) fn connect_from_here(source: SocketAddr, to: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::STREAM, None)?;
    socket.bind(&source.into())?;
    socket.connect_timeout(&to.into(), timeout)?;
    Ok(socket.into())
}

/// A UDP socket, whose packets belong to one flow.
pub(crate) struct Flow {
    socket: UdpSocket,
    /// The number of requests. Each request contains its number, which the reply repeats.
    requests: Cell<u32>,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// This pod replied.
    Pod(u8),
    /// An ICMP error.
    Rejected,
    /// No reply within the time limit.
    None,
}

impl Flow {
    pub(crate) fn open(from: &NetNs, to: SocketAddr) -> Self {
        from.run(|| Self::open_here(any(to), to, NO_REPLY))
    }

    /// Like `open`, from this address.
    pub(crate) fn open_from(from: &NetNs, source: SocketAddr, to: SocketAddr) -> Self {
        from.run(|| Self::open_here(source, to, NO_REPLY))
    }

    /// Opens the socket in this thread's network namespace, with a time limit for replies.
    fn open_here(source: SocketAddr, to: SocketAddr, timeout: Duration) -> Self {
        let socket = UdpSocket::bind(source).unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(timeout)).unwrap();
        Self { socket, requests: Cell::new(0) }
    }

    /// Sends a datagram and waits for the reply.
    pub(crate) fn request(&self) -> Reply {
        self.requests.set(self.requests.get() + 1);
        match self.exchange(&self.requests.get().to_string()) {
            Ok(address) => Reply::Pod(pod_at(&address).unwrap()),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Reply::Rejected,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Reply::None,
            Err(error) => panic!("cannot send or receive: {error}"),
        }
    }

    fn exchange(&self, request: &str) -> io::Result<String> {
        self.socket.send(request.as_bytes())?;
        let mut buffer = [0; 64];
        loop {
            let length = restart(|| self.socket.recv(&mut buffer))?;
            let reply = String::from_utf8_lossy(&buffer[..length]);
            match reply.split_once(' ') {
                Some((address, repeated)) if repeated == request => return Ok(address.to_owned()),
                // A late reply to an earlier request.
                _ => {}
            }
        }
    }

    /// Waits until a pod replies, and returns it.
    #[track_caller]
    pub(crate) fn pod(&self) -> u8 {
        wait("a UDP reply", || match self.request() {
            Reply::Pod(pod) => Some(pod),
            Reply::Rejected | Reply::None => None,
        })
    }
}

/// Returns the address by which the kernel selects the source.
pub(crate) fn any(to: SocketAddr) -> SocketAddr {
    if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap()
}

/// Sends a datagram from a new port and returns the pod that replied.
fn request_here(to: SocketAddr) -> io::Result<u8> {
    let flow = Flow::open_here(any(to), to, TIMEOUT);
    let address = flow.exchange("hello")?;
    pod_at(&address).ok_or_else(|| io::Error::other(format!("not the address of a pod: {address:?}")))
}

/// A continuous series of concurrent new TCP connections or UDP flows, until it is dropped.
pub(crate) struct Traffic {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    outcomes: Mutex<Vec<Result<u8, String>>>,
}

impl Traffic {
    /// Starts TCP traffic and waits for the first connections.
    #[track_caller]
    pub(crate) fn start(from: &NetNs, to: SocketAddr) -> Self {
        Self::repeat(from, move || connect_here(to))
    }

    /// Starts TCP and UDP traffic to all addresses of [`crate::web`].
    #[track_caller]
    pub(crate) fn start_all(from: &NetNs) -> Vec<Self> {
        let udp = web_udp().map(|to| Self::repeat(from, move || request_here(to)));
        web_tcp().map(|to| Self::start(from, to)).into_iter().chain(udp).collect()
    }

    #[track_caller]
    fn repeat(from: &NetNs, request: impl Fn() -> io::Result<u8> + Copy + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let threads = (0..CONCURRENCY).map(|_| {
            let shared = shared.clone();
            // A thread inherits the network namespace.
            from.run(|| {
                std::thread::spawn(move || {
                    while !shared.stop.load(Ordering::Relaxed) {
                        let outcome = request().map_err(|error| error.to_string());
                        shared.outcomes.lock().unwrap().push(outcome);
                        std::thread::sleep(PAUSE);
                    }
                })
            })
        });
        let traffic = Self { threads: threads.collect(), shared };
        traffic.wait_for_more();
        traffic
    }

    /// Waits for a number of further requests.
    #[track_caller]
    pub(crate) fn wait_for_more(&self) {
        let count = || self.shared.outcomes.lock().unwrap().len();
        let before = count();
        wait("more connections", || (count() >= before + BATCH).then_some(()));
    }

    /// Stops the traffic, asserts that no request failed, and returns the pods that replied.
    #[track_caller]
    pub(crate) fn assert_no_failure(self) -> std::collections::BTreeSet<u8> {
        let shared = self.shared.clone();
        drop(self);
        let outcomes = std::mem::take(&mut *shared.outcomes.lock().unwrap());
        let total = outcomes.len();
        let (pods, failures): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
        let failures: Vec<String> = failures.into_iter().filter_map(Result::err).collect();
        assert!(failures.is_empty(), "{} of {total} requests failed: {failures:?}", failures.len());
        pods.into_iter().flatten().collect()
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of the thread has been printed.
            _ = thread.join();
        }
    }
}

/// The time after which a request fails. Machines under load are slow.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// The time to wait for the reply to a datagram.
const NO_REPLY: Duration = Duration::from_millis(500);
const CONCURRENCY: usize = 4;
const PAUSE: Duration = Duration::from_millis(2);
/// Enough requests to detect a rule that misroutes one in ten.
const BATCH: usize = 60;
