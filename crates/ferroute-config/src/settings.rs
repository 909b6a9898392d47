//! The configuration file, read and resolved.

use std::path::{Path, PathBuf};

use crate::{
    KubeProxyConfiguration, ModeName, Resolved,
    flags::{COUNT_BESIDE_CONFIG, RunArgs, SettingsArgs, Typed, is_kube_proxys},
};
use anyhow::Context;

/// A configuration with what a person should know about it.
pub struct Settings {
    /// With all defaults, as it was read and as the command line changed it.
    pub config: KubeProxyConfiguration,
    /// What the proxy uses.
    pub resolved: Resolved,
    /// Flags and fields that have no effect or are not known; to be logged once logging has started.
    pub warnings: Vec<String>,
    /// The file that it was read from.
    pub file: Option<ConfigFile>,
}

/// A configuration file, as it was read.
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it said.
    pub text: String,
}

/// For those who only look: reads a `KubeProxyConfiguration` file; without one kube-proxy's defaults hold. What is on the
/// command line goes before what is in the file.
pub fn load(args: &SettingsArgs, modes: &[ModeName]) -> anyhow::Result<Settings> {
    load_or(args, KubeProxyConfiguration::default(), modes)
}

/// The same; without a file `fallback` holds.
pub fn load_or(args: &SettingsArgs, fallback: KubeProxyConfiguration, modes: &[ModeName]) -> anyhow::Result<Settings> {
    let (config, warnings, file) = match &args.config {
        None => (fallback, Vec::new(), None),
        Some(path) => {
            let text = read(path)?;
            let (config, warnings) = decode(path, &text)?;
            (config, warnings, Some(ConfigFile { path: path.clone(), text }))
        }
    };
    let mut config = config.defaulted();
    if let Some(name) = &args.hostname_override {
        config.hostname_override.clone_from(name);
    }
    if let Some(mode) = &args.proxy_mode {
        config.mode.clone_from(mode);
    }
    resolve(config, warnings, file, modes)
}

/// For the proxy, as kube-proxy does it: what the command line says is laid over the defaults. Where there is a file, it
/// goes before the command line, but for the node's name and logging.
pub fn load_proxy(args: &Typed<RunArgs>, modes: &[ModeName]) -> anyhow::Result<Settings> {
    let flags = &args.args.proxy;
    match flags.general.config_file() {
        Some(path) => of_file(args, path, &read(path)?, modes),
        None => {
            let mut config = KubeProxyConfiguration::default().defaulted();
            flags.lay_over(&mut config);
            resolve(config, deprecated(args), None, modes).map(|settings| settings.with_own(&args.args))
        }
    }
}

/// The same for what stands in a file.
pub fn of_file(args: &Typed<RunArgs>, path: &Path, text: &str, modes: &[ModeName]) -> anyhow::Result<Settings> {
    let flags = &args.args.proxy;
    let (config, mut warnings) = decode(path, text)?;
    let mut config = config.defaulted();
    flags.logging.lay_given_over(&args.flags, &mut config.logging);
    if !flags.general.hostname_override.is_empty() {
        config.hostname_override.clone_from(&flags.general.hostname_override);
    }
    let ignored = args.flags.given().filter(|name| is_kube_proxys(name) && !COUNT_BESIDE_CONFIG.contains(name));
    warnings.extend(ignored.map(|name| format!("--{name} has no effect: with --config, the file tells")));
    let file = ConfigFile { path: path.to_owned(), text: text.to_owned() };
    resolve(config, warnings, Some(file), modes).map(|settings| settings.with_own(&args.args))
}

impl Settings {
    /// With what only our own flags say, whether there is a file or not.
    fn with_own(mut self, args: &RunArgs) -> Self {
        self.resolved.connection_counters = args.nftables_connection_counters;
        self
    }
}

/// What is told of flags that are going away.
fn deprecated(args: &Typed<RunArgs>) -> Vec<String> {
    let successors = [("healthz-port", "--healthz-bind-address"), ("metrics-port", "--metrics-bind-address")];
    let given = successors.into_iter().filter(|(name, _)| args.flags.is_given(name));
    given.map(|(name, successor)| format!("--{name} is deprecated: give the port in {successor}")).collect()
}

fn resolve(
    config: KubeProxyConfiguration,
    mut warnings: Vec<String>,
    file: Option<ConfigFile>,
    modes: &[ModeName],
) -> anyhow::Result<Settings> {
    warnings.extend(config.warnings().iter().map(ToString::to_string));
    let resolved = config.resolve_with(modes).with_context(|| match &file {
        Some(file) => format!("the configuration is invalid, with what {} says", file.path.display()),
        None => "the configuration is invalid".to_owned(),
    })?;
    Ok(Settings { config, resolved, warnings, file })
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read the configuration file {}", path.display()))
}

/// As kube-proxy does, takes a file with unknown fields, which a newer version may have written, and tells of them.
fn decode(path: &Path, text: &str) -> anyhow::Result<(KubeProxyConfiguration, Vec<String>)> {
    let decoded = KubeProxyConfiguration::from_text(text)
        .with_context(|| format!("cannot use the configuration file {}", path.display()))?;
    Ok((decoded.config, decoded.violations.iter().map(ToString::to_string).collect()))
}

#[cfg(test)]
mod tests;
