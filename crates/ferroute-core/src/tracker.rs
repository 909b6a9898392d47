//! What was last applied, what is wanted now, and what differs between the two.
//!
//! The tracker holds the wanted Services and slices in a compact form and, per family, the table that was last handed
//! out. Events only change what is wanted and note whose service it was; [`Tracker::update`] then rebuilds just these
//! services and compares them with the table, so a change that is undone before the next sync leaves no trace.

mod slices;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map},
    sync::Arc,
};

use ipnet::IpNet;

use self::slices::Slices;
pub use self::view::{Candidate, NamedPort, ServiceView, SlicePort, SliceView};
use crate::{Changes, ServicePortEntry, IpFamily, NodeView, NamespacedName, ServicePortName, ServiceTable};

/// See the module's text.
#[derive(Debug)]
pub struct Tracker {
    wanted: HashMap<NamespacedName, Wanted>,
    /// The service that each known slice belongs to: a deletion names the slice only.
    owners: HashMap<NamespacedName, NamespacedName>,
    tables: [ServiceTable; 2],
    /// Services that may differ from the table, by family.
    touched: [BTreeSet<NamespacedName>; 2],
    /// The node as it is now; each table has it as it was at its last update.
    node: Arc<NodeView>,
    /// Networks of cluster IPs as they are now, by family, sorted.
    service_cidrs: [Vec<IpNet>; 2],
}

/// What is wanted under the name of a Service.
#[derive(Debug, Default)]
struct Wanted {
    /// The Service's ports by [`IpFamily::index`]; `None` where there are only slices.
    ports: Option<Ports>,
    slices: Slices,
}

type Ports = [Box<[NamedPort]>; 2];

impl Tracker {
    /// A tracker that knows of nothing yet, for rules of `node`.
    pub fn new(node: NodeView) -> Self {
        let node = Arc::new(node);
        Self {
            wanted: HashMap::new(),
            owners: HashMap::new(),
            tables: IpFamily::BOTH.map(|family| ServiceTable::new(family, node.clone())),
            touched: Default::default(),
            node,
            service_cidrs: Default::default(),
        }
    }

    /// A Service is new or has changed.
    pub fn set_service(&mut self, service: ServiceView) {
        let name = self.shared_name(service.name);
        let new = service.ports.map(Vec::into_boxed_slice);
        let touched = families(&new);
        let old = self.wanted.entry(name.clone()).or_default().ports.replace(new);
        self.touch(&name, touched.into_iter().chain(old.iter().flat_map(families)));
    }

    /// A Service is gone, or is none of ours any more.
    pub fn remove_service(&mut self, name: &NamespacedName) {
        let Some(wanted) = self.wanted.get_mut(name) else { return };
        let Some(old) = wanted.ports.take() else { return };
        if wanted.slices.is_empty() {
            self.wanted.remove(name);
        }
        self.touch(name, families(&old));
    }

    /// A slice is new or has changed, perhaps also the Service that it belongs to.
    pub fn set_slice(&mut self, mut slice: SliceView) {
        match self.owners.get_key_value(&slice.name) {
            Some((_, owner)) if *owner != slice.service => self.remove_slice(&slice.name),
            Some((name, _)) => slice.name = name.clone(),
            None => {}
        }
        let service = self.shared_name(slice.service.clone());
        self.owners.insert(slice.name.clone(), service.clone());
        let family = slice.family;
        let old = self.wanted.entry(service.clone()).or_default().slices.set(slice);
        self.touch(&service, [family].into_iter().chain(old));
    }

    /// A slice, given by its namespace and name, is gone, or is none of ours any more.
    pub fn remove_slice(&mut self, name: &NamespacedName) {
        let Some(owner) = self.owners.remove(name) else { return };
        let hash_map::Entry::Occupied(mut wanted) = self.wanted.entry(owner.clone()) else { return };
        let old = wanted.get_mut().slices.remove(name);
        if wanted.get().ports.is_none() && wanted.get().slices.is_empty() {
            wanted.remove();
        }
        self.touch(&owner, old);
    }

    /// The node is new or has changed.
    pub fn set_node(&mut self, node: NodeView) {
        if *self.node != node {
            self.node = Arc::new(node);
        }
    }

    /// The networks that cluster IPs are taken from, of all families, in any order.
    pub fn set_service_cidrs(&mut self, cidrs: impl IntoIterator<Item = IpNet>) {
        let each: BTreeSet<IpNet> = cidrs.into_iter().collect();
        self.service_cidrs = Default::default();
        for cidr in each {
            self.service_cidrs[IpFamily::of(cidr.addr()).index()].push(cidr);
        }
    }

    /// The networks that cluster IPs are taken from.
    pub fn service_cidrs(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.service_cidrs.iter().flatten().copied()
    }

    /// The table of a family as [`Tracker::update`] left it.
    pub fn table(&self, family: IpFamily) -> &ServiceTable {
        &self.tables[family.index()]
    }

    /// The node as it is now.
    pub fn node(&self) -> &NodeView {
        &self.node
    }

    /// Something may differ from the table.
    pub fn is_touched(&self, family: IpFamily) -> bool {
        let table = self.table(family);
        !self.touched[family.index()].is_empty()
            || table.node != self.node
            || table.service_cidrs != self.service_cidrs[family.index()]
    }

    /// Names of all Services that are wanted now, in no particular order.
    pub fn services(&self) -> impl Iterator<Item = &NamespacedName> {
        self.wanted.iter().filter(|(_, wanted)| wanted.ports.is_some()).map(|(name, _)| name)
    }

    /// The ports of a Service that is wanted now, by [`IpFamily::index`]; `None` if there is no such Service.
    pub fn ports_of(&self, service: &NamespacedName) -> Option<&[Box<[NamedPort]>; 2]> {
        self.wanted.get(service)?.ports.as_ref()
    }

    /// The slices of a Service that are wanted now, in the order of their names.
    pub fn slices_of<'a>(&'a self, service: &'a NamespacedName) -> impl Iterator<Item = SliceView> + 'a {
        self.wanted.get(service).into_iter().flat_map(|wanted| wanted.slices.views(service))
    }

    /// A slice that is wanted now, by its own namespace and name.
    pub fn slice(&self, name: &NamespacedName) -> Option<SliceView> {
        self.slices_of(self.owners.get(name)?).find(|slice| slice.name == *name)
    }

    /// Names of all slices that are wanted now, in no particular order.
    pub fn slices(&self) -> impl Iterator<Item = &NamespacedName> {
        self.owners.keys()
    }

    /// Brings the table of a family up to date and tells what has changed in it. The caller must bring these changes
    /// into force, or else the whole table.
    pub fn update(&mut self, family: IpFamily) -> Changes {
        self.update_and(family, |_| true)
    }

    /// The same for callers who bring the whole table into force: [`Changes::previous`] has only service ports of which
    /// there was something before, so that at the start of a proxy it does not name all there are.
    pub fn update_all(&mut self, family: IpFamily) -> Changes {
        self.update_and(family, |previous| previous.is_some())
    }

    /// `tells` says, of what was before, whether it is to be in [`Changes::previous`].
    fn update_and(&mut self, family: IpFamily, tells: impl Fn(&Option<ServicePortEntry>) -> bool) -> Changes {
        let touched = std::mem::take(&mut self.touched[family.index()]);
        let table = &mut self.tables[family.index()];
        let service_cidrs = &self.service_cidrs[family.index()];
        let mut changes = Changes {
            node: table.node != self.node,
            service_cidrs: table.service_cidrs != *service_cidrs,
            ..Changes::default()
        };
        table.node = self.node.clone();
        table.service_cidrs.clone_from(service_cidrs);
        // A map that is made at once is packed more tightly than one that grows.
        let was_empty = table.entries.is_empty();
        let mut new = Vec::new();
        for service in touched {
            let mut wanted = self.entries_of(family, &service);
            let table = &mut self.tables[family.index()];
            let known: Vec<ServicePortName> = table.ports_of(&service).map(|(name, _)| name.clone()).collect();
            let mut differs = false;
            let mut tell = |name, previous| {
                differs = true;
                if tells(&previous) {
                    changes.previous.insert(name, previous);
                }
            };
            for name in known {
                let old = match wanted.remove(&name) {
                    None => table.entries.remove(&name),
                    Some(entry) if table.entries.get(&name) == Some(&entry) => continue,
                    Some(entry) => table.entries.insert(name.clone(), entry),
                };
                tell(name, old);
            }
            for (name, entry) in wanted {
                tell(name.clone(), None);
                if was_empty {
                    new.push((name, entry));
                } else {
                    table.entries.insert(name, entry);
                }
            }
            if differs {
                changes.services.insert(service);
            }
        }
        if was_empty {
            self.tables[family.index()].entries = new.into_iter().collect();
        }
        changes
    }

    fn entries_of(&self, family: IpFamily, service: &NamespacedName) -> BTreeMap<ServicePortName, ServicePortEntry> {
        let Some((service, wanted)) = self.wanted.get_key_value(service) else { return BTreeMap::new() };
        let ports = wanted.ports.iter().flat_map(|ports| &ports[family.index()]);
        ports
            .map(|port| {
                let name =
                    ServicePortName { service: service.clone(), port: port.name.clone(), protocol: port.protocol };
                let endpoints = wanted.slices.endpoints_of(family, &name);
                (name, ServicePortEntry { service: port.port.clone(), endpoints })
            })
            .collect()
    }

    /// The same name, as a clone of the one that is there already if there is one.
    fn shared_name(&self, name: NamespacedName) -> NamespacedName {
        self.wanted.get_key_value(&name).map_or(name, |(known, _)| known.clone())
    }

    fn touch(&mut self, service: &NamespacedName, families: impl IntoIterator<Item = IpFamily>) {
        for family in families {
            let touched = &mut self.touched[family.index()];
            // Looked up first because most events touch a service that is known to be touched.
            if !touched.contains(service) {
                touched.insert(service.clone());
            }
        }
    }
}

/// The families that there are ports of.
fn families(ports: &Ports) -> impl Iterator<Item = IpFamily> + use<> {
    let has = IpFamily::BOTH.map(|family| (family, !ports[family.index()].is_empty()));
    has.into_iter().filter(|(_, has)| *has).map(|(family, _)| family)
}

#[cfg(test)]
mod tests;
