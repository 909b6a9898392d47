//! Events of the sync loop: failed syncs, addresses of other Services, and new node ports on which a process of the host
//! already listens.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    net::IpAddr,
    num::NonZeroU16,
};

use ferroute_core::{
    DataplaneError, Frontend, IpFamily, NodePortMatch, Protocol, ProxySettings, ServicePortEntry, ServicePortName,
    ServiceTable, error_chain,
};
use ferroute_host::{Listener, ListenerError, listeners, own_sockets};
use ferroute_kube::EventType;

use super::{
    EventRecorder, limited::LimitReports, lost_frontends::report_lost_frontends, rejected_rules::report_rejected_rules,
    unsupported::report_unsupported_protocols,
};
use crate::observers::{FamilySynced, Observer};

/// A port of the node that a service port serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodePort {
    pub(crate) service: ServicePortName,
    pub(crate) port: NonZeroU16,
    /// The node's address, for a load balancer IP or external IP; `None` for a node port.
    pub(crate) address: Option<IpAddr>,
}

/// The applied node ports.
#[derive(Debug, Default)]
pub(crate) struct NodePorts {
    /// By [`IpFamily::index`].
    ports: [BTreeMap<ServicePortName, NonZeroU16>; 2],
}

/// Kind of check of node ports for listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Ports on which a process listens.
    Listeners,
    /// Another socket is bound to each; report all.
    Bound,
}

/// A node port on which a process of the host listens. Its connections go to the Service from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) port: NodePort,
    /// The listener; `None` if a socket is bound to the port but receives no packets.
    pub(super) listener: Option<Listener>,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port: NodePort { service, port, address }, listener } = self;
        let protocol = service.protocol;
        match (listener, address) {
            (Some(Listener { user, address: listener, .. }), Some(address)) => write!(
                f,
                "a process of user {user} listens at {listener}, but {service} receives its connections to {}, an address of \
                 this node that is an external IP or load balancer IP of the Service: see --protect-node-ports",
                Frontend { address: Some(*address), protocol, port: port.get() }
            ),
            (Some(Listener { user, address, .. }), None) => write!(
                f,
                "a process of user {user} listens at {address}, but node port {port} ({protocol}) of {service} receives \
                 its connections"
            ),
            (None, _) => {
                write!(f, "a socket of another process is bound to node port {port} ({protocol}) of {service}")
            }
        }
    }
}

/// A check of node ports that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckError {
    /// Listeners cannot be listed.
    #[error(transparent)]
    Listeners(#[from] ListenerError),
    /// The sockets of this process cannot be determined.
    #[error("cannot list this process's sockets")]
    OwnSockets(#[source] io::Error),
}

/// Returns the conflicts of node ports with sockets in the calling thread's network namespace. Blocks.
pub(super) fn conflicts(ports: Vec<NodePort>, check: Check) -> Result<Vec<Conflict>, CheckError> {
    let protocols: BTreeSet<Protocol> = ports.iter().map(|port| port.service.protocol).collect();
    let mut in_use = BTreeMap::new();
    for protocol in protocols {
        in_use.insert(protocol, listeners(protocol)?);
    }
    if check == Check::Bound {
        // If a node port has several addresses, some may be held by this process.
        let own = own_sockets().map_err(CheckError::OwnSockets)?;
        in_use.values_mut().for_each(|listeners| listeners.retain(|listener| !own.contains(&listener.inode)));
    }
    Ok(conflicts_with(ports, &in_use, check))
}

/// Returns the conflicts of these ports. Node ports do not apply to loopback addresses, except in iptables mode with
/// localhost node ports, which are rare.
fn conflicts_with(ports: Vec<NodePort>, in_use: &BTreeMap<Protocol, Vec<Listener>>, check: Check) -> Vec<Conflict> {
    let conflict = |port: NodePort| {
        let listeners = in_use.get(&port.service.protocol).map_or(&[][..], Vec::as_slice);
        let is_conflict = |listener: &&Listener| {
            let address = listener.address.ip().to_canonical();
            let receives = match port.address {
                None => !address.is_loopback(),
                Some(of_node) => address.is_unspecified() || address == of_node,
            };
            listener.address.port() == port.port.get() && receives
        };
        let listener = listeners.iter().find(is_conflict).copied();
        (listener.is_some() || check == Check::Bound).then_some(Conflict { port, listener })
    };
    ports.into_iter().filter_map(conflict).collect()
}

/// Records Events for syncs.
pub(crate) struct EventsObserver {
    events: EventRecorder,
    node_ports: NodePorts,
    /// Whether listeners at new node ports are reported.
    check_node_ports: bool,
    /// Ports of the node's addresses that Services use as external IPs or load balancer IPs, by [`IpFamily::index`].
    node_addresses: [BTreeSet<NodePort>; 2],
    limits: LimitReports,
    settings: ProxySettings,
    /// The IP families for which it was reported that no address serves node ports.
    without_addresses: BTreeSet<IpFamily>,
}

/// The node ports that changed with a sync.
#[derive(Debug, Default)]
pub(crate) struct ChangedNodePorts {
    /// Node ports that neither family had before.
    pub(crate) new: Vec<NodePort>,
    /// Whether the node ports of the synced family have changed.
    pub(crate) differ: bool,
}

impl NodePorts {
    /// Returns the node ports of a family.
    pub(crate) fn of(&self, family: IpFamily) -> &BTreeMap<ServicePortName, NonZeroU16> {
        &self.ports[family.index()]
    }

    /// Updates them after a sync.
    pub(crate) fn update(&mut self, sync: &FamilySynced<'_>) -> ChangedNodePorts {
        let (table, family) = (sync.table, sync.table.family);
        let is_full = sync.outcome.report.as_ref().is_some_and(|report| report.full);
        let mut changed = ChangedNodePorts::default();
        if is_full {
            let before = self.of(family).len();
            self.ports[family.index()].retain(|name, _| table.entries.contains_key(name));
            changed.differ = self.of(family).len() != before;
            table.entries.iter().for_each(|(name, entry)| self.update_port(family, name, Some(entry), &mut changed));
        } else {
            let names = sync.outcome.changes.previous.keys();
            names.for_each(|name| self.update_port(family, name, table.entries.get(name), &mut changed));
        }
        changed
    }

    fn update_port(
        &mut self,
        family: IpFamily,
        name: &ServicePortName,
        entry: Option<&ServicePortEntry>,
        changed: &mut ChangedNodePorts,
    ) {
        let Some(port) = entry.and_then(|entry| entry.service.node_port) else {
            changed.differ |= self.ports[family.index()].remove(name).is_some();
            return;
        };
        if self.ports.iter().all(|ports| ports.get(name) != Some(&port)) {
            changed.new.push(NodePort { service: name.clone(), port, address: None });
        }
        changed.differ |= self.ports[family.index()].insert(name.clone(), port) != Some(port);
    }
}

impl EventsObserver {
    /// Creates an observer; `check_node_ports` is false if another observer checks them.
    pub(crate) fn new(events: EventRecorder, settings: ProxySettings, check_node_ports: bool) -> Self {
        Self {
            events,
            node_ports: NodePorts::default(),
            check_node_ports,
            node_addresses: Default::default(),
            limits: LimitReports::default(),
            settings,
            without_addresses: BTreeSet::new(),
        }
    }

    /// Returns the ports of the node's addresses that Services use since this sync.
    fn new_node_addresses(&mut self, sync: &FamilySynced<'_>) -> Vec<NodePort> {
        let FamilySynced { table, outcome, host_addresses, .. } = *sync;
        let known = &mut self.node_addresses[table.family.index()];
        let is_full = outcome.report.as_ref().is_some_and(|report| report.full);
        let changed = |name: &ServicePortName| is_full || outcome.changes.previous.contains_key(name);
        let (before, kept): (BTreeSet<NodePort>, _) =
            std::mem::take(known).into_iter().partition(|port| changed(&port.service));
        *known = kept;
        let names: Vec<&ServicePortName> = match is_full {
            true => table.entries.keys().collect(),
            false => outcome.changes.previous.keys().collect(),
        };
        let entries = names.into_iter().filter_map(|name| table.entries.get_key_value(name));
        let of_entry = |(name, entry): (&ServicePortName, &ServicePortEntry)| -> Vec<NodePort> {
            let port = NonZeroU16::new(entry.service.port);
            let addresses = entry.service.external_ips.iter().chain(&entry.service.load_balancer_vips);
            let of_node = addresses.filter(|address| host_addresses.contains(address));
            let node_port =
                |(address, port): (&IpAddr, _)| NodePort { service: name.clone(), port, address: Some(*address) };
            of_node.filter_map(|address| port.map(|port| (address, port))).map(node_port).collect()
        };
        let now: BTreeSet<NodePort> = entries.flat_map(of_entry).collect();
        let new = now.difference(&before).cloned().collect();
        known.extend(now);
        new
    }

    /// Reports once that there are node ports, and no address of the host that serves them.
    fn report_missing_addresses(&mut self, sync: &FamilySynced<'_>) {
        let family = sync.table.family;
        if !self.lacks_node_port_addresses(sync.table, sync.host_addresses) {
            self.without_addresses.remove(&family);
        } else if self.without_addresses.insert(family) {
            let note = format!(
                "none of the host's {family} addresses is in nodePortAddresses: node ports and health checks of {family} Services \
                 cannot be reached"
            );
            tracing::warn!("{note}");
            self.events.no_node_port_addresses(note);
        }
    }

    fn lacks_node_port_addresses(&self, table: &ServiceTable, host_addresses: &[IpAddr]) -> bool {
        let has_node_ports = !self.node_ports.of(table.family).is_empty();
        let none = NodePortMatch::Addresses(Vec::new());
        has_node_ports && self.settings.node_ports(table.family, &table.node, host_addresses) == none
    }
}

impl Observer for EventsObserver {
    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        report_lost_frontends(&self.events, sync);
        report_rejected_rules(&self.events, sync);
        report_unsupported_protocols(&self.events, sync);
        self.limits.report(&self.events, sync);
        let mut to_check = self.new_node_addresses(sync);
        let ChangedNodePorts { new, .. } = self.node_ports.update(sync);
        if self.check_node_ports {
            to_check.extend(new);
        }
        self.report_missing_addresses(sync);
        if !to_check.is_empty() {
            self.events.check_node_ports(to_check, Check::Listeners);
        }
    }

    fn on_failure(&mut self, family: IpFamily, error: &DataplaneError) {
        let note = format!("cannot sync {family} rules; the previous rules stay active: {}", error_chain(error));
        self.events.on_node(EventType::Warning, "FailedToSyncRules", "SyncRules", note);
    }
}

#[cfg(test)]
mod tests {
    use ferroute_core::{
        NodePortAddresses,
        testing::{Cluster, port_name, service, udp_port_name},
    };

    use super::*;

    #[test]
    fn conflict_requires_same_protocol_and_no_loopback_address() {
        let node_port = |service, port| NodePort { service, port: NonZeroU16::new(port).unwrap(), address: None };
        let listener = |address: &str| Listener { address: address.parse().unwrap(), user: 1000, inode: 0 };
        let tcp = vec![listener("0.0.0.0:30080"), listener("127.0.0.1:30081"), listener("[::1]:30081")];
        let in_use = BTreeMap::from([(Protocol::Tcp, tcp), (Protocol::Udp, vec![])]);
        let conflicting = node_port(port_name("shop/web:http"), 30080);
        let ports = vec![
            conflicting.clone(),
            node_port(udp_port_name("shop/web:dns"), 30080),
            node_port(port_name("shop/web:local"), 30081),
            node_port(port_name("shop/web:free"), 30082),
            NodePort { address: "192.0.2.1".parse().ok(), ..node_port(port_name("shop/web:local"), 30081) },
        ];
        let conflicts = conflicts_with(ports, &in_use, Check::Listeners);
        assert_eq!(conflicts, [Conflict { port: conflicting, listener: Some(listener("0.0.0.0:30080")) }]);
        assert_eq!(
            conflicts[0].to_string(),
            "a process of user 1000 listens at 0.0.0.0:30080, but node port 30080 (tcp) of shop/web:http receives its \
             connections"
        );
    }

    #[test]
    fn missing_addresses_matter_only_with_node_ports() {
        let host: Vec<IpAddr> = vec!["192.0.2.1".parse().unwrap()];
        let web = || service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
        let lacks = |service, network: &str| {
            let node_port_addresses = NodePortAddresses::Within(vec![network.parse().unwrap()]);
            let settings = ProxySettings { node_port_addresses, ..ProxySettings::default() };
            let table = Cluster::new("node-1").service(service).table(IpFamily::V4);
            let mut observer = EventsObserver::new(EventRecorder::none(), settings, true);
            for (name, entry) in &table.entries {
                observer.node_ports.update_port(IpFamily::V4, name, Some(entry), &mut ChangedNodePorts::default());
            }
            observer.lacks_node_port_addresses(&table, &host)
        };
        assert!(lacks(web().node_port(30080), "198.51.100.0/24"));
        assert!(!lacks(web(), "198.51.100.0/24"));
        assert!(!lacks(web().node_port(30080), "192.0.2.0/24"));
    }

    #[test]
    fn conflict_at_an_address_of_the_node_requires_a_listener_there() {
        let listener = |address: &str| Listener { address: address.parse().unwrap(), user: 0, inode: 0 };
        let in_use = BTreeMap::from([(Protocol::Tcp, vec![listener("[::]:22"), listener("192.0.2.1:80")])]);
        let at = |address: &str, port| NodePort {
            service: port_name("aaa/evil:ssh"),
            port: NonZeroU16::new(port).unwrap(),
            address: address.parse().ok(),
        };
        let ports = vec![at("192.0.2.1", 22), at("192.0.2.1", 80), at("192.0.2.2", 80), at("192.0.2.1", 23)];
        let conflicts = conflicts_with(ports, &in_use, Check::Listeners);
        let found: Vec<_> =
            conflicts.iter().map(|conflict| (conflict.port.address, conflict.port.port.get())).collect();
        assert_eq!(found, [("192.0.2.1".parse().ok(), 22), ("192.0.2.1".parse().ok(), 80)]);
        assert!(conflicts[0].to_string().contains("receives its connections to 192.0.2.1:22/tcp"), "{}", conflicts[0]);
    }
}
