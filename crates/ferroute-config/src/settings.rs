//! Loads the configuration from a file and the command line.

use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{
    FlagSettings, GoDuration, KubeProxyConfiguration, ModeName, Resolved,
    flags::{EFFECTIVE_WITH_CONFIG, RawArgs, RunArgs, SettingsArgs, is_kube_proxy_flag},
};
use anyhow::Context;
use ferroute_core::FlowtableSettings;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

/// A resolved configuration and its warnings.
pub struct Settings {
    /// The configuration with defaults and the changes of the command line.
    pub config: KubeProxyConfiguration,
    /// The resolved configuration.
    pub resolved: Resolved,
    /// Warnings for flags and fields that are unknown or without effect, to be logged once logging is set up.
    pub warnings: Vec<String>,
    /// The configuration file, if given.
    pub file: Option<ConfigFile>,
}

/// The path and the contents of a configuration file.
pub struct ConfigFile {
    /// The path.
    pub path: PathBuf,
    /// The contents.
    pub text: String,
}

/// Loads the configuration for commands other than `run`: from the file if given, else kube-proxy's defaults. The command
/// line overrides the file.
pub fn load(args: &SettingsArgs, modes: &[ModeName]) -> anyhow::Result<Settings> {
    load_or(args, KubeProxyConfiguration::default(), modes)
}

/// Like [`load`], with `fallback` if no file is given. If a file selects no mode or does not name the node, those of
/// `fallback` apply.
pub fn load_or(args: &SettingsArgs, fallback: KubeProxyConfiguration, modes: &[ModeName]) -> anyhow::Result<Settings> {
    let (config, warnings, file) = match &args.config {
        None => (fallback, Vec::new(), None),
        Some(path) => {
            let text = read(path)?;
            let (mut config, warnings) = decode(path, &text)?;
            let inherit = |value: &mut String, fallback: String| {
                if value.is_empty() {
                    *value = fallback;
                }
            };
            inherit(&mut config.mode, fallback.mode);
            inherit(&mut config.hostname_override, fallback.hostname_override);
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

/// Loads the configuration of the proxy, as kube-proxy does: without a file, the command line is merged into the defaults;
/// a file overrides the command line except for the node's name and logging.
pub fn load_proxy(args: &RawArgs<RunArgs>, modes: &[ModeName]) -> anyhow::Result<Settings> {
    let flags = &args.args.proxy;
    match flags.general.config_file() {
        Some(path) => from_file(args, path, &read(path)?, modes),
        None => {
            let mut config = KubeProxyConfiguration::default().defaulted();
            flags.merge_into(&mut config);
            // The flags' defaults are no choice of the administrator.
            for (flag, min_sync_period) in [
                ("iptables-min-sync-period", &mut config.iptables.min_sync_period),
                ("iptables-min-sync-period", &mut config.nftables.min_sync_period),
                ("ipvs-min-sync-period", &mut config.ipvs.min_sync_period),
            ] {
                if !args.flags.is_given(flag) {
                    *min_sync_period = GoDuration::ZERO;
                }
            }
            config.udp_idle_timeout = args.args.udp_timeout;
            resolve(config, deprecated(args), None, modes).map(|settings| settings.with_ferroute_flags(&args.args))
        }
    }
}

/// Like [`load_proxy`], for the contents of a file.
pub fn from_file(args: &RawArgs<RunArgs>, path: &Path, text: &str, modes: &[ModeName]) -> anyhow::Result<Settings> {
    let flags = &args.args.proxy;
    let (config, mut warnings) = decode(path, text)?;
    let mut config = config.defaulted();
    flags.logging.merge_given_into(&args.flags, &mut config.logging);
    if !flags.general.hostname_override.is_empty() {
        config.hostname_override.clone_from(&flags.general.hostname_override);
    }
    if let Some(timeout) = args.args.udp_timeout {
        config.udp_idle_timeout = Some(timeout);
    }
    let ignored = args.flags.given().filter(|name| is_kube_proxy_flag(name) && !EFFECTIVE_WITH_CONFIG.contains(name));
    warnings.extend(ignored.map(|name| format!("--{name} has no effect: --config is given")));
    let file = ConfigFile { path: path.to_owned(), text: text.to_owned() };
    resolve(config, warnings, Some(file), modes).map(|settings| settings.with_ferroute_flags(&args.args))
}

impl Settings {
    /// Applies Ferroute's additional flags, with or without a file.
    fn with_ferroute_flags(mut self, args: &RunArgs) -> Self {
        let flowtable =
            || FlowtableSettings { devices: args.nftables_flowtable.clone(), packets: args.nftables_flowtable_packets };
        self.resolved.set_flags(FlagSettings {
            connection_counters: args.nftables_connection_counters,
            flowtable: (!args.nftables_flowtable.is_empty()).then(flowtable),
            count_traffic: args.count_traffic.0,
            passive_ejection: args.passive_ejection.0,
            require_iptables_programs: args.iptables_programs.0,
            protected_node_ports: args.protect_node_ports.0.clone(),
        });
        self
    }
}

/// Returns warnings about deprecated flags.
fn deprecated(args: &RawArgs<RunArgs>) -> Vec<String> {
    let successors = [("healthz-port", "--healthz-bind-address"), ("metrics-port", "--metrics-bind-address")];
    let deprecated = successors.into_iter().filter(|(name, _)| args.flags.is_given(name));
    deprecated.map(|(name, successor)| format!("--{name} is deprecated: set the port in {successor}")).collect()
}

fn resolve(
    config: KubeProxyConfiguration,
    mut warnings: Vec<String>,
    file: Option<ConfigFile>,
    modes: &[ModeName],
) -> anyhow::Result<Settings> {
    warnings.extend(config.warnings().iter().map(ToString::to_string));
    let resolved = config.resolve_with(modes).with_context(|| match &file {
        Some(file) => format!("invalid configuration file {}", file.path.display()),
        None => "invalid configuration".to_owned(),
    })?;
    Ok(Settings { config, resolved, warnings, file })
}

fn read(path: &Path) -> anyhow::Result<String> {
    read_text(path).with_context(|| format!("cannot read configuration file {}", path.display()))
}

/// Reads a configuration file or kubeconfig of at most 16 MiB, within 30 s: it may be a pipe.
///
/// # Errors
/// If it cannot be read, is longer, has no end by then, or is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    read_text_within(path, READ_WITHIN)
}

fn read_text_within(path: &Path, at_most: Duration) -> io::Result<String> {
    // A pipe would otherwise wait for a writer, or for its end, for ever.
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let deadline = Instant::now() + at_most;
    let mut bytes = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let ready = poll(
            &mut [PollFd::new(file.as_fd(), PollFlags::POLLIN)],
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
        );
        match ready {
            Ok(0) => return Err(io::Error::new(ErrorKind::TimedOut, format!("it has no end within {at_most:?}"))),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match file.read(&mut part) {
            Ok(0) => break,
            Ok(read) => bytes.extend(&part[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if bytes.len() > MAX_BYTES {
            return Err(io::Error::other(format!("it is longer than {} MiB", MAX_BYTES >> 20)));
        }
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error.utf8_error()))
}

/// The maximum length of a file, far above that of any. A device has no end.
const MAX_BYTES: usize = 16 << 20;
/// Enough for a program that writes to a pipe what it first asks an API server for.
const READ_WITHIN: Duration = Duration::from_secs(30);

/// Decodes leniently, as kube-proxy does, so that files with fields of newer versions are accepted with a warning.
fn decode(path: &Path, text: &str) -> anyhow::Result<(KubeProxyConfiguration, Vec<String>)> {
    let decoded = KubeProxyConfiguration::from_text(text)
        .with_context(|| format!("cannot decode configuration file {}", path.display()))?;
    Ok((decoded.config, decoded.violations.iter().map(ToString::to_string).collect()))
}

#[cfg(test)]
mod tests;
