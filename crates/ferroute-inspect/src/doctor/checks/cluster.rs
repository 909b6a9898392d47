//! Conflicts between the host and its cluster.

use std::{collections::BTreeMap, time::Duration};

use ferroute_core::IpFamily;

use crate::{
    doctor::{
        EndpointProbe, Inputs, ProbeResult, Severity,
        diagnosis::{CheckResult, Defect},
    },
    plural,
};

/// Checks that no local process listens on a node port.
pub(super) fn node_ports(inputs: &Inputs) -> CheckResult {
    let Some(node_ports) = &inputs.node_ports else { return CheckResult::NotApplicable };
    let listeners = match &inputs.listeners {
        Ok(listeners) => listeners,
        Err(reason) => return CheckResult::Unknown(reason.clone()),
    };
    let mut defects = Vec::new();
    for node_port in node_ports {
        let same = listeners.iter().filter(|listener| {
            listener.address.port() == node_port.port
                && listener.protocol == node_port.protocol
                && listener.is_reachable()
        });
        // There may be one listener for each IP family.
        let Some(listener) = same.min_by_key(|listener| listener.process.is_none()) else { continue };
        let owner = listener
            .process
            .as_ref()
            .map_or("a process".to_owned(), |process| format!("{} (pid {})", process.name, process.pid));
        let defect = Defect::new(
            Severity::Warning,
            format!(
                "{owner} listens on {}/{}, the node port of {}",
                node_port.port, node_port.protocol, node_port.service
            ),
            "other hosts cannot reach the process on node port addresses; their connections go to the Service",
            "change one of the two ports; processes should not use ports in the API server's --service-node-port-range",
        );
        let port = format!("{}/{}", node_port.port, node_port.protocol);
        defects.push(defect.with("owner", owner).with("port", port).with("service", &node_port.service));
    }
    CheckResult::Defects(defects)
}

/// Checks that addresses of the host serve node ports.
pub(super) fn node_port_addresses(inputs: &Inputs) -> CheckResult {
    if inputs.node_ports.is_none() {
        return CheckResult::NotApplicable;
    }
    let unserved = IpFamily::BOTH.map(|family| (family, inputs.families[family.index()].unserved_node_ports));
    let defects = unserved.into_iter().filter(|(_, ports)| *ports > 0).map(|(family, ports)| {
        Defect::new(
            Severity::Problem,
            format!("none of the host's {family} addresses is in nodePortAddresses"),
            format!("{} of {family} Services, and their health checks, cannot be reached on this node", plural(ports, "node port")),
            "compare nodePortAddresses (--nodeport-addresses) with the output of `ip address`; with `primary`, which is the default of \
             nftables mode, the addresses are those of the Node object, which must be addresses of an interface",
        )
        .with("family", family)
        .with("ports", ports)
    });
    CheckResult::Defects(defects.collect())
}

/// Checks that source ranges restrict the load balancer addresses of all IP families.
pub(super) fn source_ranges(inputs: &Inputs) -> CheckResult {
    let Some(unrestricted) = &inputs.unrestricted else { return CheckResult::NotApplicable };
    let defects = IpFamily::BOTH.into_iter().filter_map(|family| {
        let services: Vec<&str> =
            unrestricted.iter().filter(|(_, open)| *open == family).map(|(service, _)| service.as_str()).collect();
        let first = services.first()?;
        let more = if services.len() > 1 { format!(" and {} more", services.len() - 1) } else { String::new() };
        let defect = Defect::new(
            Severity::Note,
            format!("loadBalancerSourceRanges of {first}{more} have no {family} range"),
            format!("all {family} clients may use the load balancer's {family} addresses: a range restricts its own IP family only"),
            format!("add {family} ranges to spec.loadBalancerSourceRanges, or make the Service single-stack"),
        );
        Some(defect.with("family", family).with("service", first).with("count", services.len()))
    });
    CheckResult::Defects(defects.collect())
}

/// Checks that the clocks of this host and the API server agree.
pub(super) fn clock(inputs: &Inputs) -> CheckResult {
    let clock = match &inputs.clock {
        None => return CheckResult::NotApplicable,
        Some(Err(reason)) => return CheckResult::Unknown(reason.clone()),
        Some(Ok(clock)) => clock,
    };
    if clock.difference < TOLERATED {
        return CheckResult::Defects(Vec::new());
    }
    let severity = if clock.difference < LEEWAY { Severity::Warning } else { Severity::Problem };
    let difference = humantime::format_duration(Duration::from_secs(clock.difference.as_secs()));
    let defect = Defect::new(
        severity,
        format!(
            "the API server's clock is {difference} {} this host's",
            if clock.ahead { "ahead of" } else { "behind" }
        ),
        "certificates and tokens may appear expired or not yet valid; measured latencies are wrong",
        "synchronize both clocks with a time server (timedatectl status, chronyc tracking)",
    );
    let kind = if clock.ahead { "ahead" } else { "behind" };
    CheckResult::Defects(vec![defect.kind(kind).with("difference", difference)])
}

/// Checks that endpoints accept connections from this host.
pub(super) fn endpoints(inputs: &Inputs) -> CheckResult {
    let Some(probes) = &inputs.endpoints else { return CheckResult::NotApplicable };
    let mut by_service: BTreeMap<&str, Vec<&EndpointProbe>> = BTreeMap::new();
    for probe in probes {
        by_service.entry(&probe.service).or_default().push(probe);
    }
    let mut defects = Vec::new();
    for (service, probes) in by_service {
        let failed: Vec<&&EndpointProbe> =
            probes.iter().filter(|probe| probe.result != ProbeResult::Connected).collect();
        let Some(first) = failed.first() else { continue };
        let (severity, share) = match probes.len() == failed.len() {
            true => (Severity::Problem, format!("all connections to {service} fail")),
            false => {
                let share = format!("about {} of {} connections to {service} fail", failed.len(), probes.len());
                (Severity::Warning, share)
            }
        };
        let (kind, symptom, fix) = match &first.result {
            ProbeResult::Connected | ProbeResult::Refused => (
                "refused",
                "refuses connections",
                "compare the Service's targetPort with the port that the container listens on, and add a readiness probe for \
                 this port",
            ),
            ProbeResult::TimedOut => (
                "silent",
                "does not respond",
                "check for a NetworkPolicy or firewall between this node and the pod, and check the network plugin on the \
                 pod's node",
            ),
            ProbeResult::Unreachable(_) => (
                "unreachable",
                "is unreachable",
                "this host has no route to the pod network: check the network plugin on this node (ip route get ADDRESS)",
            ),
        };
        let cause = match &first.result {
            ProbeResult::Unreachable(error) => format!(": {error}"),
            _ => String::new(),
        };
        let more = if failed.len() > 1 { format!(" (and {} more)", failed.len() - 1) } else { String::new() };
        let defect = Defect::new(
            severity,
            format!("endpoint {} of {service} {symptom} from this host{cause}{more}", first.endpoint),
            format!("{share} from this host, and probably from its pods"),
            fix,
        );
        let defect = defect.kind(kind).with("endpoint", first.endpoint).with("service", service);
        defects.push(defect.with("failed", failed.len()).with("all", probes.len()).with("cause", cause));
    }
    CheckResult::Defects(defects)
}

/// The tolerated difference: responses have whole seconds, and network latency adds to it.
const TOLERATED: Duration = Duration::from_secs(5);

/// The clock skew that most validations of certificates and tokens tolerate.
const LEEWAY: Duration = Duration::from_secs(60);
