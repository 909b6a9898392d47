//! Health-check node ports: per Service, a port on which load balancers check whether this node has endpoints.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    num::NonZeroU16,
    sync::{Arc, PoisonError, RwLock},
};

use ferroute_core::{NamespacedName, ServicePortEntry, ServiceTable};
use hyper::{StatusCode, header::HeaderValue};
use serde::{Deserialize, Serialize};

use crate::{
    health::Health,
    http::{
        Handler, HttpThread, Limits, ListenError, ListenScope, PortPermit, Request, Response, Server, TooManyPorts,
        json, listen, not_found,
    },
};

/// Health check of one Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// Health-check node port.
    pub port: NonZeroU16,
    /// Number of the Service's ready endpoints on this node.
    pub local_endpoints: usize,
    /// Addresses of the load balancer, which some load balancers send health checks to.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub load_balancer_addresses: BTreeSet<IpAddr>,
}

/// Reason why a Service's health-check node port is not served.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The port cannot be opened.
    #[error("cannot serve health check of {service} on port {port}")]
    Listen {
        /// Service.
        service: NamespacedName,
        /// Health-check node port.
        port: NonZeroU16,
        /// Address and cause.
        #[source]
        source: ListenError,
    },
    /// The process may not open more ports.
    #[error("cannot serve health check of {service} on port {port}")]
    TooMany {
        /// Service.
        service: NamespacedName,
        /// Health-check node port.
        port: NonZeroU16,
        /// Number of open ports.
        #[source]
        source: TooManyPorts,
    },
    /// Another Service already has the port.
    #[error("cannot serve health check of {service} on port {port}: port belongs to {owner}")]
    Taken {
        /// Service.
        service: NamespacedName,
        /// Health-check node port.
        port: NonZeroU16,
        /// Service that is served on the port.
        owner: NamespacedName,
    },
}

impl PortError {
    /// Returns the Service whose health check is not served.
    pub fn service(&self) -> &NamespacedName {
        match self {
            Self::Listen { service, .. } | Self::TooMany { service, .. } | Self::Taken { service, .. } => service,
        }
    }
}

/// The servers of all health-check node ports.
#[derive(Debug)]
pub struct HealthCheckPorts {
    state: Arc<PortState>,
    open: BTreeMap<(NonZeroU16, ListenScope), (Server, PortPermit)>,
    http: Arc<HttpThread>,
    limits: Limits,
}

/// State shared with the handlers.
#[derive(Debug)]
struct PortState {
    health: Arc<Health>,
    owners: RwLock<BTreeMap<NonZeroU16, Owner>>,
}

/// The Service that is served on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    service: NamespacedName,
    local_endpoints: usize,
}

impl HealthCheck {
    /// Returns the health checks of all Services in one family's table.
    pub fn from_table(table: &ServiceTable) -> BTreeMap<NamespacedName, Self> {
        let has_check = |entry: &ServicePortEntry| entry.service.health_check_node_port.is_some();
        let ports = table.entries.iter().filter(|(_, entry)| has_check(entry));
        let services: BTreeSet<&NamespacedName> = ports.map(|(name, _)| &name.service).collect();
        services.into_iter().filter_map(|service| Some((service.clone(), Self::of_service(table, service)?))).collect()
    }

    /// Returns the health check of a Service in one family's table, if it has one. An endpoint address counts once, regardless
    /// of its number of ports.
    pub fn of_service(table: &ServiceTable, service: &NamespacedName) -> Option<Self> {
        let (mut check, mut ready) = (None, BTreeSet::new());
        for (_, entry) in table.ports_of(service) {
            let Some(port) = entry.service.health_check_node_port else { continue };
            let new = || Self { port, local_endpoints: 0, load_balancer_addresses: BTreeSet::new() };
            let check = check.get_or_insert_with(new);
            check.load_balancer_addresses.extend(entry.service.load_balancer_vips.iter().copied());
            let endpoints = entry.endpoints.iter().filter(|endpoint| endpoint.local && endpoint.accepts());
            ready.extend(endpoints.map(|endpoint| endpoint.address));
        }
        check.map(|check| Self { local_endpoints: ready.len(), ..check })
    }

    /// Merges the health checks of several families. A dual-stack pod counts once.
    pub fn merge<'a>(
        families: impl IntoIterator<Item = &'a BTreeMap<NamespacedName, Self>>,
    ) -> BTreeMap<NamespacedName, Self> {
        let mut merged: BTreeMap<NamespacedName, Self> = BTreeMap::new();
        for (service, check) in families.into_iter().flatten() {
            let entry = merged.entry(service.clone()).or_insert_with(|| check.clone());
            entry.local_endpoints = entry.local_endpoints.max(check.local_endpoints);
            entry.load_balancer_addresses.extend(&check.load_balancer_addresses);
        }
        merged
    }

    /// Returns the addresses to listen on: `scopes`, and those of the load balancer. The latter receive connections
    /// only if the environment makes them addresses of the host.
    fn scopes<'a>(&'a self, scopes: &'a [ListenScope]) -> impl Iterator<Item = ListenScope> + 'a {
        let addresses = self.load_balancer_addresses.iter();
        scopes.iter().copied().chain(addresses.filter_map(|address| ListenScope::for_floating(*address, scopes)))
    }
}

impl HealthCheckPorts {
    /// Creates an empty set of servers. Their answers include the health of the proxy.
    pub fn new(http: Arc<HttpThread>, health: Arc<Health>, limits: Limits) -> Self {
        let state = Arc::new(PortState { health, owners: RwLock::default() });
        Self { state, open: BTreeMap::new(), http, limits }
    }

    /// Opens and closes ports until each of `checks` is served on each of `scopes` and on the load balancer's
    /// addresses. Ports that are still needed are not closed in between, even if they pass from one Service to another.
    ///
    /// # Errors
    ///
    /// Returns an error for each port that cannot be opened and for each Service whose port belongs to another Service. All
    /// other ports are served. The next call retries the failed ones.
    pub fn update(&mut self, scopes: &[ListenScope], checks: &BTreeMap<NamespacedName, HealthCheck>) -> Vec<PortError> {
        let mut errors = Vec::new();
        let owners = assign(&self.state.owners(), checks, &mut errors);
        let keys = |(port, owner): (&NonZeroU16, &Owner)| {
            let (port, check) = (*port, checks.get(&owner.service));
            check.into_iter().flat_map(|check| check.scopes(scopes)).map(move |scope| (port, scope)).collect::<Vec<_>>()
        };
        let wanted: BTreeSet<(NonZeroU16, ListenScope)> = owners.iter().flat_map(keys).collect();
        self.open.retain(|key, _| wanted.contains(key));
        self.state.set_owners(owners.clone());
        // Node addresses come first, in case that not all can be opened.
        let (floating, fixed): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|(_, scope)| matches!(scope, ListenScope::Floating(_)));
        for key @ (port, scope) in fixed.into_iter().chain(floating) {
            if self.open.contains_key(&key) {
                continue;
            }
            let service = || owners[&port].service.clone();
            match self.http.open_port() {
                Ok(permit) => match self.start(scope, port) {
                    Ok(server) => {
                        self.open.insert(key, (server, permit));
                    }
                    Err(source) => errors.push(PortError::Listen { service: service(), port, source }),
                },
                // One error is enough for all addresses of a Service.
                Err(source) => {
                    let is_reported =
                        matches!(errors.last(), Some(PortError::TooMany { port: last, .. }) if *last == port);
                    if !is_reported {
                        errors.push(PortError::TooMany { service: service(), port, source });
                    }
                }
            }
        }
        errors
    }

    fn start(&self, scope: ListenScope, port: NonZeroU16) -> Result<Server, ListenError> {
        let listener = listen(scope, port.get())?;
        let handler = Arc::new(PortHandler { state: Arc::clone(&self.state), port });
        self.http
            .serve(listener, handler, self.limits)
            .map_err(|source| ListenError { address: scope.with_port(port.get()), source })
    }
}

/// Assigns each port to one Service: its current owner, otherwise the first by name.
fn assign(
    current: &BTreeMap<NonZeroU16, Owner>,
    checks: &BTreeMap<NamespacedName, HealthCheck>,
    errors: &mut Vec<PortError>,
) -> BTreeMap<NonZeroU16, Owner> {
    let mut owners: BTreeMap<NonZeroU16, Owner> = BTreeMap::new();
    let is_owner = |(service, check): &(&NamespacedName, &HealthCheck)| {
        current.get(&check.port).is_some_and(|owner| owner.service == **service)
    };
    let (current, new): (Vec<_>, Vec<_>) = checks.iter().partition(is_owner);
    for (service, check) in current.into_iter().chain(new) {
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

impl PortState {
    fn owners(&self) -> BTreeMap<NonZeroU16, Owner> {
        self.owners.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_owners(&self, owners: BTreeMap<NonZeroU16, Owner>) {
        *self.owners.write().unwrap_or_else(PoisonError::into_inner) = owners;
    }
}

/// Serves all paths of one port.
struct PortHandler {
    state: Arc<PortState>,
    port: NonZeroU16,
}

impl Handler for PortHandler {
    fn answer(&self, _: &Request) -> Response {
        let owner = self.state.owners.read().unwrap_or_else(PoisonError::into_inner).get(&self.port).cloned();
        match owner {
            Some(owner) => owner.response(self.state.health.report().healthy),
            // The port is being closed.
            None => not_found(),
        }
    }
}

impl Owner {
    /// Returns 200 if there are local endpoints and the proxy is healthy, otherwise 503. The weight header is for load
    /// balancers that distribute connections by the number of endpoints.
    fn response(&self, proxy_healthy: bool) -> Response {
        let good = self.local_endpoints > 0 && proxy_healthy;
        let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        // kube-proxy's bytes, including whitespace.
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
