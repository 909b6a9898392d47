//! The command line, exactly as it was typed. Nothing here looks at the host.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ferroute_core::IpFamily;

/// The Kubernetes service proxy: turns a Service's stable address into one of its endpoints.
#[derive(Debug, Parser)]
#[command(name = "ferroute", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// How much to log, in place of the configuration's: 2 adds every sync, 4 every event
    #[arg(short, long, global = true, value_name = "LEVEL")]
    pub(crate) verbosity: Option<u32>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the proxy: program this host's kernel and follow every change
    Run(RunArgs),
    /// Print the rules that the proxy would write; needs no root and no kernel
    Render(RenderArgs),
    /// Build a small cluster of network namespaces on this machine and watch Services work
    Demo(ferroute_demo::DemoArgs),
}

/// How Services are treated; shared by `run` and `render`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SettingsArgs {
    /// KubeProxyConfiguration file, as kube-proxy reads it; without one its defaults hold
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How rules are written, in place of the configuration's mode
    #[arg(long, value_name = "MODE", value_parser = ["iptables", "nftables", "ipvs"])]
    pub(crate) proxy_mode: Option<String>,
    /// Name of this node, in place of the host's name and of hostnameOverride
    #[arg(long, value_name = "NAME")]
    pub(crate) hostname_override: Option<String>,
}

/// Arguments of `ferroute run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// File or directory of YAML or JSON manifests: Services, EndpointSlices, Endpoints, Nodes. Without it, an API
    /// server tells them
    #[arg(long, value_name = "PATH")]
    pub(crate) manifests: Option<PathBuf>,
    /// How to reach the API server, in place of the configuration's clientConnection.kubeconfig; without either, the
    /// service account of the pod
    #[arg(long, value_name = "FILE", conflicts_with = "manifests")]
    pub(crate) kubeconfig: Option<String>,
    /// Address of the API server, in place of the kubeconfig's
    #[arg(long, value_name = "URL", conflicts_with = "manifests")]
    pub(crate) master: Option<String>,
    /// How to treat what they tell.
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
}

/// Arguments of `ferroute render`.
#[derive(Args, Debug)]
pub(crate) struct RenderArgs {
    /// File or directory of YAML or JSON manifests: Services, EndpointSlices, Endpoints, Nodes
    #[arg(long, value_name = "PATH")]
    pub(crate) manifests: PathBuf,
    /// How to treat them.
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
    /// Print the rules of one IP family only
    #[arg(long, value_enum)]
    pub(crate) family: Option<Family>,
}

/// An IP family on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Family {
    /// IPv4.
    #[value(name = "ipv4")]
    V4,
    /// IPv6.
    #[value(name = "ipv6")]
    V6,
}

impl From<Family> for IpFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::V4,
            Family::V6 => Self::V6,
        }
    }
}
