//! Who else is at work.

use ferroute_core::IpFamily;

use crate::doctor::{
    Facts, Severity,
    examination::{Flaw, Verdict},
};

/// Rules in both backends of iptables.
pub(super) fn backends(facts: &Facts) -> Verdict {
    let mut flaws = Vec::new();
    for family in IpFamily::BOTH {
        let backends = match &facts.families[family.index()].backends {
            Ok(backends) => backends,
            Err(why) => return Verdict::Unknown(why.clone()),
        };
        let filled: Vec<_> = backends.iter().filter(|backend| backend.rules > 0).collect();
        if filled.len() < 2 {
            continue;
        }
        let counts: Vec<String> =
            filled.iter().map(|backend| format!("{} in {}", backend.rules, backend.backend)).collect();
        flaws.push(Flaw::new(
            Severity::Warning,
            format!("there are {family} rules in both backends of iptables: {}", counts.join(", ")),
            "the kernel obeys both, in an order that is hard to foresee; a rule of one can drop what the other lets through",
            "find out with iptables-legacy-save and iptables-nft-save whose rules they are, and have all programs on the \
             host use one backend (update-alternatives --config iptables)",
        ));
    }
    Verdict::Found(flaws)
}

/// Service proxies that run, and rules of such that do not run.
pub(super) fn proxies(facts: &Facts) -> Verdict {
    let running = match &facts.proxies {
        Ok(running) => running,
        Err(why) => return Verdict::Unknown(why.clone()),
    };
    let names: Vec<String> = running.iter().map(|process| format!("{} (pid {})", process.name, process.pid)).collect();
    let mut flaws = Vec::new();
    if running.len() > 1 {
        flaws.push(Flaw::new(
            Severity::Problem,
            format!("more than one service proxy runs on this machine: {}", names.join(", ")),
            "in one network namespace each puts its own rules back when the other changes them, and connections go by \
             either's",
            "end all but one; in a cluster, remove the other's DaemonSet or keep it off this node by its node selector",
        ));
    }
    let mut written = Vec::new();
    for family in IpFamily::BOTH {
        match &facts.families[family.index()].rules_of {
            Ok(found) => written.extend(found.iter().map(|name| format!("{name} ({family})"))),
            Err(why) => return Verdict::Unknown(why.clone()),
        }
    }
    let of_modes: std::collections::BTreeSet<&str> =
        written.iter().map(|name| name.rsplit_once(" (").map_or(name.as_str(), |(mode, _)| mode)).collect();
    if of_modes.len() > 1 {
        flaws.push(Flaw::new(
            Severity::Warning,
            format!("rules of more than one proxy are in the kernel: {}", written.join(", ")),
            "each connection goes by the rules that come first, so changes can seem to have no effect",
            "the running proxy removes what others left at its start; if it did not, `ferroute run --cleanup` removes \
             all of it, and the proxy then writes its own anew",
        ));
    }
    if !written.is_empty() && running.is_empty() {
        flaws.push(Flaw::new(
            Severity::Warning,
            format!("rules of a proxy are in the kernel, and none runs here: {}", written.join(", ")),
            "connections go to the endpoints of the time when it ended",
            "start the proxy again, or remove the rules with `ferroute run --cleanup`; a proxy in another process \
             namespace cannot be seen from here",
        ));
    }
    Verdict::Found(flaws)
}
