//! The text of the tour. Pure.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use ferroute_api::Service;
use ferroute_core::{IpFamily, Style};

use super::{
    flows::{Flow, required_connections},
    measure::Tally,
};
use crate::{
    layout::{NodeId, OUTSIDE, outside_addresses},
    overview,
    plan::ClusterPlan,
    state::Status,
    text::{bar, columns},
};

/// Shows machines, pods and Services.
pub(super) fn cluster(status: &Status, style: Style) -> String {
    format!("{}\n{}\n", overview::machines(status, style), overview::services(&status.plan, style))
}

/// Returns the heading of a Service.
pub(super) fn service(service: &Service, style: Style) -> String {
    let metadata = &service.metadata;
    let text = format!("Service {}/{}", metadata.namespace, metadata.name);
    format!("{}\n{}\n\n", style.bold(&text), style.bold(&"=".repeat(text.len())))
}

/// Returns the title of a flow: client and destination.
pub(super) fn title(flow: &Flow) -> String {
    let Flow { client, frontend, destination, protocol, .. } = flow;
    format!("{} to {} {destination}/{protocol}", client.name(), frontend.as_str())
}

/// Shows the share of each pod, and the source addresses that the pods saw.
pub(super) fn flow(flow: &Flow, tally: &Tally, plan: &ClusterPlan, problems: &[String], style: Style) -> String {
    let answered: usize = tally.pods.values().sum();
    let verdict = if problems.is_empty() { style.success("ok") } else { style.failure("FAILED") };
    let mut text = format!("{}  {verdict}\n", style.bold(&title(flow)));
    let result = match (flow.pods.is_empty(), tally.failures.is_empty()) {
        (true, _) => format!("  no pod is expected to answer: {}\n", failures(tally)),
        (false, true) => format!("  {} connections, all answered\n", tally.total),
        (false, false) => format!("  {} connections, {answered} answered, {}\n", tally.total, failures(tally)),
    };
    text.push_str(&result);
    let mut names: Vec<&String> = flow.pods.iter().chain(tally.pods.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let rows: Vec<Vec<String>> = names
        .into_iter()
        .map(|name| {
            let count = tally.pods.get(name).copied().unwrap_or(0);
            let pod = plan.pods.iter().find(|pod| pod.short_name() == *name);
            let family = IpFamily::of(flow.destination.ip());
            let address = pod.and_then(|pod| pod.addresses.get(family)).map(|ip| ip.to_string());
            let share = count * 100 + answered / 2;
            let percent = share.checked_div(answered).unwrap_or(0);
            vec![
                name.clone(),
                address.unwrap_or_default(),
                format!("{count:>4}"),
                format!("{percent:>3} %"),
                bar(style, count, answered, BAR_WIDTH),
            ]
        })
        .collect();
    text.push_str(&columns("    ", &rows));
    if flow.has_affinity && tally.pods.len() == 1 {
        text.push_str("  session affinity: the client stays with one pod\n");
    }
    for (source, count) in &tally.sources {
        text.push_str(&format!("  {}\n", source_text(flow, *source, plan.ipv6, *count, answered)));
    }
    text
}

/// Shows the path through the rules.
pub(super) fn path(lines: &[String], style: Style) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let lines = lines.iter().map(|line| format!("    {}\n", style.dim(line)));
    format!("  path through the rules\n{}", lines.collect::<String>())
}

/// Returns the deviations of a tally from the flow's expectations.
pub(super) fn problems(flow: &Flow, tally: &Tally) -> Vec<String> {
    let mut problems = Vec::new();
    if flow.pods.is_empty() {
        if !tally.pods.is_empty() {
            problems.push("a pod answered, but none is expected to".to_owned());
        }
        return problems;
    }
    let failed: usize = tally.failures.values().sum();
    if failed > 0 {
        problems.push(format!("{failed} of {} connections failed: {}", tally.total, failures(tally)));
    }
    let unexpected = tally.pods.keys().filter(|pod| !flow.pods.contains(pod));
    problems.extend(unexpected.map(|pod| format!("{pod} answered, but is not an endpoint")));
    let answered: usize = tally.pods.values().sum();
    if flow.has_affinity {
        if tally.pods.len() > 1 {
            problems.push(format!("{} pods answered one client despite session affinity", tally.pods.len()));
        }
    } else if failed == 0 && answered >= required_connections(flow.pods.len()) {
        let unreached = flow.pods.iter().filter(|pod| !tally.pods.contains_key(*pod));
        problems.extend(unreached.map(|pod| format!("{pod} got none of {answered} connections")));
    }
    problems
}

/// Shows the result of the tour.
pub(super) fn summary(total: usize, problems: &[String], removal: Duration, style: Style) -> String {
    let mut text = match problems.len() {
        0 => format!("{}\n", style.success(&format!("{total} connections, all as expected"))),
        1 => format!("{}\n", style.failure(&format!("{total} connections, one problem:"))),
        count => format!("{}\n", style.failure(&format!("{total} connections, {count} problems:"))),
    };
    problems.iter().for_each(|problem| text.push_str(&format!("  {problem}\n")));
    text.push_str(&style.dim(&format!("cluster removed ({:.1} s)", removal.as_secs_f64())));
    text.push('\n');
    text
}

fn failures(tally: &Tally) -> String {
    let each = tally.failures.iter().map(|(reason, count)| format!("{count} {reason}"));
    each.collect::<Vec<_>>().join(", ")
}

/// Describes a source address that the pods saw.
fn source_text(flow: &Flow, source: IpAddr, ipv6: bool, count: usize, answered: usize) -> String {
    let share = if count == answered { String::new() } else { format!("in {count} connections ") };
    let owner = match owners(ipv6).get(&source) {
        _ if source == flow.source => ", the client's own address".to_owned(),
        Some(owner) => format!(", the address of {owner} (masqueraded)"),
        None => String::new(),
    };
    format!("{share}the pods saw source {source}{owner}")
}

fn owners(ipv6: bool) -> BTreeMap<IpAddr, String> {
    let nodes = NodeId::ALL.into_iter().flat_map(|node| {
        let own = node.addresses(ipv6).iter().map(move |ip| (ip, node.name().to_owned()));
        own.chain(node.bridge_addresses(ipv6).iter().map(move |ip| (ip, format!("{node}'s bridge"))))
    });
    nodes.chain(outside_addresses(ipv6).iter().map(|ip| (ip, OUTSIDE.to_owned()))).collect()
}

/// The width of the longest bar.
const BAR_WIDTH: usize = 30;
