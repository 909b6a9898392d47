use std::path::PathBuf;

use clap::Args;

/// How Services are treated; shared by `run` and `render`.
#[derive(Args, Clone, Debug, Default)]
pub struct SettingsArgs {
    /// KubeProxyConfiguration file, as kube-proxy reads it; without one its defaults hold
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How rules are written, in place of the configuration's mode
    #[arg(long, visible_alias = "mode", value_name = "MODE", value_parser = ["iptables", "nftables", "ipvs"])]
    pub proxy_mode: Option<String>,
    /// Name of this node, in place of the host's name and of hostnameOverride
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
}
