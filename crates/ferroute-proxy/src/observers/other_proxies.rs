//! Other service proxies in the network namespace: they restore their own rules whenever this proxy writes its own.
//!
//! | found by | proxies |
//! | --- | --- |
//! | sockets `@ferroute` | Ferroute, in any PID namespace |
//! | `/proc` | kube-proxy, kube-router and Ferroute, if their processes are visible |
//! | what answers at the addresses of health checks and metrics | kube-proxy in another PID namespace |
//! | repeated modifications of the rules | others |

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    fs,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    time::Duration,
};

use ferroute_core::{IpFamily, Protocol, Tracker};
use ferroute_host::{Listener, LocalPeers, is_trusted_user, listeners, local_peers, own_sockets, run_blocking};
use ferroute_modes::REGISTRY;
use procfs::{ProcError, process::all_processes};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    control,
    observers::{
        Observer,
        events::EventRecorder,
        problems::{Problem, Problems},
    },
};

/// A service proxy that runs in this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyProcess {
    /// The process ID.
    pub pid: i32,
    /// The name.
    pub name: String,
}

/// Returns the visible service proxies in the network namespace of the calling thread, except for child processes of
/// other proxies and processes of users that cannot run a proxy, because a name is no evidence.
///
/// # Errors
/// If the processes cannot be listed.
pub fn proxy_processes() -> Result<Vec<ProxyProcess>, ProcError> {
    let own_namespace = fs::read_link("/proc/thread-self/ns/net").ok();
    let mut proxies = Vec::new();
    for process in all_processes()?.flatten() {
        // Processes of other users are not read: their arguments may have any size.
        if !process.status().is_ok_and(|status| is_trusted_user(status.euid))
            || !arguments(process.pid).is_ok_and(|arguments| is_proxy(&arguments))
        {
            continue;
        }
        let Ok(stat) = process.stat() else { continue };
        let namespace = fs::read_link(format!("/proc/{}/ns/net", process.pid)).ok();
        // If the namespace cannot be read, assume that it is the same.
        if namespace.is_none() || namespace == own_namespace {
            proxies.push((stat.ppid, ProxyProcess { pid: process.pid, name: stat.comm }));
        }
    }
    Ok(without_children(proxies))
}

/// Returns the first arguments of a process.
fn arguments(pid: i32) -> io::Result<Vec<String>> {
    let mut text = Vec::new();
    fs::File::open(format!("/proc/{pid}/cmdline"))?.take(MAX_ARGUMENTS).read_to_end(&mut text)?;
    Ok(text.split(|byte| *byte == 0).map(|argument| String::from_utf8_lossy(argument).into_owned()).collect())
}

/// Removes child processes of other proxies: between `fork` and `exec`, a child has the arguments of its parent.
fn without_children(proxies: Vec<(i32, ProxyProcess)>) -> Vec<ProxyProcess> {
    let pids: HashSet<i32> = proxies.iter().map(|(_, process)| process.pid).collect();
    proxies.into_iter().filter(|(parent, _)| !pids.contains(parent)).map(|(_, process)| process).collect()
}

fn is_proxy(arguments: &[String]) -> bool {
    let program = arguments.first().map(|path| path.rsplit('/').next().unwrap_or(path));
    match program {
        Some("kube-proxy") => true,
        Some("ferroute") => arguments.get(1).is_some_and(|command| command == "run"),
        Some("kube-router") => !arguments.iter().any(|argument| argument == "--run-service-proxy=false"),
        _ => false,
    }
}

/// Searches for other proxies until the task is aborted. `addresses` are those of health checks and metrics. Sends to
/// `ended` when another proxy has ended, because its last rules may be active.
pub(crate) async fn watch(
    addresses: Vec<SocketAddr>,
    problems: Problems,
    events: EventRecorder,
    ended: mpsc::Sender<()>,
) {
    let (mut ferroutes, mut others) = (Found::default(), Found::default());
    for round in 0_u32.. {
        tokio::time::sleep(INTERVAL).await;
        // This search costs more.
        let is_thorough = round % THOROUGH == 0 || others.is_unconfirmed() || problems.has(Problem::ContestedRules);
        let addresses = is_thorough.then(|| addresses.clone());
        let search = move || (find_ferroutes(), addresses.map(|addresses| find_others(&addresses)));
        match run_blocking("other-proxies", search).await {
            Ok((found, found_others)) => {
                ferroutes.update(found);
                found_others.into_iter().for_each(|found| others.update(found));
                let all: BTreeSet<&str> = ferroutes.lasting().chain(others.lasting()).collect();
                if report(&all.into_iter().collect::<Vec<_>>(), &problems, &events) {
                    // A check that is queued already is enough.
                    let _ = ended.try_send(());
                }
            }
            Err(error) => tracing::debug!("cannot look for other proxies: {error}"),
        }
    }
}

/// Results of the last two searches: a proxy that is being replaced ends in the meantime.
#[derive(Debug, Default)]
struct Found {
    last: BTreeSet<String>,
    before: BTreeSet<String>,
}

impl Found {
    fn update(&mut self, found: BTreeSet<String>) {
        self.before = std::mem::replace(&mut self.last, found);
    }

    fn lasting(&self) -> impl Iterator<Item = &str> {
        self.last.intersection(&self.before).map(String::as_str)
    }

    fn is_unconfirmed(&self) -> bool {
        self.last != self.before
    }
}

/// Reports that these proxies run. Returns true if there were other proxies before and there are none now.
fn report(proxies: &[&str], problems: &Problems, events: &EventRecorder) -> bool {
    if proxies.is_empty() {
        let has_ended = problems.set(Problem::OtherProxy, None);
        if has_ended {
            tracing::info!("no other service proxy runs on this node any more; comparing all rules");
        }
        return has_ended;
    }
    let text = format!(
        "another service proxy runs on this node: {}; each restores its own rules when the other changes them, and connections \
         use the rules of either",
        proxies.join(", ")
    );
    // That is the cause.
    problems.set(Problem::ContestedRules, None);
    if problems.set(Problem::OtherProxy, Some(text.clone())) {
        tracing::error!("{text}");
        events.other_proxy(text);
    }
    false
}

/// Returns descriptions of other Ferroute processes. Blocks.
fn find_ferroutes() -> BTreeSet<String> {
    let peers = local_peers(control::NAME, control::SEARCH_TIMEOUT, PATIENCE).unwrap_or_else(|error| {
        tracing::debug!("cannot list local sockets: {error}");
        LocalPeers::default()
    });
    let others = peers.trusted.into_iter().map(|peer| peer.pid).filter(|pid| *pid != own_pid());
    let describe = |pid| match pid {
        0 => "ferroute (in another PID namespace)".to_owned(),
        pid => format!("ferroute (pid {pid})"),
    };
    others.map(describe).collect()
}

/// Returns descriptions of other proxies that are visible, or of those that answer at `addresses`. Blocks.
fn find_others(addresses: &[SocketAddr]) -> BTreeSet<String> {
    let processes = proxy_processes().unwrap_or_else(|error| {
        tracing::debug!("cannot list processes: {error}");
        Vec::new()
    });
    let others = processes.into_iter().filter(|process| process.pid != own_pid());
    let found: BTreeSet<String> = others.map(|ProxyProcess { pid, name }| format!("{name} (pid {pid})")).collect();
    if !found.is_empty() {
        return found;
    }
    addresses.iter().filter_map(|address| serving_proxy(*address)).collect()
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap_or_default()
}

/// Returns a description of the proxy that serves health checks or metrics at an address instead of this process.
fn serving_proxy(address: SocketAddr) -> Option<String> {
    let own = own_sockets().ok()?;
    let all = listeners(Protocol::Tcp).ok()?;
    let serves = |listener: &&Listener| {
        listener.address.port() == address.port()
            && (listener.address.ip() == address.ip() || listener.address.ip().is_unspecified())
    };
    // The listener with the most specific address gets the connections.
    let first = all.iter().filter(serves).max_by_key(|listener| listener.address.ip() == address.ip())?;
    if own.contains(&first.inode) || !is_trusted_user(first.user) {
        return None;
    }
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let at = SocketAddr::new(ip, address.port());
    let mode = get(at, "/proxyMode").unwrap_or_default();
    if let Some(mode) = REGISTRY.names().iter().find(|name| name.as_str() == mode.trim()) {
        return Some(format!("a proxy in {mode} mode (it serves http://{at}/proxyMode)"));
    }
    let health = get(at, "/healthz").unwrap_or_default();
    let is_proxy = ["\"lastUpdated\"", "\"currentTime\""].iter().all(|field| health.contains(field));
    is_proxy.then(|| format!("a proxy in another PID namespace (it serves http://{at}/healthz)"))
}

/// Returns the body of a short response.
fn get(at: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {at}\r\n\r\n")?;
    let mut response = Vec::new();
    let deadline = std::time::Instant::now() + PATIENCE;
    let mut buffer = [0; 1024];
    while response.len() < MAX_RESPONSE && std::time::Instant::now() < deadline {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => response.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8_lossy(&response);
    Ok(text.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
}

/// Reports rules that another program changes repeatedly, which may have no other visible sign.
pub(crate) struct ContestObserver {
    problems: Problems,
    events: EventRecorder,
    /// The times of the last modifications.
    times: VecDeque<Instant>,
}

impl ContestObserver {
    pub(crate) fn new(problems: Problems, events: EventRecorder) -> Self {
        Self { problems, events, times: VecDeque::new() }
    }

    fn forget(&mut self) {
        let now = Instant::now();
        while self.times.front().is_some_and(|time| now - *time > CONTEST_PERIOD) {
            self.times.pop_front();
        }
    }
}

impl Observer for ContestObserver {
    fn on_modified(&mut self, _: IpFamily) {
        self.forget();
        self.times.push_back(Instant::now());
        let is_known = self.problems.has(Problem::ContestedRules) || self.problems.has(Problem::OtherProxy);
        if self.times.len() < CONTEST_LEAST || is_known {
            return;
        }
        let text = format!(
            "another program changed the rules of this proxy {} times within a minute, and each time they were repaired: it may be a \
             second service proxy, also in another PID namespace, or a tool that reloads all rules",
            self.times.len()
        );
        tracing::error!("{text}");
        self.problems.set(Problem::ContestedRules, Some(text.clone()));
        self.events.other_proxy(text);
    }

    fn on_tick(&mut self, _: &Tracker) {
        self.forget();
        if self.times.is_empty() && self.problems.set(Problem::ContestedRules, None) {
            tracing::info!("no other program has changed the rules for a minute");
        }
    }
}

/// The interval of searches.
const INTERVAL: Duration = Duration::from_secs(5);
/// Number of searches of which one is thorough.
const THOROUGH: u32 = 6;
/// Maximum time until a peer answers.
const PATIENCE: Duration = Duration::from_millis(300);
/// Maximum size of the arguments of a process that are read, in bytes.
const MAX_ARGUMENTS: u64 = 64 << 10;
/// The maximum size of a response.
const MAX_RESPONSE: usize = 8192;
/// The number of modifications within [`CONTEST_PERIOD`] that are reported.
const CONTEST_LEAST: usize = 6;
/// The period in which modifications are counted.
const CONTEST_PERIOD: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_proxy_commands_are_detected() {
        let is = |line: &str| is_proxy(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(is("/usr/local/bin/kube-proxy --config=/var/lib/kube-proxy/config.conf"));
        assert!(is("ferroute run --manifests services.yaml"));
        assert!(!is("ferroute doctor"));
        assert!(!is("vim kube-proxy"));
        assert!(is("/usr/local/bin/kube-router --run-router=true"));
        assert!(!is("/usr/local/bin/kube-router --run-service-proxy=false"));
    }

    #[test]
    fn child_of_proxy_is_not_another_proxy() {
        let process = |pid, name: &str| ProxyProcess { pid, name: name.to_owned() };
        let processes = vec![(1, process(7, "ferroute")), (7, process(8, "sync")), (2, process(9, "kube-proxy"))];
        assert_eq!(without_children(processes), [process(7, "ferroute"), process(9, "kube-proxy")]);
    }

    #[tokio::test(start_paused = true)]
    async fn rules_that_are_changed_again_and_again_are_reported_while_that_lasts() {
        let problems = Problems::default();
        let mut observer = ContestObserver::new(problems.clone(), EventRecorder::none());
        let tracker = Tracker::new(ferroute_core::NodeView::default());
        for _ in 1..CONTEST_LEAST {
            observer.on_modified(IpFamily::V4);
        }
        tokio::time::advance(CONTEST_PERIOD + INTERVAL).await;
        observer.on_modified(IpFamily::V4);
        assert!(!problems.has(Problem::ContestedRules), "they are not within a minute");
        for _ in 1..CONTEST_LEAST {
            observer.on_modified(IpFamily::V4);
        }
        assert!(problems.has(Problem::ContestedRules));
        observer.on_tick(&tracker);
        assert!(problems.has(Problem::ContestedRules));
        tokio::time::advance(CONTEST_PERIOD + INTERVAL).await;
        observer.on_tick(&tracker);
        assert!(!problems.has(Problem::ContestedRules));
    }

    #[test]
    fn another_proxy_is_reported_until_it_ends() {
        let (problems, events) = (Problems::default(), EventRecorder::none());
        assert!(!report(&["kube-proxy (pid 7)"], &problems, &events));
        assert!(problems.texts()[0].contains("kube-proxy (pid 7)"));
        assert!(report(&[], &problems, &events) && !report(&[], &problems, &events));
        assert!(!problems.has(Problem::OtherProxy));
    }
}
