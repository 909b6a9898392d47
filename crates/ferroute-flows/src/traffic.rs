//! Connections, packets and bytes by service port and endpoint, from the kernel's counters of each connection.
//!
//! Pure: lists of connections and deleted entries are the input. Existing connections are listed periodically, so that
//! long ones count before they end; the event of their end has the rest of their packets.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::Arc,
};

use ferroute_host::conntrack::{Connection, Traffic};

use crate::{Frontends, tracker::Key};

/// Totals since the start. Their number is limited: service ports and endpoints without connections for the longest
/// time are added to the rest.
#[derive(Debug)]
pub struct TrafficTotals {
    separate: BTreeMap<Port, Total>,
    rest: Usage,
    /// Traffic of existing connections that was counted.
    counted: HashMap<Key, Counted>,
    /// The number of the last list.
    list: u64,
    limits: TrafficLimits,
}

/// Limits of the memory of [`TrafficTotals`].
#[derive(Clone, Copy, Debug)]
pub struct TrafficLimits {
    /// Endpoints of service ports with separate totals.
    pub endpoints: usize,
    /// Connections that are counted before they end. Further connections are counted when they end.
    pub connections: usize,
}

/// Traffic of a service port with an endpoint, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Connections.
    pub connections: u64,
    /// Packets of both directions.
    pub packets: u64,
    /// Bytes of these packets, including headers of the network layer.
    pub bytes: u64,
}

type Port = (Arc<str>, SocketAddr);

#[derive(Debug, Default)]
struct Total {
    usage: Usage,
    /// Number of the last list in which it had a connection.
    used: u64,
}

#[derive(Debug)]
struct Counted {
    traffic: Traffic,
    /// Number of the last list that contained the connection.
    list: u64,
}

impl TrafficTotals {
    /// Returns empty totals.
    pub fn new(limits: TrafficLimits) -> Self {
        Self { separate: BTreeMap::new(), rest: Usage::default(), counted: HashMap::new(), list: 0, limits }
    }

    /// Returns the totals by service port and endpoint.
    pub fn separate(&self) -> impl Iterator<Item = (&str, SocketAddr, Usage)> {
        self.separate.iter().map(|((name, endpoint), total)| (&**name, *endpoint, total.usage))
    }

    /// Returns the total of all other endpoints.
    pub fn rest(&self) -> Usage {
        self.rest
    }

    /// Starts a list of all existing connections. Traffic before the first list does not count.
    pub fn begin_list(&mut self) {
        self.list += 1;
    }

    /// Counts the packets of a connection of the list so far.
    pub fn listed(&mut self, connection: &Connection, frontends: &Frontends) {
        self.add(connection, frontends, true);
    }

    /// Discards the connections that the list does not contain: the event of their end was lost.
    pub fn end_list(&mut self) {
        let list = self.list;
        self.counted.retain(|_, counted| counted.list == list);
    }

    /// Counts the last packets of a connection whose entry was deleted.
    pub fn ended(&mut self, connection: &Connection, frontends: &Frontends) {
        self.add(connection, frontends, false);
        self.counted.remove(&Key::of(connection));
    }

    fn add(&mut self, connection: &Connection, frontends: &Frontends, exists: bool) {
        let (Some(traffic), entry) = (connection.traffic, &connection.entry) else { return };
        // Rules of Services translate the destination.
        if entry.original_destination == entry.reply_source {
            return;
        }
        let Some(owner) = frontends.find(entry.original_destination, entry.protocol) else { return };
        let Some(endpoint) = frontends.endpoint(owner, entry.reply_source) else { return };
        let key = Key::of(connection);
        let before = self.counted.get(&key).map(|counted| counted.traffic);
        let is_older = before.is_none() && exists && self.list == 1;
        if exists && (before.is_some() || self.counted.len() < self.limits.connections) {
            self.counted.insert(key, Counted { traffic, list: self.list });
        } else if exists {
            return;
        }
        if is_older {
            return;
        }
        let Traffic { packets, bytes } = before.unwrap_or_default();
        let usage = Usage {
            connections: u64::from(before.is_none()),
            packets: traffic.packets.saturating_sub(packets),
            bytes: traffic.bytes.saturating_sub(bytes),
        };
        let port = (Arc::clone(&owner.service_port), endpoint);
        if !self.separate.contains_key(&port) && self.separate.len() >= self.limits.endpoints {
            self.join_rest();
        }
        let total = self.separate.entry(port).or_default();
        total.usage.add(usage);
        total.used = self.list;
    }

    /// Adds the totals without connections for the longest time to the rest.
    fn join_rest(&mut self) {
        let Some(oldest) = self.separate.values().map(|total| total.used).min() else { return };
        let rest = &mut self.rest;
        self.separate.retain(|_, total| {
            let is_kept = total.used > oldest;
            if !is_kept {
                rest.add(total.usage);
            }
            is_kept
        });
    }
}

impl Usage {
    fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

#[cfg(test)]
mod tests {
    use ferroute_core::{IpFamily, ModeTraits, Protocol, ProxySettings, testing::*};
    use ferroute_host::conntrack::Entry;

    use super::*;

    fn frontends() -> Frontends {
        let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
        let mut frontends = Frontends::new(&ModeTraits::IPTABLES, ProxySettings::default());
        frontends.set(&Cluster::new("node-1").service(web).table(IpFamily::V4), &[]);
        frontends
    }

    fn connection(id: u32, endpoint: &str, packets: u64) -> Connection {
        let client = "10.244.0.9:1000".parse().unwrap();
        let entry = Entry {
            protocol: Protocol::Tcp,
            original_source: client,
            original_destination: "10.96.0.1:80".parse().unwrap(),
            reply_source: endpoint.parse().unwrap(),
            reply_destination: client,
            is_open: true,
            is_answered: true,
        };
        let traffic = Some(Traffic { packets, bytes: 100 * packets });
        Connection { entry, id, is_answered: true, tcp: None, traffic, started: None, reported: None }
    }

    fn totals(endpoints: usize, connections: usize) -> TrafficTotals {
        let mut totals = TrafficTotals::new(TrafficLimits { endpoints, connections });
        list(&mut totals, &[connection(1, A, 50)]);
        totals
    }

    fn list(totals: &mut TrafficTotals, connections: &[Connection]) {
        totals.begin_list();
        connections.iter().for_each(|connection| totals.listed(connection, &frontends()));
        totals.end_list();
    }

    fn found(totals: &TrafficTotals) -> Vec<(String, u64, u64, u64)> {
        let separate = totals.separate().map(|(name, endpoint, usage)| (format!("{name} {endpoint}"), usage));
        separate
            .chain([(String::new(), totals.rest())])
            .map(|(name, Usage { connections, packets, bytes })| (name, connections, packets, bytes))
            .collect()
    }

    const A: &str = "10.244.0.2:8080";
    const B: &str = "10.244.0.3:8080";

    #[test]
    fn packets_of_a_connection_are_counted_once() {
        let (mut totals, frontends) = (totals(10, 10), frontends());
        let rest = (String::new(), 0, 0, 0);
        assert_eq!(found(&totals), std::slice::from_ref(&rest), "the first list is of older packets");
        list(&mut totals, &[connection(1, A, 53), connection(2, A, 5)]);
        assert_eq!(found(&totals), [(format!("shop/web:http {A}"), 1, 8, 800), rest.clone()]);
        list(&mut totals, &[connection(1, A, 53), connection(2, A, 7)]);
        totals.ended(&connection(2, A, 9), &frontends);
        totals.ended(&connection(3, A, 4), &frontends);
        assert_eq!(found(&totals), [(format!("shop/web:http {A}"), 2, 16, 1600), rest]);
        // Its end was lost, and another connection has the same identity.
        list(&mut totals, &[]);
        totals.ended(&connection(1, A, 1), &frontends);
        assert_eq!(found(&totals)[0], (format!("shop/web:http {A}"), 3, 17, 1700));
    }

    #[test]
    fn connections_beyond_the_limit_count_when_they_end() {
        let (mut totals, frontends) = (totals(10, 1), frontends());
        list(&mut totals, &[connection(1, A, 50), connection(2, A, 5)]);
        assert_eq!(found(&totals)[0].1, 0);
        totals.ended(&connection(2, A, 6), &frontends);
        assert_eq!(found(&totals)[0], (format!("shop/web:http {A}"), 1, 6, 600));
    }

    #[test]
    fn endpoints_beyond_the_limit_join_the_rest() {
        let (mut totals, frontends) = (totals(1, 10), frontends());
        totals.ended(&connection(2, A, 6), &frontends);
        totals.ended(&connection(3, B, 1), &frontends);
        assert_eq!(found(&totals), [(format!("shop/web:http {B}"), 1, 1, 100), (String::new(), 1, 6, 600)]);
    }

    #[test]
    fn relays_of_an_earlier_mode_are_no_endpoints() {
        let relay = "192.168.0.1:40000";
        let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
        let cluster = Cluster::new("node-1").service(web);
        let host = [relay.parse::<SocketAddr>().unwrap().ip()];
        let mut frontends = Frontends::new(&ModeTraits::IPTABLES, ProxySettings::default());
        frontends.set(&cluster.table(IpFamily::V4), &host);
        let mut totals = totals(10, 10);
        totals.ended(&connection(2, relay, 6), &frontends);
        assert_eq!(found(&totals), [(String::new(), 0, 0, 0)]);
        // An endpoint with the address of the node, in its network.
        let slice = slice("shop/web-a", "web").port("http", 40_000).pod(pod("192.168.0.1"));
        frontends.set(&cluster.slice(slice).table(IpFamily::V4), &host);
        totals.ended(&connection(3, relay, 6), &frontends);
        assert_eq!(found(&totals)[0], (format!("shop/web:http {relay}"), 1, 6, 600));
    }

    #[test]
    fn connections_without_a_service_do_not_count() {
        let mut totals = totals(10, 10);
        let mut other = connection(2, A, 6);
        other.entry.original_destination = "10.96.0.9:80".parse().unwrap();
        totals.ended(&other, &frontends());
        other.entry.original_destination = other.entry.reply_source;
        totals.ended(&other, &frontends());
        assert_eq!(found(&totals), [(String::new(), 0, 0, 0)]);
    }
}
