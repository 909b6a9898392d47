//! What the sync loop's progress means for those who ask over HTTP.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use ferroute_core::{IpFamily, NodePortMatch, ProxySettings, ServiceName, Tracker};
use ferroute_health::{
    Handler, Health, HealthCheck, HealthCheckPorts, HttpThread, Limits, ListenScope, Server, listen,
};

use crate::{
    events::Events,
    logging::chain,
    observer::{InForce, Observer},
    sync::Change,
};

/// Serves `/healthz` and `/livez` by their handler. With `hard_fail` an address that cannot be opened is an error; else it is tried again
/// and again.
pub(crate) fn serve(
    http: &HttpThread,
    handler: Arc<dyn Handler>,
    address: SocketAddr,
    hard_fail: bool,
) -> anyhow::Result<Server> {
    let scope = ListenScope::of(address.ip());
    if hard_fail {
        return Ok(http.serve(listen(scope, address.port())?, handler, Limits::default())?);
    }
    let report = |error: &ferroute_health::ListenError| tracing::warn!("cannot serve health checks: {}", chain(error));
    Ok(http.serve_when_free(scope, address.port(), handler, Limits::default(), LISTEN_PAUSE, report))
}

/// Tells the sync loop's progress to the health servers.
pub(crate) struct HealthObserver {
    health: Arc<Health>,
    ports: HealthCheckPorts,
    settings: ProxySettings,
    events: Events,
    /// What each family's table asks for.
    checks: BTreeMap<IpFamily, BTreeMap<ServiceName, HealthCheck>>,
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

    fn update_ports(&mut self) -> Vec<ferroute_health::PortError> {
        let matches: Vec<(IpFamily, NodePortMatch)> =
            self.matches.iter().map(|(family, found)| (*family, found.clone())).collect();
        let errors =
            self.ports.update(&ListenScope::of_node_ports(&matches), &HealthCheck::merge(self.checks.values()));
        self.unfinished = !errors.is_empty();
        errors
    }
}

impl Observer for HealthObserver {
    fn queued(&mut self, family: IpFamily) {
        self.health.queued(family);
    }

    fn taken(&mut self, change: &Change, _before: &Tracker) {
        if let Change::Node(node) = change {
            self.health.node_eligible(!node.to_be_deleted);
        }
    }

    fn in_force(&mut self, sync: &InForce<'_>) {
        let InForce { table, host_addresses, .. } = *sync;
        let family = table.family;
        self.health.updated(family);
        self.checks.insert(family, HealthCheck::of_table(table));
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

/// kube-proxy's pause between two tries to open the health address.
pub(crate) const LISTEN_PAUSE: Duration = Duration::from_secs(5);
