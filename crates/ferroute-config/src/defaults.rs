//! The defaults of the API and, separately, those of the platform: for the API, an empty `mode` stays empty.
//!
//! The values are those of kube-proxy 1.36 (`SetDefaults_KubeProxyConfiguration` in `pkg/proxy/apis/config/v1alpha1`).

use std::net::IpAddr;

use crate::{FlushFrequency, GoDuration, KubeProxyConfiguration, address};

/// The default port of `/healthz`.
pub(crate) const HEALTHZ_PORT: u16 = 10256;
/// The default port of `/metrics`.
pub(crate) const METRICS_PORT: u16 = 10249;
/// The default of both `masqueradeBit` fields.
pub(crate) const MASQUERADE_BIT: i32 = 14;

impl KubeProxyConfiguration {
    /// Returns the configuration with the API's defaults for unset fields. This operation is idempotent.
    ///
    /// Flags are merged into the *result*: the flag `--bind-address=::` does not change the default address of the health
    /// check to IPv6, while the field in a file does.
    pub fn defaulted(mut self) -> Self {
        fill(&mut self.bind_address, "0.0.0.0");
        let ipv4 = matches!(address::parse_ip(&self.bind_address), Some(IpAddr::V4(_)));
        let (healthz, metrics) = if ipv4 { ("0.0.0.0", "127.0.0.1") } else { ("::", "::1") };
        fill(&mut self.healthz_bind_address, healthz);
        fill(&mut self.metrics_bind_address, metrics);
        address::append_port(&mut self.healthz_bind_address, HEALTHZ_PORT);
        address::append_port(&mut self.metrics_bind_address, METRICS_PORT);

        let client = &mut self.client_connection;
        fill(&mut client.content_type, "application/vnd.kubernetes.protobuf");
        if client.qps == 0.0 {
            client.qps = 5.0;
        }
        if client.burst == 0 {
            client.burst = 10;
        }
        self.oom_score_adj.get_or_insert(-999);
        fill_duration(&mut self.config_sync_period, 15 * 60);

        self.iptables.masquerade_bit.get_or_insert(MASQUERADE_BIT);
        self.iptables.localhost_node_ports.get_or_insert(true);
        fill_duration(&mut self.iptables.sync_period, 30);
        // An unset minSyncPeriod stays unset: syncs are then paced by their cost.
        fill_duration(&mut self.ipvs.sync_period, 30);
        self.nftables.masquerade_bit.get_or_insert(MASQUERADE_BIT);
        fill_duration(&mut self.nftables.sync_period, 30);

        self.conntrack.max_per_core.get_or_insert(32 * 1024);
        self.conntrack.min.get_or_insert(128 * 1024);
        self.conntrack.tcp_established_timeout.get_or_insert(GoDuration::from_secs(24 * 3600));
        self.conntrack.tcp_close_wait_timeout.get_or_insert(GoDuration::from_secs(3600));

        fill(&mut self.logging.format, "text");
        if self.logging.flush_frequency.duration().is_zero() {
            self.logging.flush_frequency = FlushFrequency::Text(GoDuration::from_secs(5));
        }
        self
    }

    /// Returns the configuration that `--write-config-to` writes: with the platform's defaults where a file could set the
    /// same value, so that the proxy works in the same way with the written file. An empty mode stays empty, because
    /// its meaning depends on the name of the program and on the kernel, and a minimum sync period of zero stays zero,
    /// because it means by cost.
    pub fn for_file(&self) -> Self {
        let Self { mode, iptables, nftables, .. } = self;
        let mut config = self.clone().platform_defaulted();
        config.mode.clone_from(mode);
        config.iptables.min_sync_period = iptables.min_sync_period;
        config.nftables.min_sync_period = nftables.min_sync_period;
        config
    }

    /// Returns the configuration with the platform's defaults: the meaning of empty fields on Linux. Only output needs
    /// them; [`KubeProxyConfiguration::resolve`] applies them itself.
    pub fn platform_defaulted(mut self) -> Self {
        fill(&mut self.mode, "iptables");
        fill(&mut self.detect_local_mode, "ClusterCIDR");
        // ipvs mode has no default.
        fill_duration(&mut self.iptables.min_sync_period, 1);
        fill_duration(&mut self.nftables.min_sync_period, 1);
        if self.mode == "nftables" && self.node_port_addresses.is_empty() {
            self.node_port_addresses.push("primary".to_owned());
        }
        self
    }
}

fn fill(field: &mut String, default: &str) {
    if field.is_empty() {
        default.clone_into(field);
    }
}

fn fill_duration(field: &mut GoDuration, default_seconds: u32) {
    if field.is_zero() {
        *field = GoDuration::from_secs(default_seconds);
    }
}
