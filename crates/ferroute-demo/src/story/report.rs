//! What the story says. Pure: from plans and tallies to text.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use ferroute_api::Service;

use super::{
    flows::{Flow, enough_for},
    measure::Tally,
};
use crate::{
    layout::{NodeId, OUTSIDE, outside_addresses},
    overview,
    plan::ClusterPlan,
    state::Status,
    text::{Style, columns},
};

/// Machines, pods and Services.
pub(super) fn cluster(status: &Status, style: Style) -> String {
    format!("{}\n{}\n", overview::machines(status, style), overview::services(&status.plan, style))
}

/// The heading of a Service.
pub(super) fn service(service: &Service, style: Style) -> String {
    let metadata = &service.metadata;
    let text = format!("Service {}/{}", metadata.namespace, metadata.name);
    format!("{}\n{}\n\n", style.bold(&text), style.bold(&"=".repeat(text.len())))
}

/// Who calls what.
pub(super) fn title(flow: &Flow) -> String {
    let Flow { client, frontend, destination, protocol, .. } = flow;
    format!("{} to {} {destination}/{protocol}", client.name(), frontend.as_str())
}

/// How a flow's connections spread, and what the pods saw.
pub(super) fn flow(flow: &Flow, tally: &Tally, plan: &ClusterPlan, problems: &[String], style: Style) -> String {
    let answered: usize = tally.pods.values().sum();
    let verdict = if problems.is_empty() { style.good("as it should be") } else { style.bad("WRONG") };
    let mut text = format!("{}  {verdict}\n", style.bold(&title(flow)));
    let outcome = match (flow.pods.is_empty(), tally.failures.is_empty()) {
        (true, _) => format!("  no pod may answer: {}\n", failures(tally)),
        (false, true) => format!("  {} connections, all answered\n", tally.tried),
        (false, false) => format!("  {} connections, {answered} answered, {}\n", tally.tried, failures(tally)),
    };
    text.push_str(&outcome);
    let mut names: Vec<&String> = flow.pods.iter().chain(tally.pods.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let rows: Vec<Vec<String>> = names
        .into_iter()
        .map(|name| {
            let count = tally.pods.get(name).copied().unwrap_or(0);
            let pod = plan.pods.iter().find(|pod| pod.short_name() == *name);
            let family = ferroute_core::IpFamily::of(flow.destination.ip());
            let address = pod.and_then(|pod| pod.addresses.of(family)).map(|ip| ip.to_string());
            let share = count * 100 + answered / 2;
            let percent = share.checked_div(answered).unwrap_or(0);
            vec![
                name.clone(),
                address.unwrap_or_default(),
                format!("{count:>4}"),
                format!("{percent:>3} %"),
                style.bar(count, answered, BAR),
            ]
        })
        .collect();
    text.push_str(&columns("    ", &rows));
    if flow.sticks && tally.pods.len() == 1 {
        text.push_str("  session affinity keeps a client at its pod\n");
    }
    for (source, count) in &tally.sources {
        text.push_str(&format!("  {}\n", seen(flow, *source, plan.ipv6, *count, answered)));
    }
    text
}

/// The chains.
pub(super) fn way(lines: &[String], style: Style) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let lines = lines.iter().map(|line| format!("    {}\n", style.dim(line)));
    format!("  way through the rules\n{}", lines.collect::<String>())
}

/// What is wrong with a tally, given what the flow may do.
pub(super) fn problems(flow: &Flow, tally: &Tally) -> Vec<String> {
    let mut problems = Vec::new();
    if flow.pods.is_empty() {
        if !tally.pods.is_empty() {
            problems.push("was answered although no pod may".to_owned());
        }
        return problems;
    }
    let failed: usize = tally.failures.values().sum();
    if failed > 0 {
        problems.push(format!("{failed} of {} connections failed: {}", tally.tried, failures(tally)));
    }
    let strangers = tally.pods.keys().filter(|pod| !flow.pods.contains(pod));
    problems.extend(strangers.map(|pod| format!("{pod} answered, which is not behind it")));
    let answered: usize = tally.pods.values().sum();
    if flow.sticks {
        if tally.pods.len() > 1 {
            problems.push(format!("{} pods answered one client, which should keep its pod", tally.pods.len()));
        }
    } else if failed == 0 && answered >= enough_for(flow.pods.len()) {
        let left_out = flow.pods.iter().filter(|pod| !tally.pods.contains_key(*pod));
        problems.extend(left_out.map(|pod| format!("{pod} got none of {answered} connections")));
    }
    problems
}

/// The last lines.
pub(super) fn end(total: usize, problems: &[String], cleaning: Duration, style: Style) -> String {
    let mut text = match problems.len() {
        0 => format!("{}\n", style.good(&format!("{total} connections, and every one went where it may"))),
        1 => format!("{}\n", style.bad(&format!("{total} connections, one problem:"))),
        count => format!("{}\n", style.bad(&format!("{total} connections, {count} problems:"))),
    };
    problems.iter().for_each(|problem| text.push_str(&format!("  {problem}\n")));
    text.push_str(&style.dim(&format!("everything is removed again ({:.1} s)", cleaning.as_secs_f64())));
    text.push('\n');
    text
}

fn failures(tally: &Tally) -> String {
    let each = tally.failures.iter().map(|(reason, count)| format!("{count} {reason}"));
    each.collect::<Vec<_>>().join(", ")
}

/// What the pods saw of the client.
fn seen(flow: &Flow, source: IpAddr, ipv6: bool, count: usize, answered: usize) -> String {
    let who = if count == answered { "the pods saw".to_owned() } else { format!("{count} times the pods saw") };
    if source == flow.source {
        return format!("{who} {source}, the client's own address");
    }
    match owners(ipv6).get(&source) {
        Some(owner) => format!("{who} {source}, the address of {owner}: masqueraded"),
        None => format!("{who} {source}"),
    }
}

fn owners(ipv6: bool) -> BTreeMap<IpAddr, String> {
    let nodes = NodeId::ALL.into_iter().flat_map(|node| {
        let own = node.addresses(ipv6).iter().map(move |ip| (ip, node.name().to_owned()));
        own.chain(node.bridge_addresses(ipv6).iter().map(move |ip| (ip, format!("{node}'s bridge"))))
    });
    nodes.chain(outside_addresses(ipv6).iter().map(|ip| (ip, OUTSIDE.to_owned()))).collect()
}

/// Letters for the longest bar.
const BAR: usize = 30;
