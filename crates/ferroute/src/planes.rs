//! The dataplanes that a configuration asks for, on this host.

use std::{path::Path, sync::Arc};

use anyhow::Context;
use ferroute_config::{FamilySupport, Mode, Resolved};
use ferroute_core::{Dataplane, IpFamily, NodeView};
use ferroute_host::KernelAddresses;
use ferroute_iptables::{
    Generations, Host, HostPrograms, IptablesDataplane, Tools,
    runner::{OtherBackend, search_path},
};
use ferroute_nftables::{NftablesDataplane, plan::NftablesSettings};

use crate::logging::chain;

/// What a configuration asks for.
pub(crate) struct Planes {
    /// A dataplane for each family that is served.
    pub(crate) served: Vec<(IpFamily, Box<dyn Dataplane>)>,
    /// Modes that this host may have been served in before, here or by kube-proxy: their rules go once those of
    /// `served` are in force.
    pub(crate) predecessors: Vec<Box<dyn Dataplane>>,
}

/// Finds out what the host can do and makes the dataplanes. The calling thread's network namespace is the one that they
/// write to.
pub(crate) fn open(resolved: &Resolved, node: &NodeView) -> anyhow::Result<Planes> {
    match resolved.mode {
        Mode::Iptables => {}
        Mode::Nftables => {
            return Ok(Planes { served: nftables(resolved, node)?, predecessors: left_by_iptables(resolved)? });
        }
        Mode::Ipvs(_) => {
            tracing::warn!("mode ipvs is not to be had: taking iptables, which sends traffic to the same endpoints");
        }
    }
    Ok(Planes { served: iptables(resolved, node)?, predecessors: left_by_nftables(resolved) })
}

/// All that there can be on this host, whatever the configuration asks for.
pub(crate) fn every(resolved: &Resolved) -> anyhow::Result<Vec<Box<dyn Dataplane>>> {
    let mut planes = left_by_iptables(resolved)?;
    planes.extend(left_by_nftables(resolved));
    Ok(planes)
}

fn iptables(resolved: &Resolved, node: &NodeView) -> anyhow::Result<Vec<(IpFamily, Box<dyn Dataplane>)>> {
    let programs = Arc::new(HostPrograms);
    let path = search_path();
    let [ipv4, ipv6] = IpFamily::BOTH.map(|family| Tools::find(family, &*programs, &path));
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
    let mut planes: Vec<(IpFamily, Box<dyn Dataplane>)> = Vec::new();
    for (family, tools) in IpFamily::BOTH.into_iter().zip([ipv4, ipv6]) {
        if !families.iter().any(|served| served == family) {
            tracing::info!(%family, "not served: {}", tools.err().map_or("the kernel has none".to_owned(), |e| chain(&e)));
            continue;
        }
        let tools = tools?;
        tracing::info!(%family, iptables = %tools.iptables.display(), release = %tools.release, "using iptables");
        warn_of_other_backend(&tools, &programs);
        let plane = IptablesDataplane::new(
            tools,
            resolved.settings.clone(),
            programs.clone(),
            Host::of_kernel()?,
            generations.clone(),
        );
        planes.push((family, Box::new(plane)));
    }
    Ok(planes)
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

/// What decides about rules in nftables mode.
pub(crate) fn nftables_settings(resolved: &Resolved) -> NftablesSettings {
    NftablesSettings { proxy: resolved.settings.clone(), service_networks: Vec::new(), counters: false }
}

/// Where the tools or the kernel cannot do iptables there is nothing of it to remove.
fn left_by_iptables(resolved: &Resolved) -> anyhow::Result<Vec<Box<dyn Dataplane>>> {
    let programs = Arc::new(HostPrograms);
    let generations = Generations::of_kernel().context("cannot ask the kernel for its count of rule changes")?;
    let mut left: Vec<Box<dyn Dataplane>> = Vec::new();
    for tools in IpFamily::BOTH.into_iter().filter_map(|family| Tools::find(family, &*programs, &search_path()).ok()) {
        let settings = resolved.settings.clone();
        let plane = IptablesDataplane::new(tools, settings, programs.clone(), Host::of_kernel()?, generations.clone());
        left.push(Box::new(plane));
    }
    Ok(left)
}

/// Where the kernel has no nf_tables there is nothing of it to remove.
fn left_by_nftables(resolved: &Resolved) -> Vec<Box<dyn Dataplane>> {
    let planes = IpFamily::BOTH.into_iter().filter_map(|family| nftables_of(resolved, family).ok());
    planes.map(|plane| Box::new(plane) as Box<dyn Dataplane>).collect()
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

fn kernel_has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}
