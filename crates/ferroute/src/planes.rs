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

/// A dataplane for each family that is served.
pub(crate) type Planes = Vec<(IpFamily, Box<dyn Dataplane>)>;

/// Finds out what the host can do and makes the dataplanes. The calling thread's network namespace is the one that they
/// write to.
pub(crate) fn open(resolved: &Resolved, node: &NodeView) -> anyhow::Result<Planes> {
    match resolved.mode {
        Mode::Iptables => iptables(resolved, node),
        Mode::Nftables => nftables(resolved, node),
        Mode::Ipvs(_) => {
            tracing::warn!("mode ipvs is not to be had: taking iptables, which sends traffic to the same endpoints");
            iptables(resolved, node)
        }
    }
}

fn iptables(resolved: &Resolved, node: &NodeView) -> anyhow::Result<Planes> {
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
    let mut planes = Planes::new();
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

fn nftables(resolved: &Resolved, node: &NodeView) -> anyhow::Result<Planes> {
    let support = FamilySupport { ipv4: true, ipv6: kernel_has_ipv6() };
    let mut planes = Planes::new();
    for family in resolved.families(node, support)?.iter() {
        let settings =
            NftablesSettings { proxy: resolved.settings.clone(), service_networks: Vec::new(), counters: false };
        let plane = NftablesDataplane::open(family, settings, Box::new(KernelAddresses::open()?))
            .context("the kernel has no nf_tables, or we may not use it (CAP_NET_ADMIN)")?;
        tracing::info!(%family, "using nftables");
        planes.push((family, Box::new(plane)));
    }
    Ok(planes)
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
