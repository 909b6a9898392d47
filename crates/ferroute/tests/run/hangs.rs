//! Programs that hang, a standard error that blocks, and processes that cannot be started.

use std::{
    io::{Write, pipe},
    os::fd::AsFd,
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::{
    Cluster, Files, Mode, Proxy,
    http::get,
    in_each_mode,
    programs::{Programs, hang, hung_processes},
    proxy::{FERROUTE, healthz, run_command},
    rules,
    status::Metrics,
    traffic::connect,
    wait, web, web_tcp,
};

in_each_mode!(blocked_standard_error_delays_neither_changes_nor_the_exit);

const RESTORE: [&str; 2] = ["iptables-restore", "ip6tables-restore"];

/// A proxy in iptables mode whose programs can hang.
struct Case {
    proxy: Proxy,
    files: Files,
    cluster: Cluster,
    programs: Programs,
}

impl Case {
    /// Starts a proxy with a sync period of a second. Programs may be silent for `patience` seconds.
    fn new(names: &[&str], hung_from_the_start: bool, patience: &str) -> Self {
        // A change is late after twice the period.
        let (cluster, files) =
            (Cluster::new(), Files::with_settings("iptables: {syncPeriod: 1s, minSyncPeriod: 0s}\n"));
        files.apply(&web(&[0]));
        let programs = Programs::new(&files, names, &hang(&files));
        if hung_from_the_start {
            programs.set_faulty(true);
        }
        let mut run = run_command(FERROUTE, &files.manifests(), &files.config(Mode::Iptables));
        run.arg("--iptables-programs").env("PATH", programs.path()).env("FERROUTE_PROGRAM_TIMEOUT", patience);
        let mut proxy = Proxy::spawn(&cluster.node, &mut run);
        if !hung_from_the_start {
            proxy.wait_synced(&cluster.node);
        }
        Self { proxy, files, cluster, programs }
    }

    fn wait_status(&self, path: &str, status: u16) {
        wait(&format!("{status} of {path}"), || {
            let response = get(&self.cluster.node, healthz(), path).ok()?;
            (response.status == status).then_some(())
        });
    }

    #[track_caller]
    fn wait_hung(&self) {
        wait("the hung program", || (!hung_processes(&self.files).is_empty()).then_some(()));
    }

    /// Sends SIGTERM and checks that it ends the proxy and its programs.
    #[track_caller]
    fn terminate(&mut self) {
        assert_eq!(terminate(&mut self.proxy).code(), Some(0));
        wait("the end of hung programs", || hung_processes(&self.files).is_empty().then_some(()));
    }
}

/// Sends SIGTERM to a proxy in which something hangs. The limit is generous, and far below that of hung programs.
#[track_caller]
fn terminate(proxy: &mut Proxy) -> ExitStatus {
    let start = Instant::now();
    let status = proxy.stop("TERM");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    status
}

/// Returns the pod that serves each address of `web`.
fn pods(case: &Case) -> Vec<Option<u8>> {
    web_tcp().map(|to| connect(&case.cluster.client, to).ok()).to_vec()
}

#[test]
fn hung_restore_is_killed_and_retried_and_the_proxy_is_unhealthy_meanwhile() {
    let mut case = Case::new(&RESTORE, false, "4");
    case.wait_status("/healthz", 200);
    case.programs.set_faulty(true);
    case.files.apply(&web(&[1]));
    case.wait_hung();
    case.wait_status("/healthz", 503);
    case.wait_status("/livez", 503);
    assert_eq!(pods(&case), [Some(0); 2], "the previous rules stay active");
    case.proxy.wait_log_line(&["killed", "iptables-restore", "progress"]);
    case.proxy.wait_log("retrying the sync");
    case.programs.set_faulty(false);
    wait("the change", || (pods(&case) == [Some(1); 2]).then_some(()));
    case.wait_status("/healthz", 200);
    assert_eq!(hung_processes(&case.files), [""; 0]);
    assert!(case.proxy.stop("TERM").success());
}

#[test]
fn hung_first_sync_is_unhealthy_until_it_succeeds() {
    let case = Case::new(&RESTORE, true, "8");
    case.wait_hung();
    case.wait_status("/healthz", 503);
    case.wait_status("/livez", 503);
    assert!(Metrics::read(&case.cluster.node).get("ferroute_sync_heartbeat_age_seconds") > 1.0);
    case.programs.set_faulty(false);
    case.wait_status("/healthz", 200);
    assert_eq!(pods(&case), [Some(0); 2]);
}

#[test]
fn sigterm_ends_the_proxy_and_a_hung_restore() {
    for hung_from_the_start in [true, false] {
        let mut case = Case::new(&RESTORE, hung_from_the_start, "100000");
        if !hung_from_the_start {
            case.programs.set_faulty(true);
            case.files.apply(&web(&[1]));
        }
        case.wait_hung();
        let rules = rules::of_proxy(&case.cluster.node, Mode::Iptables);
        case.terminate();
        assert_eq!(rules::of_proxy(&case.cluster.node, Mode::Iptables), rules);
    }
}

/// The main thread waits for the version of the programs.
#[test]
fn sigterm_ends_a_proxy_that_hangs_while_it_starts() {
    let mut case = Case::new(&["iptables"], true, "100000");
    case.wait_hung();
    case.terminate();
}

fn blocked_standard_error_delays_neither_changes_nor_the_exit(mode: Mode) {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let (reader, mut writer) = pipe().unwrap();
    fill(&mut writer);
    let mut run = run_command(FERROUTE, &files.manifests(), &files.config(mode));
    let mut proxy = Proxy::spawn_with_stderr(&cluster.node, &mut run, writer.into());
    proxy.wait_synced(&cluster.node);
    for pod in [1, 2] {
        files.apply(&web(&[pod]));
        for to in web_tcp() {
            wait("the change", || (connect(&cluster.client, to).ok() == Some(pod)).then_some(()));
        }
    }
    assert_eq!(terminate(&mut proxy).code(), Some(0));
    drop(reader);
}

/// Fills a pipe.
fn fill(writer: &mut (impl Write + AsFd)) {
    let flags = OFlag::from_bits_retain(fcntl(writer.as_fd(), FcntlArg::F_GETFL).unwrap());
    fcntl(writer.as_fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() {}
    fcntl(writer.as_fd(), FcntlArg::F_SETFL(flags)).unwrap();
}

/// A separate user, because the limit counts all processes of a user.
const USER: &str = "--reuid=64321";

/// Wraps a command to run as a user with the required capabilities and at most `processes` processes and threads. Root
/// has no such limit.
fn limited(processes: u32, command: &Command) -> Command {
    let mut outer = Command::new("setpriv");
    outer.args([USER, "--regid=64321", "--clear-groups", "--inh-caps=+net_admin,+net_raw"]);
    outer.args(["--ambient-caps=+net_admin,+net_raw", "prlimit", &format!("--nproc={processes}")]);
    outer.arg(command.get_program()).args(command.get_args());
    outer
}

#[test]
fn threads_that_cannot_be_started_are_errors() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let run = run_command(FERROUTE, &files.manifests(), &files.config(Mode::Nftables));
    let mut errors = 0;
    for processes in 1.. {
        let mut proxy = Proxy::spawn(&cluster.node, &mut limited(processes, &run));
        let end = wait("the first sync or an error", || {
            let is_synced =
                get(&cluster.node, healthz(), "/healthz").is_ok_and(|answer| answer.body.contains("\"IPv6\""));
            proxy.try_exit().map(Some).or(is_synced.then_some(None))
        });
        let Some(status) = end else { break };
        assert_eq!(status.code(), Some(1), "{}", proxy.log());
        assert!(!proxy.log().contains("panicked"), "{}", proxy.log());
        errors += 1;
    }
    assert!(errors > 0);
}
