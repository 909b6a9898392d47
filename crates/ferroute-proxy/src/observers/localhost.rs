//! Node ports on localhost in nftables mode: their number, and the local routes that those on `::1` need.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ferroute_admin::metrics::Metrics;
use ferroute_core::{IpFamily, ModeTraits, NamespacedName, ProxySettings, ServicePortEntry, Tracker, error_chain};
use ferroute_host::{LocalhostRoutes, RouteError};
use tokio::time::Instant;

use crate::observers::{FamilySynced, Observer, ServicesToUpdate};

/// Counts node ports on localhost, and keeps the routes to `::1`.
pub(crate) struct LocalhostObserver {
    settings: ProxySettings,
    metrics: Arc<Metrics>,
    services: ServicesToUpdate,
    /// The number of node ports with endpoints by Service, of each family.
    node_ports: [BTreeMap<NamespacedName, usize>; 2],
    routes: Option<LocalhostRoutes>,
    compared: Option<Instant>,
    logged: Option<Instant>,
}

impl LocalhostObserver {
    /// Creates an observer, if the mode can serve node ports on `::1` and the settings include localhost.
    pub(crate) fn new(settings: &ProxySettings, traits: &ModeTraits, metrics: Arc<Metrics>) -> Option<Self> {
        let is_possible = traits.localhost_node_ports.contains(&IpFamily::V6);
        let is_requested = IpFamily::BOTH.into_iter().any(|family| settings.localhost_node_ports(family));
        (is_possible && is_requested).then(|| Self {
            settings: settings.clone(),
            metrics,
            services: ServicesToUpdate::default(),
            node_ports: Default::default(),
            routes: None,
            compared: None,
            logged: None,
        })
    }

    fn ensure_routes(&mut self) {
        let is_due = self.compared.is_none_or(|compared| compared.elapsed() >= INTERVAL);
        match self.routes.as_mut().map(LocalhostRoutes::interfaces_changed) {
            Some(changed) if changed || is_due => {}
            None if is_due => {}
            _ => return,
        }
        self.compared = Some(Instant::now());
        if let Err(error) = self.try_ensure_routes() {
            self.metrics.localhost_node_ports_failed(IpFamily::V6);
            if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
                tracing::warn!("node ports may not answer on ::1: {}", error_chain(&error));
                self.logged = Some(Instant::now());
            }
        }
    }

    fn try_ensure_routes(&mut self) -> Result<(), RouteError> {
        let routes = match &mut self.routes {
            Some(routes) => routes,
            closed => closed.insert(LocalhostRoutes::open()?),
        };
        routes.ensure()
    }

    fn serves_routes(&self) -> bool {
        self.settings.localhost_node_ports(IpFamily::V6)
    }
}

impl Observer for LocalhostObserver {
    fn on_start(&mut self, families: &[IpFamily]) {
        self.settings.ipv6_localhost_node_ports &= families.contains(&IpFamily::V6);
        if self.serves_routes() {
            self.ensure_routes();
        }
    }

    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        let family = sync.table.family;
        if !self.settings.localhost_node_ports(family) {
            return;
        }
        let is_served = |entry: &ServicePortEntry| entry.service.node_port.is_some() && !entry.endpoints.is_empty();
        let node_ports = &mut self.node_ports[family.index()];
        for service in self.services.after(sync, |_, entry| is_served(entry)) {
            match sync.table.ports_of(service).filter(|(_, entry)| is_served(entry)).count() {
                0 => _ = node_ports.remove(service),
                count => _ = node_ports.insert(service.clone(), count),
            }
        }
        self.metrics.set_localhost_node_ports(family, node_ports.values().sum());
    }

    fn on_tick(&mut self, _desired: &Tracker) {
        if self.serves_routes() {
            self.ensure_routes();
        }
    }
}

/// Maximum time between two comparisons of the routes, which other programs can delete.
const INTERVAL: Duration = Duration::from_secs(5);
/// Minimum time between two log lines for errors.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
