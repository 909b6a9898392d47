//! Conflicts with other programs that write rules.

use std::collections::BTreeSet;

use ferroute_core::IpFamily;

use crate::doctor::{
    Inputs, Severity,
    diagnosis::{CheckResult, Defect},
};

/// Checks that all rules of the host could be read.
pub(super) fn unread(inputs: &Inputs) -> CheckResult {
    let reasons: BTreeSet<&String> = inputs.families.iter().flat_map(|family| &family.unread).collect();
    let defect = |reason: &String| {
        Defect::new(
            Severity::Warning,
            reason.clone(),
            "the kernel applies these rules to all packets, but neither the proxy nor this program can read them: they may \
             translate, accept or drop connections to Services",
            "list the rules with iptables-legacy-save on the host; if there are none, remove the tables with `modprobe -r \
             iptable_nat iptable_filter iptable_mangle` (ip6table_*), or restart the host; otherwise install the programs of \
             the legacy backend where Ferroute runs",
        )
        .with("reason", reason)
    };
    // Hosts without the legacy backend need no result.
    if reasons.is_empty() {
        CheckResult::NotApplicable
    } else {
        CheckResult::Defects(reasons.into_iter().map(defect).collect())
    }
}

/// Checks that only one backend of iptables has rules.
pub(super) fn backends(inputs: &Inputs) -> CheckResult {
    let mut defects = Vec::new();
    for family in IpFamily::BOTH {
        let backends = match &inputs.families[family.index()].backends {
            Ok(backends) => backends,
            Err(reason) => return CheckResult::Unknown(reason.clone()),
        };
        let in_use: Vec<_> = backends.iter().filter(|backend| backend.rules > 0).collect();
        if in_use.len() < 2 {
            continue;
        }
        let counts: Vec<String> =
            in_use.iter().map(|backend| format!("{} in {}", backend.rules, backend.backend)).collect();
        let counts = counts.join(", ");
        let defect = Defect::new(
            Severity::Warning,
            format!("both iptables backends have {family} rules: {counts}"),
            "the kernel applies the rules of both, in an order that is hard to predict; one can drop what the other accepts",
            "find the owners of the rules with iptables-legacy-save and iptables-nft-save, and configure all programs on the \
             host for one backend (update-alternatives --config iptables)",
        );
        defects.push(defect.with("family", family).with("counts", counts));
    }
    CheckResult::Defects(defects)
}

/// Checks that the running proxy reports no problem of the node. It may detect problems that this program cannot.
pub(super) fn running(inputs: &Inputs) -> CheckResult {
    let Some(problems) = &inputs.proxy_problems else { return CheckResult::NotApplicable };
    let defect = |problem: &String| {
        Defect::new(
            Severity::Problem,
            format!("the running proxy reports: {problem}"),
            "Services of this node may not work, work by chance, or stay as they were before a change",
            "remove the cause, which the proxy also reports in its log; `ferroute status` shows when it has ended",
        )
        .with("reason", problem)
    };
    CheckResult::Defects(problems.iter().map(defect).collect())
}

/// Checks that exactly one service proxy runs, and that only its rules are in the kernel.
pub(super) fn proxies(inputs: &Inputs) -> CheckResult {
    let running = match &inputs.proxies {
        Ok(running) => running,
        Err(reason) => return CheckResult::Unknown(reason.clone()),
    };
    let names: Vec<String> = running.iter().map(|process| format!("{} (pid {})", process.name, process.pid)).collect();
    let mut defects = Vec::new();
    if running.len() > 1 {
        let names = names.join(", ");
        let defect = Defect::new(
            Severity::Problem,
            format!("several service proxies are running: {names}"),
            "in the same network namespace, they restore their own rules whenever another changes them, and connections use \
             the rules of either",
            "stop all but one; in a cluster, delete the DaemonSet of the other, or exclude this node with a node selector",
        );
        defects.push(defect.kind("running").with("names", names));
    }
    let mut active = Vec::new();
    let mut descriptions = BTreeSet::new();
    for family in IpFamily::BOTH {
        match &inputs.families[family.index()].active_proxies {
            Ok(proxies) => {
                active.extend(proxies.iter().map(|proxy| format!("{proxy} ({family})")));
                descriptions.extend(proxies);
            }
            Err(reason) => return CheckResult::Unknown(reason.clone()),
        }
    }
    let is_active = !active.is_empty();
    let active = active.join(", ");
    if descriptions.len() > 1 {
        let defect = Defect::new(
            Severity::Warning,
            format!("the kernel has rules of several service proxies: {active}"),
            "connections use the rules that come first, so changes may have no effect",
            "restart the proxy, which removes the rules of other proxies when it starts; if they remain, run `ferroute run \
             --cleanup`, which removes the rules of all proxies, and start the proxy again",
        );
        defects.push(defect.kind("rules").with("active", &active));
    }
    // A proxy in another PID namespace, such as on a node of the demo, is not listed but responds.
    if is_active && running.is_empty() && inputs.proxy_problems.is_none() {
        let defect = Defect::new(
            Severity::Warning,
            format!("the kernel has rules of a service proxy, but none is running: {active}"),
            "connections still go to the endpoints that existed when the proxy stopped",
            "start the proxy, or remove the rules with `ferroute run --cleanup`; a proxy in another PID namespace is not \
             visible here",
        );
        defects.push(defect.kind("stopped").with("active", active));
    }
    CheckResult::Defects(defects)
}
