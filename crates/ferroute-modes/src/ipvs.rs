//! ipvs mode in the registry.

mod leftovers;
mod planned;
mod strict_arp;

use std::{net::IpAddr, time::Duration};

use anyhow::{Context, bail};
use ferroute_admin::metrics::{IPVS_METRICS, ModeMetric};
use ferroute_config::{ModeName, Resolved};
use ferroute_core::{Dataplane, HostState, IpFamily, ModeTraits, NodeView, ProxySettings, ServiceTable, error_chain};
use ferroute_host::Sysctls;
use ferroute_iptables::{
    exec::{ChainMode, GroupWriter},
    native::Modules,
};
use ferroute_ipvs::{
    DUMMY_DEVICE, DUMMY_KIND, Devices, IpSets, IpvsDataplane, SetError, Timeouts, VirtualServers,
    kernel::{MemoryKernel, NetlinkKernel},
    plan::{IpvsContext, IpvsPlan, IpvsSettings, Scheduler},
};

use self::{
    leftovers::{ServersOf, VirtualServersAndSets},
    planned::Planned,
};
use crate::{
    ActiveProxy, Mode, OpenMode, PlannedRules, RemovableMode, Removal, Simulation, Sysctl,
    cleanup::Leftovers,
    host_rules::{HostRules, probe_access},
    iptables::{chain_modes, leftovers_beside_own_rules},
    kernel_release,
    kernel_rules::KernelRules,
    memory_rules::MemoryRules,
    simulated::Simulated,
};

pub use self::planned::KernelIpvs;

/// ipvs mode.
pub(super) struct Ipvs;

impl Mode for Ipvs {
    fn probe(&self, resolved: &Resolved, family: IpFamily) -> Result<Option<String>, String> {
        open_servers(resolved).map_err(|error| error_chain(error.as_ref()))?;
        // An IP family whose rules cannot be accessed is not served; this does not require another mode.
        Ok(probe_access(resolved, family, Modules::Ipvs).unwrap_or_default())
    }

    fn open(&self, resolved: &Resolved, node: &NodeView) -> anyhow::Result<OpenMode> {
        let HostRules { generations, families, disabled } = HostRules::find(resolved, node, Modules::Ipvs)?;
        let mut servers = open_servers(resolved)?;
        check_sysctls(resolved)?;
        let ferroute_config::IpvsSettings { tcp_timeout, tcp_fin_timeout, udp_timeout, .. } = resolved.ipvs;
        let timeouts = Timeouts { tcp: tcp_timeout, tcp_fin: tcp_fin_timeout, udp: udp_timeout };
        let settings = IpvsSettings { missing_schedulers: missing_schedulers(&mut servers), ..settings(resolved) };
        let alias = strict_arp::alias()?;
        let mut dataplanes: Vec<(IpFamily, Box<dyn Dataplane>)> = Vec::new();
        for (family, chosen) in families {
            tracing::info!(%family, rules = %chosen, scheduler = settings.scheduler(), "using ipvs");
            let host = HostState { random_fully: chosen.access.has_random_fully(), ..HostState::default() };
            let rules = GroupWriter::new(chosen.access, generations.clone());
            let kernel =
                NetlinkKernel::open(family, settings.scheduler())?.with_alias(alias.clone()).with_timeouts(timeouts);
            let dataplane = IpvsDataplane::new(family, settings.clone(), kernel, rules, host);
            let dataplane = dataplane.keep_node_ports(DEPARTURE);
            dataplanes.push((family, Box::new(dataplane)));
        }
        // Rules and virtual servers of a family that is no longer served may lead to removed endpoints.
        let rules = disabled.iter().map(|family| leftovers_beside_own_rules(*family, None));
        let leftovers = rules.chain([Box::new(ServersOf(disabled.clone())) as Box<dyn Leftovers>]).collect();
        Ok(OpenMode { dataplanes, leftovers, relay_reader: None })
    }

    fn plan(
        &self,
        resolved: &Resolved,
        table: &ServiceTable,
        addresses: &[IpAddr],
    ) -> anyhow::Result<Box<dyn PlannedRules>> {
        let host = HostState { addresses: addresses.to_vec(), random_fully: true, ..HostState::default() };
        let context = IpvsContext::new(&settings(resolved), table, &host);
        Ok(Box::new(Planned::new(IpvsPlan::new(table, context))))
    }

    fn simulate(&self, family: IpFamily, resolved: &Resolved, addresses: Vec<IpAddr>) -> Box<dyn Simulation> {
        let settings = settings(resolved);
        let kernel = MemoryKernel::new(family, settings.scheduler());
        let host = HostState { addresses, random_fully: true, ..HostState::default() };
        let dataplane = IpvsDataplane::new(family, settings, kernel, MemoryRules::default(), host);
        Box::new(Simulated::new(dataplane, |dataplane: &mut IpvsDataplane<MemoryKernel, MemoryRules>| {
            let mut text = dataplane.kernel_mut().take_text();
            text.push_str(&dataplane.rules_mut().take_text());
            text
        }))
    }

    fn active_proxies<'a>(&self, kernel: &'a KernelRules) -> Vec<ActiveProxy<'a>> {
        ActiveProxy::of_objects("kube-proxy or Ferroute in ipvs mode", kernel.ipvs.as_ref(), kernel)
    }

    fn metrics(&self) -> &'static [ModeMetric] {
        IPVS_METRICS
    }

    fn traits(&self) -> &'static ModeTraits {
        &ModeTraits::IPVS
    }

    fn sets_route_localnet(&self, _: &ProxySettings) -> bool {
        false
    }

    fn sysctls(&self, resolved: &Resolved) -> Vec<Sysctl> {
        let mut sysctls = vec![
            // Connections of virtual servers can be masqueraded.
            Sysctl { name: VS_CONNTRACK, value: "1" },
            // If the real server of a connection was deleted, its next packet ends the connection.
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
            sysctls.extend(strict_arp::SYSCTLS);
        }
        sysctls
    }

    fn prepare_sysctls(&self, resolved: &Resolved) -> anyhow::Result<Vec<String>> {
        let sysctls = Sysctls::from_kernel();
        if resolved.ipvs.strict_arp {
            strict_arp::remember(&sysctls).context("cannot keep the values that sysctls had before strict ARP")?;
            return Ok(Vec::new());
        }
        strict_arp::restore(&sysctls).context("cannot restore the sysctls of strict ARP, which is off")
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
        // Another program may have deleted the device.
        let has_sets = || {
            let mut sets = IpSets::open()?;
            Ok::<_, SetError>(sets.are_used(IpFamily::V4)? || sets.are_used(IpFamily::V6)?)
        };
        has_device || chain_modes().contains(&ChainMode::Ipvs) || has_sets().unwrap_or_default()
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

/// Checks the sysctls that connections depend on. They were set at the start, as far as permitted.
fn check_sysctls(resolved: &Resolved) -> anyhow::Result<()> {
    let sysctls = Sysctls::from_kernel();
    for Sysctl { name, value } in Ipvs.sysctls(resolved) {
        // With ipvs loaded only now, the first attempt was in vain.
        if let Err(error) = sysctls.ensure(name, value) {
            if name == VS_CONNTRACK {
                return Err(error).context("ipvs mode requires connection tracking of virtual servers");
            }
            tracing::warn!("{}", error_chain(&error));
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
        // Planned rules are for a host that supports all features.
        missing_schedulers: Vec::new(),
    }
}

/// Returns the schedulers of Services that the kernel does not support. Loads the modules of the others.
fn missing_schedulers(servers: &mut VirtualServers) -> Vec<Scheduler> {
    let is_missing = |scheduler: &Scheduler| {
        let checked = servers.check_scheduler(scheduler.name());
        if let Err(error) = &checked {
            let error = error_chain(error);
            tracing::warn!(error, "Services that request this scheduler or endpoint weights use the configured one");
        }
        checked.is_err()
    };
    Scheduler::ALL.into_iter().filter(is_missing).collect()
}

/// How long node ports are kept at an address that has left the host. Programs that configure the network remove addresses and add them
/// again.
const DEPARTURE: Duration = Duration::from_secs(10);

/// Connection tracking of virtual servers.
const VS_CONNTRACK: &str = "net/ipv4/vs/conntrack";
