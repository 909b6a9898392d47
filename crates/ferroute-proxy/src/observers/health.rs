//! Reports the sync loop's progress to the health servers.

use std::{collections::BTreeMap, sync::Arc};

use ferroute_admin::{
    health::{Health, HealthCheck, HealthCheckPorts},
    http::{HttpThread, Limits, ListenScope},
};
use ferroute_core::{
    DataplaneError, IpFamily, NamespacedName, NodePortMatch, ProxySettings, ServiceTable, Tracker, error_chain,
    tracker::TrackerEvent,
};

use crate::{
    observers::{FamilySynced, Observer, ServicesToUpdate, events::EventRecorder},
    sync::Change,
};

/// Updates the proxy's health and the health-check node ports.
pub(crate) struct HealthObserver {
    health: Arc<Health>,
    ports: HealthCheckPorts,
    settings: ProxySettings,
    events: EventRecorder,
    /// The health checks that each family's table requires.
    checks: BTreeMap<IpFamily, BTreeMap<NamespacedName, HealthCheck>>,
    services: ServicesToUpdate,
    /// The addresses for node ports.
    matches: BTreeMap<IpFamily, NodePortMatch>,
    /// Whether to retry to open ports.
    has_failed_ports: bool,
}

impl HealthObserver {
    /// Creates an observer for a proxy that has not synced yet.
    pub(crate) fn new(
        http: Arc<HttpThread>,
        health: Arc<Health>,
        settings: ProxySettings,
        events: EventRecorder,
    ) -> Self {
        let ports = HealthCheckPorts::new(http, health.clone(), Limits::default());
        Self {
            health,
            ports,
            settings,
            events,
            checks: BTreeMap::new(),
            services: ServicesToUpdate::default(),
            matches: BTreeMap::new(),
            has_failed_ports: false,
        }
    }

    fn update_ports(&mut self) -> Vec<ferroute_admin::health::PortError> {
        let matches: Vec<(IpFamily, NodePortMatch)> =
            self.matches.iter().map(|(family, matched)| (*family, matched.clone())).collect();
        let errors =
            self.ports.update(&ListenScope::for_node_ports(&matches), &HealthCheck::merge(self.checks.values()));
        self.has_failed_ports = !errors.is_empty();
        errors
    }
}

/// Updates the health checks of these Services.
fn update<'a>(
    checks: &mut BTreeMap<NamespacedName, HealthCheck>,
    table: &ServiceTable,
    services: impl IntoIterator<Item = &'a NamespacedName>,
) {
    for service in services {
        match HealthCheck::of_service(table, service) {
            Some(check) => checks.insert(service.clone(), check),
            None => checks.remove(service),
        };
    }
}

impl Observer for HealthObserver {
    fn on_queued(&mut self, family: IpFamily) {
        self.health.queued(family);
    }

    fn on_received(&mut self, batches: usize) {
        self.health.received(batches);
    }

    fn on_failure(&mut self, family: IpFamily, _: &DataplaneError) {
        self.health.failed(family);
    }

    fn on_change(&mut self, change: &Change, _before: &Tracker) {
        if let Change::Desired(TrackerEvent::NodeApplied(node), _) = change {
            self.health.set_node_eligible(!node.to_be_deleted);
        }
    }

    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        let FamilySynced { table, host_addresses, .. } = *sync;
        let family = table.family;
        let services = self.services.after(sync, |_, entry| entry.service.health_check_node_port.is_some());
        update(self.checks.entry(family).or_default(), table, services);
        self.matches.insert(family, self.settings.node_ports(family, &table.node, host_addresses));
        for error in self.update_ports() {
            tracing::warn!("{}", error_chain(&error));
            self.events.health_check_failed(error.service(), &error_chain(&error));
        }
        self.health.updated(family);
    }

    fn on_checked(&mut self, family: IpFamily, problem: Option<&'static str>) {
        self.health.set_broken(family, problem.is_some());
    }

    fn on_tick(&mut self, _desired: &Tracker) {
        // The error has been reported; the port or address may be available now.
        if self.has_failed_ports {
            self.update_ports();
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroute_core::testing::arbitrary;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn health_checks_of_changed_services_equal_those_of_the_table(
            cluster in arbitrary::cluster(), edits in arbitrary::edits(0..12),
        ) {
            let mut tracker = cluster.tracker();
            for family in IpFamily::BOTH {
                tracker.update_for_resync(family);
            }
            let mut checks = IpFamily::BOTH.map(|family| HealthCheck::from_table(tracker.table(family)));
            for edit in &edits {
                edit.apply_to(&mut tracker);
                for family in IpFamily::BOTH {
                    let (changes, checks) = (tracker.update(family), &mut checks[family.index()]);
                    update(checks, tracker.table(family), &changes.services);
                    prop_assert_eq!(&*checks, &HealthCheck::from_table(tracker.table(family)));
                }
            }
        }
    }
}
