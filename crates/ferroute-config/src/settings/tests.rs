use std::{io::Write, thread, time::Duration};

use crate::{LogFormat, Logging, SyncPeriods};
use clap::Parser;
use tempfile::NamedTempFile;

use super::*;
use crate::flags::KubeProxy;

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a file");
    writeln!(file, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{text}").expect("text");
    file
}

/// Loads a file and a command line.
fn load(text: &str, arguments: &[&str]) -> anyhow::Result<Settings> {
    let file = file(text);
    let config = format!("--config={}", file.path().display());
    load_proxy(&KubeProxy::parse_from(["kube-proxy", &config].iter().chain(arguments)).run, &ModeName::KUBE_PROXY)
}

#[test]
fn file_overrides_flags_except_node_name_and_logging() {
    let text = "mode: nftables\nhostnameOverride: of-file\nlogging: {verbosity: 1, format: json, vmodule: []}";
    let flags = ["--proxy-mode=iptables", "--hostname-override=Node-1", "-v=4", "--oom-score-adj=1", "--kubeconfig=/k"];
    let settings = load(text, &flags).expect("settings");
    assert_eq!(settings.resolved.mode.as_str(), "nftables");
    assert_eq!(settings.resolved.node_name.as_deref(), Some("node-1"));
    assert_eq!(settings.resolved.logging, Logging { format: LogFormat::Json, verbosity: 4 });
    assert_eq!(settings.resolved.oom_score_adj, Some(-999));
    assert_eq!(settings.config.client_connection.kubeconfig, "");
    let ignored = ["kubeconfig", "oom-score-adj", "proxy-mode"];
    assert_eq!(settings.warnings, ignored.map(|name| format!("--{name} has no effect: --config is given")));
}

#[test]
fn vmodule_flags_precede_items_of_the_file() {
    let settings = load("logging: {vmodule: [{filePattern: b, verbosity: 2}]}", &["--vmodule=a=1"]).expect("settings");
    let patterns: Vec<&str> = settings.config.logging.vmodule.iter().map(|item| item.file_pattern.as_str()).collect();
    assert_eq!(patterns, ["a", "b"]);
}

#[test]
fn flags_without_a_file_apply_and_those_without_effect_cause_warnings() {
    let line = ["kube-proxy", "--proxy-mode=nftables", "--enable-dsr", "--healthz-port=1", "--healthz-bind-address=::"];
    let settings = load_proxy(&KubeProxy::parse_from(line).run, &ModeName::KUBE_PROXY).expect("settings");
    assert_eq!(settings.resolved.mode.as_str(), "nftables");
    assert_eq!(settings.resolved.healthz, Some("[::]:1".parse().expect("an address")));
    assert_eq!(
        settings.warnings,
        [
            "--healthz-port is deprecated: set the port in --healthz-bind-address",
            "winkernel.enableDSR has no effect: it applies to Windows only"
        ]
    );
}

#[test]
fn syncs_are_paced_by_their_cost_unless_a_minimum_interval_is_configured() {
    let (second, by_cost) = (Duration::from_secs(1), true);
    for mode in ["iptables", "nftables", "ipvs"] {
        for (period, expected) in [
            (None, SyncPeriods { period: second * 30, min_period: second, by_cost }),
            (Some("0s"), SyncPeriods { period: second * 30, min_period: second, by_cost }),
            (Some("1s"), SyncPeriods { period: second * 30, min_period: second, by_cost: false }),
            (Some("1ms"), SyncPeriods { period: second * 30, min_period: Duration::from_millis(1), by_cost: false }),
        ] {
            let section = period.map(|period| format!("{mode}: {{minSyncPeriod: {period}}}")).unwrap_or_default();
            let settings = load(&format!("mode: {mode}\n{section}"), &[]).expect("settings");
            assert_eq!(settings.resolved.sync, expected, "{mode} {period:?}");
        }
    }
    for (mode, flag) in [
        ("iptables", "--iptables-min-sync-period"),
        ("nftables", "--iptables-min-sync-period"),
        ("ipvs", "--ipvs-min-sync-period"),
    ] {
        for (value, by_cost) in [(None, true), (Some("0"), true), (Some("1s"), false)] {
            let mode = format!("--proxy-mode={mode}");
            let value = value.map(|value| format!("{flag}={value}"));
            let line = ["kube-proxy", &mode].into_iter().chain(value.as_deref());
            let settings = load_proxy(&KubeProxy::parse_from(line).run, &ModeName::KUBE_PROXY).expect("settings");
            assert_eq!(settings.resolved.sync.by_cost, by_cost, "{mode} {value:?}");
        }
    }
    // kube-proxy's default of 1 s is more than the period.
    assert!(load("mode: nftables\nnftables: {syncPeriod: 500ms}", &[]).is_err());
    assert!(load("mode: ipvs\nipvs: {syncPeriod: 500ms}", &[]).is_ok());
}

#[test]
fn sync_period_flags_of_iptables_mode_apply_in_every_mode_but_ipvs() {
    let load = |mode: &str, flags: &[&str]| {
        let mode = format!("--proxy-mode={mode}");
        let line = ["kube-proxy", &mode].into_iter().chain(flags.iter().copied());
        load_proxy(&KubeProxy::parse_from(line).run, &ModeName::KUBE_PROXY)
    };
    let of_iptables = ["--iptables-sync-period=7s", "--iptables-min-sync-period=3s"];
    let of_ipvs = ["--ipvs-sync-period=9s", "--ipvs-min-sync-period=4s"];
    for (mode, period, min_period) in [("iptables", 7, 3), ("nftables", 7, 3), ("ipvs", 9, 4)] {
        let sync = load(mode, &[of_iptables, of_ipvs].concat()).expect("settings").resolved.sync;
        let (period, min_period) = (Duration::from_secs(period), Duration::from_secs(min_period));
        assert_eq!(sync, SyncPeriods { period, min_period, by_cost: false }, "{mode}");
    }
    for flag in ["--iptables-sync-period=0s", "--iptables-sync-period=-1s", "--iptables-min-sync-period=40s"] {
        for (mode, is_valid) in [("iptables", false), ("nftables", false), ("ipvs", true)] {
            assert_eq!(load(mode, &[flag]).is_ok(), is_valid, "{mode} {flag}");
        }
    }
}

#[test]
fn files_without_an_end_are_refused() {
    let run = KubeProxy::parse_from(["kube-proxy", "--config=/dev/zero"]).run;
    let error = load_proxy(&run, &ModeName::KUBE_PROXY).err().expect("an error");
    assert_eq!(format!("{error:#}"), "cannot read configuration file /dev/zero: it is longer than 16 MiB");
}

#[test]
fn pipes_are_read_to_their_end_but_not_for_ever() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let error = |result: io::Result<String>| result.expect_err("an error").to_string();
    assert_eq!(error(read_text_within(&path, Duration::from_millis(20))), "it has no end within 20ms", "no writer");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = File::options().write(true).open(&path).expect("the pipe");
            for part in ["mode: ", "ipvs"] {
                writer.write_all(part.as_bytes()).expect("a reader");
                thread::sleep(Duration::from_millis(20));
            }
        });
        assert_eq!(read_text(&path).expect("text"), "mode: ipvs");
    });
}

#[test]
fn errors_are_on_one_line_with_a_position() {
    for (text, faults) in [
        ("mode: [ipvs", &["line 3", "cannot decode configuration file"][..]),
        ("mode: userspace", &["Mode.ProxyMode", "userspace"]),
    ] {
        let error = load(text, &[]).err().expect("an error");
        let line = format!("{error:#}");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(faults.iter().all(|fault| line.contains(fault)), "{line}");
    }
}
