//! The command line, as a user or a manifest calls it.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
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
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(error), "{}", stderr(&output));
        assert!(stderr(&output).contains("Usage: kube-proxy"), "{}", stderr(&output));
    }
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

#[test]
fn invalid_configuration_is_not_written() {
    let linked = Linked::new();
    let path = linked.0.path().join("out.yaml");
    let output = linked.kube_proxy(&["--oom-score-adj=5000", &format!("--write-config-to={}", path.display())]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("OOMScoreAdj: Invalid value: 5000"), "{}", stderr(&output));
    assert!(!path.exists());
}
