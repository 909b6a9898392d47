//! From what a source tells to what the sync loop takes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Instant,
};

use ferroute_api::ObjectMeta;
use ferroute_config::Resolved;
use ferroute_core::{
    LocalTrafficDetector, NodeView, NamespacedName,
    parse::{InvalidObject, ObjectVersion, parse_node, parse_service_cidr, trigger_time, write_time},
    tracker::TrackerEvent,
};
use ferroute_source::{Event, Problem, Resource};
use ipnet::IpNet;

use crate::{
    events::Events,
    logging::chain,
    node_wait::Missing,
    sync::{Change, Stamp},
};

/// Translates one source's events for one node. An object that is wrong is told and passed over; what was known of it
/// before stays in force.
pub struct Feed<'a> {
    resolved: &'a Resolved,
    /// The node as it is known so far.
    node: NodeView,
    /// The host's own, for a Node that has none.
    host_addresses: Vec<IpAddr>,
    /// The Node has told addresses.
    has_node_addresses: bool,
    /// By the names of the ServiceCIDRs.
    service_cidrs: BTreeMap<NamespacedName, Vec<IpNet>>,
    unlisted: BTreeSet<Resource>,
    events: Events,
}

impl<'a> Feed<'a> {
    /// Nothing has been told yet; `node` holds what is known without its Node.
    pub fn new(resolved: &'a Resolved, node: NodeView) -> Self {
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
    pub fn with_events(self, events: Events) -> Self {
        Self { events, ..self }
    }

    /// The node as it is known so far.
    pub fn node(&self) -> &NodeView {
        &self.node
    }

    /// What is not known yet of the node that rules need.
    pub fn missing(&self) -> Missing {
        let needs_networks = self.resolved.settings.detector == LocalTrafficDetector::NodeCidr;
        Missing { addresses: !self.has_node_addresses, pod_networks: needs_networks && self.node.pod_cidrs.is_empty() }
    }

    /// All kinds have been listed once.
    pub fn is_listed(&self) -> bool {
        self.unlisted.is_empty()
    }

    /// What a batch of events comes to.
    pub fn take(&mut self, events: Vec<Event>) -> Vec<Change> {
        let listed_before = self.is_listed();
        let received = Instant::now();
        let mut changes: Vec<Change> = events.into_iter().filter_map(|event| self.translate(event, received)).collect();
        if self.is_listed() && !listed_before {
            changes.push(Change::Listed);
        }
        changes
    }

    fn translate(&mut self, event: Event, received: Instant) -> Option<Change> {
        let gone = Stamp { received, version: ObjectVersion::default(), trigger: None, written: None };
        let stamp = |metadata: &ObjectMeta| Stamp { version: ObjectVersion::from_metadata(metadata), ..gone };
        match event {
            Event::ServiceApplied(service) => match self.valid(TrackerEvent::from_service(&service))? {
                event @ TrackerEvent::ServiceApplied(_) => Some(Change::Desired(event, stamp(&service.metadata))),
                event => Some(Change::Desired(event, gone)),
            },
            Event::ServiceDeleted(service) => Some(Change::Desired(TrackerEvent::ServiceDeleted(service), gone)),
            Event::SliceApplied(slice) => match self.valid(TrackerEvent::from_slice(&slice, &self.node.name))? {
                event @ TrackerEvent::SliceApplied(_) => {
                    let trigger = trigger_time(&slice.metadata);
                    let written = write_time(&slice.metadata);
                    Some(Change::Desired(event, Stamp { trigger, written, ..stamp(&slice.metadata) }))
                }
                event => Some(Change::Desired(event, gone)),
            },
            Event::SliceDeleted(slice) => Some(Change::Desired(TrackerEvent::SliceDeleted(slice), gone)),
            Event::NodeApplied(node) if node.metadata.name == self.node.name => {
                let mut view = self.valid(parse_node(&node))?;
                self.has_node_addresses |= !view.addresses.is_empty();
                if view.addresses.is_empty() {
                    view.addresses.clone_from(&self.host_addresses);
                }
                self.node = self.resolved.effective_node(view);
                Some(Change::Desired(TrackerEvent::NodeApplied(self.node.clone()), gone))
            }
            Event::NodeDeleted(node) if node.name() == &*self.node.name => {
                tracing::warn!(%node, "this node's Node is gone: going on without its zone");
                // As in kube-proxy: hints by zone mean nothing any more, everything else stays true.
                self.node.zone = None;
                Some(Change::Desired(TrackerEvent::NodeApplied(self.node.clone()), gone))
            }
            Event::NodeApplied(_) | Event::NodeDeleted(_) => None,
            Event::ServiceCidrApplied(cidr) => {
                let networks = self.valid(parse_service_cidr(&cidr))?;
                self.service_cidrs.insert(NamespacedName::from_metadata(&cidr.metadata), networks);
                Some(self.service_cidrs(gone))
            }
            Event::ServiceCidrDeleted(cidr) => {
                self.service_cidrs.remove(&cidr)?;
                Some(self.service_cidrs(gone))
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
            Event::Resolved(problem) => {
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

    fn service_cidrs(&self, stamp: Stamp) -> Change {
        let cidrs = self.service_cidrs.values().flatten().copied().collect();
        Change::Desired(TrackerEvent::ServiceCidrsApplied(cidrs), stamp)
    }
}

#[cfg(test)]
mod tests {
    use ferroute_api::Node;
    use ferroute_config::KubeProxyConfiguration;
    use ferroute_core::testing::Cluster;

    use super::*;

    fn resolve(mode: &str) -> Resolved {
        let mut config = KubeProxyConfiguration::default().defaulted();
        config.detect_local_mode = mode.into();
        config.resolve().unwrap()
    }

    /// A feed on a host with one address.
    fn feed(resolved: &Resolved) -> Feed<'_> {
        let addresses = vec!["192.0.2.7".parse().unwrap()];
        Feed::new(resolved, NodeView { name: "node-1".into(), addresses, ..NodeView::default() })
    }

    fn tell(feed: &mut Feed<'_>, change: impl FnOnce(&mut Node)) -> Vec<String> {
        let mut node = Cluster::new("node-1").node;
        change(&mut node);
        feed.take(vec![Event::NodeApplied(Box::new(node))]);
        feed.node().addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_node_without_addresses_has_those_of_the_host_until_it_has_some() {
        let resolved = resolve("ClusterCIDR");
        let mut feed = feed(&resolved);
        assert_eq!(tell(&mut feed, |node| node.status.addresses.clear()), ["192.0.2.7"]);
        assert_eq!(feed.missing(), Missing { addresses: true, pod_networks: false });
        assert_eq!(tell(&mut feed, |_| ()), ["192.168.0.1", "fd00:168::1"]);
        assert_eq!(feed.missing(), Missing::default());
    }

    #[test]
    fn pod_networks_are_missed_only_where_they_tell_local_traffic() {
        let resolved = resolve("NodeCIDR");
        let mut feed = feed(&resolved);
        tell(&mut feed, |_| ());
        assert_eq!(feed.missing(), Missing { addresses: false, pod_networks: true });
        tell(&mut feed, |node| node.spec.pod_cidrs = vec!["10.244.1.0/24".into()]);
        assert_eq!(feed.missing(), Missing::default());
    }

    #[test]
    fn networks_of_cluster_ips_are_told_all_together() {
        let resolved = resolve("ClusterCIDR");
        let mut feed = feed(&resolved);
        let mut told = |event| match &feed.take(vec![event])[..] {
            [Change::Desired(TrackerEvent::ServiceCidrsApplied(networks), _)] => networks.iter().map(ToString::to_string).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let cidr = |name: &str, network: &str| {
            let mut cidr = ferroute_api::ServiceCidr::default();
            cidr.metadata.name = name.into();
            cidr.spec.cidrs = vec![network.into()];
            Event::ServiceCidrApplied(Box::new(cidr))
        };
        assert_eq!(told(cidr("a", "10.96.0.0/16")), ["10.96.0.0/16"]);
        assert_eq!(told(cidr("b", "10.112.0.0/16")), ["10.96.0.0/16", "10.112.0.0/16"]);
        assert_eq!(told(cidr("a", "10.100.0.0/16")), ["10.100.0.0/16", "10.112.0.0/16"]);
        let gone = NamespacedName::new("", "b");
        assert_eq!(told(Event::ServiceCidrDeleted(gone)), ["10.100.0.0/16"]);
    }
}
