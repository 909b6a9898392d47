//! What the log says when rules of another mode are there as the proxy starts.

use std::collections::BTreeSet;

use ferroute_config::{ModeName, Resolved, settings::Settings};
use ferroute_core::IpFamily;

use super::{
    difference::{Side, Switch, differences},
    found::{self, Found},
    resolve_for,
};
use ferroute_proxy::{
    modes::REGISTRY,
    observer::{InForce, Observer},
};

/// Tells what is different from now on, once the rules of a family are in force.
pub struct SwitchNotice {
    from: (ModeName, Resolved),
    to: Resolved,
    found: Found,
    told: BTreeSet<IpFamily>,
}

impl SwitchNotice {
    /// Looks whether this is a switch. Where it is, all rules are read to find those of others that are concerned.
    pub fn new(settings: &Settings) -> Option<Self> {
        let to = REGISTRY.active(settings.resolved.mode).name();
        let from = REGISTRY.present().find(|mode| *mode != to)?;
        tracing::info!("rules of mode {from} are here: {to} takes over from them");
        // Settings of a mode that is not asked for may be wrong without any harm.
        let resolved = resolve_for(&settings.config, from)
            .inspect_err(|error| tracing::debug!("cannot tell what will be different: {error:#}"))
            .ok()?;
        let found = found::read();
        Some(Self { from: (from, resolved), to: settings.resolved.clone(), found, told: BTreeSet::new() })
    }
}

impl Observer for SwitchNotice {
    fn in_force(&mut self, sync: &InForce<'_>) {
        if !self.told.insert(sync.table.family) {
            return;
        }
        let to = REGISTRY.active(self.to.mode).name();
        let switch = Switch {
            from: Side { mode: self.from.0, settings: &self.from.1.settings },
            to: Side { mode: to, settings: &self.to.settings },
            table: sync.table,
            host_addresses: sync.host_addresses,
            found: &self.found,
        };
        for difference in differences(&switch) {
            let (from, family, summary) = (self.from.0, difference.family, difference.summary);
            let services = difference.services.join(", ");
            tracing::warn!(family, services, "different from {from}: {summary}");
            for rule in difference.rules {
                tracing::warn!(family, rule, "concerned");
            }
        }
    }
}
