//! An explanation as text for people, 80 to 120 columns wide.

use std::{fmt, net::SocketAddr};

use ferroute_core::Eligibility;

use super::{
    Answer, Clients, ExplainedEndpoint, ExplainedFrontend, ExplainedPort, Explanation, Handling, InForce, Outcome,
    Policies, Source, Stray, Usage, types::policy_name,
};
use crate::plural;

/// Tells what becomes of a Service.
///
/// # Errors
/// Only those of `out`.
pub fn write_explanation_into(out: &mut impl fmt::Write, explanation: &Explanation) -> fmt::Result {
    let Explanation { service, type_, node, zone, handling, unread } = explanation;
    write!(out, "Service {service}, type {type_}, on node {node}")?;
    if let Some(zone) = zone {
        write!(out, " in zone {zone}")?;
    }
    out.write_char('\n')?;
    match handling {
        Handling::NotServed { why } => writeln!(out, "\nnot served by this proxy: {why}"),
        Handling::Invalid { faults } => {
            writeln!(out, "\ninvalid, so no rules are made from it:")?;
            faults.iter().try_for_each(|fault| writeln!(out, "  {fault}"))
        }
        Handling::Served { policies, ports, strays } => {
            write_policies_into(out, policies)?;
            ports.iter().try_for_each(|port| write_port_into(out, port))?;
            if !strays.is_empty() {
                out.write_char('\n')?;
                strays.iter().try_for_each(|stray| write_stray_into(out, "", stray))?;
            }
            unread.iter().try_for_each(|why| writeln!(out, "\nnot told is what the kernel holds: {why}"))
        }
    }
}

fn write_policies_into(out: &mut impl fmt::Write, policies: &Policies) -> fmt::Result {
    writeln!(out, "\npolicies")?;
    writeln!(out, "  internal traffic      {}", policy_name(policies.internal_traffic))?;
    if let Some(policy) = policies.external_traffic {
        writeln!(out, "  external traffic      {}", policy_name(policy))?;
    }
    if let Some(affinity) = policies.affinity {
        writeln!(out, "  session affinity      by client address, for {} s", affinity.timeout_seconds)?;
    }
    if !policies.source_ranges.is_empty() {
        let ranges = policies.source_ranges.iter().map(ToString::to_string).collect::<Vec<_>>();
        writeln!(out, "  source ranges         {} (load balancer IPs only)", ranges.join(", "))?;
    }
    if let Some(distribution) = &policies.traffic_distribution {
        writeln!(out, "  traffic distribution  {distribution} (by the hints in the slices)")?;
    }
    if let Some(check) = policies.health_check {
        let status = if check.local_endpoints > 0 { "200" } else { "503" };
        let endpoints = plural(check.local_endpoints, "ready endpoint");
        writeln!(out, "  health check          port {} answers {status}: {endpoints} on this node", check.port)?;
    }
    Ok(())
}

fn write_port_into(out: &mut impl fmt::Write, port: &ExplainedPort) -> fmt::Result {
    let ExplainedPort { name, family, protocol, frontends, endpoints, strays, in_force } = port;
    // The cluster IP is always there and comes first; its number is what the Service calls the port's.
    let number = frontends.first().map(|frontend| frontend.port).unwrap_or_default();
    let name = if name.is_empty() { String::new() } else { format!("{name} ") };
    writeln!(out, "\nport {name}{number}/{protocol}, {family}")?;
    writeln!(out, "  frontends")?;
    let rows = frontends.iter().flat_map(frontend_rows).collect::<Vec<_>>();
    write_columns_into(out, &rows)?;
    if endpoints.is_empty() {
        writeln!(out, "  no endpoints in any slice")?;
    } else {
        writeln!(out, "  endpoints")?;
        let rows = endpoints.iter().flat_map(endpoint_rows).collect::<Vec<_>>();
        write_columns_into(out, &rows)?;
    }
    strays.iter().try_for_each(|stray| write_stray_into(out, "  ", stray))?;
    in_force.iter().try_for_each(|in_force| write_in_force_into(out, in_force))
}

/// A row for each kind of client, the frontend's name in the first one only.
fn frontend_rows(frontend: &ExplainedFrontend) -> Vec<Vec<String>> {
    let mut place = match frontend.addresses.as_slice() {
        [] => format!("{} on all of the node's addresses", frontend.port),
        addresses => addresses
            .iter()
            .map(|address| SocketAddr::new(*address, frontend.port).to_string())
            .collect::<Vec<_>>()
            .join(", "),
    };
    let mut kind = frontend.kind.as_str().to_owned();
    let row = |answer: &Answer| vec![std::mem::take(&mut kind), std::mem::take(&mut place), answer_text(answer)];
    frontend.answers.iter().map(row).collect()
}

fn answer_text(answer: &Answer) -> String {
    let clients = match answer.clients {
        Clients::All => "",
        Clients::PodsAndNode => "pods and the node itself: ",
        Clients::Node => "the node itself: ",
        Clients::Others => "others: ",
    };
    let outcome = match answer.outcome {
        Outcome::Refused => "refused, as nothing serves anywhere".to_owned(),
        Outcome::Dropped => "dropped, as policy Local finds nothing on this node".to_owned(),
        Outcome::Served { policy, endpoints, source } => {
            let source = match source {
                Source::Client => "the client's address is kept",
                Source::Node => "masqueraded",
                Source::PodOrNode => "masqueraded unless from a pod",
            };
            format!("{} of policy {}, {source}", plural(endpoints, "endpoint"), policy_name(policy))
        }
    };
    format!("{clients}{outcome}")
}

/// A row, or one for each policy where they do not agree.
fn endpoint_rows(endpoint: &ExplainedEndpoint) -> Vec<Vec<String>> {
    let place = if endpoint.local { "this node" } else { "elsewhere" };
    let mut start = vec![
        endpoint.address.to_string(),
        endpoint.pod.clone().unwrap_or_default(),
        format!("{}, {place}{}", endpoint.state.as_str(), hints(endpoint)),
    ];
    let row = |usage| {
        let start = std::mem::replace(&mut start, vec![String::new(); 3]);
        [start, vec![usage]].concat()
    };
    usages(endpoint).into_iter().map(row).collect()
}

fn hints(endpoint: &ExplainedEndpoint) -> String {
    let list = |what: &str, names: &[String]| match names {
        [] => String::new(),
        names => format!(", for {what} {}", names.join(" ")),
    };
    list("zone", &endpoint.hinted_zones) + &list("node", &endpoint.hinted_nodes)
}

/// One text where both policies agree or there is only one, else one for each.
fn usages(endpoint: &ExplainedEndpoint) -> Vec<String> {
    let text = |usage: Usage| match (usage.0, usage.why()) {
        (Eligibility::Ready, _) => "used".to_owned(),
        (eligibility, why) if eligibility.is_eligible() => format!("used, {why}"),
        (_, why) => format!("not used: {why}"),
    };
    match (endpoint.cluster, endpoint.local_only) {
        (Some(cluster), Some(local)) if cluster != local => {
            vec![format!("Cluster: {}", text(cluster)), format!("Local: {}", text(local))]
        }
        (Some(usage), _) | (None, Some(usage)) => vec![text(usage)],
        (None, None) => vec!["no traffic asks for it".to_owned()],
    }
}

fn write_stray_into(out: &mut impl fmt::Write, indent: &str, stray: &Stray) -> fmt::Result {
    let Stray { slice, endpoints, why } = stray;
    writeln!(out, "{indent}slice {slice} with {} is not used: {why}", plural(*endpoints, "endpoint"))
}

fn write_in_force_into(out: &mut impl fmt::Write, in_force: &InForce) -> fmt::Result {
    match in_force.rules.as_deref() {
        None => {}
        Some([]) => writeln!(out, "  nothing of it is in the kernel")?,
        Some(rules) => {
            writeln!(out, "  in the kernel, with the packets counted")?;
            let count = |packets: Option<u64>| packets.map_or("-".to_owned(), |packets| packets.to_string());
            let width = rules.iter().map(|rule| count(rule.packets).len()).max().unwrap_or_default();
            for rule in rules {
                writeln!(out, "    {:>width$}  {}  {}", count(rule.packets), rule.place, rule.text)?;
            }
        }
    }
    match in_force.flows.as_deref() {
        None => Ok(()),
        Some([]) => writeln!(out, "  no connections"),
        Some(flows) => {
            writeln!(out, "  connections")?;
            for flow in flows {
                let note = if flow.current { "" } else { ", which takes no new ones" };
                writeln!(out, "    {} to {}{note}", flow.flows, flow.endpoint)?;
            }
            Ok(())
        }
    }
}

/// Writes rows with their columns below each other; the last column is as wide as it is.
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
