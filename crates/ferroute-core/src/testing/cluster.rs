use std::net::Ipv4Addr;

use ferroute_api::{EndpointSlice, Node, NodeAddress, ObjectMeta, Service, labels};

use super::{pod, service, slice};
use crate::{
    IpFamily, NamespacedName, ServiceTable, Tracker,
    parse::parse_node,
    tracker::TrackerEvent,
};

/// All objects that a proxy sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The node that the proxy runs on.
    pub node: Node,
    /// All Services, each namespace and name once.
    pub services: Vec<Service>,
    /// All slices, each namespace and name once.
    pub slices: Vec<EndpointSlice>,
}

impl Cluster {
    /// A cluster with nothing but the proxy's own node, which has the addresses 192.168.0.1 and `fd00:168::1`.
    pub fn new(name: &str) -> Self {
        let mut node =
            Node { metadata: ObjectMeta { name: name.to_owned(), ..ObjectMeta::default() }, ..Node::default() };
        node.status.addresses = ["192.168.0.1", "fd00:168::1"]
            .map(|address| NodeAddress { type_: "InternalIP".to_owned(), address: address.to_owned() })
            .into();
        Self { node, services: Vec::new(), slices: Vec::new() }
    }

    /// `services` Services `bench/svc-00000`, … of IPv4, with one TCP port and `endpoints` ready endpoints each. Cluster
    /// IPs count up from 10.96.0.1, endpoints from 10.128.0.1; a slice holds at most 100, as Kubernetes makes them.
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

    /// Puts the node into a zone.
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
                self.services.retain(|old| NamespacedName::from_metadata(&old.metadata) != NamespacedName::from_metadata(&service.metadata));
                self.services.push((**service).clone());
            }
            Edit::RemoveService(name) => self.services.retain(|old| NamespacedName::from_metadata(&old.metadata) != *name),
            Edit::SetSlice(slice) => {
                self.slices.retain(|old| NamespacedName::from_metadata(&old.metadata) != NamespacedName::from_metadata(&slice.metadata));
                self.slices.push(slice.clone());
            }
            Edit::RemoveSlice(name) => self.slices.retain(|old| NamespacedName::from_metadata(&old.metadata) != *name),
            Edit::SetNode(node) => self.node.clone_from(node),
        }
    }

    /// The edits that make this cluster out of one that is empty.
    pub fn edits(&self) -> impl Iterator<Item = Edit> {
        let node = std::iter::once(Edit::SetNode(self.node.clone()));
        let services = self.services.iter().cloned().map(Box::new).map(Edit::SetService);
        node.chain(services).chain(self.slices.iter().cloned().map(Edit::SetSlice))
    }

    /// A tracker that knows of all objects, with nothing left to update.
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

    /// The table of a family.
    pub fn table(&self, family: IpFamily) -> ServiceTable {
        self.tracker().table(family).clone()
    }
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// A Service is new or has changed.
    SetService(Box<Service>),
    /// A Service is gone.
    RemoveService(NamespacedName),
    /// A slice is new or has changed.
    SetSlice(EndpointSlice),
    /// A slice, by its own name, is gone.
    RemoveSlice(NamespacedName),
    /// The node has changed; it keeps its name.
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
    parse_node(node).expect("a good Node")
}

fn nth(first: [u8; 4], n: usize) -> String {
    let offset = u32::try_from(n).expect("fewer addresses than IPv4 has");
    Ipv4Addr::from(u32::from_be_bytes(first) + offset).to_string()
}
