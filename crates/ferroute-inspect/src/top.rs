//! Which Services are busy: new connections per second, from what rules or elements have counted at two moments.
//!
//! ```text
//!   counters ──► Sample ─┐
//!                        ├──► rates ──► Row (service port, its endpoints with their shares) ──► text
//!   counters ──► Sample ─┘
//! ```
//!
//! A rule counts anew when it is written anew, so a number can become smaller: then all of it is new. What is *not* here:
//! reading counters, terminals, clocks.

mod counters;
mod print;
mod screen;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use ferroute_iptables::{
    ChainName, Rule, SavedRules, TableName, Target,
    plan::{SharedChain, is_service_chain},
};
use serde::Serialize;

use counters::Counters;
pub use print::write_rows_into;

/// How many connections were counted up to a moment, by service port and endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample(BTreeMap<String, BTreeMap<SocketAddr, u64>>);

/// How busy a service port is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Its name as in comments, `namespace/name:port`.
    pub service_port: String,
    /// New connections per second.
    pub per_second: f64,
    /// Its endpoints, the busiest first.
    pub endpoints: Vec<EndpointRate>,
}

/// How busy an endpoint is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointRate {
    /// Address and port.
    pub endpoint: SocketAddr,
    /// New connections per second.
    pub per_second: f64,
    /// Its part of the service port's connections, 0 to 1; 0 where there are none.
    pub share: f64,
}

impl Sample {
    /// Adds connections to an endpoint of a service port.
    pub fn add(&mut self, service_port: &str, endpoint: SocketAddr, connections: u64) {
        if !self.0.contains_key(service_port) {
            self.0.insert(service_port.to_owned(), BTreeMap::new());
        }
        if let Some(endpoints) = self.0.get_mut(service_port) {
            *endpoints.entry(endpoint).or_default() += connections;
        }
    }

    /// Adds what a proxy's `iptables` rules have counted: those that lead to an endpoint.
    pub fn add_iptables(&mut self, saved: &SavedRules) {
        let mut chains: BTreeMap<&str, BTreeSet<ChainName>> = BTreeMap::new();
        for shared in [SharedChain::NatServices, SharedChain::NatNodePorts] {
            for rule in saved.rules.rules(shared.table(), shared.name()) {
                let next = rule.next_chain().filter(|next| is_service_chain(*next));
                // The comments on endpoints' own rules are left away in large clusters.
                let name = rule.first_comment().and_then(|comment| comment.split(' ').next());
                if let Some((name, next)) = name.zip(next) {
                    chains.entry(name).or_default().insert(next);
                }
            }
        }
        for (name, first) in chains {
            for (chain, position, endpoint) in endpoints_behind(saved, first) {
                let counted = saved.counters.get(TableName::Nat, chain, position);
                self.add(name, endpoint, counted.map_or(0, |counters| counters.packets));
            }
        }
    }
}

/// The rules that translate to an endpoint, in all chains that can be reached from these: chain, position, endpoint.
fn endpoints_behind(saved: &SavedRules, first: BTreeSet<ChainName>) -> Vec<(ChainName, usize, SocketAddr)> {
    let mut waiting: Vec<ChainName> = first.into_iter().collect();
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    while let Some(chain) = waiting.pop() {
        if !seen.insert(chain) {
            continue;
        }
        let rules: &[Rule] = saved.rules.rules(TableName::Nat, chain);
        waiting.extend(rules.iter().filter_map(Rule::next_chain).filter(|next| is_service_chain(*next)));
        found.extend(rules.iter().enumerate().filter_map(|(position, rule)| match rule.target {
            Some(Target::Dnat { address, port }) => Some((chain, position, SocketAddr::new(address, port?))),
            _ => None,
        }));
    }
    found
}

/// What has happened between two samples, of which `after` was taken `elapsed` later; the busiest first, and of equally
/// busy ones in the order of their names. Who is gone is not told.
pub fn rates(before: &Sample, after: &Sample, elapsed: Duration) -> Vec<Row> {
    let seconds = elapsed.as_secs_f64();
    let per_second = |connections: u64| if seconds > 0.0 { connections as f64 / seconds } else { 0.0 };
    let mut rows: Vec<Row> = after
        .0
        .iter()
        .map(|(service_port, endpoints)| {
            let known = before.0.get(service_port);
            let last = |endpoint| known.and_then(|known| known.get(endpoint)).copied().unwrap_or_default();
            let new: Vec<(SocketAddr, u64)> = endpoints
                .iter()
                .map(|(endpoint, count)| (*endpoint, count.checked_sub(last(endpoint)).unwrap_or(*count)))
                .collect();
            let total: u64 = new.iter().map(|(_, new)| new).sum();
            let share = |new: u64| if total > 0 { new as f64 / total as f64 } else { 0.0 };
            let mut endpoints: Vec<EndpointRate> = new
                .into_iter()
                .map(|(endpoint, new)| EndpointRate { endpoint, per_second: per_second(new), share: share(new) })
                .collect();
            endpoints.sort_by(|one, other| other.share.total_cmp(&one.share));
            Row { service_port: service_port.clone(), per_second: per_second(total), endpoints }
        })
        .collect();
    rows.sort_by(|one, other| other.per_second.total_cmp(&one.per_second));
    rows
}

#[cfg(test)]
mod tests;

/// Shows the rates on the terminal until the user quits.
///
/// # Errors
/// If the counters cannot be read or the terminal cannot be used.
pub fn show(interval: Duration) -> anyhow::Result<()> {
    screen::run(Counters::open()?, interval)
}

/// Prints the rates of one interval.
///
/// # Errors
/// If the counters cannot be read or standard output cannot be written.
pub fn print_once(interval: Duration) -> anyhow::Result<()> {
    let mut counters = Counters::open()?;
    let (before, start) = (counters.read()?, Instant::now());
    thread::sleep(interval);
    let rows = rates(&before, &counters.read()?, start.elapsed());
    let mut text = String::new();
    write_rows_into(&mut text, &rows, FILE_WIDTH, usize::MAX)?;
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

/// Characters of a line where no terminal limits it.
const FILE_WIDTH: usize = 240;
