//! Arguments of `run`, and arguments that several commands share.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::{Args, Parser};
use ferroute_core::InterfacePattern;

use super::{
    ProxyFlags, RawArgs,
    values::{PortRanges, Switch},
};
use crate::{ClientConnectionConfiguration, GoDuration};

/// The command line of the program under the name `kube-proxy`.
#[derive(Debug, Parser)]
#[command(
    name = "kube-proxy",
    about = "The Kubernetes service proxy, Ferroute under the name of kube-proxy",
    disable_version_flag = true
)]
pub struct KubeProxy {
    /// The arguments of `ferroute run`.
    #[command(flatten)]
    pub run: RawArgs<RunArgs>,
}

/// The arguments of `ferroute run`: those of kube-proxy and Ferroute's own.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// File or directory of manifests to read instead of an API server
    ///
    /// YAML or JSON with Services, EndpointSlices, Endpoints, Nodes and ServiceCIDRs. Changes are applied immediately.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["kubeconfig", "master"])]
    pub manifests: Option<PathBuf>,
    /// Count connections in nftables mode, for up to COUNT service ports
    ///
    /// /metrics then has separate counters for up to COUNT service ports and ten times as many endpoints, and one sum for
    /// the rest. By default, connections are not counted.
    #[arg(long, value_name = "COUNT")]
    pub nftables_connection_counters: Option<NonZeroUsize>,
    /// Devices on which established connections skip the kernel's hooks
    ///
    /// Names and prefixes such as eth0,cali*. In nftables mode, connections to Services over TCP are added to a flowtable, and
    /// their packets that arrive on these devices are translated and forwarded without any rule of the host.
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    pub nftables_flowtable: Vec<InterfacePattern>,
    /// Packets of a connection before it is added to the flowtable
    ///
    /// Packets of both directions count. Short connections then cost nothing.
    #[arg(long, value_name = "COUNT", default_value_t = 20, requires = "nftables_flowtable")]
    pub nftables_flowtable_packets: u32,
    /// Run the iptables programs where netlink would do
    ///
    /// By default, iptables, ipvs and userspace mode read and write the rules of such hosts by netlink, which is faster and
    /// needs no programs.
    #[arg(long, default_value = "false")]
    pub iptables_programs: Switch,
    /// Time after which userspace mode ends an idle UDP flow
    ///
    /// Overrides the field udpIdleTimeout of the configuration. By default 250ms, as in kube-proxy, which had this flag
    /// until Kubernetes 1.26 removed the mode.
    #[arg(long, value_name = "DURATION")]
    pub udp_timeout: Option<GoDuration>,
    /// Count connections, packets and bytes of Services
    ///
    /// /metrics then has counters for up to 10,000 endpoints of Services, and one sum for the rest, in all modes but userspace
    /// mode, which counts by itself. Sets net.netfilter.nf_conntrack_acct to 1.
    #[arg(long, default_value = "false")]
    pub count_traffic: Switch,
    /// Eject endpoints that do not answer, from all Services
    ///
    /// They get no connections for a while. Services with the annotation ferroute.io/passive-ejection: "false" are excluded.
    #[arg(long, default_value = "false")]
    pub passive_ejection: Switch,
    /// Serve /services and /changes beside /metrics
    ///
    /// /services has the applied version of each Service, /changes the slowest changes. Anyone who can reach the metrics
    /// address can then list all Services. Without this flag, /metrics names some of them: those with limits, source
    /// ranges or terminating endpoints, all in userspace mode, and those that other flags count.
    #[arg(long, default_value = "false")]
    pub enable_service_status: Switch,
    /// Bind a socket to each node port, so that no other program takes it
    ///
    /// TCP, UDP and SCTP, at the addresses in nodePortAddresses. Each socket is a file descriptor of the proxy.
    #[arg(long, default_value = "false")]
    pub hold_node_ports: Switch,
    /// Refuse external and load balancer IPs that take ports of the node
    ///
    /// All ports without a value, or these ports and ranges, such as 22,10250-10259. By default, as in kube-proxy, a Service with
    /// an address of the node as external IP receives the connections to the processes on that port, which is reported.
    #[arg(long, value_name = "PORTS", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true")]
    pub protect_node_ports: PortRanges,
    /// Remove the taint with this key from the Node after the first sync
    ///
    /// With this taint on new nodes, no pod starts before Services work.
    #[arg(long, value_name = "KEY", conflicts_with = "manifests")]
    pub startup_taint: Option<String>,
    /// The flags of kube-proxy.
    #[command(flatten)]
    pub proxy: ProxyFlags,
}

/// The desired state of a node, for commands that print, explain or compare it.
#[derive(Args, Clone, Debug, Default)]
pub struct DesiredArgs {
    /// The source of objects.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The configuration.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// The configuration.
#[derive(Args, Clone, Debug, Default)]
pub struct SettingsArgs {
    /// Path to a KubeProxyConfiguration file
    ///
    /// By default, kube-proxy's defaults apply.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Proxy mode, instead of the configured one
    #[arg(long, visible_alias = "mode", value_name = "MODE")]
    pub proxy_mode: Option<String>,
    /// Name of the node, instead of the configured name or the host name
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
}

/// The source of objects.
#[derive(Args, Clone, Debug, Default)]
pub struct SourceArgs {
    /// File or directory of manifests to read instead of an API server
    ///
    /// YAML or JSON with Services, EndpointSlices, Endpoints, Nodes and ServiceCIDRs; or, as for the demo, with
    /// Deployments, Pods and Services.
    #[arg(long, value_name = "PATH")]
    pub manifests: Option<PathBuf>,
    /// Path to a kubeconfig file, instead of the configured one
    ///
    /// Without this flag and clientConnection.kubeconfig, the pod's service account is used.
    #[arg(long, value_name = "FILE", conflicts_with = "manifests")]
    pub kubeconfig: Option<String>,
    /// Address of the API server; overrides the kubeconfig's
    #[arg(long, value_name = "URL", conflicts_with = "manifests")]
    pub master: Option<String>,
}

impl SourceArgs {
    /// Returns the configured connection to the API server with the overrides of the command line.
    pub fn connection(&self, mut configured: ClientConnectionConfiguration) -> ClientConnectionConfiguration {
        if let Some(path) = &self.kubeconfig {
            configured.kubeconfig.clone_from(path);
        }
        configured
    }

    /// Reports whether no source is given.
    pub fn is_empty(&self) -> bool {
        let Self { manifests, kubeconfig, master } = self;
        manifests.is_none() && kubeconfig.is_none() && master.is_none()
    }
}
