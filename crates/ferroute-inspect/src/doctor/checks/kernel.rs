//! Support for the rules in the kernel and in the host's programs.

use ferroute_config::ModeName;
use ferroute_core::IpFamily;
use ferroute_nftables::MINIMUM_KERNEL;

use crate::doctor::{
    FamilyInputs, Inputs, Severity,
    diagnosis::{CheckResult, Defect},
};

/// Checks that the kernel supports the IP families of all Services.
pub(super) fn families(inputs: &Inputs) -> CheckResult {
    let unsupported = IpFamily::BOTH.into_iter().filter(|family| {
        let family = &inputs.families[family.index()];
        family.has_services == Some(true) && !family.in_kernel
    });
    CheckResult::Defects(
        unsupported
            .map(|family| {
                Defect::new(
                    Severity::Problem,
                    format!("the kernel does not support {family}, but there are {family} Services"),
                    format!("the {family} addresses of Services are unreachable on this host"),
                    format!("boot without ipv6.disable=1, or remove the {family} addresses from the Services"),
                )
                .with("family", family)
            })
            .collect(),
    )
}

/// Checks that the kernel supports nftables mode.
pub(super) fn nftables(inputs: &Inputs) -> CheckResult {
    if inputs.mode != ModeName::NFTABLES {
        return CheckResult::NotApplicable;
    }
    mode_support(
        inputs,
        &format!(
            "run as root with CAP_NET_ADMIN; load the modules nf_tables and nft_nat, or use kernel {MINIMUM_KERNEL} or \
             later; or use --proxy-mode=iptables"
        ),
    )
}

/// Checks that the host supports iptables mode, or userspace mode, which needs the same programs.
pub(super) fn iptables(inputs: &Inputs) -> CheckResult {
    if ![ModeName::IPTABLES, ModeName::USERSPACE].contains(&inputs.mode) {
        return CheckResult::NotApplicable;
    }
    mode_support(
        inputs,
        "install the package iptables, and run as root with CAP_NET_ADMIN; or use --proxy-mode=nftables, which needs no \
         programs",
    )
}

/// Checks that the kernel supports ipvs mode with the configured scheduler.
pub(super) fn ipvs(inputs: &Inputs) -> CheckResult {
    if inputs.mode != ModeName::IPVS {
        return CheckResult::NotApplicable;
    }
    mode_support(
        inputs,
        "run as root with CAP_NET_ADMIN; load the modules with `modprobe -a ip_vs ip_vs_rr nf_conntrack ip_set xt_set dummy` \
         (ip_vs_SCHEDULER for another ipvs.scheduler), and list them in /etc/modules-load.d; until then, the proxy uses \
         iptables mode",
    )
}

/// Checks that the host supports any other mode.
pub(super) fn other_mode(inputs: &Inputs) -> CheckResult {
    if [ModeName::NFTABLES, ModeName::IPTABLES, ModeName::IPVS, ModeName::USERSPACE].contains(&inputs.mode) {
        return CheckResult::NotApplicable;
    }
    mode_support(inputs, "install or enable the missing feature, or use another --proxy-mode")
}

/// Checks that the host supports the configured mode for all IP families with Services.
fn mode_support(inputs: &Inputs, fix: &str) -> CheckResult {
    let mode = inputs.mode;
    let defect = |family: IpFamily, reason: &str| {
        Defect::new(
            Severity::Problem,
            format!("{mode} mode is not supported for {family}: {reason}"),
            format!("{family} Services do not work in this mode"),
            fix,
        )
        .with("mode", mode)
        .with("family", family)
        .with("reason", reason)
        .with("fix", fix)
    };
    let served = |family: &FamilyInputs| family.in_kernel && family.has_services != Some(false);
    let families = IpFamily::BOTH.into_iter().map(|family| (family, &inputs.families[family.index()]));
    let unsupported = families
        .filter(|(_, family)| served(family))
        .filter_map(|(name, family)| Some(defect(name, family.supported.as_ref().err()?)));
    CheckResult::Defects(unsupported.collect())
}
