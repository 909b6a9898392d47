//! The flags of kube-proxy 1.36 with their defaults, and the arguments that Ferroute adds.
//!
//! Names, types and defaults are those of kube-proxy (`cmd/kube-proxy/app/options.go` and the logging flags of
//! `component-base`); `docs/compat.md` describes their effect in Ferroute.

mod args;
mod kube_proxy;
mod raw;
mod values;

use clap::{Args, Command};

pub use self::{
    args::{DesiredArgs, KubeProxy, RunArgs, SettingsArgs, SourceArgs},
    kube_proxy::{
        ClientFlags, ConntrackFlags, GeneralFlags, IptablesFlags, IpvsFlags, LibraryFlags, LoggingFlags, ServingFlags,
        TrafficFlags, WindowsFlags,
    },
    raw::{FlagValues, RawArgs},
    values::{Gates, PortRanges, Switch, VModule, ValueError, VersionRequest},
};
use crate::KubeProxyConfiguration;

/// All flags of kube-proxy.
#[derive(Args, Clone, Debug)]
pub struct ProxyFlags {
    /// Actions, the node's name, the configuration file.
    #[command(flatten)]
    pub general: GeneralFlags,
    /// The connection to the API server.
    #[command(flatten)]
    pub client: ClientFlags,
    /// Addresses of servers.
    #[command(flatten)]
    pub serving: ServingFlags,
    #[command(flatten)]
    traffic: TrafficFlags,
    #[command(flatten)]
    iptables: IptablesFlags,
    #[command(flatten)]
    ipvs: IpvsFlags,
    #[command(flatten)]
    conntrack: ConntrackFlags,
    /// Log level and format.
    #[command(flatten)]
    pub logging: LoggingFlags,
    #[command(flatten)]
    _library: LibraryFlags,
    #[command(flatten)]
    windows: WindowsFlags,
}

impl ProxyFlags {
    /// Merges all flags, including their defaults, into the default configuration. This is for a proxy without a
    /// configuration file; with one, most flags have no effect (see [`EFFECTIVE_WITH_CONFIG`]).
    pub fn merge_into(&self, config: &mut KubeProxyConfiguration) {
        self.general.merge_into(config);
        self.client.merge_into(config);
        self.serving.merge_into(config);
        self.traffic.merge_into(config);
        self.iptables.merge_into(config);
        self.ipvs.merge_into(config);
        self.conntrack.merge_into(config);
        self.logging.merge_into(&mut config.logging);
        self.windows.merge_into(config);
    }
}

/// Reports whether a flag is one of kube-proxy's, not one of Ferroute's own.
pub fn is_kube_proxy_flag(name: &str) -> bool {
    ProxyFlags::augment_args(Command::new("flags")).get_arguments().any(|flag| flag.get_long() == Some(name))
}

/// The flags that have an effect besides a configuration file, as in kube-proxy.
pub const EFFECTIVE_WITH_CONFIG: [&str; 15] = [
    "cleanup",
    "config",
    "hostname-override",
    "init-only",
    "log-flush-frequency",
    "log-json-info-buffer-size",
    "log-json-split-stream",
    "log-text-info-buffer-size",
    "log-text-split-stream",
    "logging-format",
    "master",
    "v",
    "version",
    "vmodule",
    "write-config-to",
];

#[cfg(test)]
mod tests;
