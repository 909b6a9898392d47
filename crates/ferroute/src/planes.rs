//! The dataplanes that a configuration asks for, on this host.

mod choice;

use std::{path::Path, sync::Arc};

use anyhow::Context;
use ferroute_config::{FamilySupport, Mode, Resolved};
use ferroute_core::{Dataplane, IpFamily, NodeView};
use ferroute_host::KernelAddresses;
use ferroute_iptables::{
    Generations, Host, HostPrograms, IptablesDataplane, Tools,
    runner::{OtherBackend, search_path},
};
use ferroute_nftables::{NftablesDataplane, kernel::NetlinkKernel, plan::NftablesSettings};

pub(crate) use self::choice::{CalledAs, Reason, choose};
use crate::{
    cleanup::{self, Leftovers, Traces},
    logging::chain,
};

/// What a configuration asks for.
pub(crate) struct Planes {
    /// A dataplane for each family that is served.
    pub(crate) served: Vec<(IpFamily, Box<dyn Dataplane>)>,
    /// What other modes may have left on this host, here or by kube-proxy: it goes once the rules of `served` are in
    /// force.
    pub(crate) predecessors: Vec<Box<dyn Leftovers>>,
}

/// Finds out what the host can do and makes the dataplanes. The calling thread's network namespace is the one that they
/// write to.
pub(crate) fn open(resolved: &Resolved, node: &NodeView) -> anyhow::Result<Planes> {
    match resolved.mode {
        Mode::Iptables => {}
        Mode::Nftables => {
            let predecessors = predecessors(cleanup::of_all_but_nftables());
            return Ok(Planes { served: nftables(resolved, node)?, predecessors });
        }
        Mode::Ipvs(_) => {
            tracing::warn!("mode ipvs is not to be had: taking iptables, which sends traffic to the same endpoints");
        }
    }
    iptables(resolved, node)
}

fn predecessors(traces: Vec<Traces>) -> Vec<Box<dyn Leftovers>> {
    traces.into_iter().map(|traces| Box::new(traces) as Box<dyn Leftovers>).collect()
}

fn iptables(resolved: &Resolved, node: &NodeView) -> anyhow::Result<Planes> {
    let programs = Arc::new(HostPrograms);
    let path = search_path();
    let [ipv4, ipv6] = IpFamily::BOTH.map(|family| Tools::find_beside_kubelet(family, &*programs, &path));
    let support = FamilySupport { ipv4: ipv4.is_ok(), ipv6: ipv6.is_ok() && kernel_has_ipv6() };
    let families = match resolved.families(node, support) {
        Ok(families) => families,
        Err(error) => {
            // Why a family cannot be had is what a person can mend.
            for unusable in [ipv4.err(), ipv6.err()].into_iter().flatten() {
                tracing::error!("{}", chain(&unusable));
            }
            return Err(error.into());
        }
    };
    let generations = Generations::of_kernel().context("cannot ask the kernel for its count of rule changes")?;
    let mut served: Vec<(IpFamily, Box<dyn Dataplane>)> = Vec::new();
    let mut backends = Vec::new();
    for (family, tools) in IpFamily::BOTH.into_iter().zip([ipv4, ipv6]) {
        if !families.iter().any(|served| served == family) {
            tracing::info!(%family, "not served: {}", tools.err().map_or("the kernel has none".to_owned(), |e| chain(&e)));
            continue;
        }
        let tools = tools?;
        tracing::info!(%family, iptables = %tools.iptables.display(), release = %tools.release, "using iptables");
        warn_of_other_backend(&tools, &programs);
        backends.push((family, tools.release.backend));
        let plane = IptablesDataplane::new(
            tools,
            resolved.settings.clone(),
            programs.clone(),
            Host::of_kernel()?,
            generations.clone(),
        );
        served.push((family, Box::new(plane)));
    }
    Ok(Planes { served, predecessors: predecessors(cleanup::of_all_but_iptables(&backends)) })
}

fn nftables(resolved: &Resolved, node: &NodeView) -> anyhow::Result<Vec<(IpFamily, Box<dyn Dataplane>)>> {
    let support = FamilySupport { ipv4: true, ipv6: kernel_has_ipv6() };
    let mut planes: Vec<(IpFamily, Box<dyn Dataplane>)> = Vec::new();
    for family in resolved.families(node, support)?.iter() {
        let plane = nftables_of(resolved, family)
            .context("the kernel has no nf_tables, or we may not use it (CAP_NET_ADMIN)")?;
        tracing::info!(%family, "using nftables");
        planes.push((family, Box::new(plane)));
    }
    Ok(planes)
}

fn nftables_of(resolved: &Resolved, family: IpFamily) -> anyhow::Result<NftablesDataplane> {
    Ok(NftablesDataplane::open(family, nftables_settings(resolved), Box::new(KernelAddresses::open()?))?)
}

/// Finds out whether the kernel can do all that nftables mode asks of it, in each family that it has; if not, what it
/// cannot do. Nothing is left behind.
pub(crate) fn probe_nftables(resolved: &Resolved) -> Result<(), String> {
    let settings = nftables_settings(resolved);
    let mut kernel = NetlinkKernel::open().map_err(|error| chain(&error))?;
    for family in IpFamily::BOTH.into_iter().filter(|family| *family == IpFamily::V4 || kernel_has_ipv6()) {
        ferroute_nftables::probe(&mut kernel, family, &settings)
            .map_err(|error| format!("{family}: {}", chain(&error)))?;
    }
    Ok(())
}

/// What decides about rules in nftables mode.
pub(crate) fn nftables_settings(resolved: &Resolved) -> NftablesSettings {
    let counters = resolved.connection_counters.is_some();
    NftablesSettings { proxy: resolved.settings.clone(), counters }
}

/// Rules of both backends act on every packet, and which act first is hard to tell.
fn warn_of_other_backend(tools: &Tools, programs: &HostPrograms) {
    match tools.other_backend(programs, &search_path()) {
        Ok(Some(OtherBackend { backend, rules, has_kubelet })) if rules > 0 || has_kubelet => tracing::warn!(
            family = %tools.family, rules, kubelet = has_kubelet,
            "there are rules of {backend} too: a host should use one backend only"
        ),
        Ok(_) => {}
        Err(error) => tracing::debug!("cannot look at the other backend: {}", chain(&error)),
    }
}

/// The kernel was not started without IPv6.
pub(crate) fn kernel_has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}
