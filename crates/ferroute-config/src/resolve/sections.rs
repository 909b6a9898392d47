use std::{collections::BTreeMap, num::NonZeroU32, ops::RangeInclusive, time::Duration};

use ferroute_core::{IpFamily, LocalTrafficDetector, NodePortAddresses};
use ipnet::IpNet;

use super::{
    ALL_ALPHA_GATE, Conntrack, ConntrackLimit, IpvsSettings, LOGGING_ALPHA_GATE, LogFormat, Logging, not_negative, path,
};
use crate::{
    ConntrackConfiguration, FieldError, FieldErrors, FlushFrequency, GoDuration, IpvsConfiguration,
    KubeProxyConfiguration, LoggingConfiguration, OutputRoutingOptions, address,
};

impl KubeProxyConfiguration {
    pub(super) fn local_traffic_detector(&self, errors: &mut FieldErrors) -> LocalTrafficDetector {
        let section = path("DetectLocalConfiguration");
        match self.detect_local_mode.as_str() {
            "" | "ClusterCIDR" => {
                let cidrs: Vec<&str> = match self.cluster_cidr.as_str() {
                    "" => Vec::new(),
                    text => text.split(',').collect(),
                };
                LocalTrafficDetector::ClusterCidr(cluster_cidrs(errors, &format!("{section}.ClusterCIDRs"), &cidrs))
            }
            "NodeCIDR" => LocalTrafficDetector::NodeCidr,
            "BridgeInterface" => {
                let name = &self.detect_local.bridge_interface;
                interface(errors, &format!("{section}.InterfaceName"), name);
                LocalTrafficDetector::BridgeInterface(name.clone())
            }
            "InterfaceNamePrefix" => {
                let prefix = &self.detect_local.interface_name_prefix;
                interface(errors, &format!("{section}.InterfacePrefix"), prefix);
                LocalTrafficDetector::InterfaceNamePrefix(prefix.clone())
            }
            other => {
                errors.0.push(FieldError::Unsupported {
                    field: path("DetectLocalMode"),
                    value: other.to_owned(),
                    supported: &["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix", ""],
                });
                LocalTrafficDetector::None
            }
        }
    }
}

pub(super) fn ipvs(errors: &mut FieldErrors, config: &IpvsConfiguration) -> IpvsSettings {
    let section = path("KubeProxyIPVSConfiguration");
    let mut timeout = |field: &str, value| timeout(errors, &format!("{section}.{field}"), value);
    let tcp_timeout = timeout("TCPTimeout", config.tcp_timeout);
    let tcp_fin_timeout = timeout("TCPFinTimeout", config.tcp_fin_timeout);
    let udp_timeout = timeout("UDPTimeout", config.udp_timeout);
    IpvsSettings {
        scheduler: config.scheduler.clone(),
        exclude_cidrs: networks(errors, &format!("{section}.ExcludeCidrs"), &config.exclude_cidrs),
        strict_arp: config.strict_arp,
        tcp_timeout,
        tcp_fin_timeout,
        udp_timeout,
    }
}

pub(super) fn conntrack(errors: &mut FieldErrors, config: &ConntrackConfiguration) -> Conntrack {
    let section = path("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration");
    let mut number = |field: &str, value: Option<i32>| {
        let value = value.unwrap_or_default();
        u32::try_from(value).unwrap_or_else(|_| {
            errors.invalid(&format!("{section}.{field}"), value, "must be greater than or equal to 0");
            0
        })
    };
    let per_core = NonZeroU32::new(number("MaxPerCore", config.max_per_core));
    let min = number("Min", config.min);
    let mut timeout = |field: &str, value| timeout(errors, &format!("{section}.{field}"), value);
    Conntrack {
        limit: per_core.map(|per_core| ConntrackLimit { per_core, min }),
        tcp_established_timeout: timeout("TCPEstablishedTimeout", config.tcp_established_timeout.unwrap_or_default()),
        tcp_close_wait_timeout: timeout("TCPCloseWaitTimeout", config.tcp_close_wait_timeout.unwrap_or_default()),
        tcp_be_liberal: config.tcp_be_liberal,
        udp_timeout: timeout("UDPTimeout", config.udp_timeout),
        udp_stream_timeout: timeout("UDPStreamTimeout", config.udp_stream_timeout),
    }
}

/// Parses the networks and keywords of `nodePortAddresses`, which may be mixed.
pub(super) fn node_port_addresses(errors: &mut FieldErrors, items: &[String]) -> NodePortAddresses {
    let field = path("NodePortAddresses");
    let (mut is_primary, mut parsed) = (false, Vec::new());
    for (index, item) in items.iter().enumerate() {
        let networks: &[&str] = match item.as_str() {
            "primary" => {
                is_primary = true;
                continue;
            }
            "localhost" => &["127.0.0.0/8", "::1/128"],
            "all" => &["0.0.0.0/0", "::/0"],
            network => &[network],
        };
        for network in networks {
            match address::parse_cidr(network) {
                Some(network) => parsed.push(network),
                None => errors.invalid_text(&format!("{field}[{index}]"), item, "must be a valid CIDR"),
            }
        }
    }
    match (is_primary, parsed.is_empty()) {
        (true, true) => NodePortAddresses::Primary,
        (true, false) => NodePortAddresses::PrimaryAnd(parsed),
        (false, _) => NodePortAddresses::Within(parsed),
    }
}

pub(super) fn show_hidden_metrics(errors: &mut FieldErrors, version: &str) {
    if !version.is_empty() && !PREVIOUS_MINOR_VERSIONS.contains(&version) {
        let detail = format!(
            "--show-hidden-metrics-for-version must be omitted or have the value '{}'. Only the previous minor version \
             is allowed",
            PREVIOUS_MINOR_VERSIONS.join("', '")
        );
        errors.invalid_text(&path("ShowHiddenMetricsForVersion"), version, &detail);
    }
}

pub(super) fn logging(
    errors: &mut FieldErrors,
    config: &LoggingConfiguration,
    feature_gates: &BTreeMap<String, bool>,
) -> Logging {
    let section = path("logging");
    let too_verbose = |verbosity: u32| i32::try_from(verbosity).is_err();
    let format = match config.format.as_str() {
        "" | "text" => LogFormat::Text,
        "json" => LogFormat::Json,
        other => {
            errors.invalid_text(&format!("{section}.format"), other, "Unsupported log format");
            LogFormat::Text
        }
    };
    if too_verbose(config.verbosity) {
        errors.invalid(&format!("{section}.verbosity"), config.verbosity, TOO_VERBOSE);
    }
    if !config.vmodule.is_empty() && !matches!(config.format.as_str(), "" | "text") {
        errors.forbidden(format!("{section}.vmodule"), "Only supported for text log format");
    }
    for (index, module) in config.vmodule.iter().enumerate() {
        let field = format!("{section}.vmodule[{index}]");
        if module.file_pattern.is_empty() {
            errors.required(field.clone(), "File pattern must not be empty");
        }
        if module.file_pattern.contains(['=', ',']) {
            errors.invalid_text(&field, &module.file_pattern, "File pattern must not contain equal sign or comma");
        }
        if too_verbose(module.verbosity) {
            errors.invalid(&field, module.verbosity, TOO_VERBOSE);
        }
    }
    match config.flush_frequency {
        FlushFrequency::Nanoseconds(number) if number < 0 => {
            errors.invalid(&format!("{section}.flushFrequency"), number, "Must be greater than zero");
        }
        FlushFrequency::Text(duration) if duration < GoDuration::ZERO => {
            errors.invalid_duration(&format!("{section}.flushFrequency"), duration, "Must be greater than zero");
        }
        FlushFrequency::Nanoseconds(_) | FlushFrequency::Text(_) => {}
    }
    // The gate itself takes precedence over that of all alpha features.
    let gate = feature_gates.get(LOGGING_ALPHA_GATE).or_else(|| feature_gates.get(ALL_ALPHA_GATE));
    if !gate.copied().unwrap_or_default() {
        routing(errors, &format!("{section}.options.text"), &config.options.text);
        routing(errors, &format!("{section}.options.json"), &config.options.json);
    }
    Logging { format, verbosity: config.verbosity }
}

/// Parses a range of the form `300-2000`, `300+10` (the first port and the distance of the last one) or `300`;
/// `Some(None)` if the text is empty or the range contains only port 0, which stands for any port.
pub(super) fn port_range(text: &str) -> Option<Option<RangeInclusive<u16>>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(None);
    }
    let (low, high) = match text.split_once('+') {
        Some((low, offset)) => {
            let (low, offset) = (low.parse::<u16>().ok()?, offset.parse::<u16>().ok()?);
            (low, low.saturating_add(offset))
        }
        None => {
            let (low, high) = text.split_once('-').unwrap_or((text, text));
            (low.parse::<u16>().ok()?, high.parse::<u16>().ok()?)
        }
    };
    (low <= high).then(|| (high > 0).then(|| low.max(1)..=high))
}

fn routing(errors: &mut FieldErrors, section: &str, options: &OutputRoutingOptions) {
    // kube-proxy drops `splitStream` when it reads a file, so that it is neither used nor forbidden.
    let detail = "Feature LoggingAlphaOptions is disabled";
    if options.info_buffer_size.bytes() != Some(0) {
        errors.forbidden(format!("{section}.infoBufferSize"), detail);
    }
}

/// Parses one network or a dual-stack pair.
fn cluster_cidrs(errors: &mut FieldErrors, field: &str, texts: &[&str]) -> Vec<IpNet> {
    let detail = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, \
                  fde4:8dba:82e1::/48]";
    if texts.len() > 2 {
        errors.invalid_list(field, texts, detail);
        return Vec::new();
    }
    let mut parsed = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        match address::parse_cidr(text) {
            Some(network) => parsed.push(network),
            None => {
                let detail = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
                errors.invalid_text(&format!("{field}[{index}]"), text, detail);
            }
        }
    }
    if let [one, two] = parsed.as_slice()
        && IpFamily::of(one.addr()) == IpFamily::of(two.addr())
    {
        errors.invalid_list(field, texts, detail);
    }
    parsed
}

pub(super) fn networks(errors: &mut FieldErrors, field: &str, texts: &[String]) -> Vec<IpNet> {
    let mut parsed = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        match address::parse_cidr(text) {
            Some(network) => parsed.push(network),
            None => errors.invalid_text(&format!("{field}[{index}]"), text, "must be a valid CIDR"),
        }
    }
    parsed
}

fn interface(errors: &mut FieldErrors, field: &str, name: &str) {
    if name.is_empty() {
        errors.invalid_text(field, name, "must not be empty");
    }
}

/// Returns `None` for zero, which keeps the kernel's value.
fn timeout(errors: &mut FieldErrors, field: &str, duration: GoDuration) -> Option<Duration> {
    Some(not_negative(errors, field, duration)).filter(|duration| !duration.is_zero())
}

/// Minor versions before those of kube-proxy whose configurations Ferroute accepts as its replacement: 1.36 to 1.38.
const PREVIOUS_MINOR_VERSIONS: [&str; 3] = ["1.35", "1.36", "1.37"];

const TOO_VERBOSE: &str = "Must be <= 2147483647";
