//! What was last applied, what is wanted now, and what differs between the two.
//!
//! The tracker holds the wanted Services and slices in a compact form and, per family, the table that was last handed
//! out. Events only change what is wanted and note whose service it was; [`Tracker::update`] then rebuilds just these
//! services and compares them with the table, so a change that is undone before the next sync leaves no trace.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use crate::{
    Changes, Endpoint, Entry, Hints, IpFamily, NodeView, Protocol, ServiceName, ServicePort, ServicePortName,
    ServiceTable,
};

/// A Service as the proxy sees it: its ports for each family that it has a cluster IP of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// Namespace and name.
    pub name: ServiceName,
    /// Ports by [`IpFamily::index`].
    pub ports: [Vec<NamedPort>; 2],
}

/// A port of a [`ServiceView`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// Its name, by which slices' ports are matched.
    pub name: Arc<str>,
    /// Its protocol, by which they are matched too.
    pub protocol: Protocol,
    /// Everything else.
    pub port: ServicePort,
}

/// An endpoint slice as the proxy sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceView {
    /// The Service that it belongs to.
    pub service: ServiceName,
    /// The slice's own namespace and name.
    pub name: ServiceName,
    /// Family of all its addresses.
    pub family: IpFamily,
    /// Ports that every endpoint has.
    pub ports: Vec<SlicePort>,
    /// Its endpoints.
    pub endpoints: Vec<Candidate>,
}

/// A port of a [`SliceView`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Name of the service port.
    pub name: Box<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port on the endpoints.
    pub port: u16,
}

/// An endpoint of a [`SliceView`]; the fields mean the same as in [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Address of the pod or host.
    pub address: IpAddr,
    /// Takes new connections.
    pub ready: bool,
    /// Answers, even while it terminates.
    pub serving: bool,
    /// Is on its way out.
    pub terminating: bool,
    /// Runs on this node.
    pub local: bool,
    /// Topology hints.
    pub hints: Option<Arc<Hints>>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Tracker {
    services: HashMap<ServiceName, [Vec<NamedPort>; 2]>,
    /// Slices by service, then in the order of their own names, so that the same slices always give the same endpoints.
    /// A list, because most services have one slice only, and a map of one takes a kilobyte more.
    slices: HashMap<ServiceName, Vec<SliceView>>,
    /// The service that each known slice belongs to: a deletion names the slice only.
    owners: HashMap<ServiceName, ServiceName>,
    tables: [ServiceTable; 2],
    /// Services that may differ from the table, by family.
    touched: [BTreeSet<ServiceName>; 2],
    /// The node as it is now; each table has it as it was at its last update.
    node: Arc<NodeView>,
}

impl Tracker {
    /// A tracker that knows of nothing yet, for rules of `node`.
    pub fn new(node: NodeView) -> Self {
        let node = Arc::new(node);
        Self {
            services: HashMap::new(),
            slices: HashMap::new(),
            owners: HashMap::new(),
            tables: IpFamily::BOTH.map(|family| ServiceTable::new(family, node.clone())),
            touched: Default::default(),
            node,
        }
    }

    /// A Service is new or has changed.
    pub fn set_service(&mut self, service: ServiceView) {
        self.touch(&service.name);
        self.services.insert(service.name, service.ports);
    }

    /// A Service is gone, or is none of ours any more.
    pub fn remove_service(&mut self, name: &ServiceName) {
        if self.services.remove(name).is_some() {
            self.touch(name);
        }
    }

    /// A slice is new or has changed, perhaps also the Service that it belongs to.
    pub fn set_slice(&mut self, slice: SliceView) {
        if self.owners.get(&slice.name).is_some_and(|owner| *owner != slice.service) {
            self.remove_slice(&slice.name);
        }
        self.touch(&slice.service);
        self.owners.insert(slice.name.clone(), slice.service.clone());
        let slices = self.slices.entry(slice.service.clone()).or_default();
        match position(slices, &slice.name) {
            Ok(known) => slices[known] = slice,
            Err(place) => {
                slices.reserve_exact(1);
                slices.insert(place, slice);
            }
        }
    }

    /// A slice, given by its namespace and name, is gone, or is none of ours any more.
    pub fn remove_slice(&mut self, name: &ServiceName) {
        let Some(owner) = self.owners.remove(name) else { return };
        if let Some(slices) = self.slices.get_mut(&owner) {
            if let Ok(known) = position(slices, name) {
                slices.remove(known);
            }
            if slices.is_empty() {
                self.slices.remove(&owner);
            }
        }
        self.touch(&owner);
    }

    /// The node is new or has changed.
    pub fn set_node(&mut self, node: NodeView) {
        if *self.node != node {
            self.node = Arc::new(node);
        }
    }

    /// The table of a family as [`Tracker::update`] left it.
    pub fn table(&self, family: IpFamily) -> &ServiceTable {
        &self.tables[family.index()]
    }

    /// Something may differ from the table.
    pub fn is_touched(&self, family: IpFamily) -> bool {
        !self.touched[family.index()].is_empty() || self.table(family).node != self.node
    }

    /// Names of all Services that are wanted now, in no particular order.
    pub fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.services.keys()
    }

    /// The ports of a Service that is wanted now, by [`IpFamily::index`]; `None` if there is no such Service.
    pub fn ports_of(&self, service: &ServiceName) -> Option<&[Vec<NamedPort>; 2]> {
        self.services.get(service)
    }

    /// The slices of a Service that are wanted now, in the order of their names.
    pub fn slices_of(&self, service: &ServiceName) -> &[SliceView] {
        self.slices.get(service).map_or(&[], Vec::as_slice)
    }

    /// Names of all slices that are wanted now, in no particular order.
    pub fn slices(&self) -> impl Iterator<Item = &ServiceName> {
        self.owners.keys()
    }

    /// Brings the table of a family up to date and tells what has changed in it. The caller must bring these changes
    /// into force, or else the whole table.
    pub fn update(&mut self, family: IpFamily) -> Changes {
        let touched = std::mem::take(&mut self.touched[family.index()]);
        let table = &mut self.tables[family.index()];
        let mut changes = Changes { node: table.node != self.node, ..Changes::default() };
        table.node = self.node.clone();
        for service in touched {
            self.update_service(family, service, &mut changes);
        }
        changes
    }

    fn update_service(&mut self, family: IpFamily, service: ServiceName, changes: &mut Changes) {
        let wanted = self.entries_of(family, &service);
        let table = &mut self.tables[family.index()];
        let known: Vec<ServicePortName> = table.ports_of(&service).map(|(name, _)| name.clone()).collect();
        let mut differs = false;
        for name in known.into_iter().filter(|name| !wanted.contains_key(name)) {
            let old = table.entries.remove(&name);
            changes.previous.insert(name, old);
            differs = true;
        }
        for (name, entry) in wanted {
            if table.entries.get(&name) == Some(&entry) {
                continue;
            }
            let old = table.entries.insert(name.clone(), entry);
            changes.previous.insert(name, old);
            differs = true;
        }
        if differs {
            changes.services.insert(service);
        }
    }

    fn entries_of(&self, family: IpFamily, service: &ServiceName) -> BTreeMap<ServicePortName, Entry> {
        let Some(ports) = self.services.get(service) else { return BTreeMap::new() };
        let slices = self.slices.get(service);
        let ports = ports[family.index()].iter();
        ports
            .map(|port| {
                let name =
                    ServicePortName { service: service.clone(), port: port.name.clone(), protocol: port.protocol };
                let slices = slices.into_iter().flatten().filter(|slice| slice.family == family);
                let endpoints = endpoints_of(&name, slices);
                (name, Entry { service: port.port.clone(), endpoints })
            })
            .collect()
    }

    fn touch(&mut self, service: &ServiceName) {
        for touched in &mut self.touched {
            // Looked up first because most events touch a service that is known to be touched.
            if !touched.contains(service) {
                touched.insert(service.clone());
            }
        }
    }
}

/// Where the slice of this name is, or would be.
fn position(slices: &[SliceView], name: &ServiceName) -> Result<usize, usize> {
    slices.binary_search_by(|known| known.name.cmp(name))
}

/// The endpoints of a service port from all its slices: each address and port once, sorted by their text.
fn endpoints_of<'a>(name: &ServicePortName, slices: impl Iterator<Item = &'a SliceView>) -> Box<[Endpoint]> {
    let mut endpoints = Vec::new();
    for slice in slices {
        for port in slice.ports_for(name) {
            endpoints.extend(slice.endpoints.iter().map(|candidate| candidate.at(port.port)));
        }
    }
    endpoints.sort_by_cached_key(|endpoint: &Endpoint| (endpoint.to_string(), preference(endpoint)));
    endpoints.dedup_by_key(|endpoint| endpoint.socket());
    endpoints.into_boxed_slice()
}

/// Which of two endpoints with the same address and port is meant, lowest first. While a pod moves between slices it is
/// in both, and a new pod can have the address of one that still terminates: then the one that lives is right.
fn preference(endpoint: &Endpoint) -> (bool, bool, bool, bool) {
    (endpoint.terminating, !endpoint.ready, !endpoint.serving, !endpoint.local)
}

impl SliceView {
    /// The ports that are meant by a service port: those of its name and protocol.
    pub fn ports_for<'a>(&'a self, name: &'a ServicePortName) -> impl Iterator<Item = &'a SlicePort> {
        self.ports.iter().filter(|port| *port.name == *name.port && port.protocol == name.protocol)
    }
}

impl Candidate {
    /// The endpoint at a port of its slice.
    pub fn at(&self, port: u16) -> Endpoint {
        let Self { address, ready, serving, terminating, local, ref hints } = *self;
        Endpoint { address, port, ready, serving, terminating, local, hints: hints.clone() }
    }
}

#[cfg(test)]
mod tests;
