//! Validates and resolves a configuration: strings become addresses, networks and modes.
//!
//! An invalid value is recorded as an error and replaced by a placeholder, so that all errors are found in one pass; any
//! error makes the result an error. Rules, messages and their order follow kube-proxy 1.36
//! (`pkg/proxy/apis/config/validation`).

mod sections;

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    num::{NonZeroU32, NonZeroUsize},
    ops::RangeInclusive,
    time::Duration,
};

use ferroute_core::{
    BalancingDefaults, FlowtableSettings, IpFamily, Method, ModeTraits, NodePortAddresses, ProxySettings,
};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

use crate::{
    FieldErrors, GoDuration, KubeProxyConfiguration,
    address::{self, HostPortError},
    defaults::MASQUERADE_BIT,
};

/// A resolved configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The configured proxy mode.
    pub mode: ModeName,
    /// Settings of ipvs mode; defaults in other modes.
    pub ipvs: IpvsSettings,
    /// Settings of userspace mode.
    pub userspace: UserspaceSettings,
    /// Settings that determine the rules in every mode.
    pub settings: ProxySettings,
    /// The intervals of syncs.
    pub sync: SyncPeriods,
    /// Address of `/healthz` and `/livez`; `None` to disable them. An unspecified address of either family means all
    /// addresses of both families.
    pub healthz: Option<SocketAddr>,
    /// The address of `/metrics` and status pages; `None` to disable. Unspecified addresses as above.
    pub metrics: Option<SocketAddr>,
    /// Whether to exit if one of these two addresses cannot be bound, instead of retrying.
    pub bind_address_hard_fail: bool,
    /// The name of this node's Node, normalized by [`canonical_node_name`]; `None` for the host name.
    pub node_name: Option<String>,
    /// Overrides the Node's address; `None` for the Node's address.
    pub node_ip: Option<IpAddr>,
    /// The sysctls of connection tracking.
    pub conntrack: Conntrack,
    /// `oom_score_adj` of the process, -1000 to 1000; `None` to keep it.
    pub oom_score_adj: Option<i32>,
    /// The interval of resyncs with the API server.
    pub config_sync_period: Duration,
    /// Log level and format.
    pub logging: Logging,
    /// Whether to serve `externalIPs`: false if the feature gate `AllowServiceExternalIPs` is disabled.
    pub allow_external_ips: bool,
    /// Settings of Ferroute's flags; see [`Resolved::set_flags`].
    pub flags: FlagSettings,
}

/// Settings of modes that only Ferroute's flags set, and that are not fields of the configuration. They do not change
/// when a mode is selected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlagSettings {
    /// In nftables mode, the number of service ports whose connections are counted separately; `None` to count none.
    pub connection_counters: Option<NonZeroUsize>,
    /// Settings of the flowtable in nftables mode, with which packets of established connections skip the hooks; `None`
    /// for no flowtable.
    pub flowtable: Option<FlowtableSettings>,
    /// Count connections, packets and bytes of Services.
    pub count_traffic: bool,
    /// Eject endpoints that do not answer, unless a Service excludes it.
    pub passive_ejection: bool,
    /// Read and write iptables rules with the iptables programs only.
    pub require_iptables_programs: bool,
    /// The ports of the node that no external IP and no load balancer IP may take.
    pub protected_node_ports: Vec<RangeInclusive<u16>>,
}

/// The name of a proxy mode, as in the field `mode`.
///
/// This crate handles modes by name only; the mode registry maps names to implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ModeName(&'static str);

impl Resolved {
    /// Returns the defaults for Services whose annotations do not request other values. In modes other than ipvs, the
    /// scheduler configured for ipvs mode determines the default method, if the mode supports it, for clusters that
    /// have switched from ipvs mode.
    pub fn balancing_defaults(&self, traits: &ModeTraits) -> BalancingDefaults {
        let method = Method::from_scheduler(&self.ipvs.scheduler).filter(|method| traits.methods.contains(method));
        BalancingDefaults {
            method: method.filter(|_| self.mode != ModeName::IPVS),
            passive_ejection: self.flags.passive_ejection,
        }
    }
}

/// Settings of ipvs mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsSettings {
    /// The scheduler; empty for the default. The kernel validates it.
    pub scheduler: String,
    /// Networks whose virtual servers are not removed by cleanup.
    pub exclude_cidrs: Vec<IpNet>,
    /// Do not reply to ARP requests for Service addresses.
    pub strict_arp: bool,
    /// The timeout of idle TCP connections; `None` to keep the kernel's value.
    pub tcp_timeout: Option<Duration>,
    /// The timeout of TCP connections after a FIN; `None` to keep the kernel's value.
    pub tcp_fin_timeout: Option<Duration>,
    /// The timeout of idle UDP flows; `None` to keep the kernel's value.
    pub udp_timeout: Option<Duration>,
}

/// Settings of userspace mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserspaceSettings {
    /// The ports on which connections are accepted; `None` for any free ports.
    pub ports: Option<RangeInclusive<u16>>,
    /// Time for which a UDP flow without datagrams is kept.
    pub udp_idle_timeout: Duration,
}

impl Default for UserspaceSettings {
    /// Returns any ports, and kube-proxy's timeout of 250 ms.
    fn default() -> Self {
        Self { ports: None, udp_idle_timeout: Duration::from_millis(250) }
    }
}

/// The intervals of syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncPeriods {
    /// The maximum interval between checks of the active rules; never zero. A family with pending changes for twice this
    /// long is unhealthy.
    pub period: Duration,
    /// The minimum interval between syncs, at most `period`.
    pub min_period: Duration,
    /// Whether no minimum is configured: syncs may then follow each other at once as long as they cost little, and
    /// `min_period` applies otherwise.
    pub by_cost: bool,
}

/// The sysctls of connection tracking; `None` to keep the kernel's value. The kernel has timeouts in whole seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// The maximum number of entries.
    pub limit: Option<ConntrackLimit>,
    /// The timeout of idle TCP connections.
    pub tcp_established_timeout: Option<Duration>,
    /// The timeout of TCP connections in state CLOSE_WAIT.
    pub tcp_close_wait_timeout: Option<Duration>,
    /// Whether packets outside the TCP window are not treated as invalid; `false` to keep the kernel's value.
    pub tcp_be_liberal: bool,
    /// The timeout of UDP flows without replies.
    pub udp_timeout: Option<Duration>,
    /// The timeout of idle UDP flows with traffic in both directions.
    pub udp_stream_timeout: Option<Duration>,
}

/// The maximum number of conntrack entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackLimit {
    /// Entries per CPU core.
    pub per_core: NonZeroU32,
    /// The minimum of the limit.
    pub min: u32,
}

/// Log level and format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logging {
    /// The format.
    pub format: LogFormat,
    /// The log level: 0 for the most important lines, 4 and more for debugging.
    pub verbosity: u32,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

impl KubeProxyConfiguration {
    /// Validates and resolves the configuration with the platform's defaults: mode iptables, detection of local traffic by
    /// `clusterCIDR`, and in nftables mode node ports on the primary addresses.
    ///
    /// [`KubeProxyConfiguration::defaulted`] must be applied first: in this function, an empty bind address disables
    /// the server and a period of zero is an error.
    ///
    /// # Errors
    ///
    /// Returns all validation errors, in kube-proxy's order. Unlike in kube-proxy, unknown feature gates are not errors
    /// (see [`KubeProxyConfiguration::warnings`]), because they change with each release.
    pub fn resolve(&self) -> Result<Resolved, FieldErrors> {
        self.resolve_with(&ModeName::KUBE_PROXY)
    }

    /// Like [`KubeProxyConfiguration::resolve`], with the given modes in place of kube-proxy's. A mode without a
    /// separate section uses the `iptables` section.
    ///
    /// # Errors
    ///
    /// As for [`KubeProxyConfiguration::resolve`].
    pub fn resolve_with(&self, modes: &[ModeName]) -> Result<Resolved, FieldErrors> {
        let mut field_errors = FieldErrors::default();
        let errors = &mut field_errors;

        let iptables_bit = masquerade_bit(errors, "KubeProxyIPTablesConfiguration", self.iptables.masquerade_bit);
        // Sections of other modes are not validated.
        let ipvs = if self.mode == ModeName::IPVS.as_str() {
            sections::ipvs(errors, &self.ipvs)
        } else {
            // It is the default for Services of clusters that have left ipvs mode.
            IpvsSettings { scheduler: self.ipvs.scheduler.clone(), ..IpvsSettings::default() }
        };
        let nftables_bit = if self.mode == ModeName::NFTABLES.as_str() {
            masquerade_bit(errors, "KubeProxyNFTablesConfiguration", self.nftables.masquerade_bit)
        } else {
            iptables_bit
        };
        let conntrack = sections::conntrack(errors, &self.conntrack);
        if let Some(score) = self.oom_score_adj
            && !(-1000..=1000).contains(&score)
        {
            let field = path("KubeProxyLinuxConfiguration.OOMScoreAdj");
            errors.invalid(&field, score, "must be within the range [-1000, 1000]");
        }
        let mode = self.resolve_mode(errors, modes);
        let burst = self.client_connection.burst;
        if burst < 0 {
            errors.invalid(&path("ClientConnection.Burst"), burst, "must be greater than or equal to 0");
        }
        let config_sync_period = positive(errors, "ConfigSyncPeriod", self.config_sync_period);
        let sync = self.sync_periods(errors, mode);
        let bind_address = address::parse_ip(&self.bind_address);
        if bind_address.is_none() {
            let detail = "not a valid textual representation of an IP address";
            errors.invalid_text(&path("BindAddress"), &self.bind_address, detail);
        }
        let healthz = host_port(errors, "HealthzBindAddress", &self.healthz_bind_address);
        let metrics = host_port(errors, "MetricsBindAddress", &self.metrics_bind_address);
        // Other modes do not use these fields, and kube-proxy 1.36 does not read them.
        let userspace = match mode {
            ModeName::USERSPACE => self.userspace(errors),
            _ => UserspaceSettings::default(),
        };
        let no_masquerade_cidrs = sections::networks(errors, &path("NoMasqueradeCIDRs"), &self.no_masquerade_cidrs);
        let node_port_addresses = self.node_port_addresses(errors, mode);
        sections::show_hidden_metrics(errors, &self.show_hidden_metrics_for_version);
        let detector = self.local_traffic_detector(errors);
        let logging = sections::logging(errors, &self.logging, &self.feature_gates);
        let node_name = self.node_name(errors);
        self.check_feature_gates(errors);

        let (masquerade_all, masquerade_bit) = match mode {
            ModeName::NFTABLES => (self.nftables.masquerade_all, nftables_bit),
            _ => (self.iptables.masquerade_all, iptables_bit),
        };
        let [localhost_node_ports, ipv6_localhost_node_ports] = match mode {
            // The configuration has to request them explicitly, as in kube-proxy 1.37.
            ModeName::NFTABLES => IpFamily::BOTH.map(|family| node_port_addresses.has_loopback_network(family)),
            ModeName::IPVS => [false; 2],
            _ => [self.iptables.localhost_node_ports.unwrap_or(true), false],
        };
        let settings = ProxySettings {
            masquerade_all,
            no_masquerade_cidrs,
            masquerade_bit,
            localhost_node_ports,
            ipv6_localhost_node_ports,
            node_port_addresses,
            detector,
            own_listeners: healthz.into_iter().chain(metrics).collect(),
            protected_node_ports: Vec::new(),
        };
        if !field_errors.0.is_empty() {
            return Err(field_errors);
        }
        Ok(Resolved {
            mode,
            ipvs,
            userspace,
            settings,
            sync,
            healthz,
            metrics,
            bind_address_hard_fail: self.bind_address_hard_fail,
            node_name,
            node_ip: bind_address.filter(|address| !address.is_unspecified()),
            conntrack,
            oom_score_adj: self.oom_score_adj,
            config_sync_period,
            logging,
            allow_external_ips: self.feature_gates.get(EXTERNAL_IPS_GATE).copied().unwrap_or(true),
            flags: FlagSettings::default(),
        })
    }

    fn userspace(&self, errors: &mut FieldErrors) -> UserspaceSettings {
        let ports = sections::port_range(&self.port_range).unwrap_or_else(|| {
            let detail = "must be a valid port range (e.g. 300-2000)";
            errors.invalid_text(&path("PortRange"), &self.port_range, detail);
            None
        });
        let udp_idle_timeout = match self.udp_idle_timeout {
            Some(timeout) if !timeout.is_zero() => positive(errors, "UDPIdleTimeout", timeout),
            _ => UserspaceSettings::default().udp_idle_timeout,
        };
        UserspaceSettings { ports, udp_idle_timeout }
    }

    /// Checks the feature gates. kube-proxy also refuses to turn off these features. It accepts any other gate.
    fn check_feature_gates(&self, errors: &mut FieldErrors) {
        let is_off = |gate: &str| self.feature_gates.get(gate) == Some(&false);
        for gate in ALWAYS_ON.into_iter().filter(|gate| is_off(gate)) {
            errors.invalid(&format!("featureGates.{gate}"), false, "disabling this feature is not supported");
        }
    }

    fn resolve_mode(&self, errors: &mut FieldErrors, modes: &[ModeName]) -> ModeName {
        if self.mode.is_empty() {
            return ModeName::IPTABLES;
        }
        modes.iter().find(|mode| mode.as_str() == self.mode).copied().unwrap_or_else(|| {
            let names = modes.iter().map(|mode| mode.as_str()).collect::<Vec<_>>().join(", ");
            let detail =
                format!("must be {names} or blank (blank means the best-available proxy [currently iptables])");
            errors.invalid_text(&path("Mode.ProxyMode"), &self.mode, &detail);
            ModeName::IPTABLES
        })
    }

    fn sync_periods(&self, errors: &mut FieldErrors, mode: ModeName) -> SyncPeriods {
        let (period, configured) = match mode {
            ModeName::IPVS => (self.ipvs.sync_period, self.ipvs.min_sync_period),
            ModeName::NFTABLES => (self.nftables.sync_period, self.nftables.min_sync_period),
            _ => (self.iptables.sync_period, self.iptables.min_sync_period),
        };
        let by_cost = configured.is_zero();
        // ipvs mode has no default in kube-proxy, and syncs of 1 s and more in large clusters.
        let min_period = match (by_cost, mode) {
            (true, ModeName::IPVS) => GoDuration::from_secs(1).min(period),
            (true, _) => GoDuration::from_secs(1),
            (false, _) => configured,
        };
        let sync = SyncPeriods {
            period: positive(errors, "SyncPeriod", period),
            min_period: not_negative(errors, &path("MinSyncPeriod"), min_period),
            by_cost,
        };
        if min_period > period {
            let detail = format!("must be greater than or equal to {}", path("MinSyncPeriod"));
            errors.invalid_duration(&path("SyncPeriod"), min_period, &detail);
        }
        sync
    }

    fn node_port_addresses(&self, errors: &mut FieldErrors, mode: ModeName) -> NodePortAddresses {
        match self.node_port_addresses.as_slice() {
            [] if mode == ModeName::NFTABLES => NodePortAddresses::Primary,
            [] => NodePortAddresses::All,
            items => sections::node_port_addresses(errors, items),
        }
    }

    fn node_name(&self, errors: &mut FieldErrors) -> Option<String> {
        if self.hostname_override.is_empty() {
            return None;
        }
        let name = canonical_node_name(&self.hostname_override);
        if name.is_none() {
            errors.invalid_text(&path("HostnameOverride"), &self.hostname_override, "must not be empty");
        }
        name
    }
}

impl Resolved {
    /// Applies the settings of Ferroute's flags.
    pub fn set_flags(&mut self, flags: FlagSettings) {
        self.settings.protected_node_ports.clone_from(&flags.protected_node_ports);
        self.flags = flags;
    }
}

impl ModeName {
    /// iptables mode, kube-proxy's default.
    pub const IPTABLES: Self = Self("iptables");
    /// ipvs mode.
    pub const IPVS: Self = Self("ipvs");
    /// nftables mode.
    pub const NFTABLES: Self = Self("nftables");
    /// userspace mode, which Kubernetes 1.26 removed.
    pub const USERSPACE: Self = Self("userspace");
    /// The modes of kube-proxy 1.36.
    pub const KUBE_PROXY: [Self; 3] = [Self::IPTABLES, Self::IPVS, Self::NFTABLES];

    /// Creates the name of a mode.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// Returns the name.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl<'de> Deserialize<'de> for ModeName {
    /// Returns one of the modes that this crate names; another mode is an error.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let mut all = Self::KUBE_PROXY.into_iter().chain([Self::USERSPACE]);
        all.find(|mode| mode.0 == name).ok_or_else(|| D::Error::custom(format_args!("unknown mode {name:?}")))
    }
}

impl fmt::Display for ModeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl ConntrackLimit {
    /// The largest limit that follows from the number of CPU cores, as in kube-proxy 1.36: more would take too much memory.
    const MAX_SCALED: u64 = 1 << 20;

    /// Returns the maximum number of entries on a host with the given number of CPU cores.
    pub fn entries(&self, cores: usize) -> u64 {
        let scaled = u64::from(self.per_core.get()).saturating_mul(u64::try_from(cores).unwrap_or(u64::MAX));
        scaled.min(Self::MAX_SCALED).max(u64::from(self.min))
    }
}

/// Returns a Node's name in the form that kubelet uses: lower case, without surrounding white space; `None` if nothing is
/// left.
pub fn canonical_node_name(host_name: &str) -> Option<String> {
    let name = host_name.trim().to_lowercase();
    (!name.is_empty()).then_some(name)
}

/// Returns a field's path as in kube-proxy's messages.
fn path(field: &str) -> String {
    format!("KubeProxyConfiguration.{field}")
}

fn masquerade_bit(errors: &mut FieldErrors, section: &str, bit: Option<i32>) -> u8 {
    let bit = bit.unwrap_or(MASQUERADE_BIT);
    match u8::try_from(bit) {
        Ok(bit @ 0..=31) => bit,
        _ => {
            let field = path(&format!("{section}.MasqueradeBit"));
            errors.invalid(&field, bit, "must be within the range [0, 31]");
            0
        }
    }
}

fn positive(errors: &mut FieldErrors, field: &str, duration: GoDuration) -> Duration {
    match duration.to_std().filter(|duration| !duration.is_zero()) {
        Some(duration) => duration,
        None => {
            errors.invalid_duration(&path(field), duration, "must be greater than 0");
            Duration::ZERO
        }
    }
}

fn not_negative(errors: &mut FieldErrors, path: &str, duration: GoDuration) -> Duration {
    duration.to_std().unwrap_or_else(|| {
        errors.invalid_duration(path, duration, "must be greater than or equal to 0");
        Duration::ZERO
    })
}

/// The gate of Services' `externalIPs`.
pub(crate) const EXTERNAL_IPS_GATE: &str = "AllowServiceExternalIPs";

/// The gate of alpha fields of the logging configuration.
pub(crate) const LOGGING_ALPHA_GATE: &str = "LoggingAlphaOptions";

/// The gate of all alpha features whose own gates are not set.
pub(crate) const ALL_ALPHA_GATE: &str = "AllAlpha";

/// Features of every mode that cannot be turned off, and whose gates are locked in kube-proxy 1.36.
const ALWAYS_ON: [&str; 1] = ["PreferSameTrafficDistribution"];

/// Returns `None` for an empty address, which disables the server.
fn host_port(errors: &mut FieldErrors, field: &str, text: &str) -> Option<SocketAddr> {
    if text.is_empty() {
        return None;
    }
    match address::parse_host_port(text) {
        Ok(address) => return Some(address),
        Err(HostPortError::Form) => errors.invalid_text(&path(field), text, "must be IP:port"),
        Err(HostPortError::Parts { host, port }) => {
            if let Some(host) = host {
                errors.invalid_text(&path(field), &host, "must be a valid IP");
            }
            if let Some(port) = port {
                errors.invalid_text(&path(field), &port, "must be a valid port");
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
