//! Starts worker processes, and connects to running ones.

use std::{
    ffi::OsString,
    io::{self, Read},
    os::{
        fd::AsRawFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ferroute_core::{IpFamily, error_chain};
use ferroute_host::{LocalPeer, local_peers};
use nix::{
    sys::{
        socket::{MsgFlags, recv},
        wait::waitpid,
    },
    unistd::Pid,
};

use crate::{
    ListenerSpec, ListenerStats,
    dataplane::Relay,
    plan::ListenerKey,
    protocol::{OpenListener, Request, Response, WireListener, receive, send},
};

/// The program that becomes the worker process, which must call [`run_worker`](crate::run_worker) with its standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerProgram {
    /// The program.
    pub program: OsString,
    /// Arguments.
    pub arguments: Vec<OsString>,
}

/// A failure to reach a worker.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The process could not be started.
    #[error("cannot start the userspace proxy's worker")]
    Start(#[source] io::Error),
    /// A request failed. The worker is replaced by the next full sync.
    #[error("cannot {verb} by the userspace proxy's worker")]
    Request {
        /// The operation that was requested.
        verb: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The running workers could not be listed.
    #[error("cannot list the userspace proxy's workers")]
    List(#[source] io::Error),
}

/// The worker process of this proxy, shared by its dataplanes.
#[derive(Clone, Debug)]
pub struct WorkerClient {
    shared: Arc<Mutex<WorkerState>>,
}

#[derive(Debug)]
struct WorkerState {
    program: WorkerProgram,
    worker: Option<Worker>,
    generation: u64,
    /// Whether a worker was killed since the last one answered.
    was_killed: bool,
}

/// A running worker process.
#[derive(Debug)]
struct Worker {
    child: Child,
    control: UnixStream,
    ping: Ping,
}

/// State of the check whether a worker still responds.
#[derive(Clone, Copy, Debug)]
enum Ping {
    /// The worker responded at this time.
    Answered(Instant),
    /// A ping was sent at this time; the number of checks since, and the time of the last one.
    Sent(Instant, u32, Instant),
}

impl WorkerClient {
    /// Creates a client that has not started a process.
    pub fn new(program: WorkerProgram) -> Self {
        Self { shared: Arc::new(Mutex::new(WorkerState { program, worker: None, generation: 0, was_killed: false })) }
    }

    /// Returns the process ID of the running worker.
    pub fn process_id(&self) -> Option<u32> {
        self.lock().worker.as_ref().map(|worker| worker.child.id())
    }

    fn lock(&self) -> MutexGuard<'_, WorkerState> {
        // A worker that a panic left without an answer fails its next request.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerState {
    fn start(&mut self) -> Result<(), WorkerError> {
        let (control, theirs) = UnixStream::pair().map_err(WorkerError::Start)?;
        control.set_read_timeout(Some(HANG_DEADLINE)).map_err(WorkerError::Start)?;
        control.set_write_timeout(Some(HANG_DEADLINE)).map_err(WorkerError::Start)?;
        let mut command = Command::new(&self.program.program);
        command
            .args(&self.program.arguments)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null());
        // The program derives its command from its name. A separate process group keeps signals of a terminal away from
        // it.
        let child = command.arg0("ferroute").process_group(0).spawn().map_err(WorkerError::Start)?;
        tracing::info!(pid = child.id(), "started the userspace proxy's worker");
        self.generation += 1;
        self.worker = Some(Worker { child, control, ping: Ping::Answered(Instant::now()) });
        Ok(())
    }

    fn is_running(&mut self) -> bool {
        let Some(worker) = &mut self.worker else { return false };
        let status = match worker.child.try_wait() {
            Ok(None) if !is_closed(&worker.control) => match worker.check_heartbeat(Instant::now()) {
                Ok(()) => {
                    self.was_killed &= matches!(worker.ping, Ping::Sent(..));
                    return true;
                }
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::error!(
                        error,
                        "the userspace proxy's worker does not answer; killing it, its connections are lost"
                    );
                    self.kill();
                    return false;
                }
            },
            Ok(None) => {
                self.leave_draining();
                return false;
            }
            Ok(Some(status)) => status.to_string(),
            Err(error) => error_chain(&error),
        };
        tracing::error!(status, "the userspace proxy's worker has ended; its connections are lost");
        self.worker = None;
        false
    }

    /// Drops a worker that has closed its socket, because it drains after a signal or has just ended. It keeps running.
    fn leave_draining(&mut self) {
        let Some(Worker { child, .. }) = self.worker.take() else { return };
        tracing::warn!(pid = child.id(), "the userspace proxy's worker has ended or drains; starting another one");
        wait_for(child);
    }

    /// Kills a worker that hangs. Its successor opens new listeners.
    fn kill(&mut self) {
        if let Some(Worker { mut child, .. }) = self.worker.take() {
            let _ = child.kill();
            // A process in the kernel or a frozen control group dies later.
            wait_for(child);
            self.was_killed = true;
        }
    }

    /// Returns why connections may not be accepted.
    fn problem(&mut self) -> Option<&'static str> {
        match self.worker.as_ref().map(|worker| worker.ping) {
            _ if self.was_killed => Some("the userspace proxy's worker did not answer, and was killed"),
            Some(Ping::Sent(at, checks, _)) if checks > 1 && at.elapsed() > SUSPICION => {
                Some("the userspace proxy's worker does not answer")
            }
            _ => None,
        }
    }

    /// Sends a request and returns the response. A worker that does not answer in time is abandoned.
    fn request(&mut self, verb: &'static str, request: &Request) -> Result<Response, WorkerError> {
        let Some(worker) = &mut self.worker else {
            return Err(WorkerError::Request { verb, source: io::ErrorKind::NotConnected.into() });
        };
        let result = worker.request(request);
        result.map_err(|source| {
            if self.worker.as_ref().is_some_and(|worker| is_closed(&worker.control)) {
                self.leave_draining();
            } else {
                self.kill();
            }
            WorkerError::Request { verb, source }
        })
    }

    fn done(&mut self, verb: &'static str, request: &Request) -> Result<(), WorkerError> {
        match self.request(verb, request)? {
            Response::Done => Ok(()),
            other => Err(unexpected(verb, &other)),
        }
    }
}

impl Worker {
    /// Sends a request and returns the response, after that to an outstanding ping.
    fn request(&mut self, request: &Request) -> io::Result<Response> {
        if matches!(self.ping, Ping::Sent(..)) {
            receive::<Response>(&mut self.control)?;
            self.ping = Ping::Answered(Instant::now());
        }
        send(&mut self.control, request)?;
        receive(&mut self.control)
    }

    /// Sends a ping, or checks for its response. Does not wait for the worker.
    ///
    /// # Errors
    /// If the worker has not responded in time.
    fn check_heartbeat(&mut self, now: Instant) -> io::Result<()> {
        match self.ping {
            Ping::Answered(at) if now.duration_since(at) < PING_INTERVAL => {}
            Ping::Answered(_) => {
                send(&mut self.control, &Request::Ping)?;
                self.ping = Ping::Sent(now, 0, now);
            }
            Ping::Sent(..) if has_data(&self.control) => {
                receive::<Response>(&mut self.control)?;
                self.ping = Ping::Answered(now);
            }
            // The number of checks matters too, because this process may not have run either, for example in a paused
            // machine.
            Ping::Sent(at, checks, _) if now.duration_since(at) > HANG_DEADLINE && checks >= HANG_CHECKS => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Ping::Sent(at, checks, last) if now.duration_since(last) >= PING_INTERVAL => {
                self.ping = Ping::Sent(at, checks + 1, now);
            }
            Ping::Sent(..) => {}
        }
        Ok(())
    }
}

impl Relay for WorkerClient {
    type Error = WorkerError;

    fn generation(&mut self) -> Result<u64, WorkerError> {
        let mut shared = self.lock();
        if !shared.is_running() {
            shared.start()?;
        }
        Ok(shared.generation)
    }

    fn set(&mut self, listeners: &[(ListenerKey, ListenerSpec)]) -> Result<Vec<Result<u16, String>>, WorkerError> {
        let verb = "open listeners";
        let wire = listeners.iter().map(|(key, spec)| WireListener::new(key.to_string(), spec)).collect();
        match self.lock().request(verb, &Request::Set(wire))? {
            Response::Ports(ports) if ports.len() == listeners.len() => Ok(ports),
            other => Err(unexpected(verb, &other)),
        }
    }

    fn close(&mut self, listeners: &[ListenerKey]) -> Result<(), WorkerError> {
        self.lock().done("close listeners", &Request::Close(listeners.iter().map(ToString::to_string).collect()))
    }

    fn retain(&mut self, family: IpFamily, listeners: &[ListenerKey]) -> Result<(), WorkerError> {
        let keep = listeners.iter().map(ToString::to_string).collect();
        self.lock().done("close other listeners", &Request::Retain { prefix: format!("{family} "), keep })
    }

    fn is_running(&mut self, generation: u64) -> bool {
        let mut shared = self.lock();
        shared.is_running() && shared.generation == generation
    }

    fn problem(&mut self) -> Option<&'static str> {
        self.lock().problem()
    }
}

/// Waits for the end of a process on another thread. If the thread cannot be started, the process stays a zombie until
/// this process ends, which is harmless.
fn wait_for(mut child: Child) {
    let _ = std::thread::Builder::new().name("drain-wait".to_owned()).spawn(move || child.wait());
}

/// Reports whether a worker has sent data.
fn has_data(control: &UnixStream) -> bool {
    let mut byte = [0];
    matches!(recv(control.as_raw_fd(), &mut byte, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT), Ok(1))
}

/// Reports whether a worker has closed the socket to its proxy. A worker only sends responses.
fn is_closed(control: &UnixStream) -> bool {
    let mut byte = [0];
    matches!(recv(control.as_raw_fd(), &mut byte, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT), Ok(0))
}

/// A worker process of any proxy in this network namespace.
#[derive(Debug)]
pub struct RunningWorker {
    stream: UnixStream,
    pid: i32,
}

impl RunningWorker {
    /// Returns its process ID, 0 if it is in another PID namespace.
    pub fn process_id(&self) -> i32 {
        self.pid
    }

    /// Returns its listeners.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn listeners(&mut self) -> Result<Vec<OpenListener>, WorkerError> {
        match self.request("list listeners", &Request::List)? {
            Response::Listeners(listeners) => Ok(listeners),
            other => Err(unexpected("list listeners", &other)),
        }
    }

    /// Returns the keys of its listeners and their statistics since they were opened.
    ///
    /// # Errors
    /// If the worker does not respond.
    pub(crate) fn stats(&mut self) -> Result<Vec<(String, ListenerStats)>, WorkerError> {
        match self.request("count connections", &Request::Stats)? {
            Response::Stats(stats) => Ok(stats),
            other => Err(unexpected("count connections", &other)),
        }
    }

    /// Returns the ports on which it relays UDP flows of an IP family, including while it drains. Conntrack entries
    /// that lead to them must be kept; the worker deletes them when no response is outstanding.
    ///
    /// # Errors
    /// If the worker does not respond.
    pub fn relay_ports(&mut self, family: IpFamily) -> Result<Vec<u16>, WorkerError> {
        let verb = "list UDP ports";
        // A worker that hangs must not delay syncs for long. Its clients notice it anyway.
        let timeout = self.stream.set_read_timeout(Some(SHORT_PATIENCE));
        timeout.map_err(|source| WorkerError::Request { verb, source })?;
        match self.request(verb, &Request::RelayPorts)? {
            Response::RelayPorts(ports) => {
                let is_ipv6 = family == IpFamily::V6;
                Ok(ports.into_iter().filter(|(of, _)| *of == is_ipv6).map(|(_, port)| port).collect())
            }
            other => Err(unexpected(verb, &other)),
        }
    }

    /// Makes the worker stop accepting, and exit once its connections have ended or `deadline` has passed. Returns
    /// false if it was already draining.
    ///
    /// # Errors
    /// If the worker does not respond.
    pub fn drain(mut self, deadline: Duration) -> Result<bool, WorkerError> {
        let verb = "drain connections";
        let timeout = self.stream.set_read_timeout(Some(SHORT_PATIENCE));
        timeout.map_err(|source| WorkerError::Request { verb, source })?;
        let is_new = match self.request(verb, &Request::Drain { deadline: deadline.as_secs() })? {
            Response::Draining { already } => !already,
            other => return Err(unexpected(verb, &other)),
        };
        // It may be a child of this process, started before the program was executed again, and must then be waited
        // for.
        let reap = move || {
            let Self { mut stream, pid } = self;
            // Without a timeout, this is the end of the process. An error is, too.
            let _ = stream.set_read_timeout(None);
            let _ = stream.read(&mut [0]);
            if pid > 0 {
                // Fails for a process that is not a child.
                let _ = waitpid(Pid::from_raw(pid), None);
            }
        };
        std::thread::Builder::new().name("drain-wait".to_owned()).spawn(reap).map_err(WorkerError::List)?;
        Ok(is_new)
    }

    fn request(&mut self, verb: &'static str, request: &Request) -> Result<Response, WorkerError> {
        send(&mut self.stream, request)
            .and_then(|()| receive(&mut self.stream))
            .map_err(|source| WorkerError::Request { verb, source })
    }
}

/// Returns the running workers in the network namespace of the calling thread, of this or another proxy.
///
/// # Errors
/// If the sockets of the namespace cannot be listed. Sockets of other users are ignored.
pub fn running_workers() -> Result<Vec<RunningWorker>, WorkerError> {
    running_workers_within(LONG_SEARCH)
}

/// Like [`running_workers`], as far as they are found in this time.
///
/// # Errors
/// If the sockets of the namespace cannot be listed.
pub fn running_workers_within(search: Duration) -> Result<Vec<RunningWorker>, WorkerError> {
    let workers = local_peers(SOCKET, search, PATIENCE).map_err(WorkerError::List)?.trusted.into_iter();
    Ok(workers.map(|LocalPeer { stream, pid }| RunningWorker { stream, pid }).collect())
}

fn unexpected(verb: &'static str, response: &Response) -> WorkerError {
    tracing::debug!(?response, "unexpected response");
    let source = io::Error::new(io::ErrorKind::InvalidData, "unexpected response");
    WorkerError::Request { verb, source }
}

/// The longest search for workers that delays syncs.
pub const SHORT_SEARCH: Duration = Duration::from_millis(100);

/// The longest search for workers where none may be missed: it takes milliseconds, unless another user has bound tens of
/// thousands of sockets with such names.
const LONG_SEARCH: Duration = Duration::from_secs(3);

/// The beginning of the names of workers' sockets.
pub(crate) const SOCKET: &str = "ferroute-userspace";

/// Time for which connections may continue after another worker or mode has taken over: many times the default grace
/// period of a terminating pod (30 s), so that the endpoint ends the connection first in most cases.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(600);

/// Time for which a response of another proxy's worker is awaited. Workers do not block.
const PATIENCE: Duration = Duration::from_secs(10);

/// Interval of pings, which is shorter than that of the checks for external modifications.
const PING_INTERVAL: Duration = Duration::from_millis(700);

/// Time for which a ping may be unanswered until the proxy counts as unhealthy.
const SUSPICION: Duration = Duration::from_secs(2);

/// Time, and number of checks, after which the worker is killed; also that for which a response to a request is awaited.
const HANG_DEADLINE: Duration = Duration::from_secs(5);
const HANG_CHECKS: u32 = 4;

/// Maximum time until a worker responds, if that delays a sync.
const SHORT_PATIENCE: Duration = Duration::from_secs(3);
