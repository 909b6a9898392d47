//! Support for the rules in the kernel and in the host's programs.

use ferroute_config::ModeName;
use ferroute_core::IpFamily;
use ferroute_nftables::MINIMUM_KERNEL;

use crate::doctor::{
    FamilyInputs, Inputs, Severity,
    diagnosis::{CheckResult, Defect},
};

/// Checks that this process may read and write rules. Without the capability, the other checks of rules fail for this reason.
pub(super) fn capabilities(inputs: &Inputs) -> CheckResult {
    match &inputs.net_admin {
        Err(reason) => CheckResult::Unknown(reason.clone()),
        Ok(true) => CheckResult::Defects(Vec::new()),
        Ok(false) => CheckResult::Defects(vec![Defect::new(
            Severity::Problem,
            "this process lacks the capability CAP_NET_ADMIN",
            "rules can be neither read nor written in any mode, so that other results here are incomplete; the proxy does not start \
             without it",
            "run as root; in a container, add NET_ADMIN to securityContext.capabilities.add",
        )]),
    }
}

/// Checks that no process owns Ferroute's table.
pub(super) fn table_owner(inputs: &Inputs) -> CheckResult {
    let mut defects = Vec::new();
    for family in IpFamily::BOTH {
        match &inputs.families[family.index()].table_is_owned {
            Err(reason) => return CheckResult::Unknown(reason.clone()),
            Ok(false) => continue,
            Ok(true) => {}
        }
        let ip = if family == IpFamily::V4 { "ip" } else { "ip6" };
        let defect = Defect::new(
            if inputs.mode == ModeName::NFTABLES { Severity::Problem } else { Severity::Warning },
            format!("another process owns the table {ip} ferroute (flags owner)"),
            format!("the proxy cannot change the table, so that {family} Services keep the rules that it has"),
            format!(
                "`nft list table {ip} ferroute` names the process (progname); end it, which deletes the table unless it has the \
                 flag persist; then `nft delete table {ip} ferroute`"
            ),
        );
        defects.push(defect.with("table", ip).with("family", family));
    }
    // Other modes have no such table.
    if defects.is_empty() && inputs.mode != ModeName::NFTABLES {
        return CheckResult::NotApplicable;
    }
    CheckResult::Defects(defects)
}

/// Checks that packets pass the tables with the proxy's rules.
pub(super) fn dormant_tables(inputs: &Inputs) -> CheckResult {
    let mut defects = Vec::new();
    for family in &inputs.families {
        let tables = match &family.dormant_tables {
            Ok(tables) => tables,
            Err(reason) => return CheckResult::Unknown(reason.clone()),
        };
        defects.extend(tables.iter().map(|table| {
            Defect::new(
                Severity::Problem,
                format!("the table {table} is dormant (flags dormant)"),
                "no packet passes its chains, so that no rule in it has an effect, neither of the proxy nor of other programs",
                format!("`nft add table {table}` clears the flag; a running proxy does so in the tables of its mode"),
            )
            .with("table", table)
        }));
    }
    CheckResult::Defects(defects)
}

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
        "run as root with CAP_NET_ADMIN; load the modules nf_tables and nft_compat, by which rules are written without any programs; \
         or, on a host whose iptables is of the legacy kind or with --iptables-programs, install the iptables programs where Ferroute \
         runs; or use --proxy-mode=nftables",
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
