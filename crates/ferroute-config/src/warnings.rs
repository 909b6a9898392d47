use crate::resolve::{EXTERNAL_IPS_GATE, LOGGING_ALPHA_GATE};
use crate::{GoDuration, KubeProxyConfiguration, MediaType, ModeName};

/// A configured field without effect in Ferroute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} has no effect: {reason}")]
pub struct Warning {
    /// The field's path in the file, such as `winkernel.enableDSR`.
    pub field: String,
    /// The reason.
    pub reason: &'static str,
}

impl KubeProxyConfiguration {
    /// Returns the configured fields without effect, in alphabetical order. Fields with default values are omitted.
    pub fn warnings(&self) -> Vec<Warning> {
        let client = &self.client_connection;
        let logging = &self.logging;
        let default_flush = [GoDuration::ZERO, GoDuration::from_secs(5)];
        let default_resync = [GoDuration::ZERO, GoDuration::from_secs(15 * 60)];
        let accepts_none = !client.accept_content_types.is_empty() && client.listed_media_types().is_empty();
        let type_is_other = !client.content_type.is_empty() && MediaType::parse(&client.content_type).is_none();
        let is_userspace = self.mode == ModeName::USERSPACE.as_str();
        let fields = [
            ("configSyncPeriod", !default_resync.contains(&self.config_sync_period), RESYNC),
            ("clientConnection.acceptContentTypes", accepts_none, MEDIA_TYPES),
            ("clientConnection.contentType", type_is_other, MEDIA_TYPES),
            ("logging.flushFrequency", !default_flush.contains(&logging.flush_frequency.duration()), LOG_BUFFER),
            (
                "logging.options.json.infoBufferSize",
                logging.options.json.info_buffer_size.bytes() != Some(0),
                LOG_BUFFER,
            ),
            ("logging.options.json.splitStream", logging.options.json.split_stream, LOG_STREAM),
            (
                "logging.options.text.infoBufferSize",
                logging.options.text.info_buffer_size.bytes() != Some(0),
                LOG_BUFFER,
            ),
            ("logging.options.text.splitStream", logging.options.text.split_stream, LOG_STREAM),
            ("logging.vmodule", !logging.vmodule.is_empty(), "it refers to source files of kube-proxy"),
            ("portRange", !self.port_range.is_empty() && !is_userspace, USERSPACE),
            ("showHiddenMetricsForVersion", !self.show_hidden_metrics_for_version.is_empty(), "no metric is hidden"),
            ("udpIdleTimeout", self.udp_idle_timeout.is_some() && !is_userspace, USERSPACE),
            ("windowsRunAsService", self.windows_run_as_service, WINDOWS),
            ("winkernel.enableDSR", self.winkernel.enable_dsr, WINDOWS),
            ("winkernel.forwardHealthCheckVip", self.winkernel.forward_health_check_vip, WINDOWS),
            ("winkernel.networkName", !self.winkernel.network_name.is_empty(), WINDOWS),
            ("winkernel.rootHnsEndpointName", !self.winkernel.root_hns_endpoint_name.is_empty(), WINDOWS),
            ("winkernel.sourceVip", !self.winkernel.source_vip.is_empty(), WINDOWS),
        ];
        let unused = self.feature_gates.keys().filter(|name| !USED_GATES.contains(&name.as_str()));
        let gates = unused.map(|name| Warning { field: format!("featureGates.{name}"), reason: gate_reason(name) });
        let mut warnings: Vec<Warning> = fields
            .into_iter()
            .filter(|(_, is_set, _)| *is_set)
            .map(|(field, _, reason)| Warning { field: field.to_owned(), reason })
            .chain(gates)
            .collect();
        warnings.sort_by(|one, two| one.field.cmp(&two.field));
        warnings
    }
}

const RESYNC: &str = "watches lose no changes, so there is no periodic resync";
const MEDIA_TYPES: &str = "only protobuf and JSON are supported";
const LOG_BUFFER: &str = "log lines are not buffered";
const LOG_STREAM: &str = "all log lines are written to one stream";

/// Returns the reason why a feature gate has no effect.
fn gate_reason(gate: &str) -> &'static str {
    let known = UNUSED_GATES.iter().find(|(name, _)| *name == gate);
    known.map_or("Ferroute does not have this feature gate", |(_, reason)| reason)
}

/// Gates of kube-proxy without effect, with the reasons.
const UNUSED_GATES: [(&str, &str); 9] = [
    ("AllAlpha", "Ferroute has no other alpha features with gates than LoggingAlphaOptions"),
    ("AllBeta", "Ferroute has no beta features with gates of their own"),
    ("KubeProxyIPVS", "ipvs mode is always available"),
    ("KubeProxyNFTablesLocalhostNodePorts", "nodePortAddresses alone enables node ports on localhost in nftables mode"),
    ("NFTablesNetlink", "nftables mode always uses netlink, and never nft"),
    ("NFTablesProxyMode", "nftables mode is always available"),
    ("PreferSameTrafficDistribution", "the feature is always enabled"),
    ("WinDSR", WINDOWS),
    ("WinOverlay", WINDOWS),
];

const USED_GATES: [&str; 2] = [EXTERNAL_IPS_GATE, LOGGING_ALPHA_GATE];
const USERSPACE: &str = "it applies to userspace mode only";
const WINDOWS: &str = "it applies to Windows only";
