//! Events of the sync loop: failed syncs, addresses of other Services, and new node ports on which a process of the host
//! already listens.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    num::NonZeroU16,
};

use ferroute_core::{DataplaneError, IpFamily, Protocol, ServicePortEntry, ServicePortName};
use ferroute_host::{Listener, ListenerError, listeners};
use ferroute_kube::EventType;

use super::{EventRecorder, Job, lost_frontends::report_lost_frontends, rejected_rules::report_rejected_rules};
use crate::{
    logging::chain,
    observer::{FamilySynced, Observer},
};

/// The node port of a service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodePort {
    pub(super) service: ServicePortName,
    pub(super) port: NonZeroU16,
}

/// A node port on which a process of the host listens. Its connections go to the Service from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) port: NodePort,
    pub(super) listener: Listener,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port: NodePort { service, port }, listener } = self;
        write!(
            f,
            "a process of user {} listens at {}, but node port {port} ({}) of {service} receives its connections",
            listener.user, listener.address, service.protocol
        )
    }
}

/// Returns the conflicts of node ports with listeners in the calling thread's network namespace. Blocks.
pub(super) fn conflicts(ports: Vec<NodePort>) -> Result<Vec<Conflict>, ListenerError> {
    let protocols: BTreeSet<Protocol> = ports.iter().map(|port| port.service.protocol).collect();
    let mut in_use = BTreeMap::new();
    for protocol in protocols {
        in_use.insert(protocol, listeners(protocol)?);
    }
    Ok(conflicts_with(ports, &in_use))
}

/// Node ports do not apply to loopback addresses, except in iptables mode with localhost node ports, which are rare.
fn conflicts_with(ports: Vec<NodePort>, in_use: &BTreeMap<Protocol, Vec<Listener>>) -> Vec<Conflict> {
    let conflict = |port: NodePort| {
        let listeners = in_use.get(&port.service.protocol)?;
        let is_conflict = |listener: &&Listener| {
            listener.address.port() == port.port.get() && !listener.address.ip().to_canonical().is_loopback()
        };
        let listener = *listeners.iter().find(is_conflict)?;
        Some(Conflict { port, listener })
    };
    ports.into_iter().filter_map(conflict).collect()
}

/// Records Events about syncs.
pub(crate) struct EventsObserver {
    events: EventRecorder,
    /// Applied node ports, by [`IpFamily::index`].
    node_ports: [BTreeMap<ServicePortName, NonZeroU16>; 2],
}

impl EventsObserver {
    pub(crate) fn new(events: EventRecorder) -> Self {
        Self { events, node_ports: Default::default() }
    }

    /// Updates the applied node ports. Returns those that neither family had before.
    fn update(&mut self, sync: &FamilySynced<'_>) -> Vec<NodePort> {
        let (table, family) = (sync.table, sync.table.family);
        let is_full = sync.outcome.report.as_ref().is_some_and(|report| report.full);
        let mut new = Vec::new();
        if is_full {
            self.node_ports[family.index()].retain(|name, _| table.entries.contains_key(name));
            table.entries.iter().for_each(|(name, entry)| new.extend(self.update_port(family, name, Some(entry))));
        } else {
            let changed = sync.outcome.changes.previous.keys();
            changed.for_each(|name| new.extend(self.update_port(family, name, table.entries.get(name))));
        }
        new
    }

    fn update_port(
        &mut self,
        family: IpFamily,
        name: &ServicePortName,
        entry: Option<&ServicePortEntry>,
    ) -> Option<NodePort> {
        let Some(port) = entry.and_then(|entry| entry.service.node_port) else {
            self.node_ports[family.index()].remove(name);
            return None;
        };
        let is_new = self.node_ports.iter().all(|ports| ports.get(name) != Some(&port));
        self.node_ports[family.index()].insert(name.clone(), port);
        is_new.then(|| NodePort { service: name.clone(), port })
    }
}

impl Observer for EventsObserver {
    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        report_lost_frontends(&self.events, sync);
        report_rejected_rules(&self.events, sync);
        let new = self.update(sync);
        if !new.is_empty() {
            self.events.queue(Job::CheckListeners(new));
        }
    }

    fn on_failure(&mut self, family: IpFamily, error: &DataplaneError) {
        let note = format!("cannot sync {family} rules; the previous rules stay active: {}", chain(error));
        self.events.on_node(EventType::Warning, "FailedToSyncRules", "SyncRules", note);
    }
}

#[cfg(test)]
mod tests {
    use ferroute_core::testing::{port_name, udp_port_name};

    use super::*;

    #[test]
    fn conflict_requires_same_protocol_and_no_loopback_address() {
        let node_port = |service, port| NodePort { service, port: NonZeroU16::new(port).unwrap() };
        let listener = |address: &str| Listener { address: address.parse().unwrap(), user: 1000, inode: 0 };
        let tcp = vec![listener("0.0.0.0:30080"), listener("127.0.0.1:30081"), listener("[::1]:30081")];
        let in_use = BTreeMap::from([(Protocol::Tcp, tcp), (Protocol::Udp, vec![])]);
        let conflicting = node_port(port_name("shop/web:http"), 30080);
        let ports = vec![
            conflicting.clone(),
            node_port(udp_port_name("shop/web:dns"), 30080),
            node_port(port_name("shop/web:local"), 30081),
            node_port(port_name("shop/web:free"), 30082),
        ];
        let conflicts = conflicts_with(ports, &in_use);
        assert_eq!(conflicts, [Conflict { port: conflicting, listener: listener("0.0.0.0:30080") }]);
        assert_eq!(
            conflicts[0].to_string(),
            "a process of user 1000 listens at 0.0.0.0:30080, but node port 30080 (tcp) of shop/web:http receives its \
             connections"
        );
    }
}
