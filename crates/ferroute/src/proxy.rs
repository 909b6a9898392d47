//! What kube-proxy's command line asks for: mostly to run, but there are a few things to do instead.

use std::{fs, io::Write, process::ExitCode};

use anyhow::Context;

use crate::{
    cleanup::cleanup,
    cli::{RunArgs, Typed, VersionRequest},
    kernel_settings,
    logging::{self, chain},
    planes::CalledAs,
    run,
    settings::{self, Settings},
    version,
};

/// Does what `ferroute run`, or `kube-proxy`, was asked for.
pub(crate) fn run(args: &Typed<RunArgs>, called_as: CalledAs) -> anyhow::Result<ExitCode> {
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
    let mut settings = settings::load_proxy(args)?;
    start_logging(args, &settings);
    if let Some(path) = general.write_config_to() {
        let text = settings.config.platform_defaulted().to_yaml();
        fs::write(path, text).with_context(|| format!("cannot write the configuration to {}", path.display()))?;
        tracing::info!(file = %path.display(), "wrote the configuration");
        return Ok(ExitCode::SUCCESS);
    }
    if general.cleanup.0 {
        return Ok(cleanup());
    }
    let reason = settings.choose_mode(called_as)?;
    tracing::info!(mode = settings.resolved.mode.as_str(), "mode taken: {reason}");
    let setup = kernel_settings::apply(&settings.resolved);
    tracing::info!("settings of this host: {}", setup.lines().collect::<Vec<_>>().join("; "));
    if general.init_only.0 {
        // Who asks for just this wants to know that it is done.
        for error in &setup.failed {
            tracing::error!("{}", chain(error));
        }
        return Ok(if setup.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    for error in &setup.failed {
        tracing::warn!("{}: going on without", chain(error));
    }
    run::run(args, &settings, &setup)
}

fn start_logging(args: &Typed<RunArgs>, settings: &Settings) {
    let logging = settings.resolved.logging;
    logging::start(logging.verbosity, logging.format);
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    for (name, value) in args.flags.iter() {
        tracing::debug!("flag --{name}={value:?}");
    }
}
