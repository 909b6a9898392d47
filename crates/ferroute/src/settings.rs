//! The configuration file, read and resolved.

use std::path::Path;

use anyhow::Context;
use ferroute_config::{
    ClientConnectionConfiguration, FieldErrors, KubeProxyConfiguration, Resolved, canonical_node_name,
};

use crate::{
    cli::SettingsArgs,
    planes::{self, CalledAs, Reason, choose},
};

/// A configuration with what a person should know about it.
pub(crate) struct Settings {
    /// What the proxy uses.
    pub(crate) resolved: Resolved,
    /// How to reach an API server.
    pub(crate) client_connection: ClientConnectionConfiguration,
    /// Fields that have no effect or are not known; to be logged once logging has started.
    pub(crate) warnings: Vec<String>,
}

/// Reads a `KubeProxyConfiguration` file; without one kube-proxy's defaults hold. What is on the command line goes before
/// what is in the file. The host is not looked at, so the mode is iptables where none is asked for.
pub(crate) fn load(args: &SettingsArgs) -> anyhow::Result<Settings> {
    load_or(args, KubeProxyConfiguration::default())
}

/// The same; without a file `fallback` holds.
pub(crate) fn load_or(args: &SettingsArgs, fallback: KubeProxyConfiguration) -> anyhow::Result<Settings> {
    load_with(args, fallback, KubeProxyConfiguration::resolve)
}

/// The same for this host: where no mode is asked for, the best one that it can do, and why it was taken.
pub(crate) fn load_for_host(args: &SettingsArgs, called_as: CalledAs) -> anyhow::Result<(Settings, Reason)> {
    let mut reason = None;
    let settings = load_with(args, KubeProxyConfiguration::default(), |config| {
        let (resolved, why) = choose(config, called_as, planes::probe_nftables)?;
        reason = Some(why);
        Ok(resolved)
    })?;
    Ok((settings, reason.expect("a mode is chosen for whatever is resolved")))
}

fn load_with(
    args: &SettingsArgs,
    fallback: KubeProxyConfiguration,
    resolve: impl FnOnce(&KubeProxyConfiguration) -> Result<Resolved, FieldErrors>,
) -> anyhow::Result<Settings> {
    let (mut config, mut warnings) = match &args.config {
        None => (fallback, Vec::new()),
        Some(path) => read(path).with_context(|| format!("cannot use the configuration file {}", path.display()))?,
    };
    if let Some(name) = &args.hostname_override {
        config.hostname_override.clone_from(name);
    }
    if let Some(mode) = &args.proxy_mode {
        config.mode.clone_from(mode);
    }
    warnings.extend(config.warnings().iter().map(ToString::to_string));
    let config = config.defaulted();
    let resolved = resolve(&config).with_context(|| match &args.config {
        Some(path) => format!("the configuration is invalid, with what {} says", path.display()),
        None => "the configuration is invalid".to_owned(),
    })?;
    Ok(Settings { resolved, client_connection: config.client_connection, warnings })
}

/// The name of this node: as configured, else the host's.
pub(crate) fn node_name(resolved: &Resolved) -> anyhow::Result<String> {
    match &resolved.node_name {
        Some(name) => Ok(name.clone()),
        None => {
            let host = ferroute_host::node_name("")?;
            canonical_node_name(&host).context("the host has no name: give one with --hostname-override")
        }
    }
}

/// As kube-proxy does, takes a file with unknown fields, which a newer version may have written, and tells of them.
fn read(path: &Path) -> anyhow::Result<(KubeProxyConfiguration, Vec<String>)> {
    let text = std::fs::read_to_string(path)?;
    let decoded = KubeProxyConfiguration::from_text(&text)?;
    let violations = decoded.violations.iter().map(ToString::to_string).collect();
    Ok((decoded.config, violations))
}
