//! Detection of stale UDP entries in the connection tracking table.
//!
//! Connection tracking sends all packets of a UDP flow to the endpoint that the first packet went to, for as long as
//! the client keeps sending. Unlike TCP, UDP has no reset that would end a flow whose endpoint is gone. Entries whose
//! endpoint may no longer serve their frontend are therefore deleted after the new rules are applied, so that the next
//! packet is matched against the new rules.
//!
//! kube-proxy does the same, but before 1.37 it keeps the entries of a Service that loses its last endpoint, and before 1.38 those of
//! a Service that is deleted.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::{Changes, DEFAULT_NODE_PORTS, Frontend, Protocol, ServicePort, ServicePortEntry, ServiceTable};

/// A filter of stale UDP conntrack entries, for the frontends affected by a change.
#[derive(Clone, Debug, Default)]
pub struct StaleConntrackEntries {
    frontends: HashMap<Frontend, Backends>,
    /// Whether flows to endpoints are stale if their frontend exists neither in the rules nor in the table.
    unknown: bool,
}

/// The endpoints that flows to one frontend may use or used before.
#[derive(Clone, Debug, Default)]
struct Backends {
    /// The endpoints that flows may use. `None` if no service port has the frontend any more.
    valid: Option<Arc<[SocketAddr]>>,
    /// Endpoints before the change. They identify Ferroute's flows where nothing else does: if `valid` is `None`, and
    /// to node ports at addresses that the host no longer has.
    previous: HashSet<SocketAddr>,
    /// Whether removed rules led to the frontend, to unknown endpoints. Used like `previous`: every translated flow is
    /// stale. If rules of another program translate it, they translate its next packet again.
    had_rules: bool,
}

impl StaleConntrackEntries {
    /// Returns the filter for all frontends of a table, for a proxy that has just started.
    pub fn from_table(table: &ServiceTable) -> Self {
        let mut stale = Self::default();
        for entry in udp_entries(table) {
            stale.affect(&entry.service, |_| {});
            stale.allow(entry);
        }
        stale
    }

    /// Returns the filter for the frontends affected by `changes`; `table` is the state after them.
    pub fn from_changes(table: &ServiceTable, changes: &Changes) -> Self {
        let mut stale = Self::default();
        for (name, previous) in changes.previous.iter().filter(|(name, _)| name.protocol == Protocol::Udp) {
            if let Some(previous) = previous {
                stale.affect(&previous.service, |backends| {
                    backends.previous.extend(previous.endpoints.iter().map(|endpoint| endpoint.socket()));
                });
            }
            if let Some(entry) = table.entries.get(name) {
                stale.affect(&entry.service, |_| {});
            }
        }
        // Unchanged service ports may have the same frontends as changed ones.
        if !stale.frontends.is_empty() {
            udp_entries(table).for_each(|entry| stale.allow(entry));
        }
        stale
    }

    /// Adds those of `frontends` that no service port of `table` has. The kernel had rules for them; a Service may have
    /// been deleted while no proxy was running.
    pub fn add_removed<'a>(&mut self, table: &ServiceTable, frontends: impl IntoIterator<Item = &'a Frontend>) {
        let mut removed: HashSet<Frontend> =
            frontends.into_iter().filter(|frontend| frontend.protocol == Protocol::Udp).copied().collect();
        if removed.is_empty() {
            return;
        }
        for entry in udp_entries(table) {
            for (_, frontend) in entry.service.frontends(Protocol::Udp) {
                removed.remove(&frontend);
            }
        }
        for frontend in removed {
            self.frontends.entry(frontend).or_default().had_rules = true;
        }
    }

    /// Adds the flows to endpoints through unknown frontends: a proxy may have been killed after it removed the rules of a
    /// Service and before it deleted the entries. Of the flows to addresses of the host, only those to ports in
    /// [`DEFAULT_NODE_PORTS`] are added, because others are likely to be flows to host ports.
    pub fn add_unknown(&mut self) {
        self.unknown = true;
    }

    /// Adds the frontends of a later change. For frontends in both, the valid endpoints are those of the later change,
    /// and the previous endpoints are those of both changes.
    pub fn merge(&mut self, later: Self) {
        self.unknown |= later.unknown;
        for (frontend, backends) in later.frontends {
            self.frontends.entry(frontend).or_default().merge(backends);
        }
    }

    /// Reports whether no entry can be stale, so that the kernel's table need not be read.
    pub fn is_empty(&self) -> bool {
        !self.unknown && !self.frontends.values().any(Backends::has_endpoints)
    }

    /// Reports whether a UDP entry is stale and has to be deleted.
    ///
    /// `destination` is the original destination, `reply_source` the endpoint that replies come from. `is_local` reports
    /// whether an address is one of the host's, `is_endpoint` whether it is that of an endpoint; a set of all endpoints takes time
    /// that is wasted where no flow asks for it.
    pub fn is_stale(
        &self,
        destination: SocketAddr,
        reply_source: SocketAddr,
        is_local: impl Fn(IpAddr) -> bool,
        is_endpoint: impl FnOnce(IpAddr) -> bool,
    ) -> bool {
        let mut frontend =
            Frontend { address: Some(destination.ip()), protocol: Protocol::Udp, port: destination.port() };
        if let Some(backends) = self.frontends.get(&frontend) {
            let is_stale = backends.makes_stale(destination, reply_source);
            // The rules match addresses before node ports.
            if is_stale || backends.valid.is_some() {
                return is_stale;
            }
        }
        let is_known = self.frontends.contains_key(&frontend);
        frontend.address = None;
        let node_port = self.frontends.get(&frontend);
        let may_be_removed =
            || !is_local(destination.ip()) || node_port.is_none() && DEFAULT_NODE_PORTS.contains(&destination.port());
        // If rules of another program translate the flow, they translate its next packet again.
        let is_unknown = self.unknown && reply_source != destination && !is_known;
        if is_unknown && may_be_removed() && is_endpoint(reply_source.ip()) {
            return true;
        }
        node_port.is_some_and(|backends| {
            // The address may have left the host since the flow began, and may return.
            let was_translated = || reply_source != destination && backends.previous.contains(&reply_source);
            backends.makes_stale(destination, reply_source) && (is_local(destination.ip()) || was_translated())
        })
    }

    /// Adds all frontends of a service port.
    fn affect(&mut self, service: &ServicePort, update: impl Fn(&mut Backends)) {
        for (_, frontend) in service.frontends(Protocol::Udp) {
            update(self.frontends.entry(frontend).or_default());
        }
    }

    /// Makes the endpoints of `entry` valid for its affected frontends.
    fn allow(&mut self, entry: &ServicePortEntry) {
        // Traffic policies and topology apply to new flows only: a flow may stay on any endpoint that still serves.
        let serving = || entry.endpoints.iter().filter(|endpoint| endpoint.serving).map(|endpoint| endpoint.socket());
        let mut shared = None;
        for (_, frontend) in entry.service.frontends(Protocol::Udp) {
            if let Some(backends) = self.frontends.get_mut(&frontend) {
                backends.allow(shared.get_or_insert_with(|| serving().collect::<Arc<[SocketAddr]>>()));
            }
        }
    }
}

impl Backends {
    /// Adds valid endpoints. If two service ports claim the frontend, new flows go to one of them, but existing flows
    /// of the other may stay.
    fn allow(&mut self, endpoints: &Arc<[SocketAddr]>) {
        self.valid = Some(match self.valid.take() {
            None => endpoints.clone(),
            Some(valid) => valid.iter().chain(&**endpoints).copied().collect(),
        });
    }

    fn merge(&mut self, later: Self) {
        self.valid = later.valid;
        self.previous.extend(later.previous);
        self.had_rules |= later.had_rules;
    }

    fn has_endpoints(&self) -> bool {
        self.valid.is_some() || !self.previous.is_empty() || self.had_rules
    }

    /// Reports whether a flow to the frontend, at `destination`, that `reply_source` answers is stale.
    fn makes_stale(&self, destination: SocketAddr, reply_source: SocketAddr) -> bool {
        match &self.valid {
            Some(valid) => !valid.contains(&reply_source),
            None => self.previous.contains(&reply_source) || self.had_rules && reply_source != destination,
        }
    }
}

fn udp_entries(table: &ServiceTable) -> impl Iterator<Item = &ServicePortEntry> {
    table.entries.iter().filter(|(name, _)| name.protocol == Protocol::Udp).map(|(_, entry)| entry)
}

#[cfg(test)]
mod tests;
