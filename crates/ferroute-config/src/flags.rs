//! The flags of kube-proxy 1.36, one struct per matter, each flag with its default.
//!
//! Names, types and defaults are facts about kube-proxy (`cmd/kube-proxy/app/options.go` and the logging flags of
//! `component-base`); `docs/compat.md` tells what each of them does here.

mod desired;
mod general;
mod logging;
mod modes;
mod run;
mod selection;
mod serving;
mod source;
mod traffic;
mod typed;
pub mod values;
mod windows;

use clap::{Args, Command};
use crate::KubeProxyConfiguration;

pub use self::{
    desired::DesiredArgs,
    general::GeneralFlags,
    logging::LoggingFlags,
    run::{KubeProxy, RunArgs},
    selection::SettingsArgs,
    source::SourceArgs,
    typed::{FlagValues, Typed},
    values::VersionRequest,
};
use self::{
    modes::{IptablesFlags, IpvsFlags},
    serving::{ClientFlags, ServingFlags},
    traffic::{ConntrackFlags, TrafficFlags},
    windows::WindowsFlags,
};

/// All flags of kube-proxy.
#[derive(Args, Clone, Debug)]
pub struct ProxyFlags {
    #[command(flatten)]
    pub general: GeneralFlags,
    #[command(flatten)]
    pub client: ClientFlags,
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
    #[command(flatten)]
    pub logging: LoggingFlags,
    #[command(flatten)]
    windows: WindowsFlags,
}

impl ProxyFlags {
    /// Writes what the flags say, defaults included, over the defaults of the configuration. This is for a proxy without
    /// a configuration file; with one, most flags do not count (see [`COUNT_BESIDE_CONFIG`]).
    pub fn lay_over(&self, config: &mut KubeProxyConfiguration) {
        self.general.lay_over(config);
        self.client.lay_over(config);
        self.serving.lay_over(config);
        self.traffic.lay_over(config);
        self.iptables.lay_over(config);
        self.ipvs.lay_over(config);
        self.conntrack.lay_over(config);
        self.logging.lay_over(&mut config.logging);
        self.windows.lay_over(config);
    }
}

/// The flag is one of kube-proxy's, not one of our own.
pub fn is_kube_proxys(name: &str) -> bool {
    ProxyFlags::augment_args(Command::new("flags")).get_arguments().any(|flag| flag.get_long() == Some(name))
}

/// The flags that count although there is a configuration file; kube-proxy takes all others from the file only.
pub const COUNT_BESIDE_CONFIG: [&str; 15] = [
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

/// Least time between two syncs that kube-proxy's command line has, whatever the mode.
const MIN_SYNC_PERIOD: &str = "1s";
/// Most time between two syncs, likewise.
const SYNC_PERIOD: &str = "30s";

#[cfg(test)]
mod tests;
