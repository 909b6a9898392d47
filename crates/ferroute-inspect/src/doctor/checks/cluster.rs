//! What does not fit between the host and its cluster.

use std::{collections::BTreeMap, time::Duration};

use crate::doctor::{
    EndpointProbe, Facts, Reached, Severity,
    examination::{Flaw, Verdict},
};

/// Node ports on which a local process waits.
pub(super) fn node_ports(facts: &Facts) -> Verdict {
    let Some(node_ports) = &facts.node_ports else { return Verdict::NotAsked };
    let listeners = match &facts.listeners {
        Ok(listeners) => listeners,
        Err(why) => return Verdict::Unknown(why.clone()),
    };
    let mut flaws = Vec::new();
    for node_port in node_ports {
        let same = listeners.iter().filter(|listener| {
            listener.address.port() == node_port.port
                && listener.protocol == node_port.protocol
                && listener.is_reachable()
        });
        // Often one for each family.
        let Some(listener) = same.min_by_key(|listener| listener.process.is_none()) else { continue };
        let who = listener
            .process
            .as_ref()
            .map_or("a process".to_owned(), |process| format!("{} (pid {})", process.name, process.pid));
        flaws.push(Flaw::new(
            Severity::Warning,
            format!("{who} waits on {}/{}, the node port of {}", node_port.port, node_port.protocol, node_port.service),
            "the Service gets what is meant for the process: nobody from outside reaches it on the addresses of node ports",
            "give one of them another port; the API server hands out node ports from --service-node-port-range, which \
             should be free on hosts",
        ));
    }
    Verdict::Found(flaws)
}

/// Whether this host and the API server agree about the time.
pub(super) fn clock(facts: &Facts) -> Verdict {
    let clock = match &facts.clock {
        None => return Verdict::NotAsked,
        Some(Err(why)) => return Verdict::Unknown(why.clone()),
        Some(Ok(clock)) => clock,
    };
    if clock.difference < TOLERATED {
        return Verdict::Found(Vec::new());
    }
    let severity = if clock.difference < LEEWAY { Severity::Warning } else { Severity::Problem };
    let rounded = Duration::from_secs(clock.difference.as_secs());
    Verdict::Found(vec![Flaw::new(
        severity,
        format!(
            "the clock of the API server is {} {} of this host's",
            humantime::format_duration(rounded),
            if clock.ahead { "ahead" } else { "behind" }
        ),
        "certificates and tokens seem not to be valid yet, or no more; measured times of changes are wrong",
        "let both follow a time server (timedatectl status, chronyc tracking)",
    )])
}

/// Endpoints that do not answer.
pub(super) fn endpoints(facts: &Facts) -> Verdict {
    let Some(probes) = &facts.endpoints else { return Verdict::NotAsked };
    let mut by_service: BTreeMap<&str, Vec<&EndpointProbe>> = BTreeMap::new();
    for probe in probes {
        by_service.entry(&probe.service).or_default().push(probe);
    }
    let mut flaws = Vec::new();
    for (service, probes) in by_service {
        let lost: Vec<&&EndpointProbe> = probes.iter().filter(|probe| probe.reached != Reached::Yes).collect();
        let Some(first) = lost.first() else { continue };
        let (severity, share) = match probes.len() == lost.len() {
            true => (Severity::Problem, format!("every connection to {service} fails")),
            false => {
                let share = format!("about {} of {} connections to {service} fail", lost.len(), probes.len());
                (Severity::Warning, share)
            }
        };
        let (how, mend) = match &first.reached {
            Reached::Yes | Reached::Refused => (
                "refuses connections",
                "the pod is there and does not listen: compare the Service's targetPort with the port of the container, \
                 and have a readiness probe that tells",
            ),
            Reached::Silent => (
                "does not answer",
                "look for a NetworkPolicy or a firewall between this node and the pod, and at the network plugin on the \
                 pod's node",
            ),
            Reached::NoWay(_) => (
                "cannot be reached",
                "this host has no route to the pod's network: look at the network plugin on this node (ip route get ADDRESS)",
            ),
        };
        let why = match &first.reached {
            Reached::NoWay(why) => format!(": {why}"),
            _ => String::new(),
        };
        let more = if lost.len() > 1 { format!(", and {} more do not work", lost.len() - 1) } else { String::new() };
        flaws.push(Flaw::new(
            severity,
            format!("endpoint {} of {service} {how} from this host{why}{more}", first.endpoint),
            format!("{share}, from this host and probably from its pods"),
            mend,
        ));
    }
    Verdict::Found(flaws)
}

/// Differences that come from the way there and back, and from whole seconds in answers.
const TOLERATED: Duration = Duration::from_secs(5);

/// What most who check certificates and tokens forgive.
const LEEWAY: Duration = Duration::from_secs(60);
