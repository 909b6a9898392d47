use std::path::Path;

use clap::Args;
use crate::{GoDuration, KubeProxyConfiguration};

use crate::flags::values::{Gates, Switch, VersionRequest};

/// What to do, as which node, by which configuration.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "General")]
pub struct GeneralFlags {
    /// KubeProxyConfiguration file. With one, all other flags of kube-proxy have no effect, but for those that say what
    /// to do, --hostname-override, --master and logging. When the file changes, the proxy starts anew with it
    #[arg(long, value_name = "FILE", default_value = "")]
    config: String,
    /// Write the configuration with all its defaults to this file and end
    #[arg(long, value_name = "FILE", default_value = "")]
    write_config_to: String,
    /// Write the kernel's settings, which takes all of root's rights, and end; what runs afterwards needs CAP_NET_ADMIN
    /// only
    #[arg(long, default_value = "false")]
    pub init_only: Switch,
    /// Remove the rules of every mode and end
    #[arg(long, default_value = "false")]
    pub cleanup: Switch,
    /// How to write rules: iptables, nftables or ipvs
    #[arg(long, visible_alias = "mode", value_name = "MODE", default_value = "")]
    pub proxy_mode: String,
    /// Name of this node, in place of the host's name
    #[arg(long, value_name = "NAME", default_value = "")]
    pub hostname_override: String,
    /// Switches for features, as NAME=true or NAME=false, with commas between them
    #[arg(long, value_name = "GATES")]
    feature_gates: Vec<Gates>,
    /// How readily the kernel ends this process when memory is short, -1000 (never) to 1000
    #[arg(long, value_name = "SCORE", default_value = "-999")]
    pub oom_score_adj: i32,
    /// How often to look for changes that got lost; none get lost
    #[arg(long, value_name = "DURATION", default_value = "15m0s")]
    pub config_sync_period: GoDuration,
    /// Print the version and end; "raw" prints all that is known of it
    #[arg(long, value_name = "FORM", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub version: Option<VersionRequest>,
}

impl GeneralFlags {
    /// The configuration file, where one is given.
    pub fn config_file(&self) -> Option<&Path> {
        path(&self.config)
    }

    /// Where to write the configuration to, instead of running.
    pub fn write_config_to(&self) -> Option<&Path> {
        path(&self.write_config_to)
    }

    pub(super) fn lay_over(&self, config: &mut KubeProxyConfiguration) {
        config.mode.clone_from(&self.proxy_mode);
        config.hostname_override.clone_from(&self.hostname_override);
        config.feature_gates.extend(self.feature_gates.iter().flat_map(|Gates(gates)| gates.clone()));
        config.oom_score_adj = Some(self.oom_score_adj);
        config.config_sync_period = self.config_sync_period;
    }
}

/// Empty means not given.
fn path(text: &str) -> Option<&Path> {
    (!text.is_empty()).then(|| Path::new(text))
}
