//! Real connections, single ones and many at a time.

use std::{
    cell::Cell,
    io::{self, BufRead, BufReader, ErrorKind, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use ferroute_testing::NetNs;

use crate::{lab::pod_at, wait, web_tcp, web_udp};

/// A connection that stays open.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    /// Which pod is at the other end.
    pub(crate) pod: u8,
}

impl Connection {
    /// Connects, and waits until the pod has told which one it is.
    pub(crate) fn open(from: &NetNs, to: SocketAddr) -> io::Result<Self> {
        from.run(|| Self::open_here(to))
    }

    /// From this thread's namespace.
    fn open_here(to: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let pod = pod_at(line.trim()).ok_or_else(|| io::Error::other(format!("no pod says {line:?}")))?;
        Ok(Self { stream, pod })
    }

    /// Sends a line and waits until it has come back.
    pub(crate) fn echo(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stream.get_mut(), "{line}")?;
        let mut back = String::new();
        self.stream.read_line(&mut back)?;
        if back.trim_end() == line { Ok(()) } else { Err(io::Error::other(format!("{line:?} came back as {back:?}"))) }
    }
}

/// A new connection with one exchange; tells the pod that took it.
pub(crate) fn connect(from: &NetNs, to: SocketAddr) -> io::Result<u8> {
    from.run(|| connect_here(to))
}

fn connect_here(to: SocketAddr) -> io::Result<u8> {
    let mut connection = Connection::open_here(to)?;
    connection.echo("are you there?")?;
    Ok(connection.pod)
}

/// A UDP socket that keeps its port, as a flow does.
pub(crate) struct Flow {
    socket: UdpSocket,
    /// Questions so far: the number of the last one, which its answer has to repeat.
    asked: Cell<u32>,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// This pod has answered.
    Pod(u8),
    /// Somebody has said that nobody is there.
    Refused,
    /// Nobody has said anything in a while.
    Silence,
}

impl Flow {
    pub(crate) fn open(from: &NetNs, to: SocketAddr) -> Self {
        from.run(|| Self::open_here(to, SILENCE))
    }

    /// From this thread's namespace; it waits so long for an answer.
    fn open_here(to: SocketAddr, patience: Duration) -> Self {
        let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(patience)).unwrap();
        Self { socket, asked: Cell::new(0) }
    }

    /// Sends a datagram and waits for the answer.
    pub(crate) fn ask(&self) -> Answer {
        self.asked.set(self.asked.get() + 1);
        match self.question_and_answer(&self.asked.get().to_string()) {
            Ok(address) => Answer::Pod(pod_at(&address).unwrap()),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Answer::Refused,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Answer::Silence,
            Err(error) => panic!("cannot send or receive: {error}"),
        }
    }

    fn question_and_answer(&self, question: &str) -> io::Result<String> {
        self.socket.send(question.as_bytes())?;
        let mut buffer = [0; 64];
        loop {
            let length = match self.socket.recv(&mut buffer) {
                // A wait with a time limit is not taken up again after the process was stopped for a moment.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                received => received?,
            };
            let answer = String::from_utf8_lossy(&buffer[..length]);
            match answer.split_once(' ') {
                Some((address, repeated)) if repeated == question => return Ok(address.to_owned()),
                // The late answer to an earlier question.
                _ => {}
            }
        }
    }

    /// The pod that answers, however long it takes.
    #[track_caller]
    pub(crate) fn pod(&self) -> u8 {
        wait("an answer by UDP", || match self.ask() {
            Answer::Pod(pod) => Some(pod),
            Answer::Refused | Answer::Silence => None,
        })
    }
}

/// A datagram from a new port and its answer; tells the pod that took it.
fn ask_here(to: SocketAddr) -> io::Result<u8> {
    let flow = Flow::open_here(to, PATIENCE);
    let address = flow.question_and_answer("are you there?")?;
    pod_at(&address).ok_or_else(|| io::Error::other(format!("no pod says {address:?}")))
}

/// New connections, or flows of UDP, one after the other, and several at a time, until it is dropped.
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
    /// Starts with TCP and waits for the first connections.
    #[track_caller]
    pub(crate) fn start(from: &NetNs, to: SocketAddr) -> Self {
        Self::repeat(from, move || connect_here(to))
    }

    /// The same with all addresses of [`crate::web`], by TCP and by UDP.
    #[track_caller]
    pub(crate) fn start_all(from: &NetNs) -> Vec<Self> {
        let udp = web_udp().map(|to| Self::repeat(from, move || ask_here(to)));
        web_tcp().map(|to| Self::start(from, to)).into_iter().chain(udp).collect()
    }

    #[track_caller]
    fn repeat(from: &NetNs, request: impl Fn() -> io::Result<u8> + Copy + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let threads = (0..AT_A_TIME).map(|_| {
            let shared = shared.clone();
            // A thread stays in the namespace in which it is started.
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
        traffic.go_on();
        traffic
    }

    /// Waits until more connections have been made from here on.
    #[track_caller]
    pub(crate) fn go_on(&self) {
        let count = || self.shared.outcomes.lock().unwrap().len();
        let before = count();
        wait("more connections", || (count() >= before + MORE).then_some(()));
    }

    /// Ends it, and sees that not one request has failed. Tells which pods have answered.
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
            // A panic there has been printed.
            _ = thread.join();
        }
    }
}

/// How long a connection may take before it counts as failed: a machine under load is slow.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long to wait for the answer to a datagram.
const SILENCE: Duration = Duration::from_millis(500);
const AT_A_TIME: usize = 4;
const PAUSE: Duration = Duration::from_millis(2);
/// Enough that a rule that sends every tenth one astray is noticed.
const MORE: usize = 60;
