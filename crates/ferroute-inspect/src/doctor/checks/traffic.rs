//! What the kernel does to packets beside the proxy's rules.

use ferroute_core::IpFamily;

use crate::doctor::{
    Facts, Looked, Severity,
    examination::{Flaw, Verdict},
};

/// Whether the host passes packets on.
pub(super) fn forwarding(facts: &Facts) -> Verdict {
    let look = || -> Looked<Vec<Flaw>> {
        let mut flaws = Vec::new();
        for (family, name) in [(IpFamily::V4, "net.ipv4.ip_forward"), (IpFamily::V6, "net.ipv6.conf.all.forwarding")] {
            let known = &facts.families[family.index()];
            // Many hosts do not forward IPv6 because nobody wants it there.
            let asked = known.wanted.unwrap_or(family == IpFamily::V4) && known.in_kernel;
            if !asked || facts.sysctl(name)? != Some("0") {
                continue;
            }
            flaws.push(Flaw::new(
                Severity::Problem,
                format!("{name} is 0"),
                format!("{family} connections of pods, and of others to node ports, end at this host"),
                format!("sysctl -w {name}=1, and the same line in a file of /etc/sysctl.d so that it stays"),
            ));
        }
        Ok(flaws)
    };
    look().into()
}

/// Whether what nobody takes in FORWARD is dropped.
pub(super) fn forward_policy(facts: &Facts) -> Verdict {
    let mut flaws = Vec::new();
    for family in IpFamily::BOTH {
        let backends = match &facts.families[family.index()].backends {
            Ok(backends) => backends,
            Err(why) => return Verdict::Unknown(why.clone()),
        };
        for backend in backends.iter().filter(|backend| backend.forward_drops) {
            flaws.push(Flaw::new(
                Severity::Note,
                format!("the policy of the {family} chain FORWARD is DROP ({})", backend.backend),
                "packets between pods and others pass only where a rule lets them: the proxy's rules do so for what it \
                 masquerades, the rest is up to the network plugin",
                "if pods cannot reach Services, trace the packet with `ferroute trace --kernel`; Docker sets this policy, \
                 and the network plugin should add rules that accept the pods' networks",
            ));
        }
    }
    Verdict::Found(flaws)
}

/// Whether the kernel drops packets that come in where it would not send answers.
pub(super) fn reverse_path(facts: &Facts) -> Verdict {
    let look = || -> Looked<Vec<Flaw>> {
        let sysctls = facts.sysctls.as_ref().map_err(Clone::clone)?;
        let value = |name: &str| sysctls.get(&format!("net.ipv4.conf.{name}.rp_filter")).map_or("0", String::as_str);
        // The kernel takes the greater of the two; 1 is strict, 2 is loose.
        let all: u8 = value("all").parse().unwrap_or(0);
        let strict: Vec<&str> = sysctls
            .keys()
            .filter_map(|name| name.strip_prefix("net.ipv4.conf.")?.strip_suffix(".rp_filter"))
            .filter(|device| !["all", "default", "lo"].contains(device))
            .filter(|device| value(device).parse().unwrap_or(0).max(all) == 1)
            .collect();
        // With one way in and out, strictness changes nothing.
        if strict.len() < 2 {
            return Ok(Vec::new());
        }
        let mend = format!(
            "if connections to Services hang for some clients: sysctl -w net.ipv4.conf.all.rp_filter=2 (loose), and the \
             same for {}; network plugins that need strict filtering say so in their documentation",
            strict.join(", ")
        );
        Ok(vec![Flaw::new(
            Severity::Note,
            format!("the reverse path filter is strict on {}", list(&strict)),
            "packets that come in on one interface while the answer would leave by another are dropped without a trace: \
             clients of node ports on hosts with several networks, asymmetric routes, some network plugins",
            mend,
        )])
    };
    look().into()
}

/// Whether packets between pods on the same bridge pass the rules.
pub(super) fn bridges(facts: &Facts) -> Verdict {
    let look = || -> Looked<Vec<Flaw>> {
        let bridges = facts.bridges.as_ref().map_err(Clone::clone)?;
        if bridges.is_empty() {
            return Ok(Vec::new());
        }
        let mut flaws = Vec::new();
        for (family, name) in [
            (IpFamily::V4, "net.bridge.bridge-nf-call-iptables"),
            (IpFamily::V6, "net.bridge.bridge-nf-call-ip6tables"),
        ] {
            let known = &facts.families[family.index()];
            if !known.in_kernel || !known.wanted.unwrap_or(family == IpFamily::V4) {
                continue;
            }
            let (what, mend) = match facts.sysctl(name)? {
                Some("1") => continue,
                Some(value) => (format!("{name} is {value}"), format!("sysctl -w {name}=1")),
                // Told once: it is the same module.
                None if !flaws.is_empty() => continue,
                None => (
                    "the kernel module br_netfilter is not loaded".to_owned(),
                    format!("modprobe br_netfilter && sysctl -w {name}=1"),
                ),
            };
            flaws.push(Flaw::new(
                Severity::Warning,
                format!("{what}, and pods may be on a bridge ({})", list(bridges)),
                format!(
                    "where pods share a bridge, {family} answers from a pod to another on it go past the rules with the \
                     wrong source address: a connection to a Service hangs when its endpoint is on the same node"
                ),
                format!("if the network plugin uses a bridge: {mend}, and have both done at each start"),
            ));
        }
        Ok(flaws)
    };
    look().into()
}

/// Whether there is room for connections.
pub(super) fn conntrack(facts: &Facts) -> Verdict {
    let look = || -> Looked<Vec<Flaw>> {
        let Some(table) = *facts.conntrack.as_ref().map_err(Clone::clone)? else {
            return Ok(vec![Flaw::new(
                Severity::Note,
                "the kernel keeps no connection table yet",
                "nothing: it begins with the first rule that needs it",
                "nothing is to be done; if it stays so while a proxy runs, the kernel lacks nf_conntrack",
            )]);
        };
        let mut flaws = Vec::new();
        let mend = format!(
            "raise it: conntrack.maxPerCore and conntrack.min in the configuration, or sysctl -w \
             net.netfilter.nf_conntrack_max={}; find out who opens so many (conntrack -L)",
            table.max.saturating_mul(2)
        );
        // Below three quarters nobody needs to act.
        if table.max > 0 && table.count * 4 >= table.max * 3 {
            let full = table.count * 10 >= table.max * 9;
            flaws.push(Flaw::new(
                if full { Severity::Problem } else { Severity::Warning },
                format!("the connection table holds {} of {} connections", table.count, table.max),
                "when it is full, new connections are dropped, to Services and to all others",
                mend.clone(),
            ));
        }
        if table.dropped > 0 {
            flaws.push(Flaw::new(
                Severity::Warning,
                format!(
                    "{} packets were dropped since the start for want of room in the connection table",
                    table.dropped
                ),
                "these connections were late by a second or more, or failed",
                mend,
            ));
        }
        Ok(flaws)
    };
    look().into()
}

fn list<T: AsRef<str>>(names: &[T]) -> String {
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Names that a line shows; hosts with many pods have hundreds of interfaces.
const SHOWN: usize = 4;
