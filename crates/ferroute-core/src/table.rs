use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::IpNet;

use crate::{Endpoint, IpFamily, NodeView, NamespacedName, ServicePort, ServicePortName};

/// One service port with all its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortEntry {
    /// The port of the Service; the tracker has the same one.
    pub service: Arc<ServicePort>,
    /// Every endpoint that any slice names for it, whatever its state, each address and port once, in the order of
    /// their texts (`10.0.0.10:80` before `10.0.0.2:80`), which is kube-proxy's.
    pub endpoints: Box<[Endpoint]>,
}

/// What should be true for one IP family: every service port and its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceTable {
    /// The family that all addresses in here are of.
    pub family: IpFamily,
    /// The node that the rules are for.
    pub node: Arc<NodeView>,
    /// The networks that cluster IPs are taken from, sorted, each once; empty where the cluster does not tell.
    pub service_cidrs: Vec<IpNet>,
    /// All service ports, in the order of their names.
    pub entries: BTreeMap<ServicePortName, ServicePortEntry>,
}

/// What differs between the table as it was last applied and the table now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services of which at least one port or endpoint differs.
    pub services: BTreeSet<NamespacedName>,
    /// For each service port that differs, what it was; `None` for one that is new.
    pub previous: BTreeMap<ServicePortName, Option<ServicePortEntry>>,
    /// The node differs, so that rules of any service may.
    pub node: bool,
    /// [`ServiceTable::service_cidrs`] differ.
    pub service_cidrs: bool,
}

impl Changes {
    /// Nothing differs.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.previous.is_empty() && !self.node && !self.service_cidrs
    }
}

/// Which endpoints a service port's frontends use on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSets<'a> {
    /// For traffic with policy Cluster (topology taken into account); empty if no traffic has it.
    pub cluster: Vec<&'a Endpoint>,
    /// For traffic with policy Local; empty if no traffic has it.
    pub local: Vec<&'a Endpoint>,
    /// The two together, each endpoint once, sorted like [`ServicePortEntry::endpoints`].
    pub reachable: Vec<&'a Endpoint>,
    /// Some node of the cluster has an endpoint that could serve; with this false, connections are refused.
    pub any_anywhere: bool,
}

impl ServiceTable {
    /// A table with nothing in it.
    pub fn new(family: IpFamily, node: Arc<NodeView>) -> Self {
        Self { family, node, service_cidrs: Vec::new(), entries: BTreeMap::new() }
    }

    /// The ports of one Service, in order.
    pub fn ports_of<'a>(
        &'a self,
        service: &NamespacedName,
    ) -> impl Iterator<Item = (&'a ServicePortName, &'a ServicePortEntry)> + use<'a> {
        let first = ServicePortName { service: service.clone(), port: Arc::from(""), protocol: crate::Protocol::Tcp };
        let service = service.clone();
        self.entries.range(first..).take_while(move |(name, _)| name.service == service)
    }
}
