//! ipvs mode in the registry.

mod leftovers;
mod planned;

use std::{net::IpAddr, sync::Arc};

use anyhow::{Context, bail};
use ferroute_admin::metrics::{IPVS_METRICS, ModeMetric};
use ferroute_config::{FamilySupport, ModeName, Resolved};
use ferroute_core::{Changes, Dataplane, HostState, IpFamily, NodeView, ProxySettings, ServiceTable, SyncReport};
use ferroute_host::{KernelAddresses, Sysctls};
use ferroute_iptables::{
    GenerationTracker, HostExec, IptablesPrograms,
    exec::{ChainMode, GroupWriter, search_path},
};
use ferroute_ipvs::{
    DUMMY_DEVICE, DUMMY_KIND, Devices, IpvsDataplane, Timeouts, VirtualServers,
    kernel::{MemoryKernel, NetlinkKernel},
    plan::{IpvsSettings, PlanContext, State},
};

use self::{leftovers::VirtualServersAndSets, planned::Planned};
use super::{
    ActiveProxy, Mode, OpenMode, PlannedRules, RemovableMode, Removal, RulesView, SimulatedSync, Simulation, Sysctl,
    iptables::{chain_modes, warn_of_other_backend},
    kernel_has_ipv6, kernel_release,
    memory_rules::MemoryRules,
};
use crate::{cleanup::Leftovers, kernel_rules::KernelRules, logging::chain};

pub use self::planned::KernelIpvs;

/// ipvs mode.
pub(super) struct Ipvs;

impl Mode for Ipvs {
    fn probe(&self, resolved: &Resolved, _: IpFamily) -> Result<(), String> {
        open_servers(resolved).map(|_| ()).map_err(|error| chain(error.as_ref()))
    }

    fn open(&self, resolved: &Resolved, node: &NodeView) -> anyhow::Result<OpenMode> {
        let exec = Arc::new(HostExec);
        let path = search_path();
        let [ipv4, ipv6] = IpFamily::BOTH.map(|family| IptablesPrograms::find_for_kubelet(family, &*exec, &path));
        let support = FamilySupport { ipv4: ipv4.is_ok(), ipv6: ipv6.is_ok() && kernel_has_ipv6() };
        for reason in [ipv4.as_ref().err(), ipv6.as_ref().err()].into_iter().flatten() {
            tracing::info!("IP family is disabled: {}", chain(reason));
        }
        let families = resolved.families(node, support)?;
        let mut servers = open_servers(resolved)?;
        check_sysctls(resolved)?;
        let ferroute_config::IpvsSettings { tcp_timeout, tcp_fin_timeout, udp_timeout, .. } = resolved.ipvs;
        let timeouts = Timeouts { tcp: tcp_timeout, tcp_fin: tcp_fin_timeout, udp: udp_timeout };
        if !timeouts.is_empty() {
            servers.set_timeouts(timeouts)?;
        }
        let generations =
            GenerationTracker::open().context("cannot read the kernel's generation of nf_tables rules")?;
        let settings = settings(resolved);
        let mut dataplanes: Vec<(IpFamily, Box<dyn Dataplane>)> = Vec::new();
        for (family, programs) in IpFamily::BOTH.into_iter().zip([ipv4, ipv6]) {
            if !families.iter().any(|active| active == family) {
                continue;
            }
            let programs = programs?;
            tracing::info!(
                %family, iptables = %programs.iptables.display(), release = %programs.release,
                scheduler = settings.scheduler(), "using ipvs"
            );
            warn_of_other_backend(&programs, &exec);
            let host = HostState { random_fully: programs.release.has_random_fully(), ..HostState::default() };
            let rules = GroupWriter::new(programs, exec.clone(), generations.clone());
            let kernel = NetlinkKernel::open(family, settings.scheduler())?;
            let addresses = Box::new(KernelAddresses::open()?);
            let dataplane = IpvsDataplane::new(family, settings.clone(), kernel, rules, addresses, host);
            dataplanes.push((family, Box::new(dataplane)));
        }
        Ok(OpenMode { dataplanes, leftovers: Vec::new() })
    }

    fn plan(
        &self,
        resolved: &Resolved,
        table: &ServiceTable,
        addresses: &[IpAddr],
    ) -> anyhow::Result<Box<dyn PlannedRules>> {
        let host = HostState { addresses: addresses.to_vec(), random_fully: true, ..HostState::default() };
        let context = PlanContext::new(&settings(resolved), table, &host);
        Ok(Box::new(Planned::new(State::new(table, context))))
    }

    fn simulate(&self, family: IpFamily, resolved: &Resolved, addresses: Vec<IpAddr>) -> Box<dyn Simulation> {
        let settings = settings(resolved);
        let kernel = MemoryKernel::new(family, settings.scheduler());
        let host = HostState { random_fully: true, ..HostState::default() };
        let addresses = Box::new(addresses);
        let dataplane = IpvsDataplane::new(family, settings, kernel, MemoryRules::default(), addresses, host);
        Box::new(Simulated(dataplane))
    }

    fn active_proxies<'a>(&self, kernel: &'a KernelRules) -> Vec<ActiveProxy<'a>> {
        let unread = kernel.iptables.iter().flat_map(|snapshot| &snapshot.saved.partial);
        let unread = unread.map(|table| format!("iptables-save cannot show all of table {table}")).collect();
        let active = kernel.ipvs.as_ref().map(|objects| ActiveProxy {
            mode: ModeName::IPVS,
            description: "kube-proxy or Ferroute in ipvs mode",
            rules: RulesView::Other(objects),
            unread,
        });
        active.into_iter().collect()
    }

    fn metrics(&self) -> &'static [ModeMetric] {
        IPVS_METRICS
    }

    fn sets_route_localnet(&self, _: &ProxySettings) -> bool {
        false
    }

    fn sysctls(&self, resolved: &Resolved) -> Vec<Sysctl> {
        let mut sysctls = vec![
            // Connections of virtual servers can be masqueraded.
            Sysctl { name: VS_CONNTRACK, value: "1" },
            // The next packet of a connection whose real server was deleted ends the connection.
            Sysctl { name: "net/ipv4/vs/expire_nodest_conn", value: "1" },
            // Session affinity to a real server with weight 0 ends.
            Sysctl { name: "net/ipv4/vs/expire_quiescent_template", value: "1" },
            Sysctl { name: "net/ipv4/ip_forward", value: "1" },
        ];
        // Since Linux 5.9 a reused connection is no longer dropped for a second with the default.
        if kernel_version().is_some_and(|release| ((4, 1)..(5, 9)).contains(&release)) {
            sysctls.push(Sysctl { name: "net/ipv4/vs/conn_reuse_mode", value: "0" });
        }
        if resolved.ipvs.strict_arp {
            sysctls.push(Sysctl { name: "net/ipv4/conf/all/arp_ignore", value: "1" });
            sysctls.push(Sysctl { name: "net/ipv4/conf/all/arp_announce", value: "2" });
        }
        sysctls
    }

    fn fallback(&self) -> Option<ModeName> {
        Some(ModeName::IPTABLES)
    }
}

impl RemovableMode for Ipvs {
    fn name(&self) -> ModeName {
        ModeName::IPVS
    }

    fn leftovers(&self, removal: Removal) -> Vec<Box<dyn Leftovers>> {
        vec![Box::new(VirtualServersAndSets { drain: removal != Removal::Cleanup })]
    }

    fn is_present(&self) -> bool {
        let device = Devices::open().and_then(|mut devices| devices.find(DUMMY_DEVICE));
        let has_device = matches!(device, Ok(Some(device)) if device.kind.as_deref() == Some(DUMMY_KIND));
        has_device || chain_modes().contains(&ChainMode::Ipvs)
    }
}

/// Opens the virtual servers and checks the scheduler. Loads kernel modules if necessary.
fn open_servers(resolved: &Resolved) -> anyhow::Result<VirtualServers> {
    let Some(mut servers) = VirtualServers::open()? else {
        bail!("the kernel does not support ipvs, or its module ip_vs cannot be loaded");
    };
    servers.check_scheduler(settings(resolved).scheduler())?;
    Ok(servers)
}

/// Checks the sysctls without which connections fail. They were set at the start, as far as that was permitted.
fn check_sysctls(resolved: &Resolved) -> anyhow::Result<()> {
    let sysctls = Sysctls::from_kernel();
    for Sysctl { name, value } in Ipvs.sysctls(resolved) {
        // With ipvs loaded only now, the first attempt was in vain.
        if let Err(error) = sysctls.ensure(name, value) {
            if name == VS_CONNTRACK {
                return Err(error).context("ipvs mode requires connection tracking of virtual servers");
            }
            tracing::warn!("{}", chain(&error));
        }
    }
    Ok(())
}

/// Returns the major and minor version of the running kernel.
fn kernel_version() -> Option<(u32, u32)> {
    let release = kernel_release()?;
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Returns the settings of this mode.
fn settings(resolved: &Resolved) -> IpvsSettings {
    IpvsSettings {
        proxy: resolved.settings.clone(),
        scheduler: resolved.ipvs.scheduler.clone(),
        exclude_cidrs: resolved.ipvs.exclude_cidrs.clone(),
    }
}

/// The dataplane over an in-memory kernel.
struct Simulated(IpvsDataplane<MemoryKernel, MemoryRules>);

impl Simulated {
    fn written(&mut self, report: &SyncReport) -> SimulatedSync {
        let mut text = self.0.kernel_mut().take_text();
        text.push_str(&self.0.rules_mut().take_text());
        SimulatedSync { written: report.written, removed: report.removed, total: report.total, rules: None, text }
    }
}

impl Simulation for Simulated {
    fn resync(&mut self, table: &ServiceTable) -> anyhow::Result<SimulatedSync> {
        let report = self.0.resync(table)?;
        Ok(SimulatedSync { rules: self.0.digest(table), ..self.written(&report) })
    }

    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> anyhow::Result<SimulatedSync> {
        let report = self.0.sync(table, changes)?;
        Ok(self.written(&report))
    }
}

/// Connection tracking of virtual servers.
const VS_CONNTRACK: &str = "net/ipv4/vs/conntrack";
