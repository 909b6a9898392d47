//! Planned or active listeners of userspace mode together with its iptables rules, as required by other commands.

use std::{collections::BTreeMap, fmt, net::SocketAddr};

use ferroute_config::ModeName;
use ferroute_core::{Frontend, IpFamily, ModeTraits, Protocol, ServiceTable};
use ferroute_iptables::RuleSet;
use ferroute_trace::{Ruleset, Traceable};
use ferroute_userspace::{
    Listeners, OpenListener, listener_line,
    plan::{Portal, RelayPlan, portals},
};
use ipnet::IpNet;

use crate::{ComparableRules, PlannedRules, RulesView};

/// Planned listeners and rules.
#[derive(Debug)]
pub(super) struct Planned {
    state: RelayPlan,
    rules: RuleSet,
}

impl Planned {
    pub(super) fn new(state: RelayPlan, table: &ServiceTable) -> Self {
        let rules = state.chains(table).to_rule_set(state.family());
        Self { state, rules }
    }
}

impl fmt::Display for Planned {
    /// Writes the listeners as comments, and the rules in the syntax of `iptables-save`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Listeners of the userspace proxy. Their ports are examples: a running proxy uses free ones.")?;
        for (key, spec, port) in self.state.listeners() {
            match port {
                Some(port) => write!(f, "# {}", listener_line(key, spec, port))?,
                None => writeln!(f, "# no free port for {key}")?,
            }
        }
        self.rules.fmt(f)
    }
}

impl PlannedRules for Planned {
    fn view(&self) -> RulesView<'_> {
        RulesView::Other(self)
    }
}

impl Traceable for Planned {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        ruleset.add_iptables(&self.rules);
        ruleset.add_userspace(&self.state);
    }
}

impl ComparableRules for Planned {
    fn mode(&self) -> ModeName {
        ModeName::USERSPACE
    }

    fn traits(&self) -> &'static ModeTraits {
        &ModeTraits::USERSPACE
    }

    fn frontends(&self) -> BTreeMap<Frontend, Option<String>> {
        frontends(portals(&self.rules))
    }

    fn affinity(&self, frontends: &[Frontend]) -> Option<Option<u32>> {
        let portal = portals(&self.rules).find(|portal| frontends.contains(&portal.frontend))?;
        let mut listeners = self.state.listeners();
        let (_, spec, _) = listeners
            .find(|(_, spec, port)| *port == Some(portal.listener) && spec.protocol == portal.frontend.protocol)?;
        Some(spec.affinity.and_then(|affinity| u32::try_from(affinity.as_secs()).ok()))
    }

    fn source_ranges(&self, frontends: &[Frontend]) -> Vec<IpNet> {
        source_ranges(portals(&self.rules), frontends)
    }
}

/// Listeners of running workers, and the iptables rules of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelUserspace {
    /// The listeners of one IP family.
    pub listeners: Vec<OpenListener>,
    /// The rules of each backend of iptables.
    pub rules: Vec<RuleSet>,
}

impl KernelUserspace {
    fn portals(&self) -> impl Iterator<Item = Portal> + '_ {
        self.rules.iter().flat_map(portals)
    }

    /// Returns the listener on a port. If there are several workers, draining ones have closed theirs.
    fn listener(&self, protocol: Protocol, port: u16) -> Option<&OpenListener> {
        self.listeners.iter().find(|listener| listener.port == port && listener.protocol() == protocol)
    }
}

impl Listeners for KernelUserspace {
    fn endpoints(&self, family: IpFamily, protocol: Protocol, port: u16) -> Option<Vec<SocketAddr>> {
        let listener = self.listener(protocol, port).filter(|listener| listener.family() == family)?;
        Some(listener.endpoints.clone())
    }
}

impl Traceable for KernelUserspace {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        self.rules.iter().for_each(|rules| ruleset.add_iptables(rules));
        ruleset.add_userspace(self);
    }
}

impl ComparableRules for KernelUserspace {
    fn mode(&self) -> ModeName {
        ModeName::USERSPACE
    }

    fn traits(&self) -> &'static ModeTraits {
        &ModeTraits::USERSPACE
    }

    fn frontends(&self) -> BTreeMap<Frontend, Option<String>> {
        frontends(self.portals())
    }

    fn affinity(&self, frontends: &[Frontend]) -> Option<Option<u32>> {
        let portal = self.portals().find(|portal| frontends.contains(&portal.frontend))?;
        let listener = self.listener(portal.frontend.protocol, portal.listener)?;
        Some(listener.affinity.and_then(|affinity| u32::try_from(affinity).ok()))
    }

    fn source_ranges(&self, frontends: &[Frontend]) -> Vec<IpNet> {
        source_ranges(self.portals(), frontends)
    }
}

fn frontends(portals: impl Iterator<Item = Portal>) -> BTreeMap<Frontend, Option<String>> {
    portals.map(|portal| (portal.frontend, portal.service_port)).collect()
}

fn source_ranges(portals: impl Iterator<Item = Portal>, frontends: &[Frontend]) -> Vec<IpNet> {
    let selected = portals.filter(|portal| frontends.contains(&portal.frontend));
    let mut ranges: Vec<IpNet> = selected.filter_map(|portal| portal.source).collect();
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}
