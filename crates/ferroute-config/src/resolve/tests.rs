mod errors;

use std::time::Duration;

use ferroute_core::LocalTrafficDetector;

use super::*;
use crate::{FlushFrequency, VModuleItem};

fn defaults() -> KubeProxyConfiguration {
    KubeProxyConfiguration::default().defaulted()
}

/// Resolves the defaults with a change.
fn resolve(change: impl FnOnce(&mut KubeProxyConfiguration)) -> Resolved {
    let mut config = defaults();
    change(&mut config);
    config.resolve().expect("the configuration is valid")
}

fn networks(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().expect("valid test network")).collect()
}

fn seconds(seconds: u32) -> GoDuration {
    GoDuration::from_secs(seconds)
}

#[test]
fn default_mode_is_iptables_with_its_defaults() {
    let expected = Resolved {
        mode: ModeName::IPTABLES,
        userspace: UserspaceSettings { ports: None, udp_idle_timeout: Duration::from_millis(250) },
        ipvs: IpvsSettings::default(),
        settings: ProxySettings {
            detector: LocalTrafficDetector::ClusterCidr(Vec::new()),
            own_listeners: ["0.0.0.0:10256", "127.0.0.1:10249"].map(|text| text.parse().expect("an address")).into(),
            ..ProxySettings::default()
        },
        sync: SyncPeriods { period: Duration::from_secs(30), min_period: Duration::from_secs(1), by_cost: true },
        healthz: Some("0.0.0.0:10256".parse().expect("valid test address")),
        metrics: Some("127.0.0.1:10249".parse().expect("valid test address")),
        bind_address_hard_fail: false,
        node_name: None,
        node_ip: None,
        conntrack: Conntrack {
            limit: Some(ConntrackLimit { per_core: NonZeroU32::new(32768).expect("not zero"), min: 131_072 }),
            tcp_established_timeout: Some(Duration::from_secs(86_400)),
            tcp_close_wait_timeout: Some(Duration::from_secs(3600)),
            ..Conntrack::default()
        },
        oom_score_adj: Some(-999),
        config_sync_period: Duration::from_secs(900),
        logging: Logging { format: LogFormat::Text, verbosity: 0 },
        allow_external_ips: true,
        flags: FlagSettings::default(),
    };
    assert_eq!(defaults().resolve(), Ok(expected));
}

#[test]
fn ipv6_bind_address_in_a_file_changes_the_default_addresses() {
    let config = KubeProxyConfiguration { bind_address: "fd00::5".into(), ..Default::default() };
    let resolved = config.defaulted().resolve().expect("the configuration is valid");
    assert_eq!(resolved.healthz, Some("[::]:10256".parse().expect("valid test address")));
    assert_eq!(resolved.metrics, Some("[::1]:10249".parse().expect("valid test address")));
    assert_eq!(resolved.node_ip, Some("fd00::5".parse().expect("valid test address")));
}

#[test]
fn bind_address_flag_does_not_change_the_default_addresses() {
    let resolved = resolve(|config| config.bind_address = "::".into());
    assert_eq!(resolved.healthz, Some("0.0.0.0:10256".parse().expect("valid test address")));
    assert_eq!(resolved.node_ip, None);
}

#[test]
fn address_without_port_gets_the_default_port_and_empty_address_disables_the_server() {
    let config = KubeProxyConfiguration {
        healthz_bind_address: "10.0.0.5".into(),
        metrics_bind_address: "fd00::5".into(),
        ..Default::default()
    };
    let resolved = config.defaulted().resolve().expect("the configuration is valid");
    assert_eq!(resolved.healthz, Some("10.0.0.5:10256".parse().expect("valid test address")));
    assert_eq!(resolved.metrics, Some("[fd00::5]:10249".parse().expect("valid test address")));

    let resolved = resolve(|config| {
        config.healthz_bind_address.clear();
        config.metrics_bind_address.clear();
    });
    assert_eq!((resolved.healthz, resolved.metrics), (None, None));
}

#[test]
fn each_mode_uses_its_own_section() {
    let in_mode = |mode: &str| {
        resolve(|config| {
            config.mode = mode.into();
            config.iptables.masquerade_all = true;
            config.iptables.masquerade_bit = Some(3);
            config.iptables.sync_period = seconds(10);
            config.iptables.min_sync_period = seconds(2);
            config.ipvs.sync_period = seconds(11);
            config.ipvs.min_sync_period = seconds(3);
            config.nftables.masquerade_bit = Some(4);
            config.nftables.sync_period = seconds(12);
            config.nftables.min_sync_period = seconds(4);
        })
    };
    let summary = |resolved: &Resolved| {
        let settings = &resolved.settings;
        (
            resolved.mode.as_str(),
            (settings.masquerade_all, settings.masquerade_bit, settings.localhost_node_ports),
            settings.node_port_addresses.clone(),
            (resolved.sync.period.as_secs(), resolved.sync.min_period.as_secs()),
        )
    };
    let iptables = ("iptables", (true, 3, true), NodePortAddresses::All, (10, 2));
    assert_eq!(summary(&in_mode("")), iptables);
    assert_eq!(summary(&in_mode("iptables")), iptables);
    assert_eq!(summary(&in_mode("ipvs")), ("ipvs", (true, 3, false), NodePortAddresses::All, (11, 3)));
    assert_eq!(summary(&in_mode("nftables")), ("nftables", (false, 4, false), NodePortAddresses::Primary, (12, 4)));
}

#[test]
fn networks_without_masquerading_apply_in_all_modes() {
    for mode in ["", "iptables", "ipvs", "nftables"] {
        let resolved = resolve(|config| {
            config.mode = mode.into();
            config.no_masquerade_cidrs = vec!["10.244.1.2/16".into(), "fd00:244::/32".into()];
        });
        assert_eq!(resolved.settings.no_masquerade_cidrs, networks(&["10.244.0.0/16", "fd00:244::/32"]));
    }
}

#[test]
fn ipvs_section_is_resolved_in_ipvs_mode_only() {
    let change = |config: &mut KubeProxyConfiguration, mode: &str| {
        config.mode = mode.into();
        config.ipvs.scheduler = "lc".into();
        config.ipvs.strict_arp = true;
        config.ipvs.exclude_cidrs = vec!["10.9.0.1/16".into()];
        config.ipvs.tcp_timeout = seconds(5);
        config.ipvs.udp_timeout = seconds(6);
    };
    let expected = IpvsSettings {
        scheduler: "lc".into(),
        exclude_cidrs: networks(&["10.9.0.0/16"]),
        strict_arp: true,
        tcp_timeout: Some(Duration::from_secs(5)),
        tcp_fin_timeout: None,
        udp_timeout: Some(Duration::from_secs(6)),
    };
    let resolved = resolve(|config| change(config, "ipvs"));
    assert_eq!((resolved.mode, resolved.ipvs), (ModeName::IPVS, expected));
    let resolved = resolve(|config| change(config, ""));
    let scheduler_alone = IpvsSettings { scheduler: "lc".into(), ..IpvsSettings::default() };
    assert_eq!((resolved.mode, resolved.ipvs), (ModeName::IPTABLES, scheduler_alone));
    let bad = |config: &mut KubeProxyConfiguration| config.ipvs.exclude_cidrs = vec!["x".into()];
    assert_eq!(resolve(bad).mode, ModeName::IPTABLES);
}

#[test]
fn local_traffic_detector_follows_detect_local_mode() {
    let detector = |mode: &str| {
        resolve(|config| {
            config.detect_local_mode = mode.into();
            config.cluster_cidr = "10.1.2.3/16,fd00:1::/48".into();
            config.detect_local.bridge_interface = "cbr0".into();
            config.detect_local.interface_name_prefix = "veth".into();
        })
        .settings
        .detector
    };
    let cluster_cidr = LocalTrafficDetector::ClusterCidr(networks(&["10.1.0.0/16", "fd00:1::/48"]));
    assert_eq!(detector(""), cluster_cidr);
    assert_eq!(detector("ClusterCIDR"), cluster_cidr);
    assert_eq!(detector("NodeCIDR"), LocalTrafficDetector::NodeCidr);
    assert_eq!(detector("BridgeInterface"), LocalTrafficDetector::BridgeInterface("cbr0".into()));
    assert_eq!(detector("InterfaceNamePrefix"), LocalTrafficDetector::InterfaceNamePrefix("veth".into()));
}

#[test]
fn cluster_cidr_is_not_validated_unless_used() {
    let resolved = resolve(|config| {
        config.detect_local_mode = "NodeCIDR".into();
        config.cluster_cidr = "nonsense".into();
    });
    assert_eq!(resolved.settings.detector, LocalTrafficDetector::NodeCidr);
}

#[test]
fn node_port_addresses_are_resolved() {
    let addresses = |mode: &str, items: &[&str]| {
        resolve(|config| {
            config.mode = mode.into();
            config.node_port_addresses = items.iter().map(|item| (*item).to_owned()).collect();
        })
        .settings
        .node_port_addresses
    };
    assert_eq!(addresses("iptables", &["primary"]), NodePortAddresses::Primary);
    let within = NodePortAddresses::Within(networks(&["10.0.0.0/8", "fd00::/64"]));
    assert_eq!(addresses("iptables", &["10.1.1.1/8", "fd00::/64"]), within);
    assert_eq!(addresses("nftables", &["10.1.1.1/8", "fd00::/64"]), within);
}

#[test]
fn node_name_is_trimmed_and_in_lower_case() {
    assert_eq!(resolve(|config| config.hostname_override = " Node-1\n".into()).node_name, Some("node-1".into()));
    assert_eq!(canonical_node_name("HOST\n"), Some("host".into()));
    assert_eq!(canonical_node_name(" \n"), None);
}

#[test]
fn conntrack_limit_scales_with_cores_between_the_minimum_and_a_million() {
    let limit = |per_core, min| {
        let resolved = resolve(|config| {
            config.conntrack.max_per_core = Some(per_core);
            config.conntrack.min = Some(min);
        });
        resolved.conntrack.limit.map(|limit| limit.entries(4))
    };
    assert_eq!(limit(32_768, 131_072), Some(131_072));
    assert_eq!(limit(65_536, 131_072), Some(262_144));
    assert_eq!(limit(262_144, 131_072), Some(1_048_576));
    assert_eq!(limit(1_000_000, 131_072), Some(1_048_576));
    assert_eq!(limit(65_536, 2_000_000), Some(2_000_000));
    assert_eq!(limit(0, 131_072), None);
}

#[test]
fn timeout_of_zero_keeps_the_kernels_value() {
    let resolved = resolve(|config| {
        config.conntrack.tcp_established_timeout = Some(GoDuration::ZERO);
        config.conntrack.tcp_close_wait_timeout = None;
        config.conntrack.udp_timeout = seconds(7);
        config.conntrack.tcp_be_liberal = true;
    });
    let expected = Conntrack {
        limit: resolved.conntrack.limit,
        tcp_be_liberal: true,
        udp_timeout: Some(Duration::from_secs(7)),
        ..Conntrack::default()
    };
    assert_eq!(resolved.conntrack, expected);
}

#[test]
fn versions_with_hidden_metrics_are_accepted() {
    for version in ["", "1.35", "1.36", "1.37"] {
        let mut config = defaults();
        config.show_hidden_metrics_for_version = version.to_owned();
        config.resolve().unwrap_or_else(|errors| panic!("{version:?}: {errors}"));
    }
}

#[test]
fn fields_without_effect_are_reported_unless_default() {
    assert_eq!(defaults().warnings(), []);
    assert_eq!(KubeProxyConfiguration::default().warnings(), []);
    let mut config = defaults();
    config.winkernel.enable_dsr = true;
    config.winkernel.source_vip = "10.0.0.1".into();
    config.windows_run_as_service = true;
    config.feature_gates.insert("TopologyAwareHints".into(), true);
    config.feature_gates.insert("AllowServiceExternalIPs".into(), true);
    config.port_range = "1-2".into();
    config.show_hidden_metrics_for_version = "1.35".into();
    config.client_connection.accept_content_types = "text/plain".into();
    config.client_connection.content_type = "text/plain".into();
    config.config_sync_period = seconds(60);
    // Not reported in other modes.
    config.ipvs.strict_arp = true;
    config.logging.flush_frequency = FlushFrequency::Nanoseconds(1);
    config.logging.vmodule = vec![VModuleItem::default()];
    config.logging.options.text.split_stream = true;
    let warnings = config.warnings();
    let fields: Vec<&str> = warnings.iter().map(|warning| warning.field.as_str()).collect();
    let expected = [
        "clientConnection.acceptContentTypes",
        "clientConnection.contentType",
        "configSyncPeriod",
        "featureGates.TopologyAwareHints",
        "logging.flushFrequency",
        "logging.options.text.splitStream",
        "logging.vmodule",
        "portRange",
        "showHiddenMetricsForVersion",
        "windowsRunAsService",
        "winkernel.enableDSR",
        "winkernel.sourceVip",
    ];
    assert_eq!(fields, expected);
    assert_eq!(warnings[10].to_string(), "winkernel.enableDSR has no effect: it applies to Windows only");
}

#[test]
fn fields_of_userspace_mode_have_an_effect_in_that_mode_only() {
    let mut config = KubeProxyConfiguration { port_range: "40000-40009".into(), ..defaults() };
    config.udp_idle_timeout = Some(seconds(3));
    let fields: Vec<String> = config.warnings().into_iter().map(|warning| warning.field).collect();
    assert_eq!(fields, ["portRange", "udpIdleTimeout"]);
    config.mode = "userspace".into();
    assert_eq!(config.warnings(), []);
    let resolved = config.resolve_with(&[ModeName::USERSPACE]).expect("a valid configuration");
    let expected = UserspaceSettings { ports: Some(40000..=40009), udp_idle_timeout: Duration::from_secs(3) };
    assert_eq!((resolved.mode, resolved.userspace), (ModeName::USERSPACE, expected));
    // Invalid values do not prevent other modes.
    for (range, ports) in [("1000+10", Some(1000..=1010)), ("65530+10", Some(65530..=65535)), ("0-0", None)] {
        config.port_range = range.into();
        assert_eq!(config.resolve_with(&[ModeName::USERSPACE]).unwrap().userspace.ports, ports, "{range}");
    }
    for range in ["x", "9-3", "+", "70000"] {
        config.port_range = range.into();
        config.udp_idle_timeout = Some(GoDuration::from_nanos(-1));
        assert!(config.resolve_with(&[ModeName::USERSPACE]).is_err(), "{range}");
        let other = KubeProxyConfiguration { mode: "iptables".into(), ..config.clone() };
        assert!(other.resolve().is_ok(), "{range}");
    }
}

#[test]
fn ipvs_fields_have_an_effect_in_ipvs_mode() {
    let mut config = KubeProxyConfiguration { mode: "ipvs".into(), ..defaults() };
    assert_eq!(config.warnings(), []);
    config.ipvs.exclude_cidrs = vec!["10.9.0.0/16".into()];
    config.ipvs.scheduler = "lc".into();
    config.ipvs.strict_arp = true;
    config.ipvs.tcp_fin_timeout = seconds(1);
    config.ipvs.tcp_timeout = seconds(2);
    config.ipvs.udp_timeout = seconds(3);
    assert_eq!(config.warnings(), []);
}

#[test]
fn localhost_node_ports_in_nftables_mode_require_a_loopback_network() {
    let on_localhost = |mode: &str, addresses: &[&str]| {
        let resolved = resolve(|config| {
            config.mode = mode.to_owned();
            config.node_port_addresses = addresses.iter().map(ToString::to_string).collect();
        });
        resolved.settings.localhost_node_ports
    };
    for (addresses, expected) in [
        (&[][..], false),
        (&["primary"], false),
        (&["192.168.0.0/24"], false),
        (&["0.0.0.0/0"], false),
        (&["::/0", "::1/128"], false),
        (&["192.168.0.0/24", "127.0.0.0/8"], true),
        (&["127.0.0.1/32"], true),
        (&["localhost"], true),
        (&["primary", "localhost"], true),
        (&["all"], false),
    ] {
        assert_eq!(on_localhost("nftables", addresses), expected, "{addresses:?}");
        assert!(on_localhost("iptables", addresses), "{addresses:?}");
    }
}

#[test]
fn feature_gates_that_kube_proxy_accepts_are_honoured_or_ignored() {
    let with = |name: &str, enabled: bool| {
        let mut config = defaults();
        config.feature_gates.insert(name.into(), enabled);
        (config.resolve(), config.warnings().len())
    };
    assert!(defaults().resolve().unwrap().allow_external_ips);
    for (enabled, warnings) in [(true, 0), (false, 0)] {
        let (resolved, count) = with("AllowServiceExternalIPs", enabled);
        assert_eq!((resolved.unwrap().allow_external_ips, count), (enabled, warnings));
    }
    assert_eq!(
        with("PreferSameTrafficDistribution", false).0.unwrap_err().to_string(),
        "featureGates.PreferSameTrafficDistribution: Invalid value: false: disabling this feature is not supported"
    );
    assert!(with("PreferSameTrafficDistribution", true).0.is_ok());
    // Clusters set one list of gates for all components.
    for gate in ["AllAlpha", "AllBeta", "KubeProxyIPVS", "MemoryQoS", "NFTablesNetlink", "RemovedLongAgo", "WinDSR"] {
        for enabled in [true, false] {
            let (resolved, warnings) = with(gate, enabled);
            assert_eq!((resolved.map(|_| ()), warnings), (Ok(()), 1), "{gate}={enabled}");
        }
    }
}

#[test]
fn known_gates_without_effect_say_what_holds_instead() {
    for (gate, word) in [
        ("KubeProxyIPVS", "ipvs"),
        ("KubeProxyNFTablesLocalhostNodePorts", "nodePortAddresses"),
        ("NFTablesNetlink", "netlink"),
        ("NFTablesProxyMode", "nftables"),
    ] {
        for enabled in [true, false] {
            let mut config = defaults();
            config.feature_gates.insert(gate.into(), enabled);
            config.mode = "ipvs".into();
            assert_eq!(config.clone().resolve().map(|resolved| resolved.mode), Ok(ModeName::IPVS), "{gate}");
            let warnings = config.warnings();
            assert!(matches!(&*warnings, [only] if only.reason.contains(word)), "{gate}: {warnings:?}");
        }
    }
}

#[test]
fn keywords_of_node_port_addresses_may_be_mixed_with_networks() {
    let parsed = |items: &[&str]| {
        let items = items.iter().map(ToString::to_string).collect();
        resolve(|config| config.node_port_addresses = items).settings.node_port_addresses
    };
    let within = |list: &[&str]| NodePortAddresses::Within(networks(list));
    let primary_and = |list: &[&str]| NodePortAddresses::PrimaryAnd(networks(list));
    assert_eq!(parsed(&["primary", "primary"]), NodePortAddresses::Primary);
    assert_eq!(parsed(&["primary", "localhost"]), primary_and(&["127.0.0.0/8", "::1/128"]));
    assert_eq!(parsed(&["10.0.0.0/8", "primary"]), primary_and(&["10.0.0.0/8"]));
    assert_eq!(parsed(&["localhost"]), within(&["127.0.0.0/8", "::1/128"]));
    assert_eq!(parsed(&["all", "fd00::/64"]), within(&["0.0.0.0/0", "::/0", "fd00::/64"]));
    for unknown in ["Primary", "public", ""] {
        let config = KubeProxyConfiguration { node_port_addresses: vec![unknown.into()], ..defaults() };
        assert!(config.resolve().is_err(), "{unknown:?}");
    }
}

#[test]
fn scheduler_of_ipvs_mode_is_the_default_method_of_nftables_mode() {
    let method = |mode: &str, traits: &ModeTraits| {
        let resolved = resolve(|config| {
            config.mode = mode.to_owned();
            config.ipvs.scheduler = "rr".to_owned();
        });
        resolved.balancing_defaults(traits).method
    };
    assert_eq!(method("nftables", &ModeTraits::NFTABLES), Some(Method::RoundRobin));
    assert_eq!(method("iptables", &ModeTraits::IPTABLES), None);
    assert_eq!(method("ipvs", &ModeTraits::IPVS), None);
}
