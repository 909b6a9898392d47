//! The desired state of Services and endpoints, and its difference from the state that was applied last.
//!
//! The tracker holds Services and endpoint slices in a compact form and, for each IP family, the [`ServiceTable`] that was
//! handed out last. [`Tracker::apply`] changes the desired state and marks the Service as pending. [`Tracker::update`]
//! then rebuilds only pending Services and compares them with the table. A change that is reverted before the next
//! update therefore causes no work.

mod claims;
mod event;
mod interner;
mod slices;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map},
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    sync::Arc,
};

use ipnet::IpNet;

use self::{
    claims::Claims,
    interner::Interner,
    slices::{Adjustments, Slices},
};
pub use self::{
    event::TrackerEvent,
    view::{EndpointView, NamedPort, ServiceView, SlicePort, SliceView},
};
use crate::{
    Changes, Endpoint, Frontend, IpFamily, ModeTraits, NamespacedName, NodePortMatch, NodeView, OtherHosts,
    ProxySettings, ServicePortEntry, ServicePortName, ServiceTable, Share, limits, parallel, reservation::Reservations,
};

/// The desired state of Services and endpoints. See the [module documentation](self).
#[derive(Debug)]
pub struct Tracker {
    services: HashMap<NamespacedName, Service>,
    /// The Service of each slice, by the slice's own name: deletions name only the slice.
    owners: HashMap<NamespacedName, NamespacedName>,
    /// The names of ports of Services.
    port_names: Interner<str>,
    /// The ports of slices.
    slice_ports: Interner<[SlicePort]>,
    tables: [ServiceTable; 2],
    /// Services that may differ from the table, by family.
    pending: [BTreeSet<NamespacedName>; 2],
    /// The current node; each table has the node as of its last update.
    node: Arc<NodeView>,
    /// The current networks of cluster IPs, by family, sorted.
    service_cidrs: [Vec<IpNet>; 2],
    /// The claims on frontends by the tables' service ports, by family.
    claims: [Claims; 2],
    ejections: Ejections,
    shares: Shares,
    other_hosts: OtherHosts,
    /// The settings and host addresses that reservations follow from, by family.
    reserving: [(ProxySettings, Vec<IpAddr>); 2],
    /// Whether reservations may have changed since the last update, by family.
    reservations_due: [bool; 2],
    /// Traits of the mode that the tables are for, which has the limits.
    traits: &'static ModeTraits,
}

/// The endpoints that did not answer, by service port, of both IP families.
pub type Ejections = BTreeMap<ServicePortName, BTreeSet<SocketAddr>>;

/// Endpoints that have less than their full weight, by service port, of both IP families.
pub type Shares = BTreeMap<ServicePortName, BTreeMap<SocketAddr, Share>>;

/// The desired state under the name of a Service.
#[derive(Debug, Default)]
struct Service {
    /// The Service's ports by [`IpFamily::index`]; `None` if only slices exist.
    ports: Option<Ports>,
    slices: Slices,
}

type Ports = [Box<[NamedPort]>; 2];

/// The desired entries of a Service.
#[derive(Debug, Default)]
struct Entries {
    /// The entries, with all the frontends that they claim.
    desired: Vec<(ServicePortName, ServicePortEntry)>,
    /// The numbers of endpoints that are left out because there are too many.
    excess: BTreeMap<ServicePortName, usize>,
}

impl Tracker {
    /// Returns a tracker without Services, for rules of `node`.
    pub fn new(node: NodeView) -> Self {
        let node = Arc::new(node);
        Self {
            services: HashMap::new(),
            owners: HashMap::new(),
            port_names: Interner::default(),
            slice_ports: Interner::default(),
            tables: IpFamily::BOTH.map(|family| ServiceTable::new(family, node.clone())),
            pending: Default::default(),
            node,
            service_cidrs: Default::default(),
            claims: Default::default(),
            ejections: Ejections::new(),
            shares: Shares::new(),
            other_hosts: OtherHosts::default(),
            reserving: Default::default(),
            reservations_due: [false; 2],
            // With the lowest limits.
            traits: &ModeTraits::NFTABLES,
        }
    }

    /// Applies the limits of a mode with these traits. By default, those of nftables mode apply.
    #[must_use]
    pub fn with_traits(self, traits: &'static ModeTraits) -> Self {
        Self { traits, ..self }
    }

    /// Returns a tracker of the same objects for a mode with other traits, with the addresses of other hosts that matter in
    /// that mode. Its tables are empty until they are updated.
    #[must_use]
    pub fn for_mode(&self, traits: &'static ModeTraits, other_hosts: OtherHosts) -> Self {
        let mut tracker = Self::new((*self.node).clone()).with_traits(traits);
        for (name, service) in &self.services {
            if let Some(ports) = &service.ports {
                let ports = ports.each_ref().map(|ports| ports.to_vec());
                tracker.apply_service(ServiceView { name: name.clone(), ports, ignored: Box::default() });
            }
            service.slices.views(name).for_each(|slice| tracker.apply_slice(slice));
        }
        tracker.service_cidrs.clone_from(&self.service_cidrs);
        tracker.apply(TrackerEvent::EndpointsEjected(self.ejections.clone()));
        tracker.apply(TrackerEvent::SharesApplied(self.shares.clone()));
        tracker.apply(TrackerEvent::OtherHostsApplied(other_hosts));
        tracker
    }

    /// Changes the desired state.
    pub fn apply(&mut self, event: TrackerEvent) {
        match event {
            TrackerEvent::ServiceApplied(service) => self.apply_service(service),
            TrackerEvent::ServiceDeleted(name) => self.delete_service(&name),
            TrackerEvent::SliceApplied(slice) => self.apply_slice(slice),
            TrackerEvent::SliceDeleted(name) => self.delete_slice(&name),
            TrackerEvent::NodeApplied(node) => self.apply_node(node),
            TrackerEvent::ServiceCidrsApplied(cidrs) => self.apply_service_cidrs(cidrs),
            TrackerEvent::EndpointsEjected(ejections) => {
                let old = std::mem::replace(&mut self.ejections, ejections);
                self.mark_different(&differences(&old, &self.ejections));
            }
            TrackerEvent::SharesApplied(shares) => {
                let old = std::mem::replace(&mut self.shares, shares);
                self.mark_different(&differences(&old, &self.shares));
            }
            TrackerEvent::OtherHostsApplied(hosts) => self.apply_other_hosts(hosts),
        }
    }

    fn apply_service(&mut self, service: ServiceView) {
        let name = self.shared_name(service.name);
        let mut new = service.ports.map(Vec::into_boxed_slice);
        for port in new.iter_mut().flatten() {
            port.name = self.port_names.share(&port.name);
        }
        let new_families = families(&new);
        let old = self.services.entry(name.clone()).or_default().ports.replace(new);
        self.mark_pending(&name, new_families.into_iter().chain(old.iter().flat_map(families)));
    }

    fn delete_service(&mut self, name: &NamespacedName) {
        let Some(service) = self.services.get_mut(name) else { return };
        let Some(old) = service.ports.take() else { return };
        if service.slices.is_empty() {
            self.services.remove(name);
        }
        self.mark_pending(name, families(&old));
    }

    fn apply_slice(&mut self, mut slice: SliceView) {
        match self.owners.get_key_value(&slice.name) {
            Some((_, owner)) if *owner != slice.service => self.delete_slice(&slice.name),
            Some((name, _)) => slice.name = name.clone(),
            None => {}
        }
        let service = self.shared_name(slice.service.clone());
        self.owners.insert(slice.name.clone(), service.clone());
        let family = slice.family;
        let old = self.services.entry(service.clone()).or_default().slices.insert(slice, &mut self.slice_ports);
        self.mark_pending(&service, [family].into_iter().chain(old));
    }

    fn delete_slice(&mut self, name: &NamespacedName) {
        let Some(owner) = self.owners.remove(name) else { return };
        let hash_map::Entry::Occupied(mut service) = self.services.entry(owner.clone()) else { return };
        let old = service.get_mut().slices.remove(name);
        if service.get().ports.is_none() && service.get().slices.is_empty() {
            service.remove();
        }
        self.mark_pending(&owner, old);
    }

    fn apply_node(&mut self, node: NodeView) {
        if self.node.zone != node.zone {
            let uses_zone = |service: &Service| {
                let ports = service.ports.iter().flatten().flatten();
                ports.into_iter().any(|port| port.port.balancing.zone_weight.is_some())
            };
            let services = self.services.iter().filter(|(_, service)| uses_zone(service));
            let services: BTreeSet<NamespacedName> = services.map(|(name, _)| name.clone()).collect();
            self.mark_different(&services);
        }
        if *self.node != node {
            self.node = Arc::new(node);
        }
    }

    fn apply_service_cidrs(&mut self, cidrs: Vec<IpNet>) {
        let sorted: BTreeSet<IpNet> = cidrs.into_iter().collect();
        self.service_cidrs = Default::default();
        for cidr in sorted {
            self.service_cidrs[IpFamily::of(cidr.addr()).index()].push(cidr);
        }
    }

    fn mark_different(&mut self, services: &BTreeSet<NamespacedName>) {
        services.iter().for_each(|service| self.mark_pending(service, IpFamily::BOTH));
    }

    /// Returns the endpoints that did not answer.
    pub fn ejections(&self) -> &Ejections {
        &self.ejections
    }

    /// Returns the endpoints that have less than their full weight.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    fn apply_other_hosts(&mut self, hosts: OtherHosts) {
        if self.other_hosts != hosts {
            self.other_hosts = hosts;
            self.reservations_due = [true; 2];
        }
    }

    /// Sets the addresses of the host's interfaces. On those that accept connections to node ports, node ports come before
    /// external IPs and load balancers' addresses of other service ports; see [`Claim`](crate::Claim).
    pub fn set_host_addresses(&mut self, family: IpFamily, settings: &ProxySettings, host: &[IpAddr]) {
        let addresses = match settings.node_ports(family, &self.node, host) {
            NodePortMatch::AnyLocal => {
                host.iter().copied().filter(|address| IpFamily::of(*address) == family).collect()
            }
            NodePortMatch::Addresses(addresses) => addresses,
        };
        self.claims[family.index()].set_node_port_addresses(addresses);
        let reserving = &mut self.reserving[family.index()];
        if (&reserving.0, reserving.1.as_slice()) != (settings, host) {
            *reserving = (settings.clone(), host.to_vec());
            self.reservations_due[family.index()] = true;
        }
    }

    /// Returns the addresses of other hosts that this node connects to.
    pub fn other_hosts(&self) -> &OtherHosts {
        &self.other_hosts
    }

    /// Returns the networks that cluster IPs are allocated from.
    pub fn service_cidrs(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.service_cidrs.iter().flatten().copied()
    }

    /// Returns the table of a family, as of the last [`Tracker::update`].
    pub fn table(&self, family: IpFamily) -> &ServiceTable {
        &self.tables[family.index()]
    }

    /// Returns the current node.
    pub fn node(&self) -> &NodeView {
        &self.node
    }

    /// Reports whether the desired state may differ from the table of a family.
    pub fn has_pending_changes(&self, family: IpFamily) -> bool {
        let table = self.table(family);
        !self.pending[family.index()].is_empty()
            || table.node != self.node
            || table.service_cidrs != self.service_cidrs[family.index()]
            || self.claims[family.index()].has_changes()
            || (self.reservations_due[family.index()]
                && *self.claims[family.index()].reservations() != self.reservations(family))
    }

    /// Returns the names of all desired Services, in no particular order.
    pub fn services(&self) -> impl Iterator<Item = &NamespacedName> {
        self.services.iter().filter(|(_, service)| service.ports.is_some()).map(|(name, _)| name)
    }

    /// Returns the ports of a desired Service by [`IpFamily::index`]; `None` if it does not exist.
    pub fn ports_of(&self, service: &NamespacedName) -> Option<&[Box<[NamedPort]>; 2]> {
        self.services.get(service)?.ports.as_ref()
    }

    /// Returns the desired slices of a Service, sorted by name.
    pub fn slices_of<'a>(&'a self, service: &'a NamespacedName) -> impl Iterator<Item = SliceView> + 'a {
        self.services.get(service).into_iter().flat_map(|state| state.slices.views(service))
    }

    /// Returns a desired slice by its own name.
    pub fn slice(&self, name: &NamespacedName) -> Option<SliceView> {
        self.slices_of(self.owners.get(name)?).find(|slice| slice.name == *name)
    }

    /// Returns the names of all desired slices, in no particular order.
    pub fn slices(&self) -> impl Iterator<Item = &NamespacedName> {
        self.owners.keys()
    }

    /// Updates the table of a family to the desired state and returns the changes. The caller must apply these changes,
    /// or the whole table.
    pub fn update(&mut self, family: IpFamily) -> Changes {
        self.update_keeping(family, |_| true)
    }

    /// Like [`Tracker::update`], for callers that apply the whole table: [`Changes::previous`] lacks new service ports,
    /// so that it does not contain every service port when the proxy starts.
    pub fn update_for_resync(&mut self, family: IpFamily) -> Changes {
        self.update_keeping(family, |previous| previous.is_some())
    }

    /// Updates the table of a family. `keep` selects by the previous entry which service ports [`Changes::previous`]
    /// contains.
    fn update_keeping(&mut self, family: IpFamily, keep: impl Fn(&Option<ServicePortEntry>) -> bool) -> Changes {
        let mut pending = std::mem::take(&mut self.pending[family.index()]);
        let mut claims = std::mem::take(&mut self.claims[family.index()]);
        let reservations_due = std::mem::take(&mut self.reservations_due[family.index()]);
        let (affected, built) = if pending.len() < MIN_PARALLEL {
            (self.update_claims(family, &mut claims, reservations_due, &pending), Vec::new())
        } else {
            parallel::join(
                || self.update_claims(family, &mut claims, reservations_due, &pending),
                || pending.iter().map(|service| (service.clone(), self.entries(family, service))).collect(),
            )
        };
        self.claims[family.index()] = claims;
        pending.extend(affected.iter().map(|name| name.service.clone()));
        let mut built = built.into_iter().peekable();
        let table = &mut self.tables[family.index()];
        let service_cidrs = &self.service_cidrs[family.index()];
        let mut changes = Changes {
            node: table.node != self.node,
            service_cidrs: table.service_cidrs != *service_cidrs,
            ..Changes::default()
        };
        table.node = self.node.clone();
        table.service_cidrs.clone_from(service_cidrs);
        // A map built from a sorted list is packed more densely than one that grows.
        let was_empty = table.entries.is_empty();
        let mut first_entries = Vec::new();
        for service in pending {
            let built = built.next_if(|(built, _)| *built == service).map(|(_, entries)| entries);
            let Entries { desired, excess } = built.unwrap_or_else(|| self.entries(family, &service));
            let mut desired: BTreeMap<_, _> = desired.into_iter().collect();
            if !(excess.is_empty() && self.tables[family.index()].excess.is_empty()) {
                self.tables[family.index()].set_excess(&service, excess, &mut changes.excess);
            }
            let (table, claims) = (&mut self.tables[family.index()], &self.claims[family.index()]);
            for (name, entry) in &mut desired {
                // Most changes are of endpoints.
                let claimed = table.claimed(name).filter(|claimed| Arc::ptr_eq(claimed, &entry.service));
                if let Some(old) = table.entries.get(name).filter(|_| claimed.is_some() && !affected.contains(name)) {
                    entry.service = old.service.clone();
                    continue;
                }
                let (owned, lost) = claims.resolve(name, &entry.service);
                entry.service = owned;
                if table.lost.get(name) != lost.as_ref() {
                    changes.lost.insert(name.clone());
                    match lost {
                        Some(lost) => table.lost.insert(name.clone(), lost),
                        None => table.lost.remove(name),
                    };
                }
            }
            let existing: Vec<ServicePortName> = table.ports_of(&service).map(|(name, _)| name.clone()).collect();
            let mut differs = false;
            let mut record = |name, previous| {
                differs = true;
                if keep(&previous) {
                    changes.previous.insert(name, previous);
                }
            };
            for name in existing {
                let old = match desired.remove(&name) {
                    None => {
                        if table.lost.remove(&name).is_some() {
                            changes.lost.insert(name.clone());
                        }
                        table.entries.remove(&name)
                    }
                    Some(entry) if table.entries.get(&name) == Some(&entry) => continue,
                    Some(entry) => table.entries.insert(name.clone(), entry),
                };
                record(name, old);
            }
            for (name, entry) in desired {
                record(name.clone(), None);
                if was_empty {
                    first_entries.push((name, entry));
                } else {
                    table.entries.insert(name, entry);
                }
            }
            if differs {
                changes.services.insert(service);
            }
        }
        if was_empty {
            self.tables[family.index()].entries = first_entries.into_iter().collect();
        }
        changes
    }

    /// Updates the claims of pending Services. Returns the service ports with a frontend whose owner changed.
    fn update_claims(
        &self,
        family: IpFamily,
        claims: &mut Claims,
        reservations_due: bool,
        pending: &BTreeSet<NamespacedName>,
    ) -> BTreeSet<ServicePortName> {
        if reservations_due || pending.iter().any(is_api_server) {
            claims.set_reservations(self.reservations(family));
        }
        let table = &self.tables[family.index()];
        for service in pending {
            let state = self.services.get(service).and_then(|state| state.ports.as_ref());
            let desired = state.map_or(&[][..], |ports| &ports[family.index()]);
            let port_name = |port: &NamedPort| ServicePortName {
                service: service.clone(),
                port: port.name.clone(),
                protocol: port.protocol,
            };
            for (name, _) in table.ports_of(service) {
                let old = table.claimed(name);
                let new = desired.iter().find(|port| port.protocol == name.protocol && port.name == name.port);
                let new = new.map(|port| &port.port);
                if old != new {
                    claims.replace(name, old.map(|port| &**port), new.map(|port| &**port));
                }
            }
            for (name, port) in desired.iter().map(|port| (port_name(port), port)) {
                if !table.entries.contains_key(&name) {
                    claims.replace(&name, None, Some(&port.port));
                }
            }
        }
        let services = self.services.iter();
        let ports = services.filter_map(|(name, state)| Some((name, &*state.ports.as_ref()?[family.index()])));
        claims.collect(ports)
    }

    /// Returns the desired reservations of a family.
    fn reservations(&self, family: IpFamily) -> Reservations {
        let (settings, host) = &self.reserving[family.index()];
        Reservations::new(family, settings, api_server(&self.services, family), &self.other_hosts, host)
    }

    /// Returns the desired entries of a Service.
    fn entries(&self, family: IpFamily, service: &NamespacedName) -> Entries {
        let mut entries = Entries::default();
        let Some((service, state)) = self.services.get_key_value(service) else { return entries };
        let ports = state.ports.as_ref().map_or(&[][..], |ports| &ports[family.index()]);
        entries.desired.reserve_exact(ports.len());
        for port in ports {
            let name = ServicePortName { service: service.clone(), port: port.name.clone(), protocol: port.protocol };
            let limit = limits::max_endpoints(&port.port, ports.len(), self.traits);
            let balancing = &port.port.balancing;
            let adjustments = Adjustments {
                ejected: self.ejections.get(&name).filter(|_| balancing.ejects()),
                zone: self.node.zone.as_deref().zip(balancing.zone_weight.map(NonZeroU16::get)),
                shares: self.shares.get(&name),
            };
            let (endpoints, excess) = state.slices.endpoints(family, &name, adjustments, limit);
            if excess > 0 {
                entries.excess.insert(name.clone(), excess);
            }
            entries.desired.push((name, ServicePortEntry { service: port.port.clone(), endpoints }));
        }
        entries
    }

    /// Returns an equal name that shares the allocation of an existing key, if there is one.
    fn shared_name(&self, name: NamespacedName) -> NamespacedName {
        self.services.get_key_value(&name).map_or(name, |(key, _)| key.clone())
    }

    fn mark_pending(&mut self, service: &NamespacedName, families: impl IntoIterator<Item = IpFamily>) {
        for family in families {
            let pending = &mut self.pending[family.index()];
            // Looked up first because most events concern a Service that is already pending.
            if !pending.contains(service) {
                pending.insert(service.clone());
            }
        }
    }
}

/// Returns the Services with a service port whose value differs.
fn differences<T: PartialEq>(
    old: &BTreeMap<ServicePortName, T>,
    new: &BTreeMap<ServicePortName, T>,
) -> BTreeSet<NamespacedName> {
    let differs = |name: &&ServicePortName| old.get(name) != new.get(name);
    old.keys().chain(new.keys()).filter(differs).map(|name| name.service.clone()).collect()
}

/// The number of Services from which it takes longer to update the claims or the entries than to start a thread.
const MIN_PARALLEL: usize = 1_000;

/// Namespace and name of the Service that the API server creates for itself.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

/// Reports whether a Service is `default/kubernetes`, which the API server creates for itself.
pub fn is_api_server(service: &NamespacedName) -> bool {
    (service.namespace(), service.name()) == API_SERVER
}

/// Returns the endpoints of the API server that clients connect to.
fn api_server(services: &HashMap<NamespacedName, Service>, family: IpFamily) -> Vec<Frontend> {
    let name = NamespacedName::new(API_SERVER.0, API_SERVER.1);
    let Some(state) = services.get(&name) else { return Vec::new() };
    let ports = state.ports.as_ref().map_or(&[][..], |ports| &ports[family.index()]);
    let of_port = |port: &NamedPort| {
        let name = ServicePortName { service: name.clone(), port: port.name.clone(), protocol: port.protocol };
        let (endpoints, _) = state.slices.endpoints(family, &name, Adjustments::default(), usize::MAX);
        let frontend = |endpoint: Endpoint| Frontend {
            address: Some(endpoint.address),
            protocol: port.protocol,
            port: endpoint.port,
        };
        endpoints.iter().map(frontend).collect::<Vec<_>>()
    };
    ports.iter().flat_map(of_port).collect()
}

/// Returns the families with at least one port.
fn families(ports: &Ports) -> impl Iterator<Item = IpFamily> + use<> {
    let has = IpFamily::BOTH.map(|family| (family, !ports[family.index()].is_empty()));
    has.into_iter().filter(|(_, has)| *has).map(|(family, _)| family)
}

#[cfg(test)]
mod tests;
