//! Which UDP flows point at an endpoint that must not get them any more.
//!
//! Connection tracking sends a flow's packets where its first packet went, for as long as packets come. TCP notices
//! when the other side is gone; UDP does not, so a flow to a frontend whose choice is no longer valid has to be removed
//! from the kernel's table, once the rules that would choose anew are in force.
//!
//! kube-proxy does the same with one difference: when a service's last endpoint goes, it leaves the flows to it alone.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::{Changes, Endpoint, ServicePortEntry, Protocol, ServicePort, ServiceTable};

/// Tells stale flows from good ones, for the frontends that a change concerns.
#[derive(Clone, Debug, Default)]
pub struct StaleConntrackEntries {
    frontends: HashMap<SocketAddr, Targets>,
    /// Node ports, whose frontend is every address of the host.
    node_ports: HashMap<u16, Targets>,
}

/// Where the flows of one frontend go.
#[derive(Clone, Debug, Default)]
struct Targets {
    /// The only endpoints that they may go to. `None`: no service has the frontend any more.
    right: Option<Arc<[SocketAddr]>>,
    /// Endpoints that they went to before. Only these count once no service has the frontend: whatever else flows there
    /// is somebody else's.
    former: HashSet<SocketAddr>,
}

impl StaleConntrackEntries {
    /// For all frontends of a table: what a proxy that has just started has to look for.
    pub fn from_table(table: &ServiceTable) -> Self {
        let mut flows = Self::default();
        for entry in udp_entries(table) {
            flows.concern(&entry.service, |_| {});
            flows.allow(entry);
        }
        flows
    }

    /// For the frontends that `changes` concerns; `table` is the state after them.
    pub fn from_changes(table: &ServiceTable, changes: &Changes) -> Self {
        let mut flows = Self::default();
        for (name, previous) in changes.previous.iter().filter(|(name, _)| name.protocol == Protocol::Udp) {
            if let Some(previous) = previous {
                flows.concern(&previous.service, |targets| {
                    targets.former.extend(previous.endpoints.iter().map(Endpoint::socket));
                });
            }
            if let Some(entry) = table.entries.get(name) {
                flows.concern(&entry.service, |_| {});
            }
        }
        // Not only services that changed: another one may have had the same frontend all along.
        if !flows.frontends.is_empty() {
            udp_entries(table).for_each(|entry| flows.allow(entry));
        }
        flows
    }

    /// Adds what a later change concerns; where both speak of a frontend, the later one is right about who has it, and
    /// what it had before either counts.
    pub fn merge(&mut self, later: Self) {
        for (frontend, targets) in later.frontends {
            self.frontends.entry(frontend).or_default().merge(targets);
        }
        for (port, targets) in later.node_ports {
            self.node_ports.entry(port).or_default().merge(targets);
        }
    }

    /// No flow can be stale, so the kernel's table need not be read.
    pub fn is_empty(&self) -> bool {
        !self.frontends.values().chain(self.node_ports.values()).any(Targets::can_be_missed)
    }

    /// Whether a UDP flow has to be removed. `destination` is where its client sent it, `answers_from` where its answers
    /// really come from; `is_local` tells which addresses are the host's own.
    pub fn is_stale(
        &self,
        destination: SocketAddr,
        answers_from: SocketAddr,
        is_local: impl Fn(IpAddr) -> bool,
    ) -> bool {
        if let Some(targets) = self.frontends.get(&destination) {
            let missed = targets.are_missed_by(answers_from);
            // Rules look for the address before they take the port for a node port.
            if missed || targets.right.is_some() {
                return missed;
            }
        }
        let node_port = self.node_ports.get(&destination.port());
        node_port.is_some_and(|targets| targets.are_missed_by(answers_from)) && is_local(destination.ip())
    }

    /// Notes all frontends of a service.
    fn concern(&mut self, service: &ServicePort, note: impl Fn(&mut Targets)) {
        for frontend in frontends(service) {
            note(self.frontends.entry(frontend).or_default());
        }
        if let Some(port) = service.node_port {
            note(self.node_ports.entry(port.get()).or_default());
        }
    }

    /// Lets flows go to the entry's endpoints, on those of its frontends that are noted.
    fn allow(&mut self, entry: &ServicePortEntry) {
        // Policies and topology decide about new flows only: a flow may stay on any endpoint that still answers.
        let serving = || entry.endpoints.iter().filter(|endpoint| endpoint.serving).map(Endpoint::socket);
        let mut shared = None;
        let mut allow = |targets: &mut Targets| {
            targets.allow(shared.get_or_insert_with(|| serving().collect::<Arc<[SocketAddr]>>()));
        };
        for frontend in frontends(&entry.service) {
            self.frontends.get_mut(&frontend).into_iter().for_each(&mut allow);
        }
        let node_port = entry.service.node_port.and_then(|port| self.node_ports.get_mut(&port.get()));
        node_port.into_iter().for_each(allow);
    }
}

impl Targets {
    /// Of two services with the same frontend one gets its new flows; those that the other has may stay with it.
    fn allow(&mut self, endpoints: &Arc<[SocketAddr]>) {
        self.right = Some(match self.right.take() {
            None => endpoints.clone(),
            Some(others) => others.iter().chain(&**endpoints).copied().collect(),
        });
    }

    fn merge(&mut self, later: Self) {
        self.right = later.right;
        self.former.extend(later.former);
    }

    fn can_be_missed(&self) -> bool {
        self.right.is_some() || !self.former.is_empty()
    }

    fn are_missed_by(&self, answers_from: SocketAddr) -> bool {
        match &self.right {
            Some(right) => !right.contains(&answers_from),
            None => self.former.contains(&answers_from),
        }
    }
}

fn udp_entries(table: &ServiceTable) -> impl Iterator<Item = &ServicePortEntry> {
    table.entries.iter().filter(|(name, _)| name.protocol == Protocol::Udp).map(|(_, entry)| entry)
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
