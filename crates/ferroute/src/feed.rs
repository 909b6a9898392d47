//! From what a source tells to what the sync loop takes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Instant,
};

use ferroute_api::ObjectMeta;
use ferroute_config::Resolved;
use ferroute_core::{
    LocalTrafficDetector, NodeView, ServiceName,
    parse::{InvalidObject, ObjectVersion, parse_node, parse_service, parse_service_cidr, parse_slice, trigger_time},
};
use ferroute_source::{Event, ObjectName, Problem, Resource};
use ipnet::IpNet;

use crate::{
    events::Events,
    logging::chain,
    node_wait::Missing,
    sync::{Change, Stamp},
};

/// Translates one source's events for one node. An object that is wrong is told and passed over; what was known of it
/// before stays in force.
pub(crate) struct Feed<'a> {
    resolved: &'a Resolved,
    /// The node as it is known so far.
    node: NodeView,
    /// The host's own, for a Node that has none.
    host_addresses: Vec<IpAddr>,
    /// The Node has told addresses.
    has_node_addresses: bool,
    /// By the names of the ServiceCIDRs.
    service_cidrs: BTreeMap<ObjectName, Vec<IpNet>>,
    unlisted: BTreeSet<Resource>,
    events: Events,
}

impl<'a> Feed<'a> {
    /// Nothing has been told yet; `node` holds what is known without its Node.
    pub(crate) fn new(resolved: &'a Resolved, node: NodeView) -> Self {
        Self {
            resolved,
            host_addresses: node.addresses.clone(),
            node,
            has_node_addresses: false,
            service_cidrs: BTreeMap::new(),
            unlisted: Resource::ALL.into(),
            events: Events::none(),
        }
    }

    /// Objects that are wrong become Events.
    pub(crate) fn with_events(self, events: Events) -> Self {
        Self { events, ..self }
    }

    /// The node as it is known so far.
    pub(crate) fn node(&self) -> &NodeView {
        &self.node
    }

    /// What is not known yet of the node that rules need.
    pub(crate) fn missing(&self) -> Missing {
        let needs_networks = self.resolved.settings.detector == LocalTrafficDetector::NodeCidr;
        Missing { addresses: !self.has_node_addresses, pod_networks: needs_networks && self.node.pod_cidrs.is_empty() }
    }

    /// All kinds have been listed once.
    pub(crate) fn is_listed(&self) -> bool {
        self.unlisted.is_empty()
    }

    /// What a batch of events comes to.
    pub(crate) fn take(&mut self, events: Vec<Event>) -> Vec<Change> {
        let listed_before = self.is_listed();
        let received = Instant::now();
        let mut changes: Vec<Change> = events.into_iter().filter_map(|event| self.translate(event, received)).collect();
        if self.is_listed() && !listed_before {
            changes.push(Change::Listed);
        }
        changes
    }

    fn translate(&mut self, event: Event, received: Instant) -> Option<Change> {
        let gone = Stamp { received, version: ObjectVersion::default(), trigger: None };
        let stamp = |metadata: &ObjectMeta| Stamp { version: ObjectVersion::of(metadata), ..gone };
        match event {
            Event::ServiceApplied(service) => match self.valid(parse_service(&service))? {
                Some(view) => Some(Change::Service(view, stamp(&service.metadata))),
                None => Some(Change::ServiceGone(name(&ObjectName::of(&service.metadata)), gone)),
            },
            Event::ServiceDeleted(service) => Some(Change::ServiceGone(name(&service), gone)),
            Event::SliceApplied(slice) => match self.valid(parse_slice(&slice, &self.node.name))? {
                Some(view) => {
                    let trigger = trigger_time(&slice.metadata);
                    Some(Change::Slice(view, Stamp { trigger, ..stamp(&slice.metadata) }))
                }
                None => Some(Change::SliceGone(name(&ObjectName::of(&slice.metadata)), gone)),
            },
            Event::SliceDeleted(slice) => Some(Change::SliceGone(name(&slice), gone)),
            Event::NodeApplied(node) if node.metadata.name == self.node.name => {
                let mut view = self.valid(parse_node(&node))?;
                self.has_node_addresses |= !view.addresses.is_empty();
                if view.addresses.is_empty() {
                    view.addresses.clone_from(&self.host_addresses);
                }
                self.node = self.resolved.effective_node(view);
                Some(Change::Node(self.node.clone()))
            }
            Event::NodeDeleted(node) if *node.name == *self.node.name => {
                tracing::warn!(%node, "this node's Node is gone: going on without its zone");
                // As in kube-proxy: hints by zone mean nothing any more, everything else stays true.
                self.node.zone = None;
                Some(Change::Node(self.node.clone()))
            }
            Event::NodeApplied(_) | Event::NodeDeleted(_) => None,
            Event::ServiceCidrApplied(cidr) => {
                let networks = self.valid(parse_service_cidr(&cidr))?;
                self.service_cidrs.insert(ObjectName::of(&cidr.metadata), networks);
                Some(self.service_cidrs())
            }
            Event::ServiceCidrDeleted(cidr) => {
                self.service_cidrs.remove(&cidr)?;
                Some(self.service_cidrs())
            }
            Event::Synced(resource) => {
                self.unlisted.remove(&resource);
                None
            }
            Event::Problem(problem) => {
                match *problem {
                    // Nothing is wrong there.
                    Problem::Ignored { .. } => tracing::info!("{}", chain(&*problem)),
                    _ => tracing::warn!("{}", chain(&*problem)),
                }
                self.events.problem(&problem);
                None
            }
            Event::Solved(problem) => {
                tracing::info!("no longer: {}", chain(&*problem));
                None
            }
        }
    }

    fn valid<T>(&self, parsed: Result<T, InvalidObject>) -> Option<T> {
        let tell = |error: &InvalidObject| {
            tracing::warn!("passed over, what was known before stays in force: {error}");
            self.events.invalid(error);
        };
        parsed.inspect_err(tell).ok()
    }

    fn service_cidrs(&self) -> Change {
        Change::ServiceCidrs(self.service_cidrs.values().flatten().copied().collect())
    }
}

fn name(object: &ObjectName) -> ServiceName {
    ServiceName::new(&object.namespace, &object.name)
}
