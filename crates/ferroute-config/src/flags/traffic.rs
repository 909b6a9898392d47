use clap::Args;
use crate::{GoDuration, KubeProxyConfiguration};

use crate::flags::values::{Switch, filled};

/// Which traffic is meant.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Traffic")]
pub struct TrafficFlags {
    /// How to tell pods of this node: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(long, value_name = "MODE", default_value = "")]
    detect_local_mode: String,
    /// Networks of the cluster's pods, one of each IP family at most, for ClusterCIDR
    #[arg(long, value_name = "CIDR[,CIDR]", default_value = "")]
    cluster_cidr: String,
    /// The bridge that pods' packets come through, for BridgeInterface
    #[arg(long, value_name = "NAME", default_value = "")]
    pod_bridge_interface: String,
    /// How the names of the interfaces start that pods' packets come through, for InterfaceNamePrefix
    #[arg(long, value_name = "PREFIX", default_value = "")]
    pod_interface_name_prefix: String,
    /// Where node ports answer: networks, or "primary" for the node's first addresses. Without it everywhere, in mode
    /// nftables on the first addresses
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    nodeport_addresses: Vec<String>,
    /// Masquerade everything that goes to cluster IPs
    #[arg(long, default_value = "false")]
    masquerade_all: Switch,
}

/// The kernel's connection table.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection table")]
pub struct ConntrackFlags {
    /// Connections per CPU core that the table has room for; 0 leaves the kernel's limit
    #[arg(long, value_name = "NUMBER", default_value = "32768")]
    conntrack_max_per_core: i32,
    /// Connections that it has room for at least, unless the number per core is 0
    #[arg(long, value_name = "NUMBER", default_value = "131072")]
    conntrack_min: i32,
    /// How long an idle TCP connection is remembered; 0 leaves the kernel's value
    #[arg(long, value_name = "DURATION", default_value = "24h0m0s")]
    conntrack_tcp_timeout_established: GoDuration,
    /// How long a TCP connection that one side has closed is remembered; 0 leaves the kernel's value
    #[arg(long, value_name = "DURATION", default_value = "1h0m0s")]
    conntrack_tcp_timeout_close_wait: GoDuration,
    /// Do not take packets outside the TCP window for invalid
    #[arg(long, default_value = "false")]
    conntrack_tcp_be_liberal: Switch,
    /// How long a UDP flow that was not answered is remembered; 0 leaves the kernel's value
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    conntrack_udp_timeout: GoDuration,
    /// How long an idle UDP flow that was answered is remembered; 0 leaves the kernel's value
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    conntrack_udp_timeout_stream: GoDuration,
}

impl TrafficFlags {
    pub(super) fn lay_over(&self, config: &mut KubeProxyConfiguration) {
        config.detect_local_mode.clone_from(&self.detect_local_mode);
        config.cluster_cidr.clone_from(&self.cluster_cidr);
        config.detect_local.bridge_interface.clone_from(&self.pod_bridge_interface);
        config.detect_local.interface_name_prefix.clone_from(&self.pod_interface_name_prefix);
        config.node_port_addresses = filled(&self.nodeport_addresses);
        // There is one flag for all modes.
        config.iptables.masquerade_all = self.masquerade_all.0;
        config.nftables.masquerade_all = self.masquerade_all.0;
    }
}

impl ConntrackFlags {
    pub(super) fn lay_over(&self, config: &mut KubeProxyConfiguration) {
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
