//! What behaves differently when this host switches from one mode to another: as a command beforehand, and in the log when
//! it happens.
//!
//! ```text
//!   configuration, once per mode ------.
//!   Services --------------------------+--> differences (pure) --> text, JSON, log
//!   other programs' rules in the kernel'
//! ```
//!
//! Not here: faults of the new mode. Every difference is intended, and kube-proxy has it, too.

mod difference;
mod found;
mod notice;
mod print;

use anyhow::Context;
use ferroute_config::{KubeProxyConfiguration, ModeName, Resolved};
use ferroute_core::IpFamily;
use ferroute_host::{HostAddresses, KernelAddresses};
use ferroute_proxy::modes::REGISTRY;

use self::{
    difference::{Side, Switch, differences},
    found::Found,
};
pub use self::{
    difference::{Difference, Kind},
    notice::SwitchNotice,
    print::{Report, write_report_into},
};
use crate::desired::Desired;

/// Lists what behaves differently when this host switches from the mode `from`, or the mode whose rules are in the kernel,
/// to the mode of `desired`.
///
/// # Errors
/// If `from` is [`None`] and no rules of a proxy are in the kernel, or if the configuration is invalid in that mode.
pub fn preflight(
    desired: &Desired,
    config: &KubeProxyConfiguration,
    from: Option<ModeName>,
) -> anyhow::Result<(ModeName, ModeName, Vec<Difference>)> {
    let found = found::read();
    if let Some(error) = &found.trouble {
        tracing::warn!("cannot read the rules in the kernel, so those of other programs are not listed: {error}");
    }
    let from = from.or(found.mode).context("no rules of a proxy are in the kernel: name the old mode with --from")?;
    let to = REGISTRY.active(desired.resolved.mode).name();
    let from_settings = resolve_for(config, from)?;
    let host_addresses = KernelAddresses::open()?.list()?;
    let for_family = |family| {
        differences(&Switch {
            from: Side { mode: from, settings: &from_settings.settings },
            to: Side { mode: to, settings: &desired.resolved.settings },
            table: desired.table(family),
            host_addresses: &host_addresses,
            found: &found,
        })
    };
    Ok((from, to, IpFamily::BOTH.into_iter().flat_map(for_family).collect()))
}

/// Resolves the configuration for another mode, which has other defaults.
fn resolve_for(config: &KubeProxyConfiguration, mode: ModeName) -> anyhow::Result<Resolved> {
    let config = KubeProxyConfiguration { mode: mode.as_str().to_owned(), ..config.clone() };
    REGISTRY.resolve(&config).with_context(|| format!("the configuration is invalid in mode {mode}"))
}
