use std::net::Ipv4Addr;

use ferroute_api::{EndpointSlice, Node, NodeAddress, ObjectMeta, Service, labels};

use super::{pod, service, slice};
use crate::{IpFamily, NamespacedName, ServiceTable, Tracker, parse::parse_node, tracker::TrackerEvent};

/// All objects that a proxy reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The proxy's node.
    pub node: Node,
    /// All Services, with distinct names.
    pub services: Vec<Service>,
    /// All slices, with distinct names.
    pub slices: Vec<EndpointSlice>,
}

impl Cluster {
    /// Returns a cluster that contains only the proxy's node, with the addresses 192.168.0.1 and `fd00:168::1`.
    pub fn new(name: &str) -> Self {
        let mut node =
            Node { metadata: ObjectMeta { name: name.to_owned(), ..ObjectMeta::default() }, ..Node::default() };
        node.status.addresses = ["192.168.0.1", "fd00:168::1"]
            .map(|address| NodeAddress { type_: "InternalIP".to_owned(), address: address.to_owned() })
            .into();
        Self { node, services: Vec::new(), slices: Vec::new() }
    }

    /// Returns a cluster of `services` IPv4 Services `bench/svc-00000`, …, each with one TCP port and `endpoints` ready
    /// endpoints. Cluster IPs start at 10.96.0.1, endpoints at 10.128.0.1. Slices have up to 100 endpoints, as in
    /// Kubernetes.
    pub fn uniform(services: usize, endpoints: usize) -> Self {
        let mut cluster = Self::new("node-1");
        for i in 0..services {
            let name = format!("svc-{i:05}");
            cluster =
                cluster.service(service(&format!("bench/{name}")).cluster_ip(&nth([10, 96, 0, 1], i)).port("http", 80));
            let pods: Vec<usize> = (i * endpoints..(i + 1) * endpoints).collect();
            for (k, pods) in pods.chunks(100).enumerate() {
                let mut slice = slice(&format!("bench/{name}-{k:03}"), &name).port("http", 8080);
                for &j in pods {
                    slice = slice.pod(pod(&nth([10, 128, 0, 1], j)).on(&format!("node-{}", j % 100)));
                }
                cluster = cluster.slice(slice);
            }
        }
        cluster
    }

    /// Sets the zone of the node.
    pub fn zone(mut self, zone: &str) -> Self {
        self.node.metadata.labels.insert(labels::ZONE.to_owned(), zone.to_owned());
        self
    }

    /// Adds a Service.
    pub fn service(mut self, service: impl Into<Service>) -> Self {
        self.services.push(service.into());
        self
    }

    /// Adds a slice.
    pub fn slice(mut self, slice: impl Into<EndpointSlice>) -> Self {
        self.slices.push(slice.into());
        self
    }

    /// Makes an edit.
    pub fn apply(&mut self, edit: &Edit) {
        match edit {
            Edit::SetService(service) => {
                let name = NamespacedName::from_metadata(&service.metadata);
                self.services.retain(|old| NamespacedName::from_metadata(&old.metadata) != name);
                self.services.push((**service).clone());
            }
            Edit::RemoveService(name) => {
                self.services.retain(|old| NamespacedName::from_metadata(&old.metadata) != *name);
            }
            Edit::SetSlice(slice) => {
                let name = NamespacedName::from_metadata(&slice.metadata);
                self.slices.retain(|old| NamespacedName::from_metadata(&old.metadata) != name);
                self.slices.push(slice.clone());
            }
            Edit::RemoveSlice(name) => self.slices.retain(|old| NamespacedName::from_metadata(&old.metadata) != *name),
            Edit::SetNode(node) => self.node.clone_from(node),
        }
    }

    /// Returns the edits that create all objects of this cluster.
    pub fn edits(&self) -> impl Iterator<Item = Edit> {
        let node = std::iter::once(Edit::SetNode(self.node.clone()));
        let services = self.services.iter().cloned().map(Box::new).map(Edit::SetService);
        node.chain(services).chain(self.slices.iter().cloned().map(Edit::SetSlice))
    }

    /// Returns a tracker with all objects and without pending changes.
    pub fn tracker(&self) -> Tracker {
        let mut tracker = Tracker::new(view_of(&self.node));
        for edit in self.edits() {
            edit.apply_to(&mut tracker);
        }
        for family in IpFamily::BOTH {
            tracker.update(family);
        }
        tracker
    }

    /// Returns the table of a family.
    pub fn table(&self, family: IpFamily) -> ServiceTable {
        self.tracker().table(family).clone()
    }
}

/// A change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Creates or changes a Service.
    SetService(Box<Service>),
    /// Deletes a Service.
    RemoveService(NamespacedName),
    /// Creates or changes a slice.
    SetSlice(EndpointSlice),
    /// Deletes a slice, given by its own name.
    RemoveSlice(NamespacedName),
    /// Changes the node, except for its name.
    SetNode(Node),
}

impl Edit {
    /// Returns the event for the tracker of the node called `node`.
    pub fn event(&self, node: &str) -> TrackerEvent {
        match self {
            Self::SetService(service) => TrackerEvent::from_service(service).expect("a valid Service"),
            Self::RemoveService(name) => TrackerEvent::ServiceDeleted(name.clone()),
            Self::SetSlice(slice) => TrackerEvent::from_slice(slice, node).expect("a valid slice"),
            Self::RemoveSlice(name) => TrackerEvent::SliceDeleted(name.clone()),
            Self::SetNode(node) => TrackerEvent::NodeApplied(view_of(node)),
        }
    }

    /// Applies the event to a tracker.
    pub fn apply_to(&self, tracker: &mut Tracker) {
        let event = self.event(&tracker.node().name);
        tracker.apply(event);
    }
}

fn view_of(node: &Node) -> crate::NodeView {
    parse_node(node).expect("a valid Node")
}

fn nth(first: [u8; 4], n: usize) -> String {
    let offset = u32::try_from(n).expect("fewer addresses than IPv4 has");
    Ipv4Addr::from(u32::from_be_bytes(first) + offset).to_string()
}
