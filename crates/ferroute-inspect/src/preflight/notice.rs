//! Log messages for a switch of modes.

use std::collections::BTreeSet;

use ferroute_config::{ModeName, Resolved, settings::Settings};
use ferroute_core::{Endpoint, IpFamily};
use ferroute_modes::REGISTRY;
use ferroute_proxy::observers::{FamilySynced, Observer};

use super::{
    difference::{Side, Switch, differences},
    resolve_for,
    snapshot::{self, KernelSnapshot},
};

/// Logs the differences in behaviour after a switch of modes, when the rules of an IP family are first applied.
pub struct SwitchNotice {
    from: (ModeName, Resolved),
    to: Resolved,
    kernel: KernelSnapshot,
    logged: BTreeSet<IpFamily>,
}

impl SwitchNotice {
    /// Returns a notice if the rules of another mode are in the kernel. In this case all rules are read, to find those of
    /// other programs that are affected.
    pub fn new(settings: &Settings) -> Option<Self> {
        let to = REGISTRY.active(settings.resolved.mode).name();
        let from = REGISTRY.present().into_iter().find(|mode| *mode != to)?;
        tracing::info!("replacing the rules of mode {from} with those of mode {to}");
        // The configuration may be invalid in the old mode, which does no harm.
        let resolved = resolve_for(&settings.config, from)
            .inspect_err(|error| tracing::debug!("cannot determine the effects of the switch: {error:#}"))
            .ok()?;
        let kernel = snapshot::read();
        Some(Self { from: (from, resolved), to: settings.resolved.clone(), kernel, logged: BTreeSet::new() })
    }
}

impl Observer for SwitchNotice {
    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        if !self.logged.insert(sync.table.family) {
            return;
        }
        let (from, to) = (self.from.0, REGISTRY.active(self.to.mode).name());
        let differences = differences(&Switch {
            from: Side { mode: from, settings: &self.from.1.settings, table: sync.table },
            to: Side { mode: to, settings: &self.to.settings, table: sync.table },
            has_weights: &|name| {
                let endpoints = sync.table.entries.get(name).into_iter().flat_map(|entry| entry.endpoints.iter());
                endpoints.map(|endpoint| endpoint.weight).any(|weight| weight > Endpoint::DEFAULT_WEIGHT)
            },
            host_addresses: sync.host_addresses,
            kernel: &self.kernel,
        });
        let family = sync.table.family.as_str();
        if differences.is_empty() {
            tracing::info!(family, "switched from {from} to {to}");
            return;
        }
        let kinds: Vec<&str> = differences.iter().map(|difference| difference.kind.as_str()).collect();
        tracing::warn!(
            family,
            differences = kinds.join(" "),
            "switched from {from} to {to}: `ferroute preflight --from {from}` describes the differences"
        );
    }
}
