//! Which UDP flows point at an endpoint that must not get them any more.
//!
//! Connection tracking sends a flow's packets where its first packet went, for as long as packets come. TCP notices
//! when the other side is gone; UDP does not, so a flow to a frontend whose choice is no longer valid has to be removed
//! from the kernel's table, once the rules that would choose anew are in force.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::{Changes, Entry, Protocol, ServicePort, ServicePortName, ServiceTable};

/// Tells stale flows from good ones, for the frontends that a change concerns.
#[derive(Clone, Debug, Default)]
pub struct StaleFlows {
    /// Frontends in use, with the only endpoints that their flows may go to.
    served: HashMap<SocketAddr, Arc<[SocketAddr]>>,
    /// The same for node ports, whose frontend is every address of the host.
    served_node_ports: HashMap<u16, Arc<[SocketAddr]>>,
    /// Frontends that are gone, with the endpoints that they had: no flow may go there by way of them.
    gone: HashMap<SocketAddr, Vec<SocketAddr>>,
    /// The same for node ports.
    gone_node_ports: HashMap<u16, Vec<SocketAddr>>,
}

impl StaleFlows {
    /// For all frontends of a table: what a proxy that has just started has to look for.
    pub fn of_table(table: &ServiceTable) -> Self {
        let mut flows = Self::default();
        for (name, entry) in &table.entries {
            flows.serve(name, entry);
        }
        flows
    }

    /// For the frontends that `changes` concerns; `table` is the state after them.
    pub fn of_changes(table: &ServiceTable, changes: &Changes) -> Self {
        let mut flows = Self::default();
        for (name, previous) in changes.previous.iter().filter(|(name, _)| name.protocol == Protocol::Udp) {
            if let Some(previous) = previous {
                flows.forget(previous);
            }
            if let Some(entry) = table.entries.get(name) {
                flows.serve(name, entry);
            }
        }
        if !flows.gone.is_empty() || !flows.gone_node_ports.is_empty() {
            // Another service may have had the same frontend all along; then its endpoints are the right ones.
            for (name, entry) in table.entries.iter().filter(|(name, _)| name.protocol == Protocol::Udp) {
                let ours = frontends(&entry.service).any(|frontend| flows.gone.contains_key(&frontend));
                if ours || entry.service.node_port.is_some_and(|port| flows.gone_node_ports.contains_key(&port.get())) {
                    flows.serve(name, entry);
                }
            }
        }
        flows.drop_served();
        flows
    }

    /// Adds what a later change concerns; where both speak of a frontend, the later one is right.
    pub fn merge(&mut self, later: Self) {
        self.served.extend(later.served);
        self.served_node_ports.extend(later.served_node_ports);
        for (frontend, endpoints) in later.gone {
            self.served.remove(&frontend);
            self.gone.entry(frontend).or_default().extend(endpoints);
        }
        for (port, endpoints) in later.gone_node_ports {
            self.served_node_ports.remove(&port);
            self.gone_node_ports.entry(port).or_default().extend(endpoints);
        }
        self.drop_served();
    }

    /// No flow can be stale, so the kernel's table need not be read.
    pub fn is_empty(&self) -> bool {
        self.served.is_empty()
            && self.served_node_ports.is_empty()
            && self.gone.is_empty()
            && self.gone_node_ports.is_empty()
    }

    /// Whether a UDP flow has to be removed. `destination` is where its client sent it, `answers_from` where its answers
    /// really come from; `is_local` tells which addresses are the host's own.
    pub fn is_stale(
        &self,
        destination: SocketAddr,
        answers_from: SocketAddr,
        is_local: impl Fn(IpAddr) -> bool,
    ) -> bool {
        if let Some(endpoints) = self.served.get(&destination) {
            return !endpoints.contains(&answers_from);
        }
        if self.gone.get(&destination).is_some_and(|endpoints| endpoints.contains(&answers_from)) {
            return true;
        }
        let port = destination.port();
        let served = self.served_node_ports.get(&port).is_some_and(|endpoints| !endpoints.contains(&answers_from));
        let gone = self.gone_node_ports.get(&port).is_some_and(|endpoints| endpoints.contains(&answers_from));
        (served || gone) && is_local(destination.ip())
    }

    fn serve(&mut self, name: &ServicePortName, entry: &Entry) {
        if name.protocol != Protocol::Udp {
            return;
        }
        // Policies and topology decide about new flows only: a flow may stay on any endpoint that still answers.
        let endpoints: Arc<[SocketAddr]> =
            entry.endpoints.iter().filter(|endpoint| endpoint.serving).map(crate::Endpoint::socket).collect();
        for frontend in frontends(&entry.service) {
            self.served.insert(frontend, endpoints.clone());
        }
        if let Some(port) = entry.service.node_port {
            self.served_node_ports.insert(port.get(), endpoints);
        }
    }

    fn forget(&mut self, entry: &Entry) {
        let endpoints: Vec<SocketAddr> = entry.endpoints.iter().map(crate::Endpoint::socket).collect();
        for frontend in frontends(&entry.service) {
            self.gone.entry(frontend).or_default().extend(&endpoints);
        }
        if let Some(port) = entry.service.node_port {
            self.gone_node_ports.entry(port.get()).or_default().extend(endpoints);
        }
    }

    fn drop_served(&mut self) {
        self.gone.retain(|frontend, _| !self.served.contains_key(frontend));
        self.gone_node_ports.retain(|port, _| !self.served_node_ports.contains_key(port));
    }
}

/// Addresses and ports that a service port answers on, but for the node port.
fn frontends(service: &ServicePort) -> impl Iterator<Item = SocketAddr> {
    std::iter::once(&service.cluster_ip)
        .chain(&service.external_ips)
        .chain(&service.load_balancer_vips)
        .map(|address| SocketAddr::new(*address, service.port))
}

#[cfg(test)]
mod tests;
