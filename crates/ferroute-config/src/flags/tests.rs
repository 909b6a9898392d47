use std::collections::BTreeMap;

use crate::{FlushFrequency, GoDuration, VModuleItem};
use clap::{CommandFactory, FromArgMatches};

use super::*;
use crate::flags::{KubeProxy, RawArgs, RunArgs};

/// The flags of kube-proxy 1.36 with their defaults, except `--help`.
const KUBE_PROXY_FLAGS: [(&str, &str); 65] = [
    ("bind-address", "0.0.0.0"),
    ("bind-address-hard-fail", "false"),
    ("boot-id-file", "/proc/sys/kernel/random/boot_id"),
    ("cleanup", "false"),
    ("cluster-cidr", ""),
    ("config", ""),
    ("config-sync-period", "15m0s"),
    ("conntrack-max-per-core", "32768"),
    ("conntrack-min", "131072"),
    ("conntrack-tcp-be-liberal", "false"),
    ("conntrack-tcp-timeout-close-wait", "1h0m0s"),
    ("conntrack-tcp-timeout-established", "24h0m0s"),
    ("conntrack-udp-timeout", "0s"),
    ("conntrack-udp-timeout-stream", "0s"),
    ("detect-local-mode", ""),
    ("feature-gates", ""),
    ("healthz-bind-address", "0.0.0.0:10256"),
    ("healthz-port", "10256"),
    ("hostname-override", ""),
    ("init-only", "false"),
    ("iptables-localhost-nodeports", "true"),
    ("iptables-masquerade-bit", "14"),
    ("iptables-min-sync-period", "1s"),
    ("iptables-sync-period", "30s"),
    ("ipvs-exclude-cidrs", ""),
    ("ipvs-min-sync-period", "1s"),
    ("ipvs-scheduler", ""),
    ("ipvs-strict-arp", "false"),
    ("ipvs-sync-period", "30s"),
    ("ipvs-tcp-timeout", "0s"),
    ("ipvs-tcpfin-timeout", "0s"),
    ("ipvs-udp-timeout", "0s"),
    ("kube-api-burst", "10"),
    ("kube-api-content-type", "application/vnd.kubernetes.protobuf"),
    ("kube-api-qps", "5"),
    ("kubeconfig", ""),
    ("log-flush-frequency", "5s"),
    ("log-json-info-buffer-size", "0"),
    ("log-json-split-stream", "false"),
    ("log-text-info-buffer-size", "0"),
    ("log-text-split-stream", "false"),
    ("logging-format", "text"),
    ("machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id"),
    ("masquerade-all", "false"),
    ("master", ""),
    ("metrics-bind-address", "127.0.0.1:10249"),
    ("metrics-port", "10249"),
    ("nodeport-addresses", ""),
    ("oom-score-adj", "-999"),
    ("pod-bridge-interface", ""),
    ("pod-interface-name-prefix", ""),
    ("profiling", "false"),
    ("proxy-mode", ""),
    ("proxy-port-range", ""),
    ("show-hidden-metrics-for-version", ""),
    ("v", "0"),
    ("version", ""),
    ("vmodule", ""),
    ("write-config-to", ""),
    // Windows.
    ("enable-dsr", "false"),
    ("forward-healthcheck-vip", "false"),
    ("network-name", ""),
    ("root-hnsendpoint-name", ""),
    ("source-vip", ""),
    ("windows-service", "false"),
];

fn parse(arguments: &[&str]) -> Result<RawArgs<RunArgs>, clap::Error> {
    let line = ["kube-proxy"].iter().chain(arguments);
    let mut matches = KubeProxy::command().try_get_matches_from(line)?;
    Ok(KubeProxy::from_arg_matches_mut(&mut matches)?.run)
}

/// Merges a command line into the defaults.
#[track_caller]
fn merged(arguments: &[&str]) -> KubeProxyConfiguration {
    let mut config = KubeProxyConfiguration::default().defaulted();
    parse(arguments).expect("a command line").args.proxy.merge_into(&mut config);
    config
}

#[test]
fn flags_and_defaults_are_kube_proxys() {
    let expected: BTreeMap<&str, &str> = KUBE_PROXY_FLAGS.into();
    let command = ProxyFlags::augment_args(Command::new("flags"));
    let flags: BTreeMap<&str, String> = command
        .get_arguments()
        .map(|flag| {
            let defaults: Vec<_> = flag.get_default_values().iter().map(|text| text.to_string_lossy()).collect();
            (flag.get_long().expect("a long name"), defaults.join(","))
        })
        .collect();
    assert_eq!(flags, expected.into_iter().map(|(name, text)| (name, text.to_owned())).collect());
}

#[test]
fn compat_table_has_every_flag_with_its_default() {
    let text = include_str!("../../../../docs/compat.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `--"));
    let documented: Vec<(&str, &str)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split(" | ").collect();
            let [name, default, effect] = cells.as_slice() else { panic!("not three cells: {row}") };
            assert!(effect.len() > "| ".len(), "no effect: {row}");
            (name.trim_end_matches('`'), default.trim_matches('`'))
        })
        .collect();
    let mut expected: Vec<_> = KUBE_PROXY_FLAGS.into_iter().chain([("help", "")]).collect();
    expected.sort_unstable();
    assert_eq!(documented, expected);
}

#[test]
fn flag_names_are_unique_and_have_help_texts() {
    // Checks for duplicate names and other mistakes.
    KubeProxy::command().debug_assert();
    for flag in RunArgs::augment_args(Command::new("flags")).get_arguments() {
        let help = flag.get_help().expect("a help text").to_string();
        assert!(help.len() > 10 && !help.ends_with('.'), "{}: {help}", flag.get_id());
    }
}

#[test]
fn flags_effective_with_a_file_exist() {
    assert!(EFFECTIVE_WITH_CONFIG.iter().all(|name| is_kube_proxy_flag(name)));
    assert!(!is_kube_proxy_flag("manifests"));
}

#[test]
fn default_flags_change_only_the_minimum_sync_periods() {
    let mut expected = KubeProxyConfiguration::default().defaulted();
    // As in kube-proxy, whose flags have the same default in all modes.
    expected.iptables.min_sync_period = GoDuration::from_secs(1);
    expected.nftables.min_sync_period = GoDuration::from_secs(1);
    expected.ipvs.min_sync_period = GoDuration::from_secs(1);
    assert_eq!(merged(&[]), expected);
}

#[test]
fn every_flag_sets_its_field() {
    let seconds = GoDuration::from_secs;
    let config = merged(&[
        "--bind-address=10.0.0.9",
        "--bind-address-hard-fail",
        "--cluster-cidr=10.1.0.0/16,fd00:1::/48",
        "--config-sync-period=61s",
        "--conntrack-max-per-core=1",
        "--conntrack-min=2",
        "--conntrack-tcp-be-liberal",
        "--conntrack-tcp-timeout-close-wait=3s",
        "--conntrack-tcp-timeout-established=4s",
        "--conntrack-udp-timeout=5s",
        "--conntrack-udp-timeout-stream=6s",
        "--detect-local-mode=NodeCIDR",
        "--feature-gates=A=true,B=false",
        "--healthz-bind-address=127.0.0.1:1",
        "--hostname-override=node-1",
        "--iptables-localhost-nodeports=false",
        "--iptables-masquerade-bit=7",
        "--iptables-min-sync-period=8s",
        "--iptables-sync-period=9s",
        "--ipvs-exclude-cidrs=10.9.0.0/16",
        "--ipvs-min-sync-period=10s",
        "--ipvs-scheduler=lc",
        "--ipvs-strict-arp",
        "--ipvs-sync-period=11s",
        "--ipvs-tcp-timeout=12s",
        "--ipvs-tcpfin-timeout=13s",
        "--ipvs-udp-timeout=14s",
        "--kube-api-burst=15",
        "--kube-api-content-type=application/json",
        "--kube-api-qps=16.5",
        "--kubeconfig=/k",
        "--log-flush-frequency=17s",
        "--log-json-info-buffer-size=18Ki",
        "--log-json-split-stream",
        "--log-text-info-buffer-size=19",
        "--log-text-split-stream",
        "--logging-format=json",
        "--masquerade-all",
        "--metrics-bind-address=127.0.0.1:2",
        "--nodeport-addresses=10.0.0.0/8",
        "--oom-score-adj=20",
        "--pod-bridge-interface=cbr0",
        "--pod-interface-name-prefix=veth",
        "--profiling",
        "--proxy-mode=ipvs",
        "--proxy-port-range=1-2",
        "--show-hidden-metrics-for-version=1.35",
        "-v=4",
        "--vmodule=proxier=6",
        "--enable-dsr",
        "--forward-healthcheck-vip",
        "--network-name=net",
        "--root-hnsendpoint-name=root",
        "--source-vip=10.0.0.1",
        "--windows-service",
    ]);
    let mut expected = KubeProxyConfiguration::default().defaulted();
    expected.bind_address = "10.0.0.9".into();
    expected.bind_address_hard_fail = true;
    expected.cluster_cidr = "10.1.0.0/16,fd00:1::/48".into();
    expected.config_sync_period = seconds(61);
    expected.conntrack.max_per_core = Some(1);
    expected.conntrack.min = Some(2);
    expected.conntrack.tcp_be_liberal = true;
    expected.conntrack.tcp_close_wait_timeout = Some(seconds(3));
    expected.conntrack.tcp_established_timeout = Some(seconds(4));
    expected.conntrack.udp_timeout = seconds(5);
    expected.conntrack.udp_stream_timeout = seconds(6);
    expected.detect_local_mode = "NodeCIDR".into();
    expected.feature_gates = [("A".into(), true), ("B".into(), false)].into();
    expected.healthz_bind_address = "127.0.0.1:1".into();
    expected.hostname_override = "node-1".into();
    expected.iptables.localhost_node_ports = Some(false);
    expected.iptables.masquerade_all = true;
    expected.iptables.masquerade_bit = Some(7);
    expected.iptables.min_sync_period = seconds(8);
    expected.iptables.sync_period = seconds(9);
    expected.nftables.min_sync_period = seconds(8);
    expected.nftables.sync_period = seconds(9);
    expected.ipvs.exclude_cidrs = vec!["10.9.0.0/16".into()];
    expected.ipvs.min_sync_period = seconds(10);
    expected.ipvs.scheduler = "lc".into();
    expected.ipvs.strict_arp = true;
    expected.ipvs.sync_period = seconds(11);
    expected.ipvs.tcp_timeout = seconds(12);
    expected.ipvs.tcp_fin_timeout = seconds(13);
    expected.ipvs.udp_timeout = seconds(14);
    expected.client_connection.burst = 15;
    expected.client_connection.content_type = "application/json".into();
    expected.client_connection.qps = 16.5;
    expected.client_connection.kubeconfig = "/k".into();
    expected.logging.flush_frequency = FlushFrequency::Text(seconds(17));
    expected.logging.options.json.info_buffer_size = "18Ki".parse().expect("a size");
    expected.logging.options.json.split_stream = true;
    expected.logging.options.text.info_buffer_size = "19".parse().expect("a size");
    expected.logging.options.text.split_stream = true;
    expected.logging.format = "json".into();
    expected.nftables.masquerade_all = true;
    expected.metrics_bind_address = "127.0.0.1:2".into();
    expected.node_port_addresses = vec!["10.0.0.0/8".into()];
    expected.oom_score_adj = Some(20);
    expected.detect_local.bridge_interface = "cbr0".into();
    expected.detect_local.interface_name_prefix = "veth".into();
    expected.enable_profiling = true;
    expected.mode = "ipvs".into();
    expected.port_range = "1-2".into();
    expected.show_hidden_metrics_for_version = "1.35".into();
    expected.logging.verbosity = 4;
    expected.logging.vmodule = vec![VModuleItem { file_pattern: "proxier".into(), verbosity: 6 }];
    expected.winkernel.enable_dsr = true;
    expected.winkernel.forward_health_check_vip = true;
    expected.winkernel.network_name = "net".into();
    expected.winkernel.root_hns_endpoint_name = "root".into();
    expected.winkernel.source_vip = "10.0.0.1".into();
    expected.windows_run_as_service = true;
    assert_eq!(config, expected);
}

#[test]
fn go_syntax_is_accepted() {
    // Spellings of the same command line.
    for arguments in [
        &["--masquerade-all", "--oom-score-adj=-5", "--proxy-mode=nftables"][..],
        &["--masquerade-all=true", "--oom-score-adj", "-5", "--proxy-mode", "nftables"],
        &["--masquerade_all=T", "--oom_score_adj=-5", "--proxy_mode=nftables"],
        &["--masquerade-all=0", "--oom-score-adj=3", "--masquerade-all=1", "--oom-score-adj=-5", "--mode=nftables"],
    ] {
        let config = merged(arguments);
        assert_eq!(
            (config.nftables.masquerade_all, config.oom_score_adj, config.mode.as_str()),
            (true, Some(-5), "nftables"),
            "{arguments:?}"
        );
    }
    for arguments in [["-v=4"].as_slice(), &["-v4"], &["-v", "4"], &["--v=4"], &["--v", "4"], &["--verbosity=4"]] {
        assert_eq!(merged(arguments).logging.verbosity, 4, "{arguments:?}");
    }
    assert!(!merged(&["--iptables-localhost-nodeports=False"]).iptables.localhost_node_ports.expect("a value"));
}

#[test]
fn lists_are_concatenated_and_empty_values_are_empty_lists() {
    let addresses = |arguments: &[&str]| merged(arguments).node_port_addresses;
    assert_eq!(
        addresses(&["--nodeport-addresses=10.0.0.0/8,fd00::/8", "--nodeport-addresses", "192.168.0.0/16"]),
        ["10.0.0.0/8", "fd00::/8", "192.168.0.0/16"]
    );
    assert!(addresses(&["--nodeport-addresses="]).is_empty());
    assert_eq!(addresses(&["--nodeport-addresses=\"10.0.0.0/8\",\"11.0.0.0/8\""]), ["10.0.0.0/8", "11.0.0.0/8"]);
    for flag in ["--nodeport-addresses=10.0.0.0/8,", "--nodeport-addresses=10.0.0.0/8,,11.0.0.0/8"] {
        assert!(merged(&[flag]).resolve().is_err(), "an empty item is not a network: {flag}");
    }
    let excluded = merged(&["--proxy-mode=ipvs", "--ipvs-exclude-cidrs=10.0.0.0/8,"]);
    assert!(excluded.resolve().is_err());
    let gates = merged(&["--feature-gates=A=true,B=true", "--feature-gates=B=false"]).feature_gates;
    assert_eq!(gates, [("A".to_owned(), true), ("B".to_owned(), false)].into());
    let empty = merged(&["--feature-gates=", "--vmodule=", "--ipvs-exclude-cidrs="]);
    assert_eq!(empty, merged(&[]));
    assert_eq!(merged(&["--vmodule=a=1,b=2,"]).logging.vmodule.len(), 2);
}

#[test]
fn addresses_get_deprecated_ports_and_empty_addresses_disable_servers() {
    let addresses = |arguments: &[&str]| {
        let config = merged(arguments);
        [config.healthz_bind_address, config.metrics_bind_address]
    };
    assert_eq!(addresses(&["--healthz-port=1", "--metrics-port=2"]), ["0.0.0.0:10256", "127.0.0.1:10249"]);
    assert_eq!(
        addresses(&["--healthz-bind-address=10.0.0.1", "--healthz-port=1", "--metrics-bind-address=::1"]),
        ["10.0.0.1:1", "[::1]:10249"]
    );
    assert_eq!(addresses(&["--healthz-port=0", "--metrics-bind-address="]), ["", ""]);
    assert_eq!(merged(&["--bind-address="]).bind_address, "0.0.0.0");
}

#[test]
fn protected_node_ports_are_all_none_or_a_list() {
    let ports = |arguments: &[&str]| parse(arguments).expect("a line").args.protect_node_ports.0;
    let all = 1..=u16::MAX;
    for (argument, expected) in [
        ("--protect-node-ports", vec![all.clone()]),
        ("--protect-node-ports=true", vec![all]),
        ("--protect-node-ports=false", vec![]),
        ("--protect-node-ports=", vec![]),
        ("--protect-node-ports=22,10250-10259", vec![22..=22, 10250..=10259]),
        ("--protect_node_ports=1", vec![1..=1]),
    ] {
        assert_eq!(ports(&[argument]), expected, "{argument}");
    }
    assert_eq!(ports(&[]), []);
}

#[test]
fn parse_errors_name_the_flag() {
    for (argument, faults) in [
        ("--masquerade-all=maybe", ["--masquerade-all", "want true or false"]),
        ("--iptables-sync-period=soon", ["--iptables-sync-period", "invalid duration"]),
        ("--oom-score-adj=low", ["--oom-score-adj", "not an integer"]),
        ("--feature-gates=A", ["--feature-gates", "want NAME=true"]),
        ("--vmodule=a=b", ["--vmodule", "want PATTERN=LEVEL"]),
        ("--log-text-info-buffer-size=big", ["--log-text-info-buffer-size", "invalid quantity"]),
        ("--protect-node-ports=ssh", ["--protect-node-ports", "such as 22,10250-10259"]),
        ("--protect-node-ports=9-1", ["--protect-node-ports", "want true, false"]),
        ("--version=new", ["--version", "want true, false or raw"]),
        ("--proxy-mod=iptables", ["--proxy-mod", "a similar argument exists: '--proxy-mode'"]),
        ("--config", ["--config", "a value is required"]),
        ("rules", ["rules", "unexpected argument"]),
    ] {
        let error = parse(&[argument]).expect_err(argument).to_string();
        for fault in faults {
            assert!(error.contains(fault), "{argument}: {error}");
        }
    }
}

#[test]
fn raw_args_keep_given_flags_and_texts() {
    let raw = parse(&["--proxy_mode", "ipvs", "-v2", "--nodeport-addresses=10.0.0.0/8,fd00::/8", "--cleanup"])
        .expect("a line");
    let given: Vec<&str> = raw.flags.given().collect();
    assert_eq!(given, ["cleanup", "nodeport-addresses", "proxy-mode", "v"]);
    let texts: BTreeMap<&str, &str> = raw.flags.iter().collect();
    assert_eq!(texts["proxy-mode"], "ipvs");
    assert_eq!(texts["nodeport-addresses"], "10.0.0.0/8,fd00::/8");
    assert_eq!(texts["cleanup"], "true");
    assert_eq!(texts["oom-score-adj"], "-999");
    assert!(KUBE_PROXY_FLAGS.iter().all(|(name, _)| texts.contains_key(name)));
}

/// Values that kube-proxy 1.36.2 accepts, and those that it rejects: recorded by `kube-proxy FLAG=VALUE --version`.
const VALUES: &[(&str, &[&str], &[&str])] = &[
    (
        "--oom-score-adj",
        &[
            "5",
            "05",
            "0x10",
            "0X10",
            "0x_10",
            "0o17",
            "0O17",
            "017",
            "0_17",
            "0b11",
            "0B11",
            "1_000",
            "0x1_0",
            "-5",
            "+5",
            "-0x1",
            "2147483647",
            "-2147483648",
        ],
        &[
            "08",
            "0b2",
            "0x1__0",
            "0x10_",
            "_1",
            "1_",
            "1__0",
            "+-5",
            "--5",
            "-",
            "+",
            "1e3",
            " 5",
            "5 ",
            "",
            "1.0",
            "٣",
            "2147483648",
            "-2147483649",
        ],
    ),
    ("--iptables-masquerade-bit", &["0xe", "016", "0b1110", "1_4", "+14"], &[]),
    ("--conntrack-min", &["0x10", "1_000", "017"], &["1e3"]),
    ("--conntrack-max-per-core", &["0x10", "1_000"], &[]),
    ("--kube-api-burst", &["0x10", "1_000", "010"], &["9999999999"]),
    ("--healthz-port", &["10256", "0x2810", "1_0256"], &["x", ""]),
    ("--metrics-port", &["0x2809", "10_249"], &["-"]),
    (
        "--kube-api-qps",
        &[
            "5", "1e3", "1E3", "1e+3", "1e-3", "5.", ".5", "1_000", "1_0e1", "1e1_0", "+5", "-5", "inf", "+Inf",
            "-INF", "infinity", "NaN", "nan", "1e38", "1e-60", "0x1p4", "0X1P4", "0x1.8p1", "0x.8p1", "0x1p-2",
            "0x1p+2", "0x_1p4", "0x1_0p4",
        ],
        &[
            ".", "_1", "1_", "1__0", "1_.5", "1._5", "+nan", "-nan", "1e39", "1e", "e1", "0x10", "0x1", "0xp1", "0x1p",
            "0x1p200", "0x1p1.5", "0b1", "0o7", "", "1f", " 1",
        ],
    ),
    ("-v", &["2", "02"], &["+2", "-1", "0x2", "2_0", "2.0", "", "4294967295", "4294967296"]),
    ("--v", &["4", "010"], &["+4"]),
    ("--vmodule", &["a=1", "a=1,b=2", ""], &["a=+1", "a=-1", "a=0x1", "a=1_0", "a", "=1", "a=", "a=4294967296"]),
    (
        "--masquerade-all",
        &["true", "True", "TRUE", "T", "t", "1", "false", "False", "FALSE", "F", "f", "0"],
        &["yes", "no", "on", "tRue", "", "2", " true"],
    ),
    (
        "--iptables-sync-period",
        &[
            "1h2m3.5s",
            "1.5h",
            ".5s",
            "1.s",
            "1us",
            "1µs",
            "1μs",
            "1ns",
            "0",
            "+0",
            "-0",
            "00s",
            "+1s",
            "1h1h",
            "2540400h10m10s",
            "1s500ms",
        ],
        &["00", "0.0", "1d", "1", "1h 2m", "1H", "", "1e3s", "1_0s", ".s", "s", "9999999h"],
    ),
];

#[test]
fn values_are_accepted_and_rejected_as_by_kube_proxy() {
    for (flag, accepted, rejected) in VALUES {
        let accepts = |value: &&str| {
            let argument = format!("{flag}={value}");
            KubeProxy::command().try_get_matches_from(["kube-proxy", &argument]).is_ok()
        };
        let wrong: Vec<_> = accepted.iter().filter(|value| !accepts(value)).collect();
        assert!(wrong.is_empty(), "{flag} rejects {wrong:?}");
        let wrong: Vec<_> = rejected.iter().filter(|value| accepts(value)).collect();
        assert!(wrong.is_empty(), "{flag} accepts {wrong:?}");
    }
}
