mod docs;
mod printing;

use std::collections::BTreeMap;

use super::*;
use crate::{
    ClientConnectionConfiguration, ConntrackConfiguration, DetectLocalConfiguration, FlushFrequency, GoDuration,
    IpTablesConfiguration, IpvsConfiguration, LogFormatOptions, LoggingConfiguration, NfTablesConfiguration,
    OutputRoutingOptions, Quantity, VModuleItem, WinkernelConfiguration,
};

/// Prepends apiVersion and kind.
fn file(text: &str) -> String {
    format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{text}")
}

#[track_caller]
fn read(text: &str) -> Decoded {
    KubeProxyConfiguration::from_text(text).expect("a configuration")
}

fn decode(text: &str) -> Decoded {
    read(&file(text))
}

/// Returns a configuration without violations.
fn without_violations(config: KubeProxyConfiguration) -> Decoded {
    Decoded { config, violations: Vec::new() }
}

fn decode_error(text: &str) -> String {
    let error = KubeProxyConfiguration::from_text(text).expect_err("no configuration");
    match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn violations(text: &str) -> String {
    decode(text).strict().expect_err("violations").to_string()
}

#[test]
fn file_without_fields_decodes_to_the_default() {
    assert_eq!(decode(""), without_violations(KubeProxyConfiguration::default()));
}

#[test]
fn null_means_not_set_for_every_field() {
    let header = ["apiVersion", "kind"];
    let nulls = |fields: &Value| -> Value {
        let names = fields.as_object().expect("an object").keys().filter(|name| !header.contains(&name.as_str()));
        names.map(|name| (name.clone(), Value::Null)).collect::<serde_json::Map<_, _>>().into()
    };
    let printed = serde_json::to_value(every_field()).expect("a value");
    let mut texts = vec![nulls(&printed)];
    for (name, section) in printed.as_object().expect("an object") {
        // The keys of featureGates are not fields.
        if section.is_object() && name != "featureGates" {
            texts.push(serde_json::json!({ name: nulls(section) }));
        }
    }
    assert_eq!(texts.len(), 9);
    for mut value in texts {
        value["apiVersion"] = ApiVersion::TEXT.into();
        value["kind"] = Kind::TEXT.into();
        let text = value.to_string();
        assert_eq!(read(&text), without_violations(KubeProxyConfiguration::default()), "{text}");
    }
}

#[test]
fn kubeadms_configuration_is_decoded_without_violations() {
    // Another test starts a proxy with this file.
    let decoded = read(include_str!("tests/kubeadm.yaml"));
    let expected = KubeProxyConfiguration {
        bind_address: "0.0.0.0".into(),
        client_connection: ClientConnectionConfiguration {
            kubeconfig: "/var/lib/kube-proxy/kubeconfig.conf".into(),
            ..Default::default()
        },
        cluster_cidr: "10.244.0.0/16".into(),
        ..Default::default()
    };
    assert_eq!(decoded, without_violations(expected));
    assert!(decoded.config.defaulted().resolve().is_ok());
}

#[test]
fn every_field_is_decoded_from_json() {
    let text = serde_json::to_string_pretty(&every_field()).expect("JSON").replace("  ", "\t");
    assert_eq!(read(&text), without_violations(every_field()));
}

#[test]
fn yaml_flow_style_is_not_mistaken_for_json() {
    let text = "{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, mode: ipvs,}";
    assert_eq!(read(text).config.mode, "ipvs");
}

#[test]
fn scalars_follow_yaml_1_1_as_in_kubernetes() {
    let config = decode("iptables: {masqueradeAll: yes, masqueradeBit: 010}\nenableProfiling: off").config;
    assert!(config.iptables.masquerade_all && !config.enable_profiling);
    assert_eq!(config.iptables.masquerade_bit, Some(8));
}

/// Helm and other templates print integers of more than six digits as `1e+06`.
#[test]
fn whole_numbers_of_any_form_are_integers_in_yaml_as_in_kube_proxy() {
    for (text, value) in
        [("1e+06", 1_000_000), ("1.31072e+05", 131_072), ("1.0", 1), ("5.", 5), ("0.5e1", 5), ("-0.0", 0), ("08", 8)]
    {
        let config = decode(&format!("conntrack: {{maxPerCore: {text}}}\nlogging: {{verbosity: {text}}}")).config;
        assert_eq!(config.conntrack.max_per_core, Some(value), "{text}");
        assert_eq!(i32::try_from(config.logging.verbosity), Ok(value), "{text}");
    }
    for text in ["1.5", ".5", "1e40", "2147483648.0", "'5'", ".inf"] {
        let config = file(&format!("conntrack: {{maxPerCore: {text}}}"));
        assert!(KubeProxyConfiguration::from_text(&config).is_err(), "{text}");
    }
    assert_eq!(decode("clientConnection: {qps: 5.5}").config.client_connection.qps, 5.5);
    // kube-proxy does not convert JSON.
    let json =
        r#"{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "oomScoreAdj": 5.0}"#;
    assert!(KubeProxyConfiguration::from_text(json).is_err());
}

#[test]
fn unknown_and_duplicate_fields_are_reported_by_path() {
    let text = "mode: ipvs
Mode: nftables
iptables:
  masqueradeBit: 3
  foo: {bar: 1, bar: 2}
  masqueradeBit: 4
  masqueradeBit: 5
logging:
  vmodule:
  - {filePattern: a, level: 3}
udpIdleTimeouts: null
mode: iptables
";
    assert_eq!(
        violations(text),
        "strict decoding error: duplicate field \"iptables.foo.bar\", duplicate field \"iptables.masqueradeBit\", \
         duplicate field \"mode\", unknown field \"Mode\", unknown field \"iptables.foo\", \
         unknown field \"logging.vmodule[0].level\", unknown field \"udpIdleTimeouts\""
    );
    let config = decode(text).config;
    assert_eq!((config.mode.as_str(), config.iptables.masquerade_bit), ("iptables", Some(5)));
}

/// kube-proxy no longer has this field.
#[test]
fn idle_timeout_of_any_form_is_ignored_except_in_userspace_mode() {
    for value in ["0", "250", "soon", "[1s]", "{a: 1}", "true"] {
        for (mode, is_ignored) in [("iptables", true), ("nftables", true), ("", true), ("userspace", false)] {
            let text = file(&format!("mode: \"{mode}\"\nudpIdleTimeout: {value}"));
            let decoded = KubeProxyConfiguration::from_text(&text);
            assert_eq!(decoded.is_ok(), is_ignored, "{mode} {value}");
            if let Ok(decoded) = decoded {
                assert_eq!(decoded.config.udp_idle_timeout, None);
                assert_eq!(decoded.violations, [Violation::Unknown("udpIdleTimeout".into())]);
            }
        }
    }
    for value in ["1s", "\"0\"", "null"] {
        assert!(read(&file(&format!("mode: iptables\nudpIdleTimeout: {value}"))).violations.is_empty(), "{value}");
    }
}

#[test]
fn duplicate_fields_in_json_are_reported() {
    let text = r#"{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "ipvs": {"scheduler": "rr", "scheduler": "lc"}}"#;
    let decoded = read(text);
    assert_eq!(decoded.violations, [Violation::Duplicate("ipvs.scheduler".into())]);
    assert_eq!(decoded.config.ipvs.scheduler, "lc");
}

#[test]
fn only_the_first_document_is_decoded_and_empty_ones_are_ignored() {
    assert_eq!(violations("mode: ipvs\n---\nmode: nftables\n"), "strict decoding error: 2 YAML documents (want 1)");
    assert_eq!(decode("mode: ipvs\n---\n---\n# nothing\n").violations, []);
}

#[test]
fn other_versions_and_kinds_are_rejected() {
    let found = |api_version, kind| {
        format!(
            "failed to decode configuration: got apiVersion {api_version:?}, kind {kind:?} (want \
             \"kubeproxy.config.k8s.io/v1alpha1\", \"KubeProxyConfiguration\")"
        )
    };
    for (text, message) in [
        ("", found("", "")),
        ("just text", found("", "")),
        ("- a list", found("", "")),
        ("mode: ipvs", found("", "")),
        ("apiVersion: v1\nkind: [Service]", found("v1", "")),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration",
            found("kubeproxy.config.k8s.io/v1alpha2", "KubeProxyConfiguration"),
        ),
    ] {
        assert_eq!(decode_error(text), message);
    }
}

#[test]
fn type_error_names_the_field() {
    for (text, message) in [
        ("mode: 7", "field \"mode\": invalid type: integer `7`, expected a string"),
        (
            "iptables: {masqueradeBit: four}",
            "field \"iptables.masqueradeBit\": invalid type: string \"four\", expected i32",
        ),
        (
            "iptables: {masqueradeBit: 3000000000}",
            "field \"iptables.masqueradeBit\": invalid value: integer `3000000000`, expected i32",
        ),
        ("ipvs: {syncPeriod: 1d}", "field \"ipvs.syncPeriod\": unknown unit \"d\" in duration \"1d\""),
        (
            "ipvs: {syncPeriod: 30}",
            "field \"ipvs.syncPeriod\": invalid type: integer `30`, expected a duration such as 1h30m",
        ),
        ("nodePortAddresses: [10.0.0.0/8, {}]", "field \"nodePortAddresses[1]\": invalid type: map, expected a string"),
        ("featureGates: {A: 1}", "field \"featureGates.A\": invalid type: integer `1`, expected a boolean"),
    ] {
        assert_eq!(decode_error(&file(text)), format!("failed to decode configuration: {message}"));
    }
}

#[test]
fn syntax_error_has_a_position() {
    let message = decode_error("mode: [ipvs\nkind: x");
    assert!(message.starts_with("failed to decode configuration: not valid YAML or JSON: "), "{message}");
    assert!(message.contains("line 2"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}

/// Returns a configuration with nonzero values in all fields.
fn every_field() -> KubeProxyConfiguration {
    let seconds = GoDuration::from_secs;
    KubeProxyConfiguration {
        api_version: ApiVersion,
        bind_address: "fd00::5".into(),
        bind_address_hard_fail: true,
        client_connection: ClientConnectionConfiguration {
            accept_content_types: "application/json".into(),
            burst: 20,
            content_type: "application/json".into(),
            kubeconfig: "/etc/kubeconfig".into(),
            qps: 7.5,
        },
        cluster_cidr: "10.1.0.0/16,fd00:1::/48".into(),
        config_sync_period: seconds(61),
        conntrack: ConntrackConfiguration {
            max_per_core: Some(0),
            min: Some(0),
            tcp_be_liberal: true,
            tcp_close_wait_timeout: Some(seconds(0)),
            tcp_established_timeout: Some(seconds(2)),
            udp_stream_timeout: seconds(3),
            udp_timeout: seconds(4),
        },
        detect_local: DetectLocalConfiguration {
            bridge_interface: "cbr0".into(),
            interface_name_prefix: "veth".into(),
        },
        detect_local_mode: "NodeCIDR".into(),
        enable_profiling: true,
        feature_gates: BTreeMap::from([("A".into(), true), ("B".into(), false)]),
        healthz_bind_address: "[::1]:1".into(),
        hostname_override: "Node-1".into(),
        iptables: IpTablesConfiguration {
            localhost_node_ports: Some(false),
            masquerade_all: true,
            masquerade_bit: Some(0),
            min_sync_period: seconds(5),
            sync_period: seconds(6),
        },
        ipvs: IpvsConfiguration {
            exclude_cidrs: vec!["10.9.0.0/16".into()],
            min_sync_period: seconds(7),
            scheduler: "lc".into(),
            strict_arp: true,
            sync_period: seconds(8),
            tcp_fin_timeout: seconds(9),
            tcp_timeout: seconds(10),
            udp_timeout: seconds(11),
        },
        kind: Kind,
        logging: LoggingConfiguration {
            flush_frequency: FlushFrequency::Nanoseconds(12),
            format: "json".into(),
            options: LogFormatOptions {
                json: OutputRoutingOptions { info_buffer_size: quantity("4Ki"), split_stream: true },
                text: OutputRoutingOptions { info_buffer_size: quantity("512"), split_stream: true },
            },
            verbosity: 4,
            vmodule: vec![VModuleItem { file_pattern: "proxier".into(), verbosity: 6 }],
        },
        metrics_bind_address: "[::1]:2".into(),
        mode: "nftables".into(),
        nftables: NfTablesConfiguration {
            masquerade_all: true,
            masquerade_bit: Some(31),
            min_sync_period: seconds(13),
            sync_period: seconds(14),
        },
        no_masquerade_cidrs: vec!["10.1.0.0/16".into(), "fd00:1::/48".into()],
        node_port_addresses: vec!["primary".into()],
        oom_score_adj: Some(0),
        port_range: "1-2".into(),
        show_hidden_metrics_for_version: "1.35".into(),
        udp_idle_timeout: Some(seconds(15)),
        windows_run_as_service: true,
        winkernel: WinkernelConfiguration {
            enable_dsr: true,
            forward_health_check_vip: true,
            network_name: "net".into(),
            root_hns_endpoint_name: "root".into(),
            source_vip: "10.0.0.1".into(),
        },
    }
}

fn quantity(text: &str) -> Quantity {
    text.parse().expect("a quantity")
}
