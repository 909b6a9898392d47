use std::{num::NonZeroUsize, path::PathBuf};

use clap::{Args, Parser};

use super::{ProxyFlags, Typed};

/// The command line of the name `kube-proxy`.
#[derive(Debug, Parser)]
#[command(
    name = "kube-proxy",
    about = "The Kubernetes service proxy, Ferroute under the name of kube-proxy",
    disable_version_flag = true
)]
pub struct KubeProxy {
    /// What `ferroute run` takes too.
    #[command(flatten)]
    pub run: Typed<RunArgs>,
}

/// Arguments of `ferroute run`: those of kube-proxy, and our own.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// File or directory of YAML or JSON manifests: Services, EndpointSlices, Endpoints, Nodes, ServiceCIDRs. Without
    /// it, an API server tells them
    #[arg(long, value_name = "PATH", conflicts_with_all = ["kubeconfig", "master"])]
    pub manifests: Option<PathBuf>,
    /// In nftables mode, count connections, and tell this many service ports, and ten times as many of their endpoints,
    /// apart in /metrics; the rest is one number. Without it nothing is counted
    #[arg(long, value_name = "COUNT")]
    pub nftables_connection_counters: Option<NonZeroUsize>,
    /// Key of a taint to take from this node's Node once the first rules are in force, so that no pod starts before
    /// Services work
    #[arg(long, value_name = "KEY", conflicts_with = "manifests")]
    pub startup_taint: Option<String>,
    /// As kube-proxy has them.
    #[command(flatten)]
    pub proxy: ProxyFlags,
}
