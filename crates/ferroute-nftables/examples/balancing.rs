//! Measures hash tables: the largest share of an endpoint relative to the mean, and the number of clients that move
//! when an endpoint is removed, relative to the clients of that endpoint. Tables filled by the algorithm of Maglev are
//! measured for comparison. Prints CSV.
//!
//! ```text
//! cargo run --release -p ferroute-nftables --example balancing > docs/performance/balancing.csv
//! ```

#![allow(clippy::print_stdout, reason = "it prints the figures")]
#![expect(clippy::unwrap_used, reason = "it is a measurement")]

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use ferroute_core::{
    Balancing, Endpoint, IpFamily, Method, Protocol, ServiceTable, TableSize,
    testing::{endpoint, entry, node, port_name, service_port},
};
use ferroute_nftables::{
    model::{Change, Data, Value},
    plan::{NftablesSettings, SetId, render},
};

fn main() {
    println!("table,positions,endpoints,largest_over_mean_percent,moved_over_own");
    for table in [Table::Ferroute(4_096), Table::Ferroute(32_768), Table::Maglev(32_749)] {
        for count in [5, 10, 20, 50, 100, 150, 200, 300, 500, 1_000] {
            let (name, size) = match table {
                Table::Ferroute(size) => ("Ferroute", size),
                Table::Maglev(size) => ("Maglev", size),
            };
            // Small tables are for few endpoints.
            if count * 20 > size {
                continue;
            }
            let all: Vec<Endpoint> = (0..count).map(address).collect();
            let before = table.positions(&all);
            let mean = before.len() as f64 / count as f64;
            let loads = before.values().fold(BTreeMap::<SocketAddr, usize>::new(), |mut loads, socket| {
                *loads.entry(*socket).or_default() += 1;
                loads
            });
            let largest = *loads.values().max().unwrap() as f64 / mean;
            let worst = [0, count / 3, count / 2].map(|leaving| {
                let rest: Vec<Endpoint> = all
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| *i != leaving)
                    .map(|(_, endpoint)| endpoint.clone())
                    .collect();
                let after = table.positions(&rest);
                let moved = before.iter().filter(|(position, socket)| after.get(*position) != Some(socket)).count();
                moved as f64 / loads[&all[leaving].socket()] as f64
            });
            let worst = worst.into_iter().fold(0.0, f64::max);
            println!("{name},{size},{count},{:.2},{worst:.3}", (largest - 1.0) * 100.0);
        }
    }
}

/// A way to fill a table, and its number of positions.
#[derive(Clone, Copy)]
enum Table {
    Ferroute(usize),
    /// A prime number.
    Maglev(usize),
}

impl Table {
    /// Returns the endpoint at each position.
    fn positions(self, endpoints: &[Endpoint]) -> BTreeMap<u32, SocketAddr> {
        match self {
            Self::Ferroute(size) => positions(endpoints, TableSize::new(u32::try_from(size).unwrap()).unwrap()),
            Self::Maglev(size) => maglev(endpoints, size),
        }
    }
}

/// Each endpoint in turn takes the next free position of its permutation: Eisenbud et al., "Maglev: A Fast and Reliable Software Network
/// Load Balancer", section 3.4.
fn maglev(endpoints: &[Endpoint], size: usize) -> BTreeMap<u32, SocketAddr> {
    let hash = |endpoint: &Endpoint, seed: u8| {
        let mut hasher = DefaultHasher::new();
        (seed, endpoint.socket()).hash(&mut hasher);
        usize::try_from(hasher.finish() % u64::try_from(size).unwrap()).unwrap()
    };
    let mut next: Vec<(usize, usize)> =
        endpoints.iter().map(|endpoint| (hash(endpoint, 0), hash(endpoint, 1).max(1))).collect();
    let mut table = vec![None; size];
    for turn in 0..size {
        let owner = turn % endpoints.len();
        let (position, skip) = &mut next[owner];
        while table[*position].is_some() {
            *position = (*position + *skip) % size;
        }
        table[*position] = Some(endpoints[owner].socket());
    }
    (0..).zip(table.into_iter().flatten()).collect()
}

fn address(number: usize) -> Endpoint {
    let host = u32::try_from(number).unwrap();
    let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 244, 0, 2)) + host / 200 * 256 + host % 200);
    endpoint(&format!("{address}:8080"))
}

/// Returns the endpoint at each position of a Service's hash table.
fn positions(endpoints: &[Endpoint], size: TableSize) -> BTreeMap<u32, SocketAddr> {
    let balancing = Balancing { method: Some(Method::SourceHash), table_size: size, ..Balancing::default() };
    let mut port = service_port("10.96.0.1:80");
    port.balancing = balancing;
    let mut table = ServiceTable::new(IpFamily::V4, Arc::new(node("node-1")));
    table.entries = [(port_name("shop/web:http"), entry(port, endpoints.to_vec()))].into_iter().collect();
    let list = SetId::Endpoints(Protocol::Tcp).name();
    let planned = render(&table, &NftablesSettings::default(), &[]);
    let position = |change: Change| match change {
        Change::AddElement(set, element) if set == list => match element.key[..] {
            [Value::ClassId(_), Value::Integer(index)] => {
                Some((index, element.data.as_ref().and_then(Data::socket_addr)?))
            }
            _ => None,
        },
        _ => None,
    };
    planned.changes.into_iter().filter_map(position).collect()
}
