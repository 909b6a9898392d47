//! The rate of new connections by service port, from the counters of rules or elements at two points in time.
//!
//! ```text
//!   counters ──► Sample ─┐
//!                        ├──► rates ──► Row (service port, endpoints with shares) ──► text
//!   counters ──► Sample ─┘
//! ```

mod counters;
mod flow_counts;
mod screen;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use ferroute_core::{Escaped, Frontend, IpFamily, Protocol, ServiceTable, Share};
use ferroute_iptables::{
    ChainName, Rule, SavedRules, TableName, Target,
    plan::{SharedChain, is_service_chain},
};
use ferroute_proxy::control::{ObservedEndpoint, request_status, request_traffic};
use serde::{Deserialize, Serialize};

pub use ferroute_proxy::control::{EndpointTraffic, TrafficCounts};

pub use self::counters::Counters;
use crate::about::{About, ProxyState};

/// The connections counted so far, by service port and endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample(BTreeMap<String, BTreeMap<SocketAddr, u64>>);

/// The rates of all service ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rates {
    /// The service ports, by descending rate.
    pub service_ports: Vec<Row>,
}

/// The rate of a service port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The service port, `namespace/name:port`.
    pub service_port: String,
    /// New connections per second.
    pub per_second: f64,
    /// Endpoints, by descending rate.
    pub endpoints: Vec<EndpointRate>,
    /// Traffic of endpoints that the service port no longer has, if the proxy counts traffic and there was any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<TrafficCounts>,
}

/// The rate of an endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointRate {
    /// Address and port.
    pub endpoint: SocketAddr,
    /// New connections per second.
    pub per_second: f64,
    /// Share of the service port's connections, 0 to 1; 0 if there are none.
    pub share: f64,
    /// Whether it gets no connections because it did not answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ejected: bool,
    /// Sixteenths of its weight that are in effect; `None` for its full weight. They are fewer if it starts slowly or
    /// has many connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sixteenths: Option<Share>,
    /// Traffic that the proxy has counted, if it counts traffic and there was any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<TrafficCounts>,
}

/// Observations and counts of the running proxy for endpoints.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    /// Endpoints that get fewer connections than their full weight.
    pub endpoints: Vec<ObservedEndpoint>,
    /// The traffic of endpoints; empty if it is not counted.
    pub traffic: Vec<EndpointTraffic>,
}

impl EndpointRate {
    /// Returns the rate of an endpoint without further information.
    pub fn new(endpoint: SocketAddr, per_second: f64, share: f64) -> Self {
        Self { endpoint, per_second, share, ejected: false, sixteenths: None, traffic: None }
    }
}

impl Row {
    /// Returns the traffic of all endpoints, former ones included; `None` if it is not counted, or if there was none.
    pub fn traffic(&self) -> Option<TrafficCounts> {
        self.endpoints.iter().filter_map(|rate| rate.traffic).chain(self.ended).reduce(add_traffic)
    }
}

fn add_traffic(one: TrafficCounts, other: TrafficCounts) -> TrafficCounts {
    TrafficCounts {
        connections: one.connections + other.connections,
        packets: one.packets + other.packets,
        bytes: one.bytes + other.bytes,
        packets_per_second: one.packets_per_second + other.packets_per_second,
        bytes_per_second: one.bytes_per_second + other.bytes_per_second,
    }
}

impl fmt::Display for EndpointRate {
    /// Writes the endpoint, its share and why it is smaller than it could be.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, per_second: _, share, ejected, sixteenths, traffic: _ } = self;
        write!(f, "{endpoint} {:.0} %", share * 100.0)?;
        if *ejected {
            f.write_str(" ejected")?;
        }
        sixteenths.iter().try_for_each(|sixteenths| write!(f, " weight {}/16", sixteenths.get()))
    }
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

    /// Adds the connections of another sample.
    fn extend(&mut self, other: &Self) {
        for (service_port, endpoints) in &other.0 {
            for (endpoint, connections) in endpoints {
                self.add(service_port, *endpoint, *connections);
            }
        }
    }

    /// Adds the counters of a proxy's `iptables` rules with target DNAT.
    pub fn add_iptables(&mut self, saved: &SavedRules) {
        let mut chains: BTreeMap<&str, BTreeSet<ChainName>> = BTreeMap::new();
        for shared in [SharedChain::NatServices, SharedChain::NatNodePorts] {
            for rule in saved.rules.rules(shared.table(), shared.name()) {
                let next = rule.next_chain().filter(|next| is_service_chain(*next));
                // In large clusters, the rules of endpoints have no comments.
                let name = rule.first_comment().and_then(|comment| comment.split(' ').next());
                if let Some((name, next)) = name.zip(next) {
                    chains.entry(name).or_default().insert(next);
                }
            }
        }
        for (name, first) in chains {
            for (chain, position, endpoint) in endpoints_behind(saved, first) {
                let counters = saved.counters.get(TableName::Nat, chain, position);
                self.add(name, endpoint, counters.map_or(0, |counters| counters.packets));
            }
        }
    }
}

/// Returns the DNAT rules in all chains that are reachable from these, as chain, position and endpoint.
fn endpoints_behind(saved: &SavedRules, first: BTreeSet<ChainName>) -> Vec<(ChainName, usize, SocketAddr)> {
    let mut pending: Vec<ChainName> = first.into_iter().collect();
    let (mut visited, mut endpoints) = (BTreeSet::new(), Vec::new());
    while let Some(chain) = pending.pop() {
        if !visited.insert(chain) {
            continue;
        }
        let rules: &[Rule] = saved.rules.rules(TableName::Nat, chain);
        pending.extend(rules.iter().filter_map(Rule::next_chain).filter(|next| is_service_chain(*next)));
        endpoints.extend(rules.iter().enumerate().filter_map(|(position, rule)| match rule.target {
            Some(Target::Dnat { address, port }) => Some((chain, position, SocketAddr::new(address, port?))),
            _ => None,
        }));
    }
    endpoints
}

/// Returns the rates between two samples with `elapsed` time between them, by descending rate and then by name. Service
/// ports and endpoints that are only in `before` are omitted.
///
/// The counter of a rewritten rule starts at zero, so a counter that decreased has counted only new connections.
pub fn rates(before: &Sample, after: &Sample, elapsed: Duration) -> Vec<Row> {
    let seconds = elapsed.as_secs_f64();
    let mut rows: Vec<Row> = after
        .0
        .iter()
        .map(|(service_port, endpoints)| {
            let previous = before.0.get(service_port);
            let last = |endpoint: &SocketAddr| {
                previous.and_then(|previous| previous.get(endpoint)).copied().unwrap_or_default()
            };
            let new = |(endpoint, count): (&SocketAddr, &u64)| {
                (*endpoint, count.checked_sub(last(endpoint)).unwrap_or(*count) as f64)
            };
            let new = endpoints.iter().map(new).collect();
            row(service_port.clone(), new, seconds)
        })
        .collect();
    rows.sort_by(|one, other| other.per_second.total_cmp(&one.per_second));
    rows
}

/// Returns the row of a service port whose endpoints had these connections in `seconds`.
fn row(service_port: String, connections: Vec<(SocketAddr, f64)>, seconds: f64) -> Row {
    let total: f64 = connections.iter().map(|(_, connections)| connections).sum();
    let per_second = |connections: f64| if seconds > 0.0 { connections / seconds } else { 0.0 };
    let share = |connections: f64| if total > 0.0 { connections / total } else { 0.0 };
    let mut endpoints: Vec<EndpointRate> = connections
        .into_iter()
        .map(|(endpoint, new)| EndpointRate::new(endpoint, per_second(new), share(new)))
        .collect();
    endpoints.sort_by(|one, other| other.share.total_cmp(&one.share));
    Row { service_port, per_second: per_second(total), endpoints, ended: None }
}

/// Shows the rates on the terminal until the user quits.
///
/// # Errors
/// If the counters cannot be read or the terminal cannot be used.
pub fn show(about: &About, interval: Duration) -> anyhow::Result<()> {
    screen::run(about, Counters::open(about)?, interval)
}

/// Returns the rates of one interval.
///
/// # Errors
/// If the counters cannot be read.
pub fn read_once(about: &About, interval: Duration) -> anyhow::Result<Rates> {
    let mut counters = Counters::open(about)?;
    let (before, start) = (counters.read()?, Instant::now());
    thread::sleep(interval);
    let mut service_ports = rates(&before, &counters.read()?, start.elapsed());
    mark(&mut service_ports, &observe(about));
    Ok(Rates { service_ports })
}

/// Returns the observations and counts of the running proxy; none if no proxy runs, because rates are useful without
/// them.
pub fn observe(about: &About) -> Observations {
    if about.proxy != ProxyState::Running {
        return Observations::default();
    }
    Observations {
        endpoints: request_status().map(|status| status.endpoints).unwrap_or_default(),
        traffic: request_traffic().unwrap_or_default(),
    }
}

/// Adds the observations and counts of the proxy for endpoints, including endpoints without connections. The traffic of
/// former endpoints is added to their service port, unless it has none any more.
pub fn mark(rows: &mut Vec<Row>, observations: &Observations) {
    let mut index: HashMap<String, usize> =
        rows.iter().enumerate().map(|(i, row)| (row.service_port.clone(), i)).collect();
    let mut rate = |service_port: &str, endpoint: SocketAddr, change: &dyn Fn(&mut EndpointRate)| {
        let i = *index.entry(service_port.to_owned()).or_insert_with(|| {
            rows.push(row(service_port.to_owned(), Vec::new(), 0.0));
            rows.len() - 1
        });
        let endpoints = &mut rows[i].endpoints;
        let position = endpoints.iter().position(|rate| rate.endpoint == endpoint).unwrap_or_else(|| {
            endpoints.push(EndpointRate::new(endpoint, 0.0, 0.0));
            endpoints.len() - 1
        });
        change(&mut endpoints[position]);
    };
    for ObservedEndpoint { service_port, endpoint, ejected, sixteenths } in &observations.endpoints {
        rate(service_port, *endpoint, &|rate| {
            (rate.ejected, rate.sixteenths) = (*ejected, (*sixteenths != Share::FULL).then_some(*sixteenths));
        });
    }
    let (ended, current): (Vec<_>, Vec<_>) = observations.traffic.iter().partition(|traffic| traffic.ended);
    for EndpointTraffic { service_port, endpoint, counts, ended: _ } in current {
        rate(service_port, *endpoint, &|rate| rate.traffic = Some(*counts));
    }
    for EndpointTraffic { service_port, endpoint, counts, ended: _ } in ended {
        let Some(row) = index.get(service_port).map(|i| &mut rows[*i]) else { continue };
        row.ended = row.ended.into_iter().chain([*counts]).reduce(add_traffic);
        // Counters of rules, and flows that were counted, may still include it.
        row.endpoints.retain(|rate| rate.endpoint != *endpoint || rate.per_second > 0.0);
    }
}

/// Returns the sum of the rates of several nodes, in the order of [`rates`].
pub fn sum(nodes: impl IntoIterator<Item = Vec<Row>>) -> Vec<Row> {
    type Endpoints = BTreeMap<SocketAddr, (f64, Option<TrafficCounts>)>;
    let mut sums: BTreeMap<String, (Endpoints, Option<TrafficCounts>)> = BTreeMap::new();
    for row in nodes.into_iter().flatten() {
        let (endpoints, ended) = sums.entry(row.service_port).or_default();
        *ended = [*ended, row.ended].into_iter().flatten().reduce(add_traffic);
        for rate in row.endpoints {
            let (per_second, traffic) = endpoints.entry(rate.endpoint).or_default();
            *per_second += rate.per_second;
            *traffic = [*traffic, rate.traffic].into_iter().flatten().reduce(add_traffic);
        }
    }
    let row = |(port, (endpoints, ended)): (String, (Endpoints, _))| {
        let connections = endpoints.iter().map(|(endpoint, (per_second, _))| (*endpoint, *per_second)).collect();
        let mut row = row(port, connections, 1.0);
        row.endpoints.iter_mut().for_each(|rate| rate.traffic = endpoints[&rate.endpoint].1);
        row.ended = ended;
        row
    };
    let mut rows: Vec<Row> = sums.into_iter().map(row).collect();
    rows.sort_by(|one, other| other.per_second.total_cmp(&one.per_second));
    rows
}

/// Returns the rates of service ports if they are given by frontend: ipvs counts by virtual server.
pub fn by_service_port(rows: Vec<Row>, tables: [&ServiceTable; 2]) -> Vec<Row> {
    let frontend = |row: &Row| {
        let (address, protocol) = row.service_port.rsplit_once('/')?;
        Some((address.parse::<SocketAddr>().ok()?, protocol.parse::<Protocol>().ok()?))
    };
    if !rows.iter().any(|row| frontend(row).is_some()) {
        return rows;
    }
    let mut owners: HashMap<(IpFamily, Frontend), String> = HashMap::new();
    for table in tables {
        for (name, entry) in &table.entries {
            let frontends = entry.service.frontends(name.protocol);
            owners.extend(frontends.map(|(_, frontend)| ((table.family, frontend), name.to_string())));
        }
    }
    let named = |row: Row| {
        let Some((socket, protocol)) = frontend(&row) else { return row };
        // Node ports have the addresses of the node, which are not part of the frontend.
        let owner = [Some(socket.ip()), None].into_iter().find_map(|address| {
            owners.get(&(IpFamily::of(socket.ip()), Frontend { address, port: socket.port(), protocol }))
        });
        Row { service_port: owner.cloned().unwrap_or(row.service_port), ..row }
    };
    sum([rows.into_iter().map(named).collect()])
}

/// Writes a table of at most `lines` lines, including the header, each of at most `width` characters. The endpoints with
/// the lowest rates are omitted if they do not fit.
///
/// # Errors
/// Only errors of `out`.
pub fn write_rows_into(out: &mut impl fmt::Write, rows: &[Row], width: usize, lines: usize) -> fmt::Result {
    let rows = &rows[..rows.len().min(lines.saturating_sub(1))];
    // The names come from kernel rules, which other programs can write.
    let names: Vec<String> = rows.iter().map(|row| Escaped(&row.service_port).to_string()).collect();
    let widths = names.iter().map(|name| name.chars().count()).chain([SERVICE_PORT.len()]);
    let name_width = widths.max().unwrap_or_default();
    let has_traffic = rows.iter().any(|row| row.traffic().is_some());
    let titles = if has_traffic {
        ["connections", "packets", "bytes"].map(|title| format!("{title:>13}")).concat()
    } else {
        String::new()
    };
    write_line_into(out, &format!("{NEW:>RATE_WIDTH$}{titles}  {SERVICE_PORT:<name_width$}  {ENDPOINTS}"), width)?;
    for (row, name) in rows.iter().zip(names) {
        let counts = row.traffic().unwrap_or_default();
        let counts = [counts.connections, counts.packets, counts.bytes].map(|count| format!("{count:>13}")).concat();
        let counts = if has_traffic { counts } else { String::new() };
        let mut line = format!("{:>RATE_WIDTH$.1}{counts}  {name:<name_width$}", row.per_second);
        for rate in &row.endpoints {
            let text = format!("  {rate}");
            if line.chars().count() + text.chars().count() > width {
                break;
            }
            line += &text;
        }
        write_line_into(out, &line, width)?;
    }
    Ok(())
}

fn write_line_into(out: &mut impl fmt::Write, line: &str, width: usize) -> fmt::Result {
    let line: String = line.chars().take(width).collect();
    writeln!(out, "{}", line.trim_end())
}

const NEW: &str = "new/s";
const SERVICE_PORT: &str = "service port";
const ENDPOINTS: &str = "endpoints with their shares";
/// The width of the rate.
const RATE_WIDTH: usize = 9;
/// The maximum width of a line if the output is not a terminal.
pub const FILE_WIDTH: usize = 240;

#[cfg(test)]
mod tests;
