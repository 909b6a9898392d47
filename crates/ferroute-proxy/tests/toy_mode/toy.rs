//! A proxy mode that is not part of the program. It sends new connections to a random endpoint, by "rules" in a thread-local
//! variable in place of a kernel.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
};

use ferroute_admin::metrics::ModeMetric;
use ferroute_config::{ModeName, Resolved};
use ferroute_core::{
    Changes, Dataplane, DataplaneError, Frontend, IpFamily, ModeTraits, NodeView, ProxySettings, RulesDigest,
    ServiceTable, SyncReport,
};
use ferroute_modes::{
    ActiveProxy, ComparableFrontend, ComparableRules, Mode, OpenMode, PlannedRules, Registry, RemovableMode, Removal,
    RulesView, SimulatedSync, Simulation,
    cleanup::{Leftovers, RemovalReport},
    kernel_rules::KernelRules,
};
use ferroute_trace::{BaseChain, ChainVerdict, Forks, Hook, Ruleset, Traceable, Walker};

pub(crate) const TOY: ModeName = ModeName::new("toy");

/// A registry with only this mode.
pub(crate) static REGISTRY: Registry = Registry::new(&[&Toy]);

thread_local! {
    /// The rules in the "kernel" of this thread.
    static KERNEL: RefCell<Option<ToyRules>> = const { RefCell::new(None) };
}

/// Returns the rules in the "kernel".
pub(crate) fn kernel() -> Option<ToyRules> {
    KERNEL.with_borrow(Clone::clone)
}

/// Modifies the rules in the "kernel", as another program would.
pub(crate) fn modify_kernel(change: impl FnOnce(&mut ToyRules)) {
    KERNEL.with_borrow_mut(|rules| change(rules.get_or_insert_default()));
}

/// The rules: endpoints by frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToyRules(pub(crate) BTreeMap<Frontend, Vec<SocketAddr>>);

impl ToyRules {
    fn new(table: &ServiceTable) -> Self {
        let rules = table.entries.iter().flat_map(|(name, entry)| {
            let endpoints: Vec<SocketAddr> = entry.endpoints.iter().map(|endpoint| endpoint.socket()).collect();
            entry.service.frontends(name.protocol).map(move |(_, frontend)| (frontend, endpoints.clone()))
        });
        Self(rules.collect())
    }

    /// Replaces the rules. Returns a report on the differences.
    fn replace(&mut self, rules: Self) -> SyncReport {
        let written = rules.0.iter().filter(|(frontend, endpoints)| self.0.get(frontend) != Some(endpoints)).count();
        let removed = self.0.keys().filter(|frontend| !rules.0.contains_key(frontend)).count();
        *self = rules;
        SyncReport { written, removed, total: self.0.len(), ..SyncReport::default() }
    }

    fn digest(&self) -> RulesDigest {
        RulesDigest::compute(|out| write!(out, "{self}"))
    }
}

impl fmt::Display for ToyRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (Frontend { address, protocol, port }, endpoints) in &self.0 {
            match address {
                Some(address) => write!(f, "{} {protocol}", SocketAddr::new(*address, *port))?,
                None => write!(f, "node port {port} {protocol}")?,
            }
            endpoints.iter().try_for_each(|endpoint| write!(f, " {endpoint}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}

impl PlannedRules for ToyRules {
    fn view(&self) -> RulesView<'_> {
        RulesView::Other(self)
    }
}

impl ComparableRules for ToyRules {
    fn mode(&self) -> ModeName {
        TOY
    }

    fn traits(&self) -> &'static ModeTraits {
        &ModeTraits::IPTABLES
    }

    fn frontends(&self) -> BTreeMap<Frontend, ComparableFrontend> {
        let facts = || ComparableFrontend { affinity: Some(None), ..ComparableFrontend::default() };
        self.0.keys().map(|frontend| (*frontend, facts())).collect()
    }
}

impl Traceable for ToyRules {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        for hook in [Hook::Prerouting, Hook::Output] {
            ruleset.add_chain(ToyChain { rules: self, hook });
        }
    }
}

/// The rules at a netfilter hook.
struct ToyChain<'r> {
    rules: &'r ToyRules,
    hook: Hook,
}

impl BaseChain for ToyChain<'_> {
    fn hook(&self) -> Hook {
        self.hook
    }

    fn priority(&self) -> i32 {
        -100
    }

    fn is_nat(&self) -> bool {
        true
    }

    fn walk<'a>(&'a self, walker: &mut Walker<'a>, forks: &mut Forks<'a>) -> ChainVerdict {
        let (protocol, destination) = (walker.packet.protocol(), walker.packet.destination());
        let host = walker.packet.host();
        let is_match = |frontend: &&Frontend| {
            frontend.protocol == protocol && frontend.matches(destination, |address| host.owns(address))
        };
        let Some(frontend) = self.rules.0.keys().find(is_match) else { return ChainVerdict::Continue };
        let endpoints = &self.rules.0[frontend];
        let Some((first, others)) = endpoints.split_first() else { return ChainVerdict::Continue };
        walker.multiply_share(1.0 / endpoints.len() as f64);
        for endpoint in others {
            forks.push(walker.clone(), |walker, _| translate(walker, *endpoint));
        }
        translate(walker, *first)
    }
}

fn translate(walker: &mut Walker<'_>, endpoint: SocketAddr) -> ChainVerdict {
    let effect = walker.packet.dnat(endpoint);
    walker.record_effect("toy", &["services"], effect);
    ChainVerdict::Continue
}

/// The mode.
struct Toy;

impl Mode for Toy {
    fn probe(&self, _: &Resolved, family: IpFamily) -> Result<Option<String>, String> {
        if family == IpFamily::V4 { Ok(None) } else { Err("toys are for IPv4 only".to_owned()) }
    }

    fn open(&self, _: &Resolved, _: &NodeView) -> anyhow::Result<OpenMode> {
        let dataplanes: Vec<(IpFamily, Box<dyn Dataplane>)> = vec![(IpFamily::V4, Box::new(ToyDataplane))];
        Ok(OpenMode { dataplanes, leftovers: Vec::new(), relay_reader: None })
    }

    fn plan(&self, _: &Resolved, table: &ServiceTable, _: &[IpAddr]) -> anyhow::Result<Box<dyn PlannedRules>> {
        Ok(Box::new(ToyRules::new(table)))
    }

    fn simulate(&self, _: IpFamily, _: &Resolved, _: Vec<IpAddr>) -> Box<dyn Simulation> {
        Box::new(ToyRules::default())
    }

    fn active_proxies<'a>(&self, _: &'a KernelRules) -> Vec<ActiveProxy<'a>> {
        let proxy = |rules| ActiveProxy {
            mode: TOY,
            description: "Ferroute in toy mode",
            rules: RulesView::Other(Box::leak(Box::<ToyRules>::new(rules))),
            unread: Vec::new(),
        };
        kernel().map(proxy).into_iter().collect()
    }

    fn metrics(&self) -> &'static [ModeMetric] {
        &[]
    }

    fn traits(&self) -> &'static ModeTraits {
        &ModeTraits::IPTABLES
    }

    fn sets_route_localnet(&self, _: &ProxySettings) -> bool {
        false
    }
}

impl RemovableMode for Toy {
    fn name(&self) -> ModeName {
        TOY
    }

    fn leftovers(&self, _: Removal) -> Vec<Box<dyn Leftovers>> {
        vec![Box::new(ToyLeftovers)]
    }

    fn is_present(&self) -> bool {
        kernel().is_some()
    }
}

#[derive(Debug)]
struct ToyLeftovers;

impl Leftovers for ToyLeftovers {
    fn remove(&mut self, report: &mut RemovalReport) {
        if KERNEL.take().is_some() {
            report.removed("toy rules");
        }
    }
}

struct ToyDataplane;

impl Dataplane for ToyDataplane {
    fn sync(&mut self, table: &ServiceTable, _: &Changes) -> Result<SyncReport, DataplaneError> {
        let mut report = SyncReport::default();
        modify_kernel(|rules| report = rules.replace(ToyRules::new(table)));
        Ok(report)
    }

    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        Ok(SyncReport { full: true, ..self.sync(table, &Changes::default())? })
    }

    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        Ok(false)
    }

    fn digest(&self, table: &ServiceTable) -> Option<RulesDigest> {
        Some(ToyRules::new(table).digest())
    }
}

/// The rules of the simulation are those of the in-memory kernel.
impl Simulation for ToyRules {
    fn resync(&mut self, table: &ServiceTable) -> anyhow::Result<SimulatedSync> {
        let sync = self.sync(table, &Changes::default())?;
        Ok(SimulatedSync { rules: Some(self.digest()), ..sync })
    }

    fn sync(&mut self, table: &ServiceTable, _: &Changes) -> anyhow::Result<SimulatedSync> {
        let SyncReport { written, removed, total, .. } = self.replace(ToyRules::new(table));
        Ok(SimulatedSync { written, removed, total, rules: None, text: self.to_string(), other: None })
    }
}
