//! What kube-proxy's command line asks for: mostly to run, but there are a few things to do instead.

use std::{fs, io::Write, process::ExitCode};

use anyhow::Context;

use ferroute_admin::version;
use ferroute_config::{
    flags::{RunArgs, RawArgs, VersionRequest},
    settings::{self, Settings},
};
use ferroute_inspect::preflight::SwitchNotice;
use ferroute_proxy::{
    cleanup::cleanup,
    host_setup,
    logging::{self, chain},
    modes::{CalledAs, REGISTRY},
    observer::Observer,
};

/// Does what `ferroute run`, or `kube-proxy`, was asked for.
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
    let mut settings = settings::load_proxy(args, &REGISTRY.names())?;
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
    let reason = REGISTRY.select(&mut settings, called_as)?;
    tracing::info!(mode = settings.resolved.mode.as_str(), "mode selected: {reason}");
    let setup = host_setup::apply(&settings.resolved);
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
    let notice = SwitchNotice::new(&settings).map(|notice| Box::new(notice) as Box<dyn Observer>);
    ferroute_proxy::run(args, &settings, &setup, notice.into_iter().collect())
}

fn start_logging(args: &RawArgs<RunArgs>, settings: &Settings) {
    let logging = settings.resolved.logging;
    logging::start(logging.verbosity, logging.format);
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    for (name, value) in args.flags.iter() {
        tracing::debug!("flag --{name}={value:?}");
    }
}
