use clap::Args;
use crate::{GoDuration, KubeProxyConfiguration};

use super::{MIN_SYNC_PERIOD, SYNC_PERIOD};
use crate::flags::values::{Switch, filled};

/// What counts in mode iptables; ipvs shares the masquerade bit.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Mode iptables")]
pub struct IptablesFlags {
    /// Bit of the packet mark that says "masquerade", 0 to 31; for mode ipvs too
    #[arg(long, value_name = "BIT", default_value = "14")]
    iptables_masquerade_bit: i32,
    /// Let node ports answer on 127.0.0.1
    #[arg(long, default_value = "true")]
    iptables_localhost_nodeports: Switch,
    /// Most time between two looks at what is in force
    #[arg(long, value_name = "DURATION", default_value = SYNC_PERIOD)]
    iptables_sync_period: GoDuration,
    /// Least time between two syncs; 0 to apply every change at once
    #[arg(long, value_name = "DURATION", default_value = MIN_SYNC_PERIOD)]
    iptables_min_sync_period: GoDuration,
}

/// What counts in mode ipvs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Mode ipvs")]
pub struct IpvsFlags {
    /// Name of the kernel's scheduler; empty for rr
    #[arg(long, value_name = "NAME", default_value = "")]
    ipvs_scheduler: String,
    /// Networks whose virtual servers are left alone when cleaning up
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    ipvs_exclude_cidrs: Vec<String>,
    /// Do not answer ARP requests for service addresses
    #[arg(long, default_value = "false")]
    ipvs_strict_arp: Switch,
    /// Most time between two looks at what is in force
    #[arg(long, value_name = "DURATION", default_value = SYNC_PERIOD)]
    ipvs_sync_period: GoDuration,
    /// Least time between two syncs; 0 to apply every change at once
    #[arg(long, value_name = "DURATION", default_value = MIN_SYNC_PERIOD)]
    ipvs_min_sync_period: GoDuration,
    /// How long an idle TCP connection is remembered; 0 leaves the kernel's value
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    ipvs_tcp_timeout: GoDuration,
    /// How long a TCP connection is remembered after a FIN; 0 leaves the kernel's value
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    ipvs_tcpfin_timeout: GoDuration,
    /// How long an idle UDP flow is remembered; 0 leaves the kernel's value
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    ipvs_udp_timeout: GoDuration,
}

impl IptablesFlags {
    pub(super) fn lay_over(&self, config: &mut KubeProxyConfiguration) {
        let iptables = &mut config.iptables;
        iptables.masquerade_bit = Some(self.iptables_masquerade_bit);
        iptables.localhost_node_ports = Some(self.iptables_localhost_nodeports.0);
        iptables.sync_period = self.iptables_sync_period;
        iptables.min_sync_period = self.iptables_min_sync_period;
    }
}

impl IpvsFlags {
    pub(super) fn lay_over(&self, config: &mut KubeProxyConfiguration) {
        let ipvs = &mut config.ipvs;
        ipvs.scheduler.clone_from(&self.ipvs_scheduler);
        ipvs.exclude_cidrs = filled(&self.ipvs_exclude_cidrs);
        ipvs.strict_arp = self.ipvs_strict_arp.0;
        ipvs.sync_period = self.ipvs_sync_period;
        ipvs.min_sync_period = self.ipvs_min_sync_period;
        ipvs.tcp_timeout = self.ipvs_tcp_timeout;
        ipvs.tcp_fin_timeout = self.ipvs_tcpfin_timeout;
        ipvs.udp_timeout = self.ipvs_udp_timeout;
    }
}
