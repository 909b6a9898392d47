//! iptables mode in the registry.

use std::{net::IpAddr, sync::Arc, thread, time::Duration};

use ferroute_admin::metrics::{IPTABLES_METRICS, ModeMetric};
use ferroute_config::{ModeName, Resolved};
use ferroute_core::{
    Changes, Dataplane, HostState, IpFamily, ModeTraits, NfacctCounters, NodeView, ProxySettings, ServiceTable,
    error_chain,
};
use ferroute_host::KernelCounters;
use ferroute_iptables::{
    ChainState, Difference, HostAccess, HostExec, IptablesContext, IptablesDataplane, KernelChains, RuleSet, TableName,
    exec::{
        Backend, ChainMode, ChosenAccess, CleanupReport, CleanupScope, Exec, clean_up, detect_modes, existing_accesses,
        remove_counters, search_path,
    },
    native::Modules,
    plan::{chains, rules_digest},
};

use crate::{
    ActiveProxy, Mode, OpenMode, OtherWriting, PlannedRules, RemovableMode, Removal, RulesView, SimulatedSync,
    Simulation,
    cleanup::{Leftovers, RemovalReport},
    host_rules::{HostRules, probe_access},
    kernel_rules::KernelRules,
};

/// iptables mode.
pub(super) struct Iptables;

impl Mode for Iptables {
    fn probe(&self, resolved: &Resolved, family: IpFamily) -> Result<Option<String>, String> {
        probe_access(resolved, family, Modules::Common)
    }

    fn open(&self, resolved: &Resolved, node: &NodeView) -> anyhow::Result<OpenMode> {
        let HostRules { generations, families, disabled } = HostRules::find(resolved, node, Modules::Common)?;
        let mut dataplanes: Vec<(IpFamily, Box<dyn Dataplane>)> = Vec::new();
        let mut leftovers: Vec<_> =
            disabled.into_iter().map(|family| leftovers_beside_own_rules(family, None)).collect();
        for (family, chosen) in families {
            tracing::info!(%family, rules = %chosen, "using iptables");
            leftovers.push(leftovers_beside_own_rules(family, Some(chosen.access.backend())));
            let (settings, host) = (resolved.settings.clone(), HostAccess::open()?);
            let dataplane = IptablesDataplane::new(chosen.access, settings, host, generations.clone());
            dataplanes.push((family, Box::new(dataplane)));
        }
        Ok(OpenMode { dataplanes, leftovers, relay_reader: None })
    }

    fn plan(
        &self,
        resolved: &Resolved,
        table: &ServiceTable,
        addresses: &[IpAddr],
    ) -> anyhow::Result<Box<dyn PlannedRules>> {
        Ok(Box::new(ferroute_iptables::render(table, &plan_context(resolved, table, addresses))))
    }

    fn simulate(&self, _: IpFamily, resolved: &Resolved, addresses: Vec<IpAddr>) -> Box<dyn Simulation> {
        Box::new(Simulated { resolved: resolved.clone(), addresses, state: None })
    }

    fn active_proxies<'a>(&self, kernel: &'a KernelRules) -> Vec<ActiveProxy<'a>> {
        // The kubelet creates some of these chains, and kube-proxy's ipvs mode has no canary.
        let required = [chains::SERVICES, chains::CANARY];
        let is_proxy = |rules: &RuleSet| required.iter().all(|chain| rules.chain(TableName::Nat, *chain).is_some());
        let active = kernel.iptables.iter().filter(|snapshot| is_proxy(&snapshot.saved.rules));
        active
            .map(|snapshot| ActiveProxy {
                mode: ModeName::IPTABLES,
                description: match snapshot.backend {
                    Backend::NfTables => "kube-proxy or Ferroute in iptables mode",
                    Backend::Legacy => "kube-proxy or Ferroute in iptables mode (legacy)",
                },
                rules: RulesView::Iptables(&snapshot.saved.rules),
                unread: kernel.unread.clone(),
            })
            .collect()
    }

    fn metrics(&self) -> &'static [ModeMetric] {
        IPTABLES_METRICS
    }

    fn traits(&self) -> &'static ModeTraits {
        &ModeTraits::IPTABLES
    }

    fn sets_route_localnet(&self, settings: &ProxySettings) -> bool {
        settings.localhost_node_ports(IpFamily::V4)
    }
}

impl RemovableMode for Iptables {
    fn name(&self) -> ModeName {
        ModeName::IPTABLES
    }

    fn leftovers(&self, removal: Removal) -> Vec<Box<dyn Leftovers>> {
        let mut leftovers: Vec<Box<dyn Leftovers>> = Vec::new();
        for family in IpFamily::BOTH {
            let active = match removal {
                Removal::TakenOver(ModeName::IPVS) => active_backend(family).map(|backend| (backend, ChainMode::Ipvs)),
                Removal::TakenOver(ModeName::USERSPACE) => {
                    active_backend(family).map(|backend| (backend, ChainMode::Userspace))
                }
                Removal::Cleanup | Removal::TakenOver(_) => None,
            };
            leftovers.push(Box::new(Rules { family, active }));
        }
        // The kernel removes a counter only after the last rule that refers to it.
        leftovers.push(Box::new(PacketCounters));
        leftovers
    }

    fn is_present(&self) -> bool {
        chain_modes().contains(&ChainMode::Iptables)
    }
}

/// Returns the iptables rules to remove while iptables mode is active, with this backend in this IP family.
pub(super) fn leftovers_beside_own_rules(family: IpFamily, active: Option<Backend>) -> Box<dyn Leftovers> {
    Box::new(Rules { family, active: active.map(|backend| (backend, ChainMode::Iptables)) })
}

/// Returns the backend that a mode with iptables rules uses in an IP family.
fn active_backend(family: IpFamily) -> Option<Backend> {
    let chosen = ChosenAccess::find(family, Arc::new(HostExec), &search_path(), false, Modules::Common);
    chosen.ok().map(|chosen| chosen.access.backend())
}

/// Returns the modes of kube-proxy that have chains in the kernel, in either IP family and backend. Chains that cannot be
/// listed are ignored.
pub(super) fn chain_modes() -> Vec<ChainMode> {
    let (exec, path): (Arc<dyn Exec>, _) = (Arc::new(HostExec), search_path());
    let accesses = IpFamily::BOTH.into_iter().flat_map(|family| existing_accesses(family, &exec, &path));
    accesses.filter_map(|access| detect_modes(&access.ok()?).ok()).flatten().collect()
}

/// Returns the context for a host that supports all optional features.
fn plan_context(resolved: &Resolved, table: &ServiceTable, addresses: &[IpAddr]) -> IptablesContext {
    let host = HostState {
        addresses: addresses.to_vec(),
        random_fully: true,
        counters: NfacctCounters { invalid_dropped: true, localhost_accepted: true },
        conntrack_tcp_be_liberal: resolved.conntrack.tcp_be_liberal,
    };
    IptablesContext::new(&resolved.settings, table, &host)
}

impl PlannedRules for RuleSet {
    fn view(&self) -> RulesView<'_> {
        RulesView::Iptables(self)
    }
}

/// The planner and its state between syncs.
struct Simulated {
    resolved: Resolved,
    addresses: Vec<IpAddr>,
    state: Option<ChainState>,
}

impl Simulated {
    fn write(&mut self, table: &ServiceTable, changes: Option<&Changes>) -> anyhow::Result<SimulatedSync> {
        let context = plan_context(&self.resolved, table, &self.addresses);
        let (state, difference) = match (self.state.take(), changes) {
            (Some(state), Some(changes)) => {
                let difference = state.difference(table, &context, changes);
                (Some(state), difference)
            }
            _ => (None, Difference::from_kernel(table, context, KernelChains::empty())),
        };
        let (written, text) = written_text(&difference, table)?;
        let removed = difference.deleted();
        let other = match (&state, changes) {
            (Some(state), Some(changes)) => {
                let mut edited = difference.clone();
                state.edit_shared(table, changes, &mut edited);
                let (written, text) = written_text(&edited, table)?;
                Some(OtherWriting { written, text })
            }
            _ => None,
        };
        let state = match state {
            Some(mut state) => {
                state.record(difference);
                state
            }
            None => ChainState::new(difference),
        };
        let total = state.counts().total();
        self.state = Some(state);
        Ok(SimulatedSync { written, removed, total, rules: None, text, other })
    }
}

/// Returns the number of rules that a difference writes, and the input of `iptables-restore`.
fn written_text(difference: &Difference, table: &ServiceTable) -> anyhow::Result<(usize, String)> {
    let mut text = Vec::new();
    let written = difference.write(table, &mut text)?;
    Ok((written.rules.total(), String::from_utf8(text).expect("rules are UTF-8")))
}

impl Simulation for Simulated {
    fn resync(&mut self, table: &ServiceTable) -> anyhow::Result<SimulatedSync> {
        let sync = self.write(table, None)?;
        let digest = rules_digest(table, &plan_context(&self.resolved, table, &self.addresses));
        Ok(SimulatedSync { rules: Some(digest), ..sync })
    }

    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> anyhow::Result<SimulatedSync> {
        self.write(table, Some(changes))
    }
}

/// The iptables rules of one IP family, in both backends. With an active dataplane, the rules of its mode in its backend are
/// kept.
#[derive(Debug)]
struct Rules {
    family: IpFamily,
    active: Option<(Backend, ChainMode)>,
}

impl Leftovers for Rules {
    fn remove(&mut self, report: &mut RemovalReport) {
        let Self { family, active } = *self;
        let exec: Arc<dyn Exec> = Arc::new(HostExec);
        for access in existing_accesses(family, &exec, &search_path()) {
            let access = match access {
                Ok(access) => access,
                Err(error) => {
                    report.remains(format!("{family} iptables rules may remain: {}", error_chain(&error)));
                    continue;
                }
            };
            let backend = access.backend();
            let scope = match active {
                Some((active, mode)) if active == backend => CleanupScope::Beside(mode),
                _ => CleanupScope::Everything,
            };
            let CleanupReport { chains, jumps, udp_frontends, errors } = clean_up(&access, scope);
            report.udp_frontends.extend(udp_frontends);
            if chains + jumps > 0 {
                report.removed(format!("{chains} chains and {jumps} jumps to them from {family} iptables ({backend})"));
            }
            for error in &errors {
                report.remains(format!("{family} iptables ({backend}): {}", error_chain(error)));
            }
        }
    }
}

/// The nfacct counters that iptables rules refer to.
#[derive(Debug)]
struct PacketCounters;

impl Leftovers for PacketCounters {
    fn remove(&mut self, report: &mut RemovalReport) {
        match KernelCounters::open() {
            Ok(Some(mut counters)) => {
                for attempt in 1..=ATTEMPTS {
                    let (removed, errors) = remove_counters(&mut counters);
                    removed.into_iter().for_each(|name| report.removed(format!("packet counter {name}")));
                    if errors.is_empty() {
                        break;
                    }
                    if attempt < ATTEMPTS {
                        thread::sleep(PAUSE);
                    } else {
                        errors.iter().for_each(|error| report.failed(error));
                    }
                }
            }
            Ok(None) => {}
            Err(error) => report.failed(&error),
        }
    }
}

/// Number of attempts to remove packet counters: the kernel releases them shortly after the last rule that refers to
/// them is deleted.
const ATTEMPTS: usize = 10;
/// The pause between attempts.
const PAUSE: Duration = Duration::from_millis(50);
