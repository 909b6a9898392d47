//! The settings of the desired state.

use anyhow::Context;
use ferroute_config::{
    KubeProxyConfiguration, ModeName, Resolved,
    flags::SettingsArgs,
    settings::{self, Settings},
};
use ferroute_modes::REGISTRY;
use ferroute_proxy::node_name;

use crate::about::{About, Fact, Origin, Proxy};

/// Loads the settings, with those of the running proxy as defaults, and starts logging. If no proxy runs, the mode
/// defaults to that of the rules in the kernel.
pub(super) fn load(
    args: &SettingsArgs,
    proxy: &Proxy,
    start_logging: impl FnOnce(&Resolved),
) -> anyhow::Result<(Settings, About)> {
    let (state, reason) = proxy.state();
    let fallback = match proxy.info() {
        Some(info) => {
            let decoded = KubeProxyConfiguration::from_text(&info.configuration)
                .context("cannot read the configuration of the running proxy")?;
            // The active mode may differ from the configured one, and the host name may be different in a container.
            KubeProxyConfiguration { mode: info.mode.clone(), hostname_override: info.node.clone(), ..decoded.config }
        }
        // Another proxy may run here, such as kube-proxy.
        None => KubeProxyConfiguration {
            mode: mode_of_kernel(args).map(|mode| mode.as_str().to_owned()).unwrap_or_default(),
            ..KubeProxyConfiguration::default()
        },
    };
    let of_fallback = if proxy.info().is_some() { Origin::Proxy } else { Origin::Kernel };
    let origin = |value: &str, fallback: &str| match value {
        "" => Origin::Assumed,
        _ if value == fallback => of_fallback,
        _ => Origin::Given,
    };
    let mut settings = settings::load_or(args, fallback.clone(), &REGISTRY.names())?;
    start(&settings, start_logging);
    if let Some(info) = proxy.info() {
        settings.resolved.set_flags(info.flags.clone());
    }
    let resolved = &settings.resolved;
    let of_proxy = || Fact::new("the running proxy", Origin::Proxy);
    let assumed = || Fact::new("default configuration", Origin::Assumed);
    let about = About {
        proxy: state,
        reason,
        node: Fact::new(node_name(resolved)?, origin(&settings.config.hostname_override, &fallback.hostname_override)),
        mode: Some(Fact::new(
            REGISTRY.active(resolved.mode).name().as_str(),
            origin(&settings.config.mode, &fallback.mode),
        )),
        configuration: Some(configuration(args).or(proxy.info().map(|_| of_proxy())).unwrap_or_else(assumed)),
        objects: None,
    };
    Ok((settings, about))
}

/// Returns the mode whose rules are in the kernel, if no mode is given and all rules belong to one mode.
fn mode_of_kernel(args: &SettingsArgs) -> Option<ModeName> {
    if args.proxy_mode.is_some() {
        return None;
    }
    match REGISTRY.present()[..] {
        [mode] => Some(mode),
        _ => None,
    }
}

/// Returns the configuration that is given on the command line.
pub(super) fn configuration(args: &SettingsArgs) -> Option<Fact> {
    args.config.as_ref().map(|path| Fact::new(path.display().to_string(), Origin::Given))
}

/// Starts logging, and logs the warnings about the settings.
pub(super) fn start(settings: &Settings, start_logging: impl FnOnce(&Resolved)) {
    start_logging(&settings.resolved);
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
}
