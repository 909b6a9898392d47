//! The command line, as a user or a manifest calls it.

#![expect(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::{
    fs,
    os::unix::fs::symlink,
    process::{Command, Output},
};

use tempfile::TempDir;

/// A directory in which Ferroute is called `kube-proxy`.
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
fn the_version_is_printed_as_tools_expect_it() {
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
fn an_unknown_flag_is_refused_with_a_hint_and_no_positional_argument_is_taken() {
    for (arguments, fault) in [
        (["--masquerade-al"], "tip: a similar argument exists: '--masquerade-all'"),
        (["--cleanup-ipvs"], "unexpected argument '--cleanup-ipvs'"),
        (["run"], "unexpected argument 'run'"),
    ] {
        let output = Linked::new().kube_proxy(&arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(fault), "{}", stderr(&output));
        assert!(stderr(&output).contains("Usage: kube-proxy"), "{}", stderr(&output));
    }
}

#[test]
fn the_written_configuration_holds_defaults_and_flags_and_reads_back_as_itself() {
    let linked = Linked::new();
    let [first, second] = ["first.yaml", "second.yaml"].map(|name| linked.0.path().join(name));
    let write = |path: &std::path::Path| format!("--write-config-to={}", path.display());
    let output = linked.kube_proxy(&[&write(&first), "--cluster-cidr=10.1.0.0/16", "--conntrack-min=7"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("wrote the configuration"), "{}", stderr(&output));
    let text = fs::read_to_string(&first).unwrap();
    for line in [
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1",
        "clusterCIDR: 10.1.0.0/16",
        "  min: 7",
        "  maxPerCore: 32768",
        "mode: iptables",
        "detectLocalMode: ClusterCIDR",
        "  tcpEstablishedTimeout: 24h0m0s",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} in {text}");
    }
    let output = linked.kube_proxy(&[&format!("--config={}", first.display()), &write(&second)]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stderr(&output).contains("WARN"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(&second).unwrap(), text);
}

#[test]
fn nothing_is_written_where_the_configuration_is_wrong() {
    let linked = Linked::new();
    let path = linked.0.path().join("out.yaml");
    let output = linked.kube_proxy(&["--oom-score-adj=5000", &format!("--write-config-to={}", path.display())]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("OOMScoreAdj: Invalid value: 5000"), "{}", stderr(&output));
    assert!(!path.exists());
}
