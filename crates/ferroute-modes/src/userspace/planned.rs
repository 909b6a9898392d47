//! Planned or active listeners of userspace mode together with its iptables rules, as required by other commands.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    net::SocketAddr,
    slice,
};

use ferroute_config::ModeName;
use ferroute_core::{Frontend, IpFamily, ModeTraits, Protocol, ServiceTable};
use ferroute_iptables::{ChainName, RuleSet, TableName};
use ferroute_trace::{Ruleset, Traceable};
use ferroute_userspace::{
    ListenerSpec, Listeners, OpenListener, listener_line,
    plan::{RelayPlan, long_chains, portals},
};

use crate::{ComparableFrontend, ComparableRules, PlannedRules, RulesView};

/// Planned listeners and rules.
#[derive(Debug)]
pub(super) struct Planned {
    state: RelayPlan,
    rules: RuleSet,
    listeners: HashMap<(Protocol, u16), ListenerSpec>,
}

impl Planned {
    pub(super) fn new(state: RelayPlan, table: &ServiceTable) -> Self {
        let rules = state.chains(table).to_rule_set(state.family());
        let open = state.listeners().filter_map(|(_, spec, port)| Some(((spec.protocol, port?), spec.clone())));
        let listeners = open.collect();
        Self { state, rules, listeners }
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

impl Listeners for Planned {
    fn endpoints(&self, family: IpFamily, protocol: Protocol, port: u16) -> Option<Vec<SocketAddr>> {
        let listener = self.listeners.get(&(protocol, port)).filter(|listener| listener.family == family)?;
        Some(listener.endpoints.clone())
    }
}

impl Traceable for Planned {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        ruleset.add_iptables(&self.rules);
        ruleset.add_userspace(self);
    }
}

impl ComparableRules for Planned {
    fn mode(&self) -> ModeName {
        ModeName::USERSPACE
    }

    fn traits(&self) -> &'static ModeTraits {
        &ModeTraits::USERSPACE
    }

    fn frontends(&self) -> BTreeMap<Frontend, ComparableFrontend> {
        let affinity = |protocol, port| {
            let affinity = self.listeners.get(&(protocol, port))?.affinity?;
            u32::try_from(affinity.as_secs()).ok()
        };
        frontends(slice::from_ref(&self.rules), affinity)
    }

    fn iptables(&self) -> (&[RuleSet], Vec<(TableName, ChainName)>) {
        (slice::from_ref(&self.rules), long_chains())
    }

    fn add_others_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        ruleset.add_userspace(self);
    }
}

/// Listeners of running workers, and the iptables rules of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelUserspace {
    /// The listeners of one IP family. If there are several workers, draining ones have closed theirs.
    pub listeners: HashMap<(Protocol, u16), OpenListener>,
    /// The rules of each backend of iptables.
    pub rules: Vec<RuleSet>,
}

impl Listeners for KernelUserspace {
    fn endpoints(&self, family: IpFamily, protocol: Protocol, port: u16) -> Option<Vec<SocketAddr>> {
        let listener = self.listeners.get(&(protocol, port)).filter(|listener| listener.family() == family)?;
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

    fn frontends(&self) -> BTreeMap<Frontend, ComparableFrontend> {
        let affinity = |protocol, port| u32::try_from(self.listeners.get(&(protocol, port))?.affinity?).ok();
        frontends(&self.rules, affinity)
    }

    fn iptables(&self) -> (&[RuleSet], Vec<(TableName, ChainName)>) {
        (&self.rules, long_chains())
    }

    fn add_others_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        ruleset.add_userspace(self);
    }
}

/// Returns the frontends in the rules; `affinity` is that of the listener on a port.
fn frontends(
    rules: &[RuleSet],
    affinity: impl Fn(Protocol, u16) -> Option<u32>,
) -> BTreeMap<Frontend, ComparableFrontend> {
    let mut frontends: BTreeMap<Frontend, ComparableFrontend> = BTreeMap::new();
    for portal in rules.iter().flat_map(portals) {
        let frontend = frontends.entry(portal.frontend).or_insert_with(|| ComparableFrontend {
            service_port: portal.service_port,
            affinity: Some(affinity(portal.frontend.protocol, portal.listener)),
            source_ranges: Vec::new(),
        });
        if let Some(source) = portal.source.filter(|source| !frontend.source_ranges.contains(source)) {
            frontend.source_ranges.push(source);
        }
    }
    frontends
}
