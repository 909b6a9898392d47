//! Explanations as text.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ferroute_admin::health::HealthCheck;
use ferroute_core::{ConnectionLimits, Ejection, Eligibility, Escaped, IpFamily, LimitKind, OverLimit};

use super::{
    Answer, Clients, ConnectionCount, ExplainedBalancing, ExplainedEndpoint, ExplainedFrontend, ExplainedHealthCheck,
    ExplainedPort, Explanation, Handling, KernelState, Outcome, Policies, Source, UnusedSlice, Usage,
};
use crate::plural;

/// Writes an explanation.
///
/// # Errors
/// Only errors of `out`.
pub fn write_explanation_into(out: &mut impl fmt::Write, explanation: &Explanation) -> fmt::Result {
    let Explanation { service, type_, node, zone, handling, unrouted, kernel_error } = explanation;
    write!(out, "{}", Escaped(format_args!("Service {service}, type {type_}, on node {node}")))?;
    if let Some(zone) = zone {
        write!(out, " in zone {}", Escaped(zone))?;
    }
    out.write_char('\n')?;
    match handling {
        Handling::Skipped { reason, .. } => writeln!(out, "\nskipped: {}", Escaped(reason)),
        Handling::Invalid { file, line, errors } => {
            let line = line.map(|line| format!(":{line}")).unwrap_or_default();
            let place = file.as_ref().map(|file| format!(" in {}{line}", Escaped(file))).unwrap_or_default();
            writeln!(out, "\ninvalid{place}, so the proxy ignores it:")?;
            errors.iter().try_for_each(|error| writeln!(out, "  {}", Escaped(error)))
        }
        Handling::Served { policies, ignored, invalid_update, ports, unused_slices } => {
            if !invalid_update.is_empty() {
                writeln!(out, "\nlast version invalid, so an earlier one applies:")?;
                invalid_update.iter().try_for_each(|error| writeln!(out, "  {}", Escaped(error)))?;
            }
            write_policies_into(out, policies)?;
            if !ignored.is_empty() {
                writeln!(out, "\nignored")?;
                ignored.iter().try_for_each(|field| writeln!(out, "  {field}"))?;
            }
            if !unrouted.is_empty() {
                let addresses = unrouted.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                writeln!(out, "\nno route from this node to {addresses}")?;
                writeln!(out, "  its own connections fail, those of pods do not: `ferroute doctor` suggests a fix")?;
            }
            ports.iter().try_for_each(|port| write_port_into(out, port))?;
            if !unused_slices.is_empty() {
                out.write_char('\n')?;
                unused_slices.iter().try_for_each(|slice| write_unused_slice_into(out, "", slice))?;
            }
            kernel_error
                .iter()
                .try_for_each(|error| writeln!(out, "\ncannot show all of the kernel's state: {}", Escaped(error)))
        }
    }
}

fn write_policies_into(out: &mut impl fmt::Write, policies: &Policies) -> fmt::Result {
    writeln!(out, "\npolicies")?;
    writeln!(out, "  internal traffic      {}", policies.internal_traffic)?;
    if let Some(policy) = policies.external_traffic {
        writeln!(out, "  external traffic      {policy}")?;
    }
    if let Some(affinity) = policies.affinity {
        writeln!(out, "  session affinity      by client address, for {} s", affinity.timeout_seconds)?;
    }
    if let Some(balancing) = policies.balancing {
        let ExplainedBalancing {
            method,
            passive_ejection,
            slow_start_seconds,
            zone_weight,
            drain_timeout_seconds,
            table_size,
        } = balancing;
        if let Some(method) = method {
            let table = table_size.map(|size| format!(", with a table of {size} positions")).unwrap_or_default();
            writeln!(out, "  load balancing        {method}{table}")?;
        }
        if let Some(ejection) = passive_ejection {
            let failing =
                if ejection == Ejection::Refused { "refuse connections or do not answer" } else { "do not answer" };
            writeln!(out, "  passive ejection      endpoints that {failing} get no connections for a while")?;
        }
        if let Some(seconds) = slow_start_seconds {
            writeln!(out, "  slow start            new endpoints reach their full share after {seconds} s")?;
        }
        if let Some(weight) = zone_weight {
            writeln!(
                out,
                "  zone weight           endpoints in the node's zone have {weight} times the weight of others"
            )?;
        }
        if let Some(seconds) = drain_timeout_seconds {
            writeln!(out, "  drain timeout         connections to a terminating endpoint end after {seconds} s")?;
        }
    }
    policies.limits.iter().try_for_each(|limits| write_limits_into(out, limits))?;
    let mut ranges = Vec::new();
    if !policies.source_ranges.is_empty() {
        let networks = policies.source_ranges.iter().map(ToString::to_string).collect::<Vec<_>>();
        let scope = match policies.source_ranges_scope.join(", ") {
            scope if scope.is_empty() => "load balancer IPs only".to_owned(),
            scope => format!("load balancer IPs, {}", scope.replace('-', " ")),
        };
        ranges.push(format!("{} ({scope})", networks.join(", ")));
    }
    let unrestricted = policies.unrestricted_families.iter();
    ranges.extend(unrestricted.map(|family| format!("{family}: open to all clients, no {family} range")));
    let mut label = "source ranges";
    for range in &ranges {
        writeln!(out, "  {label:<21} {range}")?;
        label = "";
    }
    if let Some(distribution) = &policies.traffic_distribution {
        writeln!(out, "  traffic distribution  {} (by EndpointSlice hints)", Escaped(distribution))?;
    }
    policies.health_check.iter().try_for_each(|check| write_health_check_into(out, check))
}

/// Writes the limits of this node, in the order in which they are checked; each other node has the same limits.
fn write_limits_into(out: &mut impl fmt::Write, limits: &ConnectionLimits) -> fmt::Result {
    let ConnectionLimits { connections, client_connections, rate, client_rate, over_limit } = limits;
    let text = |kind| {
        Some(match kind {
            LimitKind::ClientRate => format!("new connections per client at {}", client_rate.as_ref()?),
            LimitKind::ClientConnections => format!("{} open connections per client", client_connections.as_ref()?),
            LimitKind::Rate => format!("new connections at {}", rate.as_ref()?),
            LimitKind::Connections => format!("{} open connections", connections.as_ref()?),
        })
    };
    writeln!(out, "  limits on this node   {}", limits.kinds().filter_map(text).collect::<Vec<_>>().join(", "))?;
    let refused = match over_limit {
        OverLimit::Reject => "rejected",
        OverLimit::Drop => "dropped",
    };
    writeln!(out, "                        for each port and IP family; other connections are {refused}")
}

fn write_health_check_into(out: &mut impl fmt::Write, health_check: &ExplainedHealthCheck) -> fmt::Result {
    let ExplainedHealthCheck { check, node_addresses } = health_check;
    let HealthCheck { port, local_endpoints, load_balancer_addresses } = check;
    let status = if *local_endpoints > 0 { "200" } else { "503" };
    let endpoints = plural(*local_endpoints, "ready endpoint");
    writeln!(out, "  health check          port {port} answers {status}: {endpoints} on this node")?;
    let name = |address: &IpAddr| match address.is_unspecified() {
        true => format!("all {} addresses of the node", IpFamily::of(*address)),
        false => address.to_string(),
    };
    let node: Vec<String> = node_addresses.iter().map(name).collect();
    writeln!(out, "                        at {}", node.join(", "))?;
    // A listener at all addresses also accepts packets to those of the load balancer.
    let is_listed = |address: &&IpAddr| {
        !node_addresses.iter().any(|node| node == *address || (node.is_unspecified() && is_same_family(node, address)))
    };
    let others: Vec<String> = load_balancer_addresses.iter().filter(is_listed).map(ToString::to_string).collect();
    if !others.is_empty() {
        let others = others.join(", ");
        writeln!(
            out,
            "                        and at {others}, where the load balancer makes it an address of the node"
        )?;
    }
    Ok(())
}

fn is_same_family(one: &IpAddr, other: &IpAddr) -> bool {
    IpFamily::of(*one) == IpFamily::of(*other)
}

fn write_port_into(out: &mut impl fmt::Write, port: &ExplainedPort) -> fmt::Result {
    let ExplainedPort { name, family, protocol, not_applied, frontends, endpoints, excess_endpoints, .. } = port;
    let ExplainedPort { unused_slices, kernel, .. } = port;
    // The first frontend is the cluster IP, with the Service's port number.
    let number = frontends.first().map(|frontend| frontend.port).unwrap_or_default();
    let name = if name.is_empty() { String::new() } else { format!("{name} ") };
    writeln!(out, "\nport {}{number}/{protocol}, {family}", Escaped(name))?;
    not_applied.iter().try_for_each(|reason| writeln!(out, "  not applied: {}", Escaped(reason)))?;
    writeln!(out, "  frontends")?;
    let rows = frontends.iter().flat_map(frontend_rows).collect::<Vec<_>>();
    write_columns_into(out, &rows)?;
    if endpoints.is_empty() {
        writeln!(out, "  no endpoints in any EndpointSlice")?;
    } else {
        writeln!(out, "  endpoints")?;
        let rows = endpoints.iter().flat_map(endpoint_rows).collect::<Vec<_>>();
        write_columns_into(out, &rows)?;
    }
    if *excess_endpoints > 0 {
        let limit = plural(endpoints.len(), "endpoint");
        writeln!(out, "  {} more not used: the limit is {limit}", plural(*excess_endpoints, "endpoint"))?;
    }
    unused_slices.iter().try_for_each(|slice| write_unused_slice_into(out, "  ", slice))?;
    kernel.iter().try_for_each(|kernel| write_kernel_state_into(out, kernel))
}

/// Returns a row for each group of clients; only the first row has the frontend's kind and address.
fn frontend_rows(frontend: &ExplainedFrontend) -> Vec<Vec<String>> {
    let mut place = match frontend.addresses.as_slice() {
        [] if frontend.except.is_empty() => format!("{} on all node addresses", frontend.port),
        [] => {
            let except: Vec<&str> = frontend.except.iter().map(|addresses| addresses.as_str()).collect();
            format!("{} on all node addresses except {}", frontend.port, except.join(" and "))
        }
        addresses => addresses
            .iter()
            .map(|address| SocketAddr::new(*address, frontend.port).to_string())
            .collect::<Vec<_>>()
            .join(", "),
    };
    let mut kind = frontend.kind.as_str().to_owned();
    if let Some(owner) = &frontend.owner {
        return vec![vec![kind, place, format!("not served: it {owner}")]];
    }
    let elsewhere = frontend.elsewhere.map(|outcome| {
        let place = if frontend.unserved { "all node addresses" } else { "other node addresses" };
        vec![String::new(), place.to_owned(), outcome_text(outcome)]
    });
    if frontend.unserved {
        let text = "not served: no address of this node is in nodePortAddresses".to_owned();
        return [vec![kind, frontend.port.to_string(), text]].into_iter().chain(elsewhere).collect();
    }
    let row = |answer: &Answer| vec![std::mem::take(&mut kind), std::mem::take(&mut place), answer_text(answer)];
    frontend.answers.iter().map(row).chain(elsewhere).collect()
}

fn answer_text(answer: &Answer) -> String {
    let clients = match answer.clients {
        Clients::All => "",
        Clients::PodsAndNode => "from pods and the node: ",
        Clients::Pods => "from pods: ",
        Clients::Node => "from the node: ",
        Clients::Others => "from other clients: ",
        Clients::OutsideSourceRanges => "from outside of the source ranges: ",
        Clients::OthersOutsideSourceRanges => "from other clients outside of the source ranges: ",
    };
    format!("{clients}{}", outcome_text(answer.outcome))
}

fn outcome_text(outcome: Outcome) -> String {
    match outcome {
        Outcome::Rejected { reason } => format!("rejected: {}", reason.as_str()),
        Outcome::Dropped { reason } => format!("dropped: {}", reason.as_str()),
        Outcome::NotHandled => "not handled: the connection leaves the node".to_owned(),
        Outcome::Served { policy, endpoints, source } => {
            let source = match source {
                Source::Client => "source address kept",
                Source::Node => "masqueraded",
                Source::PodOrNode => "masqueraded except from pods",
                Source::Service => "source is the Service's address",
            };
            format!("{} (policy {}), {source}", plural(endpoints, "endpoint"), policy)
        }
    }
}

/// Returns one row, or one for each traffic policy if they differ.
fn endpoint_rows(endpoint: &ExplainedEndpoint) -> Vec<Vec<String>> {
    let place = match endpoint {
        ExplainedEndpoint { local: true, .. } => "this node",
        ExplainedEndpoint { node_unknown: true, .. } => "unknown node",
        _ => "other node",
    };
    let mut start = vec![
        endpoint.address.to_string(),
        Escaped(endpoint.pod.as_deref().unwrap_or_default()).to_string(),
        format!("{}, {place}{}{}{}", endpoint.state.as_str(), hints(endpoint), weight(endpoint), sources(endpoint)),
    ];
    let row = |usage| {
        let start = std::mem::replace(&mut start, vec![String::new(); 3]);
        [start, vec![usage]].concat()
    };
    usages(endpoint).into_iter().map(row).collect()
}

fn hints(endpoint: &ExplainedEndpoint) -> String {
    let list = |noun: &str, names: &[String]| match names {
        [] => String::new(),
        names => format!(", for {noun} {}", Escaped(names.join(" "))),
    };
    list("zone", &endpoint.hinted_zones) + &list("node", &endpoint.hinted_nodes)
}

fn weight(endpoint: &ExplainedEndpoint) -> String {
    endpoint.weight.map(|weight| format!(", weight {weight}")).unwrap_or_default()
}

fn sources(endpoint: &ExplainedEndpoint) -> &'static str {
    if endpoint.keeps_sources { ", source addresses kept (noMasqueradeCIDRs)" } else { "" }
}

/// Returns one text if both traffic policies agree or only one applies, otherwise one text for each.
fn usages(endpoint: &ExplainedEndpoint) -> Vec<String> {
    let text = |usage: Usage| match (usage.0, usage.reason()) {
        (Eligibility::OtherNode, _) if endpoint.node_unknown => {
            "not used: its node is unknown (no nodeName)".to_owned()
        }
        (Eligibility::Ready, _) => "used".to_owned(),
        (eligibility, why) if eligibility.is_eligible() => format!("used: {why}"),
        (_, why) => format!("not used: {why}"),
    };
    match (endpoint.cluster, endpoint.local_only) {
        (Some(cluster), Some(local)) if cluster != local => {
            vec![format!("Cluster: {}", text(cluster)), format!("Local: {}", text(local))]
        }
        (Some(usage), _) | (None, Some(usage)) => vec![text(usage)],
        (None, None) => vec!["not used: no traffic".to_owned()],
    }
}

fn write_unused_slice_into(out: &mut impl fmt::Write, indent: &str, slice: &UnusedSlice) -> fmt::Result {
    let UnusedSlice { slice, endpoints, reason, code: _ } = slice;
    let text = format!("unused EndpointSlice {slice} ({}): {reason}", plural(*endpoints, "endpoint"));
    writeln!(out, "{indent}{}", Escaped(text))
}

fn write_kernel_state_into(out: &mut impl fmt::Write, kernel: &KernelState) -> fmt::Result {
    match kernel.rules.as_deref() {
        None => {}
        Some([]) => writeln!(out, "  no rules in the kernel")?,
        Some(rules) => {
            writeln!(out, "  rules in the kernel, with packet counts")?;
            let count = |packets: Option<u64>| packets.map_or("-".to_owned(), |packets| packets.to_string());
            let width = rules.iter().map(|rule| count(rule.packets).len()).max().unwrap_or_default();
            for rules in rules.chunk_by(|one, other| one.location == other.location) {
                let shown = rules.len().min(MAX_RULES);
                for rule in &rules[..shown] {
                    let (location, text) = (Escaped(&rule.location), Escaped(&rule.text));
                    writeln!(out, "    {:>width$}  {location}  {text}", count(rule.packets))?;
                }
                if let Some(rule) = rules.get(shown) {
                    let (location, more) = (Escaped(&rule.location), rules.len() - shown);
                    writeln!(out, "    {:>width$}  {location}  ... and {more} more (all: --output json)", "")?;
                }
            }
        }
    }
    match kernel.connections.as_deref() {
        None => Ok(()),
        Some([]) => writeln!(out, "  no connections"),
        Some(counts) => {
            writeln!(out, "  connections")?;
            for count in counts {
                let note = match count {
                    ConnectionCount { terminating: true, open, .. } => format!(" (terminating, {open} still open)"),
                    ConnectionCount { current: true, .. } => String::new(),
                    ConnectionCount { current: false, .. } => " (not used for new connections)".to_owned(),
                };
                writeln!(out, "    {} to {}{note}", count.connections, count.endpoint)?;
            }
            Ok(())
        }
    }
}

/// Writes rows with aligned columns.
fn write_columns_into(out: &mut impl fmt::Write, rows: &[Vec<String>]) -> fmt::Result {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    for row in rows {
        let mut line = String::from("  ");
        for (cell, width) in row.iter().zip(&widths).filter(|(_, width)| **width > 0) {
            line += &format!("  {cell:<width$}");
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Maximum number of printed rules of a chain, or elements of a map: the table of a Service with source hash has 32,768.
const MAX_RULES: usize = 100;
