//! `ferroute run`, and `kube-proxy`: runs the proxy, or performs another action of kube-proxy's flags.

use std::{fs, io::Write, process::ExitCode};

use anyhow::Context;

use ferroute_admin::version;
use ferroute_config::{
    ModeName,
    flags::{RawArgs, RunArgs, VersionRequest},
    settings::{self, Settings},
};
use ferroute_core::error_chain;
use ferroute_inspect::preflight::SwitchNotice;
use ferroute_modes::{CalledAs, REGISTRY, Reason, cleanup::cleanup};
use ferroute_proxy::{Shutdown, host_setup, node_name, observers::Observer};

/// Runs the proxy, or performs the action that the flags select.
pub(crate) fn run(args: &RawArgs<RunArgs>, called_as: CalledAs) -> anyhow::Result<ExitCode> {
    let general = &args.args.proxy.general;
    let version = match general.version {
        Some(VersionRequest::Short) => Some(version::short()),
        Some(VersionRequest::Raw) => Some(version::raw()),
        Some(VersionRequest::No | VersionRequest::Claim(_)) | None => None,
    };
    if let Some(version) = version {
        writeln!(std::io::stdout(), "{version}")?;
        return Ok(ExitCode::SUCCESS);
    }
    // Must come first, because an earlier signal would end the process by its default action. Other actions end in that
    // way.
    let is_daemon = !general.cleanup.0 && !general.init_only.0 && general.write_config_to().is_none();
    let shutdown = is_daemon.then(Shutdown::install).transpose()?;
    let mut settings = settings::load_proxy(args, &REGISTRY.names())?;
    start_logging(&settings);
    if let Some(path) = general.write_config_to() {
        let mut config = settings.config.for_file();
        if called_as == CalledAs::KubeProxy && config.mode.is_empty() {
            ModeName::IPTABLES.as_str().clone_into(&mut config.mode);
        }
        let text = config.to_yaml();
        fs::write(path, text).with_context(|| format!("cannot write the configuration to {}", path.display()))?;
        tracing::info!(file = %path.display(), "wrote the configuration");
        return Ok(ExitCode::SUCCESS);
    }
    host_setup::require_net_admin()?;
    if general.cleanup.0 {
        return Ok(cleanup(&REGISTRY));
    }
    let reason = REGISTRY.select(&mut settings, called_as)?;
    log_start(args, &settings, &reason);
    if let Reason::Fallback(..) = reason {
        tracing::warn!("{reason}; using {} mode instead", settings.resolved.mode);
    }
    if let Some(warning) = reason.warning() {
        tracing::warn!("{warning}");
    }
    let mode = REGISTRY.active(settings.resolved.mode);
    match mode.prepare_sysctls(&settings.resolved) {
        Ok(restored) if restored.is_empty() => {}
        Ok(restored) => tracing::info!("restored sysctls that the mode no longer sets: {}", restored.join("; ")),
        Err(error) => tracing::warn!("{}", error_chain(error.as_ref())),
    }
    let setup = host_setup::apply(&settings.resolved, mode);
    tracing::info!("host settings: {}", setup.set.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
    let Some(shutdown) = shutdown else {
        // `--init-only`: setting them is the only purpose, so a failure is an error.
        let (fatal, tolerable) = setup.split_failed();
        for error in tolerable {
            tracing::warn!("{}; the proxy will run without it", error_chain(error));
        }
        for error in &fatal {
            tracing::error!("{}", error_chain(*error));
        }
        return Ok(if fatal.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    };
    for error in &setup.failed {
        tracing::warn!("{}; continuing without", error_chain(error));
    }
    let observers = SwitchNotice::new(&settings).map(|notice| Box::new(notice) as Box<dyn Observer>);
    ferroute_proxy::run(&REGISTRY, args, &settings, &reason, &setup, observers.into_iter().collect(), &shutdown)
}

fn start_logging(settings: &Settings) {
    let logging = settings.resolved.logging;
    ferroute_logging::start(logging.verbosity, logging.format);
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
}

/// Logs version, mode, node, flags and configuration, as far as they differ from the defaults.
fn log_start(args: &RawArgs<RunArgs>, settings: &Settings, reason: &Reason) {
    let mode = settings.resolved.mode.as_str();
    let node = node_name(&settings.resolved).unwrap_or_default();
    tracing::info!(version = version::GIT_VERSION, mode, node, "starting; mode selected: {reason}");
    let given = args.flags.iter().filter(|(name, _)| args.flags.is_given(name));
    let flags: Vec<String> = given.map(|(name, value)| format!("--{name}={value}")).collect();
    if !flags.is_empty() {
        tracing::info!("flags: {}", flags.join(" "));
    }
    match ferroute_logging::non_default_fields(&settings.config).as_slice() {
        [] => tracing::info!("configuration: all defaults"),
        fields => tracing::info!("configuration: {}", fields.join(" ")),
    }
}
