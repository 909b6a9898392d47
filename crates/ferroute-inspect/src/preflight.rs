//! The differences in behaviour after a switch of modes: for `ferroute preflight` beforehand, and for the log when it
//! happens.
//!
//! ```text
//!   configuration, resolved for both modes --.
//!   Services --------------------------------+--> differences (pure) --> text, JSON, log
//!   KernelSnapshot: rules of other programs -'
//! ```
//!
//! The handling of connections is compared by the [`forwarding`](ferroute_core::forwarding()) of both modes, Service by
//! Service. All differences are intended, and kube-proxy has them as well.

mod difference;
mod notice;
mod snapshot;

use std::fmt;

use anyhow::{Context, bail};
use ferroute_config::{KubeProxyConfiguration, ModeName, Resolved};
use ferroute_core::{Endpoint, Escaped, IpFamily, ServicePortName, Tracker};
use ferroute_modes::REGISTRY;
use serde::{Deserialize, Serialize};

pub use self::{
    difference::{Difference, Kind},
    notice::SwitchNotice,
};
use self::{
    difference::{Side, Switch, differences},
    snapshot::KernelSnapshot,
};
use crate::desired::Desired;

/// The differences in behaviour after a switch of modes on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreflightReport {
    /// The node.
    pub node: String,
    /// The old mode.
    pub from: ModeName,
    /// The new mode.
    pub to: ModeName,
    /// The differences.
    pub differences: Vec<Difference>,
}

/// Lists the differences in behaviour if this host switches to the mode of `desired`, from the mode `from`; by default
/// from that of the running proxy, or the mode whose rules are in the kernel.
///
/// # Errors
/// If `from` is [`None`], no proxy runs and the rules in the kernel are not those of one mode, or if the configuration is invalid in that mode.
pub fn preflight(desired: &Desired, from: Option<ModeName>) -> anyhow::Result<PreflightReport> {
    let kernel = snapshot::read();
    if let Some(error) = &kernel.error {
        tracing::warn!("cannot read the rules in the kernel, so those of other programs are not listed: {error}");
    }
    let running = |name: &String| REGISTRY.names().into_iter().find(|mode| mode.as_str() == name);
    let from = match (from.or_else(|| desired.running_mode.as_ref().and_then(running)), &kernel.modes[..]) {
        (Some(from), _) | (None, &[from]) => from,
        (None, []) if kernel.error.is_some() => {
            bail!("the old mode is unknown, because the rules in the kernel cannot be read: set it with --from")
        }
        (None, []) => bail!("no rules of a service proxy are in the kernel: set the old mode with --from"),
        (None, modes) => bail!(
            "rules of several modes are in the kernel, {}: set the old mode with --from",
            modes.iter().map(|mode| mode.as_str()).collect::<Vec<_>>().join(" and ")
        ),
    };
    let to = REGISTRY.active(desired.resolved.mode).name();
    let from_settings = resolve_for(&desired.config, from)?;
    let old = desired.for_mode(from, &from_settings);
    let for_family = |family| {
        differences(&Switch {
            from: Side { mode: from, settings: &from_settings.settings, table: old.table(family) },
            to: Side { mode: to, settings: &desired.resolved.settings, table: desired.table(family) },
            has_weights: &|port| has_weights(&desired.tracker, family, port),
            host_addresses: &desired.host.addresses,
            kernel: &kernel,
        })
    };
    let differences = IpFamily::BOTH.into_iter().flat_map(for_family).collect();
    Ok(PreflightReport { node: desired.node().name.clone(), from, to, differences })
}

/// Reports whether the EndpointSlices of a service port give an endpoint another weight than the default.
fn has_weights(tracker: &Tracker, family: IpFamily, port: &ServicePortName) -> bool {
    let mut slices = tracker.slices_of(&port.service).filter(|slice| slice.family == family);
    slices.any(|slice| {
        slice.ports_for(port).next().is_some()
            && slice.endpoints.iter().any(|endpoint| endpoint.weight > Endpoint::DEFAULT_WEIGHT)
    })
}

/// Resolves the configuration for another mode, which has different defaults.
pub(crate) fn resolve_for(config: &KubeProxyConfiguration, mode: ModeName) -> anyhow::Result<Resolved> {
    let config = KubeProxyConfiguration { mode: mode.as_str().to_owned(), ..config.clone() };
    REGISTRY.resolve(&config).with_context(|| format!("the configuration is invalid in mode {mode}"))
}

/// Writes a report as text.
///
/// # Errors
/// Only errors of `out`.
pub fn write_report_into(out: &mut impl fmt::Write, report: &PreflightReport) -> fmt::Result {
    let PreflightReport { node, from, to, differences } = report;
    writeln!(out, "node {}: switch from {from} to {to} mode", Escaped(node))?;
    if differences.is_empty() {
        return writeln!(out, "\nno differences");
    }
    for (number, difference) in (1..).zip(differences) {
        let Difference { kind: _, family, summary, remedy, services, rules } = difference;
        writeln!(out, "\n{number}. {family}: {}", Escaped(summary))?;
        if let Some(remedy) = remedy {
            writeln!(out, "   to avoid this: {}", Escaped(remedy))?;
        }
        if !services.is_empty() {
            writeln!(out, "   Services: {}", Escaped(services.join(", ")))?;
        }
        for rule in rules {
            writeln!(out, "   rule: {}", Escaped(rule))?;
        }
    }
    Ok(())
}
