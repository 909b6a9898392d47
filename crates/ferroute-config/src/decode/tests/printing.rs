use proptest::{collection, option, prelude::*};

use super::*;

#[test]
fn defaults_are_printed_like_kube_proxy_except_for_two_quotes() {
    let expected = r#"apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: "0.0.0.0"
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 10
  contentType: application/vnd.kubernetes.protobuf
  kubeconfig: ""
  qps: 5
clusterCIDR: ""
configSyncPeriod: 15m0s
conntrack:
  maxPerCore: 32768
  min: 131072
  tcpBeLiberal: false
  tcpCloseWaitTimeout: 1h0m0s
  tcpEstablishedTimeout: 24h0m0s
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: 0.0.0.0:10256
hostnameOverride: ""
iptables:
  localhostNodePorts: true
  masqueradeAll: false
  masqueradeBit: 14
  minSyncPeriod: 0s
  syncPeriod: 30s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 30s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 5s
  format: text
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: 127.0.0.1:10249
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: 14
  minSyncPeriod: 0s
  syncPeriod: 30s
nodePortAddresses: null
oomScoreAdj: -999
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
"#;
    assert_eq!(KubeProxyConfiguration::default().defaulted().to_yaml(), expected);
}

#[test]
fn fields_are_printed_in_alphabetical_order() {
    fn check(value: &serde_json::Map<String, Value>, text: &str, depth: usize) {
        let printed: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix(&"  ".repeat(depth)))
            .filter(|line| !line.starts_with([' ', '-']))
            .filter_map(|line| line.split(':').next())
            .collect();
        let mut sorted: Vec<&str> = value.keys().map(String::as_str).collect();
        sorted.sort_unstable();
        assert_eq!(printed, sorted);
    }
    let value = serde_json::to_value(every_field()).expect("a value");
    check(value.as_object().expect("an object"), &every_field().to_yaml(), 0);
    for (name, section) in value.as_object().expect("an object") {
        if let (Value::Object(fields), true) = (section, name != "logging" && name != "featureGates") {
            let text = every_field().to_yaml();
            let start = text.find(&format!("\n{name}:\n")).expect("the section") + name.len() + 3;
            let lines: Vec<&str> = text[start..].lines().take_while(|line| line.starts_with(' ')).collect();
            check(fields, &lines.join("\n"), 1);
        }
    }
}

fn duration() -> impl Strategy<Value = GoDuration> {
    any::<i64>().prop_map(GoDuration::from_nanos)
}

/// Any string, often one that YAML could mistake for another type.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[ \t\n\"'#:{}&*!|>%@`,\\[\\]\\-?~0-9a-z]{0,12}",
        prop::sample::select(vec![
            "null", "~", "yes", "off", "1e3", "0x1F", "010", ".inf", "- a", "a: b", "<<", "=", "1_0"
        ])
        .prop_map(str::to_owned),
    ]
}

fn routing() -> impl Strategy<Value = OutputRoutingOptions> {
    ("[0-9]{1,4}(Ki|M|)", any::<bool>())
        .prop_map(|(size, split_stream)| OutputRoutingOptions { info_buffer_size: quantity(&size), split_stream })
}

#[test]
fn configz_has_file_field_names_and_platform_defaults() {
    let config = KubeProxyConfiguration { mode: "nftables".into(), ..Default::default() }.defaulted();
    let shown = config.to_configz();
    let shown = &shown["kubeproxy.config.k8s.io"];
    let expected = serde_json::json!({
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "detectLocalMode": "ClusterCIDR",
        "nodePortAddresses": ["primary"],
        "healthzBindAddress": "0.0.0.0:10256",
        "oomScoreAdj": -999,
    });
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&shown[name], value, "{name}");
    }
    assert_eq!(shown["conntrack"]["tcpEstablishedTimeout"], "24h0m0s");
}

prop_compose! {
    fn logging()(
        flush_frequency in prop_oneof![
            any::<i64>().prop_map(FlushFrequency::Nanoseconds),
            duration().prop_map(FlushFrequency::Text),
        ],
        format in text(),
        json in routing(),
        text in routing(),
        verbosity: u32,
        vmodule in collection::vec(
            (text(), any::<u32>()).prop_map(|(file_pattern, verbosity)| VModuleItem { file_pattern, verbosity }),
            0..3,
        ),
    ) -> LoggingConfiguration {
        LoggingConfiguration { flush_frequency, format, options: LogFormatOptions { json, text }, verbosity, vmodule }
    }
}

prop_compose! {
    fn any_configuration()(
        bind_address in text(),
        (bind_address_hard_fail, enable_profiling, windows_run_as_service, enable_dsr) in any::<(bool, bool, bool, bool)>(),
        (kubeconfig, cluster_cidr, scheduler, mode) in (text(), text(), text(), text()),
        (burst, qps) in (any::<i32>(), any::<f32>().prop_filter("finite", |qps| qps.is_finite())),
        (config_sync_period, udp_timeout, sync_period, tcp_timeout) in (duration(), duration(), duration(), duration()),
        tcp_established_timeout in option::of(duration()),
        (max_per_core, masquerade_bit, oom_score_adj) in any::<(Option<i32>, Option<i32>, Option<i32>)>(),
        localhost_node_ports: Option<bool>,
        feature_gates in collection::btree_map(text(), any::<bool>(), 0..4),
        (exclude_cidrs, node_port_addresses) in (collection::vec(text(), 0..3), collection::vec(text(), 0..3)),
        logging in logging(),
    ) -> KubeProxyConfiguration {
        KubeProxyConfiguration {
            bind_address,
            bind_address_hard_fail,
            enable_profiling,
            windows_run_as_service,
            client_connection: ClientConnectionConfiguration { burst, kubeconfig, qps, ..Default::default() },
            cluster_cidr,
            config_sync_period,
            conntrack: ConntrackConfiguration {
                max_per_core, tcp_established_timeout, udp_timeout, ..Default::default()
            },
            feature_gates,
            iptables: IpTablesConfiguration {
                localhost_node_ports, masquerade_bit, sync_period, ..Default::default()
            },
            ipvs: IpvsConfiguration { exclude_cidrs, scheduler, tcp_timeout, ..Default::default() },
            logging,
            mode,
            node_port_addresses,
            oom_score_adj,
            winkernel: WinkernelConfiguration { enable_dsr, ..Default::default() },
            ..Default::default()
        }
    }
}

proptest! {
    #[test]
    fn printed_configuration_is_decoded_unchanged(config in any_configuration()) {
        let text = config.to_yaml();
        let decoded = KubeProxyConfiguration::from_text(&text).expect(&text);
        prop_assert_eq!(decoded, without_violations(config), "{}", text);
    }

    #[test]
    fn written_configuration_means_the_same_and_is_written_again_unchanged(
        mut config in any_configuration(),
        mode in prop::sample::select(&["", "iptables", "ipvs", "nftables"]),
        periods in any::<[(u16, u16); 3]>(),
    ) {
        let [iptables, ipvs, nftables] = periods.map(|periods| {
            <[u16; 2]>::from(periods).map(|seconds| GoDuration::from_secs(u32::from(seconds % 3)))
        });
        mode.clone_into(&mut config.mode);
        [config.iptables.min_sync_period, config.iptables.sync_period] = iptables;
        [config.ipvs.min_sync_period, config.ipvs.sync_period] = ipvs;
        [config.nftables.min_sync_period, config.nftables.sync_period] = nftables;
        let config = config.defaulted();
        let text = config.for_file().to_yaml();
        let read = KubeProxyConfiguration::from_text(&text).expect(&text).config.defaulted();
        prop_assert_eq!(&read.for_file().to_yaml(), &text);
        prop_assert_eq!(&read.mode, &config.mode);
        // An empty mode stands for one of these.
        for mode in ["iptables", "nftables"] {
            let with_mode = |config: &KubeProxyConfiguration| {
                let mode = if config.mode.is_empty() { mode } else { &config.mode };
                KubeProxyConfiguration { mode: mode.to_owned(), ..config.clone() }.resolve()
            };
            prop_assert_eq!(with_mode(&read), with_mode(&config), "{}", text);
        }
    }

    #[test]
    fn defaulting_is_idempotent(config in any_configuration()) {
        let once = config.defaulted();
        prop_assert_eq!(once.clone().defaulted(), once);
    }

    #[test]
    fn decoding_never_panics(text in any::<String>()) {
        let _ = KubeProxyConfiguration::from_text(&text);
        let _ = KubeProxyConfiguration::from_text(&file(&text));
    }
}
