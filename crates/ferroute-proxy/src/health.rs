//! What the sync loop's progress means for those who ask over HTTP.

use std::{collections::BTreeMap, sync::Arc};

use ferroute_core::{IpFamily, NodePortMatch, ProxySettings, NamespacedName, Tracker, tracker::TrackerEvent};
use ferroute_admin::{health::{Health, HealthCheck, HealthCheckPorts}, http::{HttpThread, Limits, ListenScope}};

use crate::{
    events::Events,
    logging::chain,
    observer::{InForce, Observer},
    sync::Change,
};

/// Tells the sync loop's progress to the health servers.
pub(crate) struct HealthObserver {
    health: Arc<Health>,
    ports: HealthCheckPorts,
    settings: ProxySettings,
    events: Events,
    /// What each family's table asks for.
    checks: BTreeMap<IpFamily, BTreeMap<NamespacedName, HealthCheck>>,
    /// Which addresses answer on node ports.
    matches: BTreeMap<IpFamily, NodePortMatch>,
    /// Some port could not be opened.
    unfinished: bool,
}

impl HealthObserver {
    /// Nothing is in force yet.
    pub(crate) fn new(http: Arc<HttpThread>, health: Arc<Health>, settings: ProxySettings, events: Events) -> Self {
        let ports = HealthCheckPorts::new(http, health.clone(), Limits::default());
        Self { health, ports, settings, events, checks: BTreeMap::new(), matches: BTreeMap::new(), unfinished: false }
    }

    fn update_ports(&mut self) -> Vec<ferroute_admin::health::PortError> {
        let matches: Vec<(IpFamily, NodePortMatch)> =
            self.matches.iter().map(|(family, found)| (*family, found.clone())).collect();
        let errors =
            self.ports.update(&ListenScope::for_node_ports(&matches), &HealthCheck::merge(self.checks.values()));
        self.unfinished = !errors.is_empty();
        errors
    }
}

impl Observer for HealthObserver {
    fn queued(&mut self, family: IpFamily) {
        self.health.queued(family);
    }

    fn taken(&mut self, change: &Change, _before: &Tracker) {
        if let Change::Desired(TrackerEvent::NodeApplied(node), _) = change {
            self.health.set_node_eligible(!node.to_be_deleted);
        }
    }

    fn in_force(&mut self, sync: &InForce<'_>) {
        let InForce { table, host_addresses, .. } = *sync;
        let family = table.family;
        self.health.updated(family);
        self.checks.insert(family, HealthCheck::from_table(table));
        self.matches.insert(family, self.settings.node_ports(family, &table.node, host_addresses));
        for error in self.update_ports() {
            tracing::warn!("{}", chain(&error));
            self.events.no_health_check(error.service(), &chain(&error));
        }
    }

    fn look(&mut self, _wanted: &Tracker) {
        // Told when it first failed; a port or an address may have become free since.
        if self.unfinished {
            self.update_ports();
        }
    }
}
