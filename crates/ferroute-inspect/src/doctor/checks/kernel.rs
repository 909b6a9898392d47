//! Whether rules can be written at all.

use ferroute_config::ModeName;
use ferroute_core::IpFamily;

use crate::doctor::{
    Facts, FamilyFacts, Severity,
    examination::{Flaw, Verdict},
};

/// Families with what is known of them, without those that nobody wants or the kernel lacks.
fn served(facts: &Facts) -> impl Iterator<Item = (IpFamily, &FamilyFacts)> {
    let all = IpFamily::BOTH.into_iter().map(|family| (family, &facts.families[family.index()]));
    all.filter(|(_, family)| family.in_kernel && family.wanted != Some(false))
}

/// Services of a family that the kernel does not have.
pub(super) fn families(facts: &Facts) -> Verdict {
    let lacking = IpFamily::BOTH.into_iter().filter(|family| {
        let known = &facts.families[family.index()];
        known.wanted == Some(true) && !known.in_kernel
    });
    Verdict::Found(
        lacking
            .map(|family| {
                Flaw::new(
                    Severity::Problem,
                    format!("there are {family} Services, and the kernel of this host has no {family}"),
                    format!("nothing on this host reaches the {family} addresses of Services"),
                    format!("boot without ipv6.disable=1, or have the cluster's Services without {family} addresses"),
                )
            })
            .collect(),
    )
}

/// What nftables mode needs of the kernel.
pub(super) fn nftables(facts: &Facts) -> Verdict {
    if facts.mode != ModeName::NFTABLES {
        return Verdict::NotAsked;
    }
    let refused = served(facts).filter_map(|(family, known)| Some((family, known.supported.as_ref().err()?)));
    Verdict::Found(
        refused
            .map(|(family, why)| {
                Flaw::new(
                    Severity::Problem,
                    format!("nftables mode cannot write {family} rules: {why}"),
                    "Services do not work in this mode",
                    "run as root with CAP_NET_ADMIN; load nf_tables and nft_nat, or use a kernel from 5.13 on; or take \
                     --proxy-mode=iptables",
                )
            })
            .collect(),
    )
}

/// What iptables mode needs of the host.
pub(super) fn iptables(facts: &Facts) -> Verdict {
    if facts.mode != ModeName::IPTABLES {
        return Verdict::NotAsked;
    }
    let unusable = served(facts).filter_map(|(family, known)| Some((family, known.supported.as_ref().err()?)));
    Verdict::Found(
        unusable
            .map(|(family, why)| {
                Flaw::new(
                    Severity::Problem,
                    format!("the {family} tools of iptables cannot be used: {why}"),
                    format!("{family} Services do not work in this mode"),
                    "install the package iptables, run as root with CAP_NET_ADMIN; or take --proxy-mode=nftables, which \
                     needs no tools",
                )
            })
            .collect(),
    )
}
