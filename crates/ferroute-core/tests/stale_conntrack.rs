//! A proxy at work on generated clusters, with a kernel's table of flows: after every successful sync, flows go only
//! where they may, and no other flow was removed.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ferroute_core::{
    Endpoint, ServicePortEntry, IpFamily, Protocol, ServiceTable, StaleConntrackEntries, Tracker,
    testing::{Cluster, arbitrary},
};
use proptest::prelude::*;

/// Where a client sent a UDP flow, and where its answers come from.
type Flow = (SocketAddr, SocketAddr);

/// An address of the host for each family.
const HOST: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x168, 0, 0, 0, 0, 0, 1))];

fn is_local(address: IpAddr) -> bool {
    HOST.contains(&address)
}

/// Every UDP port of a table with its frontends as a client writes them.
fn udp(table: &ServiceTable) -> impl Iterator<Item = (Vec<SocketAddr>, &ServicePortEntry)> {
    table.entries.iter().filter(|(name, _)| name.protocol == Protocol::Udp).map(|(_, entry)| {
        let service = &entry.service;
        let addresses = [service.cluster_ip].into_iter().chain(service.external_ips.iter().copied());
        let addresses = addresses.chain(service.load_balancer_vips.iter().copied());
        let mut frontends: Vec<SocketAddr> = addresses.map(|address| SocketAddr::new(address, service.port)).collect();
        let host = HOST[table.family.index()];
        frontends.extend(service.node_port.map(|port| SocketAddr::new(host, port.get())));
        (frontends, entry)
    })
}

/// The flows that rules for this table may make.
fn flows_of(table: &ServiceTable) -> BTreeSet<Flow> {
    let mut flows = BTreeSet::new();
    for (frontends, entry) in udp(table) {
        for endpoint in table.endpoint_sets(entry).reachable.iter().filter(|endpoint| endpoint.serving) {
            flows.extend(frontends.iter().map(|frontend| (*frontend, endpoint.socket())));
        }
    }
    flows
}

/// Whether a flow may go on: its endpoint serves, for the service that has its frontend now.
fn is_right(table: &ServiceTable, (destination, answers_from): Flow) -> bool {
    let serves = |entry: &ServicePortEntry| entry.endpoints.iter().any(|e| e.serving && e.socket() == answers_from);
    udp(table).any(|(frontends, entry)| frontends.contains(&destination) && serves(entry))
}

/// What the kernel has, and what the proxy still has to look for.
struct Model {
    tracker: Tracker,
    family: IpFamily,
    kernel: BTreeSet<Flow>,
    stale: StaleConntrackEntries,
}

impl Model {
    fn started(cluster: &Cluster, family: IpFamily) -> Self {
        let tracker = cluster.tracker();
        let kernel = flows_of(tracker.table(family));
        Self { tracker, family, kernel, stale: StaleConntrackEntries::default() }
    }

    /// A sync; the rules come into force only when it succeeds.
    fn sync(&mut self, succeeds: bool) -> Result<(), TestCaseError> {
        let changes = self.tracker.update(self.family);
        let table = self.tracker.table(self.family);
        self.stale.merge(StaleConntrackEntries::from_changes(table, &changes));
        if !succeeds {
            return Ok(());
        }
        let stale = std::mem::take(&mut self.stale);
        for flow @ (destination, answers_from) in std::mem::take(&mut self.kernel) {
            let removed = stale.is_stale(destination, answers_from, is_local);
            prop_assert_eq!(removed, !is_right(table, flow), "{:?} removed: {}", flow, removed);
            prop_assert!(!removed || !stale.is_empty());
            if !removed {
                self.kernel.insert(flow);
            }
        }
        self.kernel.extend(flows_of(table));
        Ok(())
    }
}

proptest! {
    #[test]
    fn after_each_successful_sync_flows_go_only_where_they_may(
        cluster in arbitrary::cluster(),
        batches in prop::collection::vec((arbitrary::edits(0..6), prop::bool::weighted(0.6)), 1..8),
        family in prop::sample::select(IpFamily::BOTH.to_vec()),
    ) {
        let mut model = Model::started(&cluster, family);
        for (edits, succeeds) in &batches {
            for edit in edits {
                edit.apply_to(&mut model.tracker);
            }
            model.sync(*succeeds)?;
        }
        model.sync(true)?;
    }

    #[test]
    fn a_flow_to_a_serving_endpoint_of_its_service_is_never_stale(
        cluster in arbitrary::cluster(),
        edits in arbitrary::edits(0..12),
    ) {
        let mut tracker = cluster.tracker();
        for edit in &edits {
            edit.apply_to(&mut tracker);
        }
        for family in IpFamily::BOTH {
            let changes = tracker.update(family);
            let table = tracker.table(family);
            let looked_for = [StaleConntrackEntries::from_changes(table, &changes), StaleConntrackEntries::from_table(table)];
            for (frontends, entry) in udp(table) {
                for endpoint in entry.endpoints.iter().filter(|endpoint| endpoint.serving) {
                    for (frontend, stale) in frontends.iter().flat_map(|f| looked_for.iter().map(move |s| (f, s))) {
                        prop_assert!(!stale.is_stale(*frontend, endpoint.socket(), is_local));
                    }
                }
            }
        }
    }

    #[test]
    fn at_the_start_every_flow_to_anything_else_is_stale(
        cluster in arbitrary::cluster(),
        stranger in any::<SocketAddr>(),
    ) {
        for family in IpFamily::BOTH {
            let table = cluster.table(family);
            let stale = StaleConntrackEntries::from_table(&table);
            for (frontends, entry) in udp(&table) {
                let dead = entry.endpoints.iter().filter(|endpoint| !endpoint.serving).map(Endpoint::socket);
                for answers_from in dead.chain([stranger]) {
                    for frontend in &frontends {
                        let right = is_right(&table, (*frontend, answers_from));
                        prop_assert_eq!(stale.is_stale(*frontend, answers_from, is_local), !right);
                    }
                }
            }
        }
    }
}
