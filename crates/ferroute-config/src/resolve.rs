//! What a configuration means: text becomes addresses, networks and modes, once and for all.
//!
//! A wrong value is noted and stands in as some other value until the end, where any note makes the whole fail. So
//! every error is found, and nothing is checked that is not also read. Rules and texts follow kube-proxy 1.36
//! (`pkg/proxy/apis/config/validation`), the order too.

mod sections;

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use ferroute_core::{NodePortAddresses, ProxySettings};
use ipnet::IpNet;
use serde::Serialize;

use crate::{
    FieldErrors, GoDuration, KubeProxyConfiguration,
    address::{self, HostPortError},
    defaults::MASQUERADE_BIT,
};

/// A configuration as the proxy uses it.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The proxy mode that is configured.
    pub mode: ModeName,
    /// What ipvs mode alone has; defaults in other modes.
    pub ipvs: IpvsSettings,
    /// What decides about rules in every mode.
    pub settings: ProxySettings,
    /// When syncs happen.
    pub sync: SyncPeriods,
    /// Where to serve `/healthz` and `/livez`; `None`: nowhere. An unspecified address of either family means all
    /// addresses of both.
    pub healthz: Option<SocketAddr>,
    /// Where to serve `/metrics` and its companions; `None`: nowhere. Unspecified addresses as above.
    pub metrics: Option<SocketAddr>,
    /// Exit when one of these two cannot be bound, instead of trying again.
    pub bind_address_hard_fail: bool,
    /// Name of this node's Node, trimmed and in lower case; `None`: the host's name (see [`canonical_node_name`]).
    pub node_name: Option<String>,
    /// The node's own address, which goes before those of the Node; `None`: the Node's.
    pub node_ip: Option<IpAddr>,
    /// What to write into the kernel's settings for the connection table.
    pub conntrack: Conntrack,
    /// The process's `oom_score_adj`, -1000 to 1000; `None` leaves it.
    pub oom_score_adj: Option<i32>,
    /// How often everything is read again from the API server.
    pub config_sync_period: Duration,
    /// What is logged.
    pub logging: Logging,
    /// In nftables mode, count connections and tell so many service ports apart; `None`: do not count. No field of the
    /// configuration says so, only Ferroute's own flag.
    pub connection_counters: Option<NonZeroUsize>,
}

/// The name of a proxy mode, as the field `mode` spells it.
///
/// The configuration knows modes by name only: which of them this program implements is recorded in the mode registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ModeName(&'static str);

/// What ipvs mode alone has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsSettings {
    /// Name of the scheduler; empty for the default. The kernel knows which there are.
    pub scheduler: String,
    /// Networks whose virtual servers are left alone when cleaning up.
    pub exclude_cidrs: Vec<IpNet>,
    /// Do not answer ARP requests for service addresses.
    pub strict_arp: bool,
    /// How long an idle TCP connection is remembered; `None` leaves the kernel's value.
    pub tcp_timeout: Option<Duration>,
    /// The same after a FIN.
    pub tcp_fin_timeout: Option<Duration>,
    /// How long an idle UDP flow is remembered; `None` leaves the kernel's value.
    pub udp_timeout: Option<Duration>,
}

/// When syncs happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncPeriods {
    /// Most time between two looks at what is in force; never zero. A family that has had something to write for twice
    /// this long is unhealthy.
    pub period: Duration,
    /// Least time between two syncs; zero for none. Never more than `period`.
    pub min_period: Duration,
}

/// What to write into the kernel's settings for the connection table; `None` leaves a value as it is. The kernel counts
/// timeouts in whole seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// Room in the table.
    pub limit: Option<ConntrackLimit>,
    /// How long an idle TCP connection is remembered.
    pub tcp_established_timeout: Option<Duration>,
    /// How long a connection that one side has closed is remembered.
    pub tcp_close_wait_timeout: Option<Duration>,
    /// Do not take packets outside the TCP window for invalid; false leaves the kernel's setting.
    pub tcp_be_liberal: bool,
    /// How long a UDP flow that was not answered is remembered.
    pub udp_timeout: Option<Duration>,
    /// How long an idle UDP flow that was answered is remembered.
    pub udp_stream_timeout: Option<Duration>,
}

/// Room in the connection table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackLimit {
    /// Connections per CPU core.
    pub per_core: NonZeroU32,
    /// Connections at least.
    pub min: u32,
}

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logging {
    /// How lines look.
    pub format: LogFormat,
    /// Lines up to this level; 0 for the most important ones only, 4 and more for debugging.
    pub verbosity: u32,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object each.
    Json,
}

impl KubeProxyConfiguration {
    /// Turns text into values, with the platform's defaults where a field that has one is empty: mode iptables, the
    /// detection of local traffic by `clusterCIDR`, and in nftables mode node ports on the primary addresses.
    ///
    /// Call it on what [`KubeProxyConfiguration::defaulted`] gave: it takes an empty bind address for «do not serve»,
    /// and a period of zero is an error.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, in kube-proxy's order. Unlike there, a feature gate that is not known is no error
    /// (see [`KubeProxyConfiguration::warnings`]): which there are changes with each release, and Ferroute has none.
    pub fn resolve(&self) -> Result<Resolved, FieldErrors> {
        self.resolve_with(&ModeName::OF_KUBE_PROXY)
    }

    /// Does what [`KubeProxyConfiguration::resolve`] does and accepts just these modes. A mode without a section of its
    /// own uses the `iptables` section.
    ///
    /// # Errors
    ///
    /// As for [`KubeProxyConfiguration::resolve`].
    pub fn resolve_with(&self, modes: &[ModeName]) -> Result<Resolved, FieldErrors> {
        let mut found = FieldErrors::default();
        let errors = &mut found;

        let iptables_bit = masquerade_bit(errors, "KubeProxyIPTablesConfiguration", self.iptables.masquerade_bit);
        // Sections of modes that are not used may hold anything.
        let ipvs = if self.mode == ModeName::IPVS.as_str() { sections::ipvs(errors, &self.ipvs) } else { IpvsSettings::default() };
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
        if !sections::is_port_range(&self.port_range) {
            let detail = "must be a valid port range (e.g. 300-2000)";
            errors.invalid_text(&path("PortRange"), &self.port_range, detail);
        }
        let node_port_addresses = self.node_port_addresses(errors, mode);
        sections::show_hidden_metrics(errors, &self.show_hidden_metrics_for_version);
        let detector = self.local_traffic_detector(errors);
        let logging = sections::logging(errors, &self.logging, &self.feature_gates);
        let node_name = self.node_name(errors);

        let (masquerade_all, masquerade_bit) = match mode {
            ModeName::NFTABLES => (self.nftables.masquerade_all, nftables_bit),
            _ => (self.iptables.masquerade_all, iptables_bit),
        };
        let localhost_node_ports = match mode {
            // kube-proxy has none in this mode: they are served only where the configuration names them.
            ModeName::NFTABLES => node_port_addresses.has_ipv4_loopback_network(),
            ModeName::IPVS => false,
            _ => self.iptables.localhost_node_ports.unwrap_or(true),
        };
        let settings =
            ProxySettings { masquerade_all, masquerade_bit, localhost_node_ports, node_port_addresses, detector };
        if !found.0.is_empty() {
            return Err(found);
        }
        Ok(Resolved {
            mode,
            ipvs,
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
            connection_counters: None,
        })
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
        let (period, min_period) = match mode {
            ModeName::IPVS => (self.ipvs.sync_period, self.ipvs.min_sync_period),
            ModeName::NFTABLES => (self.nftables.sync_period, self.nftables.min_sync_period),
            _ => (self.iptables.sync_period, self.iptables.min_sync_period),
        };
        let sync = SyncPeriods {
            period: positive(errors, "SyncPeriod", period),
            min_period: not_negative(errors, &path("MinSyncPeriod"), min_period),
        };
        if min_period > period {
            let detail = format!("must be greater than or equal to {}", path("MinSyncPeriod"));
            errors.invalid(&path("SyncPeriod"), min_period, &detail);
        }
        sync
    }

    fn node_port_addresses(&self, errors: &mut FieldErrors, mode: ModeName) -> NodePortAddresses {
        match self.node_port_addresses.as_slice() {
            [] if mode == ModeName::NFTABLES => NodePortAddresses::Primary,
            [] => NodePortAddresses::All,
            [only] if only == sections::PRIMARY => NodePortAddresses::Primary,
            several => NodePortAddresses::Within(sections::node_port_networks(errors, several)),
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

impl ModeName {
    /// Rules of iptables, kube-proxy's default.
    pub const IPTABLES: Self = Self("iptables");
    /// The kernel's virtual servers.
    pub const IPVS: Self = Self("ipvs");
    /// A table of nftables.
    pub const NFTABLES: Self = Self("nftables");
    /// The modes of kube-proxy 1.36.
    pub const OF_KUBE_PROXY: [Self; 3] = [Self::IPTABLES, Self::IPVS, Self::NFTABLES];

    /// A mode of this name.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The name.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for ModeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl ConntrackLimit {
    /// Connections that the table should have room for on a host with so many CPU cores.
    pub fn entries(&self, cores: usize) -> u64 {
        let scaled = u64::from(self.per_core.get()).saturating_mul(u64::try_from(cores).unwrap_or(u64::MAX));
        scaled.max(u64::from(self.min))
    }
}

/// The name that a host's Node has by default: the host's name without spaces around it, in lower case; `None` if
/// nothing is left.
pub fn canonical_node_name(host_name: &str) -> Option<String> {
    let name = host_name.trim().to_lowercase();
    (!name.is_empty()).then_some(name)
}

/// Path as kube-proxy shows it.
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
            errors.invalid(&path(field), duration, "must be greater than 0");
            Duration::ZERO
        }
    }
}

fn not_negative(errors: &mut FieldErrors, path: &str, duration: GoDuration) -> Duration {
    duration.to_std().unwrap_or_else(|| {
        errors.invalid(path, duration, "must be greater than or equal to 0");
        Duration::ZERO
    })
}

/// Empty means nowhere.
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
