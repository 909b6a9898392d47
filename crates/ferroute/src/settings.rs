//! The configuration file, read and resolved.

use std::path::Path;

use anyhow::Context;
use ferroute_config::{DecodeError, KubeProxyConfiguration, Resolved, canonical_node_name};

use crate::cli::{COUNT_BESIDE_CONFIG, RunArgs, SettingsArgs, Typed, is_kube_proxys};

/// A configuration with what a person should know about it.
pub(crate) struct Settings {
    /// With all defaults, as it was read and as the command line changed it.
    pub(crate) config: KubeProxyConfiguration,
    /// What the proxy uses.
    pub(crate) resolved: Resolved,
    /// Flags and fields that have no effect or are not known; to be logged once logging has started.
    pub(crate) warnings: Vec<String>,
}

/// For those who only look: reads a `KubeProxyConfiguration` file; without one kube-proxy's defaults hold. What is on the
/// command line goes before what is in the file.
pub(crate) fn load(args: &SettingsArgs) -> anyhow::Result<Settings> {
    load_or(args, KubeProxyConfiguration::default())
}

/// The same; without a file `fallback` holds.
pub(crate) fn load_or(args: &SettingsArgs, fallback: KubeProxyConfiguration) -> anyhow::Result<Settings> {
    let path = args.config.as_deref();
    let (config, warnings) = path.map_or_else(|| Ok((fallback, Vec::new())), read)?;
    let mut config = config.defaulted();
    if let Some(name) = &args.hostname_override {
        config.hostname_override.clone_from(name);
    }
    if let Some(mode) = &args.proxy_mode {
        config.mode.clone_from(mode);
    }
    resolve(config, warnings, path)
}

/// For the proxy, as kube-proxy does it: what the command line says is laid over the defaults. Where there is a file, it
/// goes before the command line, but for the node's name and logging.
pub(crate) fn load_proxy(args: &Typed<RunArgs>) -> anyhow::Result<Settings> {
    let flags = &args.args.proxy;
    let path = flags.general.config_file();
    let Some(path) = path else {
        let mut config = KubeProxyConfiguration::default().defaulted();
        flags.lay_over(&mut config);
        return resolve(config, deprecated(args), None);
    };
    let (config, mut warnings) = read(path)?;
    let mut config = config.defaulted();
    flags.logging.lay_given_over(&args.flags, &mut config.logging);
    if !flags.general.hostname_override.is_empty() {
        config.hostname_override.clone_from(&flags.general.hostname_override);
    }
    let ignored = args.flags.given().filter(|name| is_kube_proxys(name) && !COUNT_BESIDE_CONFIG.contains(name));
    warnings.extend(ignored.map(|name| format!("--{name} has no effect: with --config, the file tells")));
    resolve(config, warnings, Some(path))
}

/// What is told of flags that are going away.
fn deprecated(args: &Typed<RunArgs>) -> Vec<String> {
    let successors = [("healthz-port", "--healthz-bind-address"), ("metrics-port", "--metrics-bind-address")];
    let given = successors.into_iter().filter(|(name, _)| args.flags.is_given(name));
    given.map(|(name, successor)| format!("--{name} is deprecated: give the port in {successor}")).collect()
}

fn resolve(config: KubeProxyConfiguration, mut warnings: Vec<String>, path: Option<&Path>) -> anyhow::Result<Settings> {
    warnings.extend(config.warnings().iter().map(ToString::to_string));
    let resolved = config.resolve().with_context(|| match path {
        Some(path) => format!("the configuration is invalid, with what {} says", path.display()),
        None => "the configuration is invalid".to_owned(),
    })?;
    Ok(Settings { config, resolved, warnings })
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
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
    decode(&text).with_context(|| format!("cannot use the configuration file {}", path.display()))
}

fn decode(text: &str) -> Result<(KubeProxyConfiguration, Vec<String>), DecodeError> {
    let decoded = KubeProxyConfiguration::from_text(text)?;
    Ok((decoded.config, decoded.violations.iter().map(ToString::to_string).collect()))
}

#[cfg(test)]
mod tests;
