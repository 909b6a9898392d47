//! The command line, as a user or a manifest calls it.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

/// A directory with a link `kube-proxy` to Ferroute.
struct Linked(TempDir);

impl Linked {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        symlink(env!("CARGO_BIN_EXE_ferroute"), directory.path().join("kube-proxy")).unwrap();
        Self(directory)
    }

    fn kube_proxy(&self, arguments: &[&str]) -> Output {
        Command::new(self.0.path().join("kube-proxy")).args(arguments).output().unwrap()
    }
}

fn ferroute(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferroute")).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn version_has_the_form_that_tools_expect() {
    let own = env!("CARGO_PKG_VERSION");
    let short = format!("Kubernetes v1.36.0+ferroute.{own}\n");
    for arguments in [&["--version"][..], &["--version=true"], &["--v=2", "--version"]] {
        let output = Linked::new().kube_proxy(arguments);
        assert_eq!((output.status.code(), stdout(&output)), (Some(0), short.as_str()), "{arguments:?}");
    }
    let raw = Linked::new().kube_proxy(&["--version=raw"]);
    assert!(stdout(&raw).starts_with("version.Info{Major:\"1\", Minor:\"36\", GitVersion:\"v1.36.0+"), "{raw:?}");
    assert_eq!(stdout(&ferroute(&["run", "--version"])), short);
    assert_eq!(stdout(&ferroute(&["--version"])), format!("ferroute {own} (behaves as kube-proxy 1.36)\n"));
}

#[test]
fn unknown_flags_and_positional_arguments_are_rejected_with_a_hint() {
    for (arguments, error) in [
        (["--masquerade-al"], "tip: a similar argument exists: '--masquerade-all'"),
        (["--cleanup-ipvs"], "unexpected argument '--cleanup-ipvs'"),
        (["run"], "unexpected argument 'run'"),
    ] {
        let output = Linked::new().kube_proxy(&arguments);
        assert_eq!(output.status.code(), Some(1), "as that of kube-proxy");
        assert!(stderr(&output).contains(error), "{}", stderr(&output));
        assert!(stderr(&output).contains("Usage: kube-proxy"), "{}", stderr(&output));
    }
}

#[test]
fn help_of_kube_proxy_is_no_error() {
    let output = Linked::new().kube_proxy(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).contains("Usage: kube-proxy"), "{output:?}");
}

#[test]
fn written_configuration_has_defaults_and_flags_and_survives_a_round_trip() {
    let linked = Linked::new();
    let [first, second] = ["first.yaml", "second.yaml"].map(|name| linked.0.path().join(name));
    let write = |path: &Path| format!("--write-config-to={}", path.display());
    let output = linked.kube_proxy(&[&write(&first), "--cluster-cidr=10.1.0.0/16", "--conntrack-min=7"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = fs::read_to_string(&first).unwrap();
    for expected in [
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1",
        "clusterCIDR: 10.1.0.0/16",
        "  min: 7",
        "  maxPerCore: 32768",
        "mode: iptables",
        "detectLocalMode: ClusterCIDR",
        "  tcpEstablishedTimeout: 24h0m0s",
    ] {
        assert!(text.lines().any(|line| line == expected), "{expected:?} is missing in {text}");
    }
    let output = linked.kube_proxy(&[&format!("--config={}", first.display()), &write(&second)]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stderr(&output).contains("WARN"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(&second).unwrap(), text);
}

/// Whether `ferroute run` uses nftables or iptables mode depends on the kernel of each node.
#[test]
fn written_configuration_does_not_select_a_mode_or_a_pace_that_is_not_configured() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("written.yaml");
    let write = format!("--write-config-to={}", path.display());
    for (flags, mode) in [(&[][..], "mode: \"\""), (&["--proxy-mode=iptables"], "mode: iptables")] {
        let output = ferroute(&[&["run", &write], flags].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.lines().any(|line| line == mode), "{text}");
        assert_eq!(text.lines().filter(|line| *line == "  minSyncPeriod: 0s").count(), 3, "{text}");
    }
}

#[test]
fn invalid_configuration_is_not_written() {
    let linked = Linked::new();
    let path = linked.0.path().join("out.yaml");
    let output = linked.kube_proxy(&["--oom-score-adj=5000", &format!("--write-config-to={}", path.display())]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("OOMScoreAdj: Invalid value: 5000"), "{}", stderr(&output));
    assert!(!path.exists());
}

/// Runs `go-runner FLAGS sh -c SCRIPT`. Tests in the background of a shell ignore some signals, which `sh` could not trap.
fn go_runner(linked: &Linked, flags: &[&str], script: &str) -> Command {
    let path = linked.0.path().join("go-runner");
    if !path.exists() {
        symlink(env!("CARGO_BIN_EXE_ferroute"), &path).unwrap();
    }
    let mut command = Command::new(path);
    command.args(flags).args(["env", "--default-signal", "sh", "-c", script]);
    command
}

#[test]
fn go_runner_appends_the_output_of_kube_proxy_to_its_log_file() {
    let linked = Linked::new();
    let [log, kube_proxy] = ["log", "kube-proxy"].map(|name| linked.0.path().join(name).display().to_string());
    let flag = format!("--log-file={log}");
    for (flags, arguments, status, is_shown) in [
        (&[flag.as_str(), "--also-stdout"][..], "--version", 0, true),
        (&["-log-file", &log], "--no-such-flag", 1, false),
        (&[&flag, "--also-stdout=true"], "--no-such-flag", 1, true),
        (&[&flag, "--log-file-size=1Mi", "--log-file-age=24h", "--flush-interval=5s"], "--version", 0, false),
        (&[], "--version", 0, true),
    ] {
        let before = fs::read_to_string(&log).unwrap_or_default();
        let output = go_runner(&linked, flags, &format!("exec {kube_proxy} {arguments}")).output().unwrap();
        let alone = linked.kube_proxy(&[arguments]);
        let expected = format!("{}{}", stdout(&alone), stderr(&alone));
        assert_eq!((output.status.code(), stderr(&output)), (Some(status), ""), "{flags:?} {arguments}");
        assert_eq!(stdout(&output), if is_shown { &expected } else { "" }, "{flags:?} {arguments}");
        let logged = if flags.is_empty() { "" } else { &expected };
        assert_eq!(fs::read_to_string(&log).unwrap(), format!("{before}{logged}"), "{flags:?} {arguments}");
    }
}

#[test]
fn go_runner_keeps_standard_error_apart_on_request() {
    let linked = Linked::new();
    let log = linked.0.path().join("log");
    let flags = ["--redirect-stderr=false", "--log-file", log.to_str().unwrap(), "--also-stdout"];
    let output = go_runner(&linked, &flags, "echo out; echo err >&2").output().unwrap();
    assert_eq!((stdout(&output), stderr(&output)), ("out\n", "err\n"));
    assert_eq!(fs::read_to_string(log).unwrap(), "out\n");
}

#[test]
fn go_runner_forwards_signals_and_returns_the_status_of_the_program() {
    let linked = Linked::new();
    for (signal, name) in
        [(Signal::SIGTERM, "TERM"), (Signal::SIGINT, "INT"), (Signal::SIGHUP, "HUP"), (Signal::SIGQUIT, "QUIT")]
    {
        let script = format!("trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let mut child = go_runner(&linked, &["--also-stdout", "--log-file=/dev/null"], &script)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert_eq!(lines.next().as_deref(), Some("ready"));
        kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
        assert_eq!(lines.collect::<Vec<_>>(), [format!("got {name}")]);
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }
    // A program that does not set its signal mask.
    let masks = go_runner(&linked, &[], "exec grep -E 'Sig(Blk|Ign)' /proc/self/status").output().unwrap();
    let directly = Command::new("env")
        .args(["--default-signal", "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"])
        .output()
        .unwrap();
    assert_eq!(stdout(&masks), stdout(&directly));
    let killed = go_runner(&linked, &[], "kill -KILL $$").output().unwrap();
    assert_eq!(killed.status.code(), Some(128 + 9));
}

#[test]
fn go_runner_outlives_neither_its_program_nor_ends_it_for_a_full_disk() {
    let linked = Linked::new();
    let script = "echo first; sleep 1000 & echo $!";
    let output = go_runner(&linked, &["--also-stdout", "--log-file=/dev/full"], script).output().unwrap();
    let (first, pid) = stdout(&output).trim().split_once('\n').unwrap();
    // The process that the program has left behind holds its output open.
    kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
    assert_eq!((first, output.status.code()), ("first", Some(0)));
    assert_eq!(stderr(&output).matches("/dev/full").count(), 1, "{}", stderr(&output));
}

#[test]
fn go_runner_reports_what_it_cannot_start() {
    let linked = Linked::new();
    let mut command = go_runner(&linked, &[], "");
    let program = command.get_program().to_owned();
    for arguments in
        [&["/no/such/program"][..], &["--log-file=/no/such/directory/log", "true"], &["--v=2", "true"], &[]]
    {
        let output = Command::new(&program).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(!stderr(&output).is_empty(), "{arguments:?}");
    }
    assert!(command.status().unwrap().success());
}

/// Standard input that does not end is work that takes long.
#[test]
fn work_that_takes_long_is_reported_before_it_ends() {
    for arguments in [&["check", "-"][..], &["render", "--manifests", "-"], &["ui", "--manifests", "-"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
        let mut child =
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
        child.wait().unwrap();
        assert!(line.contains("which takes a while"), "{arguments:?}: {line:?}");
    }
}
