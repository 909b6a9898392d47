use std::io::Write;

use crate::{LogFormat, Logging};
use clap::Parser;
use tempfile::NamedTempFile;

use super::*;
use crate::flags::KubeProxy;

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a file");
    writeln!(file, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{text}").expect("text");
    file
}

/// What the proxy makes of a file and a command line.
fn load(text: &str, arguments: &[&str]) -> anyhow::Result<Settings> {
    let file = file(text);
    let config = format!("--config={}", file.path().display());
    load_proxy(&KubeProxy::parse_from(["kube-proxy", &config].iter().chain(arguments)).run, &ModeName::OF_KUBE_PROXY)
}

#[test]
fn beside_a_file_only_the_nodes_name_and_logging_count_and_the_rest_is_told() {
    let text = "mode: nftables\nhostnameOverride: of-file\nlogging: {verbosity: 1, format: json, vmodule: []}";
    let flags = ["--proxy-mode=iptables", "--hostname-override=Node-1", "-v=4", "--oom-score-adj=1", "--kubeconfig=/k"];
    let settings = load(text, &flags).expect("settings");
    assert_eq!(settings.resolved.mode.as_str(), "nftables");
    assert_eq!(settings.resolved.node_name.as_deref(), Some("node-1"));
    assert_eq!(settings.resolved.logging, Logging { format: LogFormat::Json, verbosity: 4 });
    assert_eq!(settings.resolved.oom_score_adj, Some(-999));
    assert_eq!(settings.config.client_connection.kubeconfig, "");
    let told = ["kubeconfig", "oom-score-adj", "proxy-mode"];
    assert_eq!(settings.warnings, told.map(|name| format!("--{name} has no effect: with --config, the file tells")));
}

#[test]
fn levels_for_source_files_are_joined_with_those_of_the_command_line_first() {
    let settings = load("logging: {vmodule: [{filePattern: b, verbosity: 2}]}", &["--vmodule=a=1"]).expect("settings");
    let patterns: Vec<&str> = settings.config.logging.vmodule.iter().map(|item| item.file_pattern.as_str()).collect();
    assert_eq!(patterns, ["a", "b"]);
}

#[test]
fn without_a_file_the_command_line_counts_and_what_has_no_effect_is_told() {
    let line = ["kube-proxy", "--proxy-mode=nftables", "--enable-dsr", "--healthz-port=1", "--healthz-bind-address=::"];
    let settings = load_proxy(&KubeProxy::parse_from(line).run).expect("settings");
    assert_eq!(settings.resolved.mode.as_str(), "nftables");
    assert_eq!(settings.resolved.healthz, Some("[::]:1".parse().expect("an address")));
    assert_eq!(
        settings.warnings,
        [
            "--healthz-port is deprecated: give the port in --healthz-bind-address",
            "winkernel.enableDSR has no effect: it is for Windows"
        ]
    );
}

#[test]
fn the_fault_of_a_file_stands_on_one_line_with_its_place() {
    for (text, faults) in [
        ("mode: [ipvs", &["line 3", "cannot use the configuration file"][..]),
        ("mode: userspace", &["Mode.ProxyMode", "userspace"]),
    ] {
        let error = load(text, &[]).err().expect("an error");
        let line = format!("{error:#}");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(faults.iter().all(|fault| line.contains(fault)), "{line}");
    }
}
