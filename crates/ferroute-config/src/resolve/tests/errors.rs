use super::*;

/// Resolves the defaults with a change that makes them invalid.
fn errors(change: impl FnOnce(&mut KubeProxyConfiguration)) -> Vec<String> {
    let mut config = defaults();
    change(&mut config);
    config.resolve().expect_err("a bad configuration").0.iter().map(ToString::to_string).collect()
}

#[test]
fn all_errors_are_reported_in_kube_proxys_order() {
    let negative = GoDuration::from_nanos(-1_000_000_000);
    let found = errors(|config| {
        config.iptables.masquerade_bit = Some(32);
        config.mode = "ipvs".into();
        config.ipvs.tcp_timeout = negative;
        config.ipvs.tcp_fin_timeout = negative;
        config.ipvs.udp_timeout = negative;
        config.ipvs.exclude_cidrs = vec!["10.0.0.0/8".into(), "x".into()];
        config.conntrack.max_per_core = Some(-1);
        config.conntrack.min = Some(-2);
        config.conntrack.tcp_established_timeout = Some(negative);
        config.conntrack.tcp_close_wait_timeout = Some(negative);
        config.conntrack.udp_timeout = negative;
        config.conntrack.udp_stream_timeout = negative;
        config.oom_score_adj = Some(1001);
        config.client_connection.burst = -3;
        config.config_sync_period = GoDuration::ZERO;
        config.ipvs.sync_period = negative;
        config.ipvs.min_sync_period = GoDuration::from_nanos(-1);
        config.bind_address = "10.0.0.1:80".into();
        config.healthz_bind_address = "0.0.0.0".into();
        config.metrics_bind_address = "host:99999".into();
        config.port_range = "9-3".into();
        config.node_port_addresses = vec!["10.0.0.0".into(), "primary".into(), "y".into()];
        config.show_hidden_metrics_for_version = "1.34".into();
        config.detect_local_mode = "Magic".into();
        config.logging.format = "xml".into();
        config.hostname_override = "  ".into();
    });
    let conntrack = "KubeProxyConfiguration.KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration";
    let ipvs = "KubeProxyConfiguration.KubeProxyIPVSConfiguration";
    let least = "must be greater than or equal to 0";
    let expected = [
        "KubeProxyConfiguration.KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: 32: must be within the \
         range [0, 31]"
            .to_owned(),
        format!("{ipvs}.TCPTimeout: Invalid value: \"-1s\": {least}"),
        format!("{ipvs}.TCPFinTimeout: Invalid value: \"-1s\": {least}"),
        format!("{ipvs}.UDPTimeout: Invalid value: \"-1s\": {least}"),
        format!("{ipvs}.ExcludeCidrs[1]: Invalid value: \"x\": must be a valid CIDR"),
        format!("{conntrack}.MaxPerCore: Invalid value: -1: {least}"),
        format!("{conntrack}.Min: Invalid value: -2: {least}"),
        format!("{conntrack}.TCPEstablishedTimeout: Invalid value: \"-1s\": {least}"),
        format!("{conntrack}.TCPCloseWaitTimeout: Invalid value: \"-1s\": {least}"),
        format!("{conntrack}.UDPTimeout: Invalid value: \"-1s\": {least}"),
        format!("{conntrack}.UDPStreamTimeout: Invalid value: \"-1s\": {least}"),
        "KubeProxyConfiguration.KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: 1001: must be within the range \
         [-1000, 1000]"
            .to_owned(),
        format!("KubeProxyConfiguration.ClientConnection.Burst: Invalid value: -3: {least}"),
        "KubeProxyConfiguration.ConfigSyncPeriod: Invalid value: \"0s\": must be greater than 0".to_owned(),
        "KubeProxyConfiguration.SyncPeriod: Invalid value: \"-1s\": must be greater than 0".to_owned(),
        format!("KubeProxyConfiguration.MinSyncPeriod: Invalid value: \"-1ns\": {least}"),
        "KubeProxyConfiguration.SyncPeriod: Invalid value: \"-1ns\": must be greater than or equal to \
         KubeProxyConfiguration.MinSyncPeriod"
            .to_owned(),
        "KubeProxyConfiguration.BindAddress: Invalid value: \"10.0.0.1:80\": not a valid textual representation of an \
         IP address"
            .to_owned(),
        "KubeProxyConfiguration.HealthzBindAddress: Invalid value: \"0.0.0.0\": must be IP:port".to_owned(),
        "KubeProxyConfiguration.MetricsBindAddress: Invalid value: \"host\": must be a valid IP".to_owned(),
        "KubeProxyConfiguration.MetricsBindAddress: Invalid value: \"99999\": must be a valid port".to_owned(),
        "KubeProxyConfiguration.NodePortAddresses[0]: Invalid value: \"10.0.0.0\": must be a valid CIDR".to_owned(),
        "KubeProxyConfiguration.NodePortAddresses[2]: Invalid value: \"y\": must be a valid CIDR".to_owned(),
        "KubeProxyConfiguration.ShowHiddenMetricsForVersion: Invalid value: \"1.34\": \
         --show-hidden-metrics-for-version must be omitted or have the value '1.35', '1.36', '1.37'. Only the previous \
         minor version is allowed"
            .to_owned(),
        "KubeProxyConfiguration.DetectLocalMode: Unsupported value: \"Magic\": supported values: \"ClusterCIDR\", \
         \"NodeCIDR\", \"BridgeInterface\", \"InterfaceNamePrefix\", \"\""
            .to_owned(),
        "KubeProxyConfiguration.logging.format: Invalid value: \"xml\": Unsupported log format".to_owned(),
        "KubeProxyConfiguration.HostnameOverride: Invalid value: \"  \": must not be empty".to_owned(),
    ];
    assert_eq!(found, expected);
}

#[test]
fn unknown_mode_is_an_error() {
    let found = errors(|config| config.mode = "userspace".into());
    let expected = "KubeProxyConfiguration.Mode.ProxyMode: Invalid value: \"userspace\": must be iptables, ipvs, \
                    nftables or blank (blank means the best-available proxy [currently iptables])";
    assert_eq!(found, [expected]);
}

#[test]
fn nftables_masquerade_bit_is_validated_in_nftables_mode_only() {
    let change = |config: &mut KubeProxyConfiguration| config.nftables.masquerade_bit = Some(-1);
    assert_eq!(resolve(change).settings.masquerade_bit, 14);
    let found = errors(|config| {
        change(config);
        config.mode = "nftables".into();
    });
    let expected = "KubeProxyConfiguration.KubeProxyNFTablesConfiguration.MasqueradeBit: Invalid value: -1: must be \
                    within the range [0, 31]";
    assert_eq!(found, [expected]);
}

#[test]
fn sync_period_below_the_minimum_is_an_error() {
    let found = errors(|config| config.iptables.min_sync_period = seconds(31));
    let expected = "KubeProxyConfiguration.SyncPeriod: Invalid value: \"31s\": must be greater than or equal to \
                    KubeProxyConfiguration.MinSyncPeriod";
    assert_eq!(found, [expected]);
}

#[test]
fn cluster_cidr_is_one_network_or_a_dual_stack_pair() {
    let field = "KubeProxyConfiguration.DetectLocalConfiguration.ClusterCIDRs";
    let pair = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]";
    let block = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
    for (text, expected) in [
        ("10.0.0.0", vec![format!("{field}[0]: Invalid value: \"10.0.0.0\": {block}")]),
        ("10.0.0.0/8, fd00::/64", vec![format!("{field}[1]: Invalid value: \" fd00::/64\": {block}")]),
        ("10.0.0.0/8,11.0.0.0/8", vec![format!("{field}: Invalid value: [\"10.0.0.0/8\",\"11.0.0.0/8\"]: {pair}")]),
        ("a,b,c", vec![format!("{field}: Invalid value: [\"a\",\"b\",\"c\"]: {pair}")]),
        (
            "a,",
            vec![
                format!("{field}[0]: Invalid value: \"a\": {block}"),
                format!("{field}[1]: Invalid value: \"\": {block}"),
            ],
        ),
    ] {
        assert_eq!(errors(|config| config.cluster_cidr = text.into()), expected);
    }
}

#[test]
fn empty_interface_name_is_an_error() {
    let section = "KubeProxyConfiguration.DetectLocalConfiguration";
    for (mode, field) in [("BridgeInterface", "InterfaceName"), ("InterfaceNamePrefix", "InterfacePrefix")] {
        let found = errors(|config| config.detect_local_mode = mode.into());
        assert_eq!(found, [format!("{section}.{field}: Invalid value: \"\": must not be empty")]);
    }
}

#[test]
fn port_ranges_are_parsed_like_kubernetes() {
    for text in ["", " ", "0", "80", "65535", "0-0", "300-2000", " 1-1 ", "1+2", "65535+2"] {
        assert!(sections::port_range(text).is_some(), "{text:?}");
    }
    for text in ["-", "a", "65536", "1-", "-1", "2-1", "1-65536", "1+", "+2", "1+2+3", "1-2-3"] {
        assert_eq!(sections::port_range(text), None, "{text:?}");
    }
    assert_eq!(sections::port_range(" 300-2000"), Some(Some(300..=2000)));
    assert_eq!(["", "0-0"].map(sections::port_range), [Some(None), Some(None)]);
    assert_eq!(sections::port_range("0-9"), Some(Some(1..=9)));
}

#[test]
fn logging_is_validated_like_kubernetes() {
    let module = |file_pattern: &str, verbosity| VModuleItem { file_pattern: file_pattern.into(), verbosity };
    let found = errors(|config| {
        config.logging.format = "json".into();
        config.logging.verbosity = 1 << 31;
        config.logging.vmodule = vec![module("", 0), module("a=b", 1 << 31)];
        config.logging.options.text.split_stream = true;
        config.logging.options.json.info_buffer_size = "4Ki".parse().expect("a quantity");
    });
    let section = "KubeProxyConfiguration.logging";
    let expected = [
        format!("{section}.verbosity: Invalid value: 2147483648: Must be <= 2147483647"),
        format!("{section}.vmodule: Forbidden: Only supported for text log format"),
        format!("{section}.vmodule[0]: Required value: File pattern must not be empty"),
        format!("{section}.vmodule[1]: Invalid value: \"a=b\": File pattern must not contain equal sign or comma"),
        format!("{section}.vmodule[1]: Invalid value: 2147483648: Must be <= 2147483647"),
        format!("{section}.options.json.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled"),
    ];
    assert_eq!(found, expected);
    let resolved = resolve(|config| {
        config.feature_gates.insert("LoggingAlphaOptions".into(), true);
        config.logging.options.text.split_stream = true;
        config.logging.format = "json".into();
        config.logging.verbosity = 4;
    });
    assert_eq!(resolved.logging, Logging { format: LogFormat::Json, verbosity: 4 });
}

#[test]
fn several_errors_are_formatted_in_brackets_without_duplicates() {
    let mut config = defaults();
    config.bind_address = "x".into();
    let one = "KubeProxyConfiguration.BindAddress: Invalid value: \"x\": not a valid textual representation of an IP \
               address";
    assert_eq!(config.resolve().expect_err("one error").to_string(), one);
    config.oom_score_adj = Some(-1001);
    let two = "KubeProxyConfiguration.KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: -1001: must be within \
               the range [-1000, 1000]";
    let mut errors = config.resolve().expect_err("two errors");
    assert_eq!(errors.to_string(), format!("[{two}, {one}]"));
    errors.0.push(errors.0[0].clone());
    assert_eq!(errors.to_string(), format!("[{two}, {one}]"));
}

#[test]
fn gate_of_all_alpha_features_allows_buffers_of_logs_unless_their_own_gate_forbids_them() {
    for (gates, is_valid) in [
        (&[][..], false),
        (&[("AllAlpha", true)], true),
        (&[("AllAlpha", false)], false),
        (&[("AllAlpha", true), ("LoggingAlphaOptions", false)], false),
        (&[("AllAlpha", false), ("LoggingAlphaOptions", true)], true),
    ] {
        let mut config = KubeProxyConfiguration::default().defaulted();
        config.logging.options.text.info_buffer_size = "4Ki".parse().unwrap();
        config.feature_gates = gates.iter().map(|(name, is_enabled)| ((*name).to_owned(), *is_enabled)).collect();
        assert_eq!(config.resolve().is_ok(), is_valid, "{gates:?}");
    }
}
