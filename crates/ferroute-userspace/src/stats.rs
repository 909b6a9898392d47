//! Reads the statistics of a proxy's worker, by service port.

use std::collections::{BTreeMap, HashMap};

use ferroute_core::{IpFamily, Protocol};

use crate::{ListenerStats, RunningWorker, WorkerClient, WorkerError, protocol::service_port, running_workers};

/// Statistics of the listeners of a service port since the worker opened them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortStats {
    /// The IP family.
    pub family: IpFamily,
    /// The name of the service port: `shop/web:http`.
    pub service_port: String,
    /// The protocol: connections of TCP, flows of UDP.
    pub protocol: Protocol,
    /// The sum of its listeners.
    pub stats: ListenerStats,
}

/// Reads from the worker of a proxy through a separate socket, so that a worker that hangs does not delay syncs.
#[derive(Debug)]
pub struct StatsReader {
    client: WorkerClient,
    /// The worker that was read last.
    worker: Option<RunningWorker>,
}

impl StatsReader {
    /// Creates a reader for the worker of this client.
    pub fn new(client: WorkerClient) -> Self {
        Self { client, worker: None }
    }

    /// Returns the statistics of the listeners, sorted by family and service port; empty while no worker runs.
    ///
    /// # Errors
    /// If the worker does not respond.
    pub fn read(&mut self) -> Result<Vec<ServicePortStats>, WorkerError> {
        let active = self.client.process_id().and_then(|pid| i32::try_from(pid).ok());
        let is_active = |worker: &RunningWorker| Some(worker.process_id()) == active;
        let worker = match self.worker.take().filter(is_active) {
            Some(worker) => Some(worker),
            None => running_workers()?.into_iter().find(is_active),
        };
        let Some(mut worker) = worker else { return Ok(Vec::new()) };
        let stats = worker.stats()?;
        // After an error, the next read connects again.
        self.worker = Some(worker);
        Ok(sum(&stats))
    }
}

/// Adds up the listeners of each service port, of which there are two at most: one for each traffic policy.
fn sum(stats: &[(String, ListenerStats)]) -> Vec<ServicePortStats> {
    let families: HashMap<&str, IpFamily> =
        IpFamily::BOTH.into_iter().map(|family| (family.as_str(), family)).collect();
    let mut sums: BTreeMap<(IpFamily, &str, Protocol), ListenerStats> = BTreeMap::new();
    for (key, stats) in stats {
        let Some(family) = key.split(' ').next().and_then(|family| families.get(family)) else { continue };
        let is_udp = key.split(' ').nth(1).is_some_and(|name| name.ends_with("/udp"));
        let protocol = if is_udp { Protocol::Udp } else { Protocol::Tcp };
        sums.entry((*family, service_port(key), protocol)).or_default().add(stats);
    }
    let stats = sums.into_iter().map(|((family, service_port, protocol), stats)| ServicePortStats {
        family,
        service_port: service_port.to_owned(),
        protocol,
        stats,
    });
    stats.collect()
}

#[cfg(test)]
mod tests {
    use ferroute_core::{TrafficPolicy, testing::namespaced_name};

    use super::*;
    use crate::plan::ListenerKey;

    #[test]
    fn listeners_of_a_service_port_are_added_up() {
        let stats = |connections| ListenerStats { connections, ..ListenerStats::default() };
        let key = |family, port: &str, protocol, policy| {
            let service_port =
                ferroute_core::ServicePortName { service: namespaced_name("shop/web"), port: port.into(), protocol };
            ListenerKey { family, service_port, policy }.to_string()
        };
        let listeners = [
            (key(IpFamily::V4, "http", Protocol::Tcp, TrafficPolicy::Local), stats(1)),
            (key(IpFamily::V4, "http", Protocol::Tcp, TrafficPolicy::Cluster), stats(2)),
            (key(IpFamily::V6, "http", Protocol::Tcp, TrafficPolicy::Cluster), stats(4)),
            (key(IpFamily::V4, "dns", Protocol::Udp, TrafficPolicy::Cluster), stats(8)),
            (key(IpFamily::V4, "dns", Protocol::Tcp, TrafficPolicy::Cluster), stats(16)),
        ];
        let sums: Vec<_> = sum(&listeners)
            .into_iter()
            .map(|port| (port.family, port.service_port, port.protocol, port.stats.connections))
            .collect();
        let expected = [
            (IpFamily::V4, "shop/web:dns", Protocol::Tcp, 16),
            (IpFamily::V4, "shop/web:dns", Protocol::Udp, 8),
            (IpFamily::V4, "shop/web:http", Protocol::Tcp, 3),
            (IpFamily::V6, "shop/web:http", Protocol::Tcp, 4),
        ];
        assert_eq!(sums, expected.map(|(family, name, protocol, count)| (family, name.to_owned(), protocol, count)));
    }
}
