use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use ipnet::IpNet;

use crate::{
    Endpoints, Frontend, IpFamily, LostFrontend, LostFrontends, NamespacedName, NodeView, Protocol, ServicePort,
    ServicePortName,
};

/// A service port with all of its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortEntry {
    /// The service port with the frontends that it owns, shared with the tracker if these are all that it claims.
    pub service: Arc<ServicePort>,
    /// All endpoints in slices of the Service, regardless of their conditions. Each address and port occurs once. They
    /// are sorted by text (`10.0.0.10:80` before `10.0.0.2:80`), as in kube-proxy.
    pub endpoints: Endpoints,
}

/// The desired state of one IP family: all service ports and their endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceTable {
    /// The family of all addresses in this table.
    pub family: IpFamily,
    /// The node that the rules are for.
    pub node: Arc<NodeView>,
    /// The networks that cluster IPs are allocated from, sorted and distinct; empty if the cluster has no ServiceCIDRs.
    pub service_cidrs: Vec<IpNet>,
    /// All service ports. No two service ports have the same frontend.
    pub entries: BTreeMap<ServicePortName, ServicePortEntry>,
    /// Frontends that service ports claim and other service ports own.
    pub lost: BTreeMap<ServicePortName, LostFrontends>,
    /// Number of endpoints that are left out of [`ServicePortEntry::endpoints`] because of the
    /// [`limits`](crate::limits).
    pub excess: BTreeMap<ServicePortName, usize>,
}

/// The difference between a table as it was last applied and its current state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services with at least one changed port or endpoint.
    pub services: BTreeSet<NamespacedName>,
    /// The previous entries of all changed service ports; `None` for new ones.
    pub previous: BTreeMap<ServicePortName, Option<ServicePortEntry>>,
    /// Whether the node changed, so that rules of every Service may have changed.
    pub node: bool,
    /// [`ServiceTable::service_cidrs`] changed.
    pub service_cidrs: bool,
    /// Service ports whose entry in [`ServiceTable::lost`] changed. Rules do not depend on it.
    pub lost: BTreeSet<ServicePortName>,
    /// Service ports whose entry in [`ServiceTable::excess`] changed. Rules do not depend on it.
    pub excess: BTreeSet<ServicePortName>,
}

impl ServicePortEntry {
    /// Reports for internal and for external traffic whether its policy leaves it without a usable endpoint on this
    /// node although other nodes have one.
    pub fn lacks_local_endpoints(&self) -> (bool, bool) {
        let service = &self.service;
        if !service.uses_local_endpoints() {
            return (false, false);
        }
        let usable = || self.endpoints.iter().filter(|endpoint| endpoint.is_usable());
        let lacks = usable().next().is_some() && !usable().any(|endpoint| endpoint.local);
        let external = service.external_local() && service.externally_accessible();
        (lacks && service.internal_local(), lacks && external)
    }
}

impl Changes {
    /// Reports whether nothing changed that rules depend on.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.previous.is_empty() && !self.node && !self.service_cidrs
    }
}

impl ServiceTable {
    /// Returns a table without service ports.
    pub fn new(family: IpFamily, node: Arc<NodeView>) -> Self {
        Self {
            family,
            node,
            service_cidrs: Vec::new(),
            entries: BTreeMap::new(),
            lost: BTreeMap::new(),
            excess: BTreeMap::new(),
        }
    }

    /// Returns a service port with all the frontends that it claims, including those that other service ports own.
    pub fn claimed(&self, name: &ServicePortName) -> Option<&Arc<ServicePort>> {
        let lost = self.lost.get(name).map(|lost| &lost.claimed);
        lost.or_else(|| self.entries.get(name).map(|entry| &entry.service))
    }

    /// Returns the claim of a service port on a frontend that it does not own; `None` if it owns the frontend.
    pub fn lost_frontend(&self, name: &ServicePortName, frontend: Frontend) -> Option<&LostFrontend> {
        self.lost.get(name)?.frontends.iter().find(|lost| lost.frontend == frontend)
    }

    /// Returns a frontend that two entries have; `None` in every table of a tracker.
    pub fn shared_frontend(&self) -> Option<Frontend> {
        let mut owners = HashMap::new();
        let frontends = self.entries.iter().flat_map(|(name, entry)| {
            entry.service.frontends(name.protocol).map(move |(_, frontend)| (name, frontend))
        });
        let mut shared = frontends.filter(|(name, frontend)| *owners.entry(*frontend).or_insert(*name) != *name);
        shared.next().map(|(_, frontend)| frontend)
    }

    /// Returns the entries of one Service.
    pub fn ports_of<'a>(
        &'a self,
        service: &NamespacedName,
    ) -> impl Iterator<Item = (&'a ServicePortName, &'a ServicePortEntry)> + use<'a> {
        range_of(&self.entries, service)
    }

    /// Sets the numbers of endpoints beyond the limit of a Service, and records which changed.
    pub(crate) fn set_excess(
        &mut self,
        service: &NamespacedName,
        excess: BTreeMap<ServicePortName, usize>,
        changed: &mut BTreeSet<ServicePortName>,
    ) {
        let is_new = |(name, count): &(&ServicePortName, &usize)| self.excess.get(*name) != Some(*count);
        changed.extend(excess.iter().filter(is_new).map(|(name, _)| name.clone()));
        let old = range_of(&self.excess, service).map(|(name, _)| name.clone());
        let removed: Vec<ServicePortName> = old.filter(|name| !excess.contains_key(name)).collect();
        self.excess.retain(|name, _| !removed.contains(name));
        changed.extend(removed);
        self.excess.extend(excess);
    }
}

/// Returns the part of a map that belongs to one Service.
fn range_of<'a, V>(
    map: &'a BTreeMap<ServicePortName, V>,
    service: &NamespacedName,
) -> impl Iterator<Item = (&'a ServicePortName, &'a V)> + use<'a, V> {
    let first = ServicePortName { service: service.clone(), port: Arc::from(""), protocol: Protocol::Tcp };
    let service = service.clone();
    map.range(first..).take_while(move |(name, _)| name.service == service)
}
