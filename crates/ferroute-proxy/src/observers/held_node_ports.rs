//! Node ports held open: a socket is bound to each, so that no other program of the host uses it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use ferroute_admin::http::{HttpThread, PortPermit, TooManyPorts};
use ferroute_core::{IpFamily, NodePortMatch, Protocol, ProxySettings, Tracker, error_chain};
use ferroute_host::{HeldPort, HoldError};

use crate::observers::{
    FamilySynced, Observer,
    events::{ChangedNodePorts, Check, EventRecorder, NodePort, NodePorts},
};

/// Binds a socket to each applied node port at each of its addresses.
pub(crate) struct HeldNodePorts {
    settings: ProxySettings,
    events: EventRecorder,
    /// Owner of the budget of descriptors.
    http: Arc<HttpThread>,
    node_ports: NodePorts,
    /// The addresses of each synced family.
    addresses: BTreeMap<IpFamily, NodePortMatch>,
    held: BTreeMap<Bound, (HeldPort, PortPermit)>,
    /// Ports that another socket has, or that cannot be bound. They are reported once, and retried.
    failed: BTreeSet<Bound>,
    /// Whether the shortage of descriptors has been reported.
    shortage_reported: bool,
}

/// Protocol and address that a socket is bound to.
type Bound = (Protocol, SocketAddr);

impl HeldNodePorts {
    /// Creates an observer that holds no port yet.
    pub(crate) fn new(settings: ProxySettings, events: EventRecorder, http: Arc<HttpThread>) -> Self {
        Self {
            settings,
            events,
            http,
            node_ports: NodePorts::default(),
            addresses: BTreeMap::new(),
            held: BTreeMap::new(),
            failed: BTreeSet::new(),
            shortage_reported: false,
        }
    }

    /// Returns the sockets to bind, and the node port of each.
    fn wanted(&self) -> BTreeMap<Bound, NodePort> {
        let mut wanted = BTreeMap::new();
        for (family, matched) in &self.addresses {
            let addresses = match (matched, family) {
                (NodePortMatch::Addresses(addresses), _) => addresses.clone(),
                (NodePortMatch::AnyLocal, IpFamily::V4) => vec![Ipv4Addr::UNSPECIFIED.into()],
                (NodePortMatch::AnyLocal, IpFamily::V6) => vec![Ipv6Addr::UNSPECIFIED.into()],
            };
            for (name, port) in self.node_ports.of(*family) {
                for address in &addresses {
                    let bound = (name.protocol, SocketAddr::new(*address, port.get()));
                    wanted.entry(bound).or_insert_with(|| NodePort {
                        service: name.clone(),
                        port: *port,
                        address: None,
                    });
                }
            }
        }
        wanted
    }

    /// Releases the ports that are no longer node ports, and binds those that are not held yet.
    fn reconcile(&mut self) {
        let wanted = self.wanted();
        // Released first, because a port at all addresses and the same port at a single address exclude each other.
        self.held.retain(|bound, _| wanted.contains_key(bound));
        let mut failed = BTreeSet::new();
        let (mut in_use, mut not_held): (Vec<NodePort>, usize) = (Vec::new(), 0);
        let mut shortage: Option<TooManyPorts> = None;
        for (bound, port) in wanted {
            if self.held.contains_key(&bound) {
                continue;
            }
            if shortage.is_some() {
                not_held += 1;
                continue;
            }
            match self.hold(bound) {
                Ok(held) => _ = self.held.insert(bound, held),
                Err(NotHeld::Shortage(error)) => {
                    not_held += 1;
                    shortage = Some(error);
                }
                Err(NotHeld::Failed(error)) => {
                    failed.insert(bound);
                    let is_reported = self.failed.contains(&bound);
                    match error.is_in_use() {
                        // Only one Event for a node port, regardless of the number of addresses.
                        true if is_reported || in_use.contains(&port) => {}
                        true => in_use.push(port),
                        false if is_reported => {}
                        false => {
                            tracing::warn!(service = %port.service, "cannot hold node port: {}", error_chain(&error));
                        }
                    }
                }
            }
        }
        self.failed = failed;
        if !in_use.is_empty() {
            self.events.check_node_ports(in_use, Check::Bound);
        }
        let is_reported = std::mem::replace(&mut self.shortage_reported, shortage.is_some());
        if let Some(error) = shortage.filter(|_| !is_reported) {
            let message = format!("{not_held} node ports are not held: {error}");
            tracing::warn!("{message}");
            self.events.node_ports_not_held(&message);
        }
    }

    fn hold(&self, (protocol, address): Bound) -> Result<(HeldPort, PortPermit), NotHeld> {
        let permit = self.http.hold_port().map_err(NotHeld::Shortage)?;
        let held = HeldPort::bind(protocol, address).map_err(NotHeld::Failed)?;
        Ok((held, permit))
    }
}

/// Reason why a port is not held.
enum NotHeld {
    Shortage(TooManyPorts),
    Failed(HoldError),
}

impl Observer for HeldNodePorts {
    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        let FamilySynced { table, host_addresses, .. } = *sync;
        let ChangedNodePorts { differ, .. } = self.node_ports.update(sync);
        let addresses = self.settings.node_ports(table.family, &table.node, host_addresses);
        let before = self.addresses.insert(table.family, addresses);
        if differ || before.as_ref() != self.addresses.get(&table.family) {
            self.reconcile();
        }
    }

    fn on_tick(&mut self, _desired: &Tracker) {
        // The port or the address may be available by now.
        if !self.failed.is_empty() {
            self.reconcile();
        }
    }
}
