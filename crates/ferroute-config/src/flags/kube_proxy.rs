//! The flags of kube-proxy, grouped by topic.

use std::path::Path;

use clap::Args;

use super::{
    raw::FlagValues,
    values::{Gates, List, Switch, VModule, VersionRequest, all_items, float, integer, level, port},
};
use crate::{FlushFrequency, GoDuration, KubeProxyConfiguration, LoggingConfiguration, Quantity, append_port};

/// Actions, the node's name, the configuration file.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "General")]
pub struct GeneralFlags {
    /// Path to a KubeProxyConfiguration file
    ///
    /// The file replaces all other flags except actions, --hostname-override, --master and logging flags. Changes of the
    /// file are applied without a restart.
    #[arg(long, value_name = "FILE", default_value = "")]
    config: String,
    /// Write the configuration with its defaults to this file and exit
    #[arg(long, value_name = "FILE", default_value = "")]
    write_config_to: String,
    /// Set kernel parameters and exit
    ///
    /// This requires full root privileges; afterwards, the proxy needs CAP_NET_ADMIN only.
    #[arg(long, default_value = "false")]
    pub init_only: Switch,
    /// Remove the rules of all proxy modes and exit
    #[arg(long, default_value = "false")]
    pub cleanup: Switch,
    /// Proxy mode: iptables, nftables or ipvs
    #[arg(long, visible_alias = "mode", value_name = "MODE", default_value = "")]
    pub proxy_mode: String,
    /// Name of the node, if it differs from the host name
    #[arg(long, value_name = "NAME", default_value = "")]
    pub hostname_override: String,
    /// Kubernetes feature gates, most without effect (NAME=true|false,...)
    #[arg(long, value_name = "GATES")]
    feature_gates: Vec<Gates>,
    /// oom_score_adj of the process, from -1000 (never killed) to 1000
    #[arg(long, value_name = "SCORE", default_value = "-999", value_parser = integer)]
    pub oom_score_adj: i32,
    /// Ignored; accepted for compatibility with kube-proxy
    #[arg(long, value_name = "DURATION", default_value = "15m0s")]
    pub config_sync_period: GoDuration,
    /// Print the version and exit; "raw" prints details
    #[arg(long, value_name = "FORM", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub version: Option<VersionRequest>,
}

/// The connection to the API server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "API server")]
pub struct ClientFlags {
    /// Path to a kubeconfig file; by default, use the pod's service account
    ///
    /// The file contains the address of the API server and the credentials for it.
    #[arg(long, value_name = "FILE", default_value = "")]
    pub kubeconfig: String,
    /// Address of the API server; overrides the kubeconfig's
    #[arg(long, value_name = "URL", default_value = "")]
    pub master: String,
    /// Content type of API server responses: protobuf or JSON
    #[arg(long, value_name = "TYPE", default_value = "application/vnd.kubernetes.protobuf")]
    pub kube_api_content_type: String,
    /// Maximum rate of requests to the API server, per second
    #[arg(long, value_name = "NUMBER", default_value = "5", value_parser = float)]
    pub kube_api_qps: f32,
    /// Maximum burst of requests to the API server above that rate
    #[arg(long, value_name = "NUMBER", default_value = "10", value_parser = integer)]
    pub kube_api_burst: i32,
}

/// Addresses of servers.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Health and metrics")]
pub struct ServingFlags {
    /// IP address of the node, instead of the Node object's addresses
    ///
    /// 0.0.0.0 and :: select the addresses of the Node object. In spite of the name, nothing listens on this address.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: String,
    /// Address and port of /healthz and /livez; empty to disable
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:10256")]
    pub healthz_bind_address: String,
    /// Address and port of /metrics and status pages; empty to disable
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:10249")]
    pub metrics_bind_address: String,
    /// Exit if one of these two addresses cannot be bound; do not retry
    #[arg(long, default_value = "false")]
    pub bind_address_hard_fail: Switch,
    /// Let PUT /debug/flags/v change the log level
    #[arg(long, default_value = "false")]
    pub profiling: Switch,
    /// Expose metrics hidden since this version; none are hidden
    #[arg(long, value_name = "VERSION", default_value = "")]
    pub show_hidden_metrics_for_version: String,
    /// Deprecated: default port of --healthz-bind-address; 0 to disable
    #[arg(long, hide = true, value_name = "PORT", default_value = "10256", value_parser = port)]
    pub healthz_port: u16,
    /// Deprecated: default port of --metrics-bind-address; 0 to disable
    #[arg(long, hide = true, value_name = "PORT", default_value = "10249", value_parser = port)]
    pub metrics_port: u16,
    /// Range of ports that userspace mode accepts connections on
    ///
    /// By default, any free ports. Other modes do not listen.
    #[arg(long, value_name = "RANGE", default_value = "")]
    pub proxy_port_range: String,
}

/// Detection of local traffic, node ports, masquerading.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Traffic")]
pub struct TrafficFlags {
    /// How to detect traffic from local pods
    ///
    /// One of ClusterCIDR, NodeCIDR, BridgeInterface and InterfaceNamePrefix.
    #[arg(long, value_name = "MODE", default_value = "")]
    detect_local_mode: String,
    /// CIDR range of the pods in the cluster; for ClusterCIDR
    ///
    /// A dual-stack cluster has a comma-separated pair of ranges, one per IP family.
    #[arg(long, value_name = "CIDR[,CIDR]", default_value = "")]
    cluster_cidr: String,
    /// Bridge that traffic from local pods arrives on; for BridgeInterface
    #[arg(long, value_name = "NAME", default_value = "")]
    pod_bridge_interface: String,
    /// Name prefix of the interfaces of local pods; for InterfaceNamePrefix
    #[arg(long, value_name = "PREFIX", default_value = "")]
    pod_interface_name_prefix: String,
    /// CIDR ranges of the node addresses that accept node port traffic
    ///
    /// The keywords "primary", "localhost" and "all" select the node's primary addresses, those of the loopback interface, and
    /// all. By default, iptables mode accepts node port traffic on all
    /// addresses, nftables mode on the primary ones.
    #[arg(long, value_name = "CIDRS")]
    nodeport_addresses: Vec<List>,
    /// Masquerade (SNAT) all traffic to cluster IPs
    #[arg(long, default_value = "false")]
    masquerade_all: Switch,
}

/// iptables mode.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "iptables mode")]
pub struct IptablesFlags {
    /// Bit of the fwmark of packets to masquerade, 0 to 31; also for ipvs
    #[arg(long, value_name = "BIT", default_value = "14", value_parser = integer)]
    iptables_masquerade_bit: i32,
    /// Accept node port traffic to localhost (IPv4)
    #[arg(long, default_value = "true")]
    iptables_localhost_nodeports: Switch,
    /// Maximum interval between checks of rules, except in ipvs mode
    #[arg(long, value_name = "DURATION", default_value = SYNC_PERIOD)]
    iptables_sync_period: GoDuration,
    /// Minimum interval between syncs in every mode but ipvs
    ///
    /// By default, and with 0, syncs are paced by their cost.
    #[arg(long, value_name = "DURATION", default_value = MIN_SYNC_PERIOD)]
    iptables_min_sync_period: GoDuration,
}

/// ipvs mode.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "ipvs mode")]
pub struct IpvsFlags {
    /// Scheduler of virtual servers; empty for rr
    #[arg(long, value_name = "NAME", default_value = "")]
    ipvs_scheduler: String,
    /// CIDR ranges whose virtual servers cleanup does not remove
    #[arg(long, value_name = "CIDRS")]
    ipvs_exclude_cidrs: Vec<List>,
    /// Do not answer ARP requests for Service addresses (strict ARP)
    #[arg(long, default_value = "false")]
    ipvs_strict_arp: Switch,
    /// Maximum interval between checks of the active rules
    #[arg(long, value_name = "DURATION", default_value = SYNC_PERIOD)]
    ipvs_sync_period: GoDuration,
    /// Minimum interval between syncs, if it is given and not 0
    ///
    /// Otherwise, syncs start at once while they take little processor time, and are this far apart while they take more.
    #[arg(long, value_name = "DURATION", default_value = MIN_SYNC_PERIOD)]
    ipvs_min_sync_period: GoDuration,
    /// Timeout of idle TCP connections; 0 keeps the kernel's
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    ipvs_tcp_timeout: GoDuration,
    /// Timeout of TCP connections after a FIN; 0 keeps the kernel's
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    ipvs_tcpfin_timeout: GoDuration,
    /// Timeout of idle UDP flows; 0 keeps the kernel's
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    ipvs_udp_timeout: GoDuration,
}

/// Connection tracking.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection tracking")]
pub struct ConntrackFlags {
    /// Maximum conntrack entries per CPU core; 0 keeps the kernel's limit
    #[arg(long, value_name = "NUMBER", default_value = "32768", value_parser = integer)]
    conntrack_max_per_core: i32,
    /// Minimum size of the conntrack table, regardless of the CPU cores
    ///
    /// Ignored if --conntrack-max-per-core is 0.
    #[arg(long, value_name = "NUMBER", default_value = "131072", value_parser = integer)]
    conntrack_min: i32,
    /// Timeout of idle TCP connections; 0 keeps the kernel's
    #[arg(long, value_name = "DURATION", default_value = "24h0m0s")]
    conntrack_tcp_timeout_established: GoDuration,
    /// Timeout of TCP connections in state CLOSE_WAIT; 0 keeps the kernel's
    #[arg(long, value_name = "DURATION", default_value = "1h0m0s")]
    conntrack_tcp_timeout_close_wait: GoDuration,
    /// Do not mark TCP packets outside the window as INVALID
    #[arg(long, default_value = "false")]
    conntrack_tcp_be_liberal: Switch,
    /// Timeout of UDP flows without replies; 0 keeps the kernel's
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    conntrack_udp_timeout: GoDuration,
    /// Timeout of idle UDP flows with replies; 0 keeps the kernel's
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    conntrack_udp_timeout_stream: GoDuration,
}

/// Log level and format.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct LoggingFlags {
    /// Log format: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    logging_format: String,
    // The same argument as `ferroute -v`, which precedes any subcommand.
    /// Log verbosity: from 4 also debug messages, from 6 also libraries
    ///
    /// 0 to 3 are the same: changes of state, each sync that changed something, and problems.
    #[arg(short = 'v', long = "v", visible_alias = "verbosity", value_name = "LEVEL", default_value = "0", value_parser = level)]
    verbosity: u32,
    /// Ignored; sets log levels of kube-proxy's source files
    #[arg(long, value_name = "PATTERN=LEVEL")]
    vmodule: Vec<VModule>,
    /// Ignored; log lines are not buffered
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    log_flush_frequency: GoDuration,
    /// Ignored; text log lines are written to standard error
    #[arg(long, default_value = "false")]
    log_text_split_stream: Switch,
    /// Ignored; text log lines are not buffered
    #[arg(long, value_name = "SIZE", default_value = "0")]
    log_text_info_buffer_size: Quantity,
    /// Ignored; JSON log lines are written to standard error
    #[arg(long, default_value = "false")]
    log_json_split_stream: Switch,
    /// Ignored; JSON log lines are not buffered
    #[arg(long, value_name = "SIZE", default_value = "0")]
    log_json_info_buffer_size: Quantity,
}

/// Flags of a library of kube-proxy, without effect there as well.
#[derive(Args, Clone, Debug)]
pub struct LibraryFlags {
    /// Ignored; accepted for compatibility with kube-proxy
    #[arg(long, hide = true, value_name = "FILES", default_value = "/proc/sys/kernel/random/boot_id")]
    boot_id_file: String,
    /// Ignored; accepted for compatibility with kube-proxy
    #[arg(long, hide = true, value_name = "FILES", default_value = "/etc/machine-id,/var/lib/dbus/machine-id")]
    machine_id_file: String,
}

/// Windows. kube-proxy has these flags on Windows only; here they cause a warning.
#[derive(Args, Clone, Debug)]
pub struct WindowsFlags {
    /// For Windows: run as a service
    #[arg(long, hide = true, default_value = "false")]
    windows_service: Switch,
    /// For Windows: source address of load-balanced traffic
    #[arg(long, hide = true, value_name = "IP", default_value = "")]
    source_vip: String,
    /// For Windows: network in which endpoints and policies are created
    #[arg(long, hide = true, value_name = "NAME", default_value = "")]
    network_name: String,
    /// For Windows: create policies with direct server return
    #[arg(long, hide = true, default_value = "false")]
    enable_dsr: Switch,
    /// For Windows: endpoint attached to the bridge of the root namespace
    #[arg(long, hide = true, value_name = "NAME", default_value = "")]
    root_hnsendpoint_name: String,
    /// For Windows: forward the Service address for health check ports
    #[arg(long, hide = true, default_value = "false")]
    forward_healthcheck_vip: Switch,
}

impl GeneralFlags {
    /// Returns the path of the configuration file, if given.
    pub fn config_file(&self) -> Option<&Path> {
        path(&self.config)
    }

    /// Returns the path to write the configuration to, if given.
    pub fn write_config_to(&self) -> Option<&Path> {
        path(&self.write_config_to)
    }

    pub(super) fn merge_into(&self, config: &mut KubeProxyConfiguration) {
        config.mode.clone_from(&self.proxy_mode);
        config.hostname_override.clone_from(&self.hostname_override);
        config.feature_gates.extend(self.feature_gates.iter().flat_map(|Gates(gates)| gates.clone()));
        config.oom_score_adj = Some(self.oom_score_adj);
        config.config_sync_period = self.config_sync_period;
    }
}

impl ClientFlags {
    pub(super) fn merge_into(&self, config: &mut KubeProxyConfiguration) {
        let client = &mut config.client_connection;
        client.kubeconfig.clone_from(&self.kubeconfig);
        client.content_type.clone_from(&self.kube_api_content_type);
        client.qps = self.kube_api_qps;
        client.burst = self.kube_api_burst;
    }
}

impl ServingFlags {
    pub(super) fn merge_into(&self, config: &mut KubeProxyConfiguration) {
        // bindAddress is required, so an empty value means "not given".
        if !self.bind_address.is_empty() {
            config.bind_address.clone_from(&self.bind_address);
        }
        config.healthz_bind_address = with_port(&self.healthz_bind_address, self.healthz_port);
        config.metrics_bind_address = with_port(&self.metrics_bind_address, self.metrics_port);
        config.bind_address_hard_fail = self.bind_address_hard_fail.0;
        config.enable_profiling = self.profiling.0;
        config.show_hidden_metrics_for_version.clone_from(&self.show_hidden_metrics_for_version);
        config.port_range.clone_from(&self.proxy_port_range);
    }
}

impl TrafficFlags {
    pub(super) fn merge_into(&self, config: &mut KubeProxyConfiguration) {
        config.detect_local_mode.clone_from(&self.detect_local_mode);
        config.cluster_cidr.clone_from(&self.cluster_cidr);
        config.detect_local.bridge_interface.clone_from(&self.pod_bridge_interface);
        config.detect_local.interface_name_prefix.clone_from(&self.pod_interface_name_prefix);
        config.node_port_addresses = all_items(&self.nodeport_addresses);
        // There is one flag for all modes.
        config.iptables.masquerade_all = self.masquerade_all.0;
        config.nftables.masquerade_all = self.masquerade_all.0;
    }
}

impl IptablesFlags {
    pub(super) fn merge_into(&self, config: &mut KubeProxyConfiguration) {
        let iptables = &mut config.iptables;
        iptables.masquerade_bit = Some(self.iptables_masquerade_bit);
        iptables.localhost_node_ports = Some(self.iptables_localhost_nodeports.0);
        // kube-proxy applies both flags in every mode but ipvs.
        for (period, min_period) in [
            (&mut config.iptables.sync_period, &mut config.iptables.min_sync_period),
            (&mut config.nftables.sync_period, &mut config.nftables.min_sync_period),
        ] {
            *period = self.iptables_sync_period;
            *min_period = self.iptables_min_sync_period;
        }
    }
}

impl IpvsFlags {
    pub(super) fn merge_into(&self, config: &mut KubeProxyConfiguration) {
        let ipvs = &mut config.ipvs;
        ipvs.scheduler.clone_from(&self.ipvs_scheduler);
        ipvs.exclude_cidrs = all_items(&self.ipvs_exclude_cidrs);
        ipvs.strict_arp = self.ipvs_strict_arp.0;
        ipvs.sync_period = self.ipvs_sync_period;
        ipvs.min_sync_period = self.ipvs_min_sync_period;
        ipvs.tcp_timeout = self.ipvs_tcp_timeout;
        ipvs.tcp_fin_timeout = self.ipvs_tcpfin_timeout;
        ipvs.udp_timeout = self.ipvs_udp_timeout;
    }
}

impl ConntrackFlags {
    pub(super) fn merge_into(&self, config: &mut KubeProxyConfiguration) {
        let conntrack = &mut config.conntrack;
        conntrack.max_per_core = Some(self.conntrack_max_per_core);
        conntrack.min = Some(self.conntrack_min);
        conntrack.tcp_established_timeout = Some(self.conntrack_tcp_timeout_established);
        conntrack.tcp_close_wait_timeout = Some(self.conntrack_tcp_timeout_close_wait);
        conntrack.tcp_be_liberal = self.conntrack_tcp_be_liberal.0;
        conntrack.udp_timeout = self.conntrack_udp_timeout;
        conntrack.udp_stream_timeout = self.conntrack_udp_timeout_stream;
    }
}

impl LoggingFlags {
    pub(super) fn merge_into(&self, config: &mut LoggingConfiguration) {
        self.merge_matching(|_| true, config);
    }

    /// Merges only the flags on the command line into a configuration from a file. Like kube-proxy, Ferroute does so for
    /// logging flags only.
    pub fn merge_given_into(&self, given: &FlagValues, config: &mut LoggingConfiguration) {
        self.merge_matching(|flag| given.is_given(flag), config);
    }

    fn merge_matching(&self, applies: impl Fn(&str) -> bool, config: &mut LoggingConfiguration) {
        if applies("logging-format") {
            config.format.clone_from(&self.logging_format);
        }
        if applies("v") {
            config.verbosity = self.verbosity;
        }
        // The first matching pattern applies, so the command line's precede the file's.
        let items = self.vmodule.iter().flat_map(|VModule(items)| items.clone());
        config.vmodule = items.chain(std::mem::take(&mut config.vmodule)).collect();
        if applies("log-flush-frequency") {
            config.flush_frequency = FlushFrequency::Text(self.log_flush_frequency);
        }
        let options = &mut config.options;
        if applies("log-text-split-stream") {
            options.text.split_stream = self.log_text_split_stream.0;
        }
        if applies("log-text-info-buffer-size") {
            options.text.info_buffer_size.clone_from(&self.log_text_info_buffer_size);
        }
        if applies("log-json-split-stream") {
            options.json.split_stream = self.log_json_split_stream.0;
        }
        if applies("log-json-info-buffer-size") {
            options.json.info_buffer_size.clone_from(&self.log_json_info_buffer_size);
        }
    }
}

impl WindowsFlags {
    pub(super) fn merge_into(&self, config: &mut KubeProxyConfiguration) {
        config.windows_run_as_service = self.windows_service.0;
        let winkernel = &mut config.winkernel;
        winkernel.source_vip.clone_from(&self.source_vip);
        winkernel.network_name.clone_from(&self.network_name);
        winkernel.enable_dsr = self.enable_dsr.0;
        winkernel.root_hns_endpoint_name.clone_from(&self.root_hnsendpoint_name);
        winkernel.forward_health_check_vip = self.forward_healthcheck_vip.0;
    }
}

/// Returns `None` for an empty value, which means "not given".
fn path(text: &str) -> Option<&Path> {
    (!text.is_empty()).then(|| Path::new(text))
}

/// Appends the port to an address without one. Port 0 disables the server.
fn with_port(address: &str, port: u16) -> String {
    let mut text = if port == 0 { String::new() } else { address.to_owned() };
    append_port(&mut text, port);
    text
}

/// The default minimum sync period of kube-proxy's flags in all modes.
const MIN_SYNC_PERIOD: &str = "1s";
/// The default sync period of kube-proxy's flags in all modes.
const SYNC_PERIOD: &str = "30s";
