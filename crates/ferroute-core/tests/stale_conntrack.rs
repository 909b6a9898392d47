//! A model of a proxy and the conntrack table, on generated clusters: after each successful sync, all remaining entries
//! lead to valid endpoints, and no other entry was deleted.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ferroute_core::{
    Frontend, IpFamily, Protocol, ServicePortEntry, ServiceTable, StaleConntrackEntries, Tracker,
    testing::{Cluster, arbitrary},
};
use proptest::prelude::*;

/// The original destination and the reply source of a UDP entry.
type Flow = (SocketAddr, SocketAddr);

/// An address of the host in each family.
const HOST: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x168, 0, 0, 0, 0, 0, 1))];

fn is_local(address: IpAddr) -> bool {
    HOST.contains(&address)
}

/// Returns the UDP ports of a table with the destinations of their frontends.
fn udp(table: &ServiceTable) -> impl Iterator<Item = (Vec<SocketAddr>, &ServicePortEntry)> {
    table.entries.iter().filter(|(name, _)| name.protocol == Protocol::Udp).map(|(_, entry)| {
        let host = HOST[table.family.index()];
        let frontends = entry.service.frontends(Protocol::Udp);
        let destination = |frontend: Frontend| SocketAddr::new(frontend.address.unwrap_or(host), frontend.port);
        (frontends.map(|(_, frontend)| destination(frontend)).collect(), entry)
    })
}

/// Returns the flows that rules for this table may create.
fn flows(table: &ServiceTable) -> BTreeSet<Flow> {
    let mut all = BTreeSet::new();
    for (frontends, entry) in udp(table) {
        for endpoint in table.endpoint_sets(entry).reachable.iter().filter(|endpoint| endpoint.serving) {
            all.extend(frontends.iter().map(|frontend| (*frontend, endpoint.socket())));
        }
    }
    all
}

/// Reports whether the endpoint of a flow serves for a service port with its frontend.
fn is_valid(table: &ServiceTable, (destination, reply_source): Flow) -> bool {
    let serves = |entry: &ServicePortEntry| entry.endpoints.iter().any(|e| e.serving && e.socket() == reply_source);
    udp(table).any(|(frontends, entry)| frontends.contains(&destination) && serves(entry))
}

/// The conntrack table, and the filter that the proxy has not applied yet.
struct Model {
    tracker: Tracker,
    family: IpFamily,
    kernel: BTreeSet<Flow>,
    stale: StaleConntrackEntries,
}

impl Model {
    fn new(cluster: &Cluster, family: IpFamily) -> Self {
        let tracker = cluster.tracker();
        let kernel = flows(tracker.table(family));
        Self { tracker, family, kernel, stale: StaleConntrackEntries::default() }
    }

    /// Syncs the rules. They are applied only if the sync succeeds.
    fn sync(&mut self, succeeds: bool) -> Result<(), TestCaseError> {
        let changes = self.tracker.update(self.family);
        let table = self.tracker.table(self.family);
        self.stale.merge(StaleConntrackEntries::from_changes(table, &changes));
        if !succeeds {
            return Ok(());
        }
        let stale = std::mem::take(&mut self.stale);
        for flow @ (destination, reply_source) in std::mem::take(&mut self.kernel) {
            let removed = stale.is_stale(destination, reply_source, is_local, |_| false);
            prop_assert_eq!(removed, !is_valid(table, flow), "{:?} removed: {}", flow, removed);
            prop_assert!(!removed || !stale.is_empty());
            if !removed {
                self.kernel.insert(flow);
            }
        }
        self.kernel.extend(flows(table));
        Ok(())
    }
}

proptest! {
    #[test]
    fn only_valid_entries_remain_after_each_successful_sync(
        cluster in arbitrary::cluster(),
        batches in prop::collection::vec((arbitrary::edits(0..6), prop::bool::weighted(0.6)), 1..8),
        family in prop::sample::select(IpFamily::BOTH.to_vec()),
    ) {
        let mut model = Model::new(&cluster, family);
        for (edits, succeeds) in &batches {
            for edit in edits {
                edit.apply_to(&mut model.tracker);
            }
            model.sync(*succeeds)?;
        }
        model.sync(true)?;
    }

    #[test]
    fn entries_of_serving_endpoints_are_never_stale(
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
            let filters = [StaleConntrackEntries::from_changes(table, &changes), StaleConntrackEntries::from_table(table)];
            for (frontends, entry) in udp(table) {
                for endpoint in entry.endpoints.iter().filter(|endpoint| endpoint.serving) {
                    for (frontend, stale) in frontends.iter().flat_map(|f| filters.iter().map(move |s| (f, s))) {
                        prop_assert!(!stale.is_stale(*frontend, endpoint.socket(), is_local, |_| false));
                    }
                }
            }
        }
    }

    #[test]
    fn table_filter_matches_all_other_entries(
        cluster in arbitrary::cluster(),
        other in any::<SocketAddr>(),
    ) {
        for family in IpFamily::BOTH {
            let table = cluster.table(family);
            let stale = StaleConntrackEntries::from_table(&table);
            for (frontends, entry) in udp(&table) {
                let not_serving = entry.endpoints.iter().filter(|endpoint| !endpoint.serving).map(|endpoint| endpoint.socket());
                for reply_source in not_serving.chain([other]) {
                    for frontend in &frontends {
                        let valid = is_valid(&table, (*frontend, reply_source));
                        prop_assert_eq!(stale.is_stale(*frontend, reply_source, is_local, |_| false), !valid);
                    }
                }
            }
        }
    }
}
