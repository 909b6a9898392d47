//! The worker process: it holds the listeners and relays connections.
//!
//! ```text
//!   proxy ──(a socket pair, as standard input)──► worker ◄──(a socket with an abstract name)── other proxies, commands
//! ```
//!
//! The worker keeps running when the proxy ends: rules stay in the kernel while no proxy runs, and so must their
//! listeners. It exits after a request to drain, by the next proxy or by SIGTERM, once its connections have ended. The
//! name of its socket belongs to the network namespace, like the rules, so that the next proxy finds it.

use std::{
    io,
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use ferroute_core::{IpFamily, error_chain};
use ferroute_host::{is_trusted_user, listen_locally_beside};
use nix::{
    sys::signal::{SigSet, Signal},
    unistd::dup2_stderr,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::sleep,
};

use crate::{
    Engine, Limits, PortRange,
    client::{DRAIN_DEADLINE, SOCKET},
    protocol::{LENGTH, OpenListener, Request, Response, body_length, encode},
};

/// The settings of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerSettings {
    /// The ports of listeners.
    pub ports: PortRange,
    /// The limits of the process.
    pub limits: Limits,
}

/// Runs the worker until its connections have ended after a request to drain. `control` is the socket to the proxy.
///
/// # Errors
/// If the worker cannot start.
pub fn run_worker(settings: WorkerSettings, control: OwnedFd) -> io::Result<()> {
    // The proxy blocks the signals that it waits for, and its children inherit that.
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    signals.thread_unblock()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let result = runtime.block_on(serve(settings, control));
    runtime.shutdown_background();
    result
}

/// The listeners, shared by all connections to the worker.
type SharedEngine = Arc<Mutex<Engine<String>>>;

/// Requests to drain.
#[derive(Clone, Debug)]
struct Drain {
    requested: Arc<AtomicBool>,
    deadlines: mpsc::Sender<Duration>,
}

async fn serve(settings: WorkerSettings, control: OwnedFd) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    // A terminal sends it to all processes of a session; the proxy handles it.
    let _interrupt = signal(SignalKind::interrupt())?;
    let control = StdStream::from(control);
    control.set_nonblocking(true)?;
    let to_proxy = control.try_clone()?;
    let control = UnixStream::from_std(control)?;
    let (listener, name) = listen()?;
    let engine: SharedEngine = Arc::new(Mutex::new(Engine::new(settings.limits, settings.ports)));
    let (deadlines, mut drains) = mpsc::channel(1);
    let drain = Drain { requested: Arc::default(), deadlines };
    let proxy = tokio::spawn({
        let (engine, drain) = (engine.clone(), drain.clone());
        async move {
            answer(control, &engine, &drain).await;
            tracing::info!(worker = name, "the proxy has ended; connections are accepted until another one takes over");
            release_stderr().await;
        }
    });
    tokio::spawn(accept_peers(listener, engine.clone(), drain));
    let mut deadline = tokio::select! {
        deadline = drains.recv() => deadline.unwrap_or(DRAIN_DEADLINE),
        _ = terminate.recv() => DRAIN_DEADLINE,
    };
    // If the proxy runs, it notices this and starts another worker. Standard input is the same socket, so closing one
    // of them is not enough. The shutdown fails if the proxy has ended.
    proxy.abort();
    let _ = to_proxy.shutdown(Shutdown::Both);
    let engine = lock(&engine).take();
    release_stderr().await;
    if !deadline.is_zero() {
        // Connections whose first packet passed the old rules are still in transit.
        sleep(ACCEPT_GRACE).await;
    }
    let drained = engine.drain(deadline);
    tokio::pin!(drained);
    let remaining = loop {
        tokio::select! {
            remaining = &mut drained => break remaining,
            Some(shorter) = drains.recv() => {
                // Another request may shorten the time, but not extend it.
                deadline = deadline.min(shorter);
                if deadline.is_zero() {
                    break 0;
                }
            }
        }
    };
    if remaining > 0 {
        tracing::info!(connections = remaining, "closing connections that have not ended in time");
    }
    Ok(())
}

/// Closes the standard error of the proxy, whose reader may be waiting for its end. Later log messages are lost.
async fn release_stderr() {
    // Lines are written by another thread.
    sleep(LOG_GRACE).await;
    // It is `/dev/null`, which this process may not open for writing any more.
    if let Err(error) = dup2_stderr(io::stdout()) {
        tracing::debug!("cannot close standard error: {}", error_chain(&error));
    }
}

/// Opens the socket through which other processes find the worker. Returns it with its name.
fn listen() -> io::Result<(UnixListener, String)> {
    let (listener, name) = listen_locally_beside(SOCKET)?;
    listener.set_nonblocking(true)?;
    Ok((UnixListener::from_std(listener)?, name))
}

/// Serves other processes of the same user or root. Abstract names have no permissions.
async fn accept_peers(listener: UnixListener, engine: SharedEngine, drain: Drain) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if stream.peer_cred().is_ok_and(|peer| is_trusted_user(peer.uid())) {
                    let (engine, drain) = (engine.clone(), drain.clone());
                    tokio::spawn(async move { answer(stream, &engine, &drain).await });
                }
            }
            Err(error) => {
                tracing::debug!("cannot accept a request: {}", error_chain(&error));
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Answers requests until the peer has closed the connection.
async fn answer(mut stream: UnixStream, engine: &SharedEngine, drain: &Drain) {
    loop {
        let mut prefix = [0; LENGTH];
        if stream.read_exact(&mut prefix).await.is_err() {
            return;
        }
        match answer_one(&mut stream, prefix, engine, drain).await {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!("cannot answer a request: {}", error_chain(&error));
                return;
            }
        }
    }
}

async fn answer_one(
    stream: &mut UnixStream,
    prefix: [u8; LENGTH],
    engine: &SharedEngine,
    drain: &Drain,
) -> io::Result<()> {
    let mut bytes = vec![0; body_length(prefix)?];
    stream.read_exact(&mut bytes).await?;
    let request: Request = serde_json::from_slice(&bytes)?;
    drop(bytes);
    let response = match request {
        Request::Set(listeners) => {
            let mut engine = lock(engine);
            let set = listeners.into_iter().map(|listener| {
                let (key, spec) = listener.into_spec();
                engine.set(key, spec).map_err(|error| error_chain(&error))
            });
            Response::Ports(set.collect())
        }
        Request::Close(keys) => {
            let mut engine = lock(engine);
            keys.iter().for_each(|key| engine.close(key));
            Response::Done
        }
        Request::Retain { prefix, keep } => {
            let keep: std::collections::HashSet<String> = keep.into_iter().collect();
            let mut engine = lock(engine);
            let gone: Vec<String> =
                engine.keys().filter(|key| key.starts_with(&prefix) && !keep.contains(*key)).cloned().collect();
            gone.iter().for_each(|key| engine.close(key));
            Response::Done
        }
        Request::List => {
            let engine = lock(engine);
            Response::Listeners(engine.open().map(OpenListener::new).collect())
        }
        Request::Stats => {
            let engine = lock(engine);
            Response::Stats(engine.all_stats().map(|(key, stats)| (key.clone(), stats)).collect())
        }
        Request::RelayPorts => {
            let ports = lock(engine).relay_ports();
            Response::RelayPorts(ports.into_iter().map(|(family, port)| (family == IpFamily::V6, port)).collect())
        }
        Request::Ping => {
            // Without it, the worker would be useless.
            drop(lock(engine));
            Response::Done
        }
        Request::Drain { deadline } => {
            let already = drain.requested.swap(true, Relaxed);
            // Fails if the worker exits already.
            let _ = drain.deadlines.send(Duration::from_secs(deadline)).await;
            Response::Draining { already }
        }
    };
    stream.write_all(&encode(&response)?).await
}

fn lock(engine: &SharedEngine) -> MutexGuard<'_, Engine<String>> {
    // Its methods leave it valid at every point at which they could panic.
    engine.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum number of relay threads: this many can move more bytes than a network card.
const MAX_THREADS: usize = 4;

/// Time for which connections are accepted after a request to drain: a lost SYN is sent again after a second.
const ACCEPT_GRACE: Duration = Duration::from_secs(2);

/// Maximum time for writing log lines.
const LOG_GRACE: Duration = Duration::from_millis(200);

/// Delay after a failed accept, the most likely cause of which is that no descriptor is left.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
