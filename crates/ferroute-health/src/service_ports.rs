//! Health-check node ports: on each, a load balancer asks whether this node has endpoints for one Service.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    num::NonZeroU16,
    sync::{Arc, PoisonError, RwLock},
};

use ferroute_core::{ServiceName, ServiceTable};
use hyper::{StatusCode, header::HeaderValue};

use crate::{
    Handler, Health, HttpThread, Limits, ListenError, ListenScope, Request, Response, Server, json, listen, not_found,
};

/// What one Service's port tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port.
    pub port: NonZeroU16,
    /// Endpoints of the Service on this node that take new connections.
    pub local_endpoints: usize,
}

/// A health-check node port does not answer for its Service.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The port cannot be opened.
    #[error("failed to start health check of {service} on port {port}")]
    Listen {
        /// The Service.
        service: ServiceName,
        /// Its port.
        port: NonZeroU16,
        /// Where, and what came in the way.
        #[source]
        source: ListenError,
    },
    /// Another Service has the same port.
    #[error("failed to start health check of {service} on port {port}: the port is that of {owner}")]
    Taken {
        /// The Service.
        service: ServiceName,
        /// Its port.
        port: NonZeroU16,
        /// The Service that the port answers for.
        owner: ServiceName,
    },
}

impl PortError {
    /// The Service whose check does not answer.
    pub fn service(&self) -> &ServiceName {
        match self {
            Self::Listen { service, .. } | Self::Taken { service, .. } => service,
        }
    }
}

/// The servers of all health-check node ports.
#[derive(Debug)]
pub struct HealthCheckPorts {
    board: Arc<Board>,
    open: BTreeMap<(NonZeroU16, ListenScope), Server>,
    http: Arc<HttpThread>,
    limits: Limits,
}

/// What the servers answer from.
#[derive(Debug)]
struct Board {
    health: Arc<Health>,
    owners: RwLock<BTreeMap<NonZeroU16, Owner>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    service: ServiceName,
    local_endpoints: usize,
}

impl HealthCheck {
    /// The health checks of all Services in one family's table. An address counts once, however many ports it has.
    pub fn of_table(table: &ServiceTable) -> BTreeMap<ServiceName, Self> {
        let mut ready: BTreeMap<&ServiceName, (NonZeroU16, BTreeSet<IpAddr>)> = BTreeMap::new();
        for (name, entry) in &table.entries {
            let Some(port) = entry.service.health_check_node_port else { continue };
            let (_, addresses) = ready.entry(&name.service).or_insert_with(|| (port, BTreeSet::new()));
            let endpoints = entry.endpoints.iter().filter(|endpoint| endpoint.local && endpoint.ready);
            addresses.extend(endpoints.map(|endpoint| endpoint.address));
        }
        ready
            .into_iter()
            .map(|(service, (port, addresses))| (service.clone(), Self { port, local_endpoints: addresses.len() }))
            .collect()
    }

    /// Puts the health checks of several families together: a pod with an address of each counts once.
    pub fn merge<'a>(
        families: impl IntoIterator<Item = &'a BTreeMap<ServiceName, Self>>,
    ) -> BTreeMap<ServiceName, Self> {
        let mut merged: BTreeMap<ServiceName, Self> = BTreeMap::new();
        for (service, check) in families.into_iter().flatten() {
            let entry = merged.entry(service.clone()).or_insert(*check);
            entry.local_endpoints = entry.local_endpoints.max(check.local_endpoints);
        }
        merged
    }
}

impl HealthCheckPorts {
    /// No port is open yet. Answers also tell what `health` says of the proxy.
    pub fn new(http: Arc<HttpThread>, health: Arc<Health>, limits: Limits) -> Self {
        let board = Arc::new(Board { health, owners: RwLock::default() });
        Self { board, open: BTreeMap::new(), http, limits }
    }

    /// Opens, closes and changes ports until there is one for each of `wanted` on each of `scopes`. What stays is not
    /// closed in between, also when a port changes hands.
    ///
    /// # Errors
    ///
    /// One for each port that could not be opened, and for each Service whose port is another's; everything else is
    /// done, and these are tried again at the next call.
    pub fn update(&mut self, scopes: &[ListenScope], wanted: &BTreeMap<ServiceName, HealthCheck>) -> Vec<PortError> {
        let mut errors = Vec::new();
        let owners = assign(&self.board.owners(), wanted, &mut errors);
        self.open.retain(|(port, scope), _| owners.contains_key(port) && scopes.contains(scope));
        self.board.set(owners.clone());
        for (port, owner) in owners {
            for scope in scopes {
                let key = (port, *scope);
                if self.open.contains_key(&key) {
                    continue;
                }
                match self.start(*scope, port) {
                    Ok(server) => {
                        self.open.insert(key, server);
                    }
                    Err(source) => {
                        errors.push(PortError::Listen { service: owner.service.clone(), port, source });
                    }
                }
            }
        }
        errors
    }

    fn start(&self, scope: ListenScope, port: NonZeroU16) -> Result<Server, ListenError> {
        let listener = listen(scope, port.get())?;
        let handler = Arc::new(PortHandler { board: Arc::clone(&self.board), port });
        self.http
            .serve(listener, handler, self.limits)
            .map_err(|source| ListenError { address: scope.with_port(port.get()), source })
    }
}

/// Gives each port to one Service: the one that has it already, else the first by name.
fn assign(
    current: &BTreeMap<NonZeroU16, Owner>,
    wanted: &BTreeMap<ServiceName, HealthCheck>,
    errors: &mut Vec<PortError>,
) -> BTreeMap<NonZeroU16, Owner> {
    let mut owners: BTreeMap<NonZeroU16, Owner> = BTreeMap::new();
    let holds = |(service, check): &(&ServiceName, &HealthCheck)| {
        current.get(&check.port).is_some_and(|owner| owner.service == **service)
    };
    let (holders, others): (Vec<_>, Vec<_>) = wanted.iter().partition(holds);
    for (service, check) in holders.into_iter().chain(others) {
        match owners.get(&check.port) {
            None => {
                let owner = Owner { service: service.clone(), local_endpoints: check.local_endpoints };
                owners.insert(check.port, owner);
            }
            Some(owner) => errors.push(PortError::Taken {
                service: service.clone(),
                port: check.port,
                owner: owner.service.clone(),
            }),
        }
    }
    owners
}

impl Board {
    fn owners(&self) -> BTreeMap<NonZeroU16, Owner> {
        self.owners.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, owners: BTreeMap<NonZeroU16, Owner>) {
        *self.owners.write().unwrap_or_else(PoisonError::into_inner) = owners;
    }
}

/// Answers any path of one port.
struct PortHandler {
    board: Arc<Board>,
    port: NonZeroU16,
}

impl Handler for PortHandler {
    fn answer(&self, _: &Request) -> Response {
        let owner = self.board.owners.read().unwrap_or_else(PoisonError::into_inner).get(&self.port).cloned();
        match owner {
            Some(owner) => owner.response(self.board.health.report().healthy),
            // The port is just being closed.
            None => not_found(),
        }
    }
}

impl Owner {
    /// 200 if there are endpoints and the rules keep up, else 503; the weight tells the number of endpoints to load
    /// balancers that do not share evenly.
    fn response(&self, proxy_healthy: bool) -> Response {
        let good = self.local_endpoints > 0 && proxy_healthy;
        let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        // Line breaks and all as kube-proxy writes it.
        let body = format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": {},\n\t\t\"name\": {}\n\t}},\n\t\"localEndpoints\": {},\n\t\
             \"serviceProxyHealthy\": {proxy_healthy}\n}}",
            quoted(self.service.namespace()),
            quoted(self.service.name()),
            self.local_endpoints,
        );
        let mut response = json(status, body);
        response.headers_mut().insert(WEIGHT, HeaderValue::from(self.local_endpoints));
        response
    }
}

const WEIGHT: &str = "x-load-balancing-endpoint-weight";

#[cfg(test)]
mod tests;
