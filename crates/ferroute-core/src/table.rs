use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::IpNet;

use crate::{Endpoint, IpFamily, NamespacedName, NodeView, Protocol, ServicePort, ServicePortName};

/// A service port with all of its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortEntry {
    /// The service port, shared with the tracker.
    pub service: Arc<ServicePort>,
    /// All endpoints in slices of the Service, whatever their conditions. Each address and port occurs once. They are
    /// sorted by text (`10.0.0.10:80` before `10.0.0.2:80`), as in kube-proxy.
    pub endpoints: Box<[Endpoint]>,
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
    /// All service ports.
    pub entries: BTreeMap<ServicePortName, ServicePortEntry>,
}

/// The difference between a table as it was last applied and its current state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services with at least one changed port or endpoint.
    pub services: BTreeSet<NamespacedName>,
    /// The previous entries of all changed service ports; `None` for new ones.
    pub previous: BTreeMap<ServicePortName, Option<ServicePortEntry>>,
    /// The node changed, so that rules of every Service may have changed.
    pub node: bool,
    /// [`ServiceTable::service_cidrs`] changed.
    pub service_cidrs: bool,
}

impl Changes {
    /// Reports whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.previous.is_empty() && !self.node && !self.service_cidrs
    }
}

impl ServiceTable {
    /// Returns a table without service ports.
    pub fn new(family: IpFamily, node: Arc<NodeView>) -> Self {
        Self { family, node, service_cidrs: Vec::new(), entries: BTreeMap::new() }
    }

    /// Returns the entries of one Service.
    pub fn ports_of<'a>(
        &'a self,
        service: &NamespacedName,
    ) -> impl Iterator<Item = (&'a ServicePortName, &'a ServicePortEntry)> + use<'a> {
        let first = ServicePortName { service: service.clone(), port: Arc::from(""), protocol: Protocol::Tcp };
        let service = service.clone();
        self.entries.range(first..).take_while(move |(name, _)| name.service == service)
    }
}
