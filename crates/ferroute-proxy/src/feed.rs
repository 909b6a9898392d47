//! Translates events of a source to changes for the sync loop.

pub(crate) mod next_hops;
pub(crate) mod node_wait;
mod object_log;

use std::{
    borrow::{Borrow, Cow},
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use ferroute_admin::history::ChangeOrigin;
use ferroute_api::{Kind, Node, ObjectMeta, Service};
use ferroute_config::Resolved;
use ferroute_core::{
    LocalTrafficDetector, ModeTraits, NamespacedName, NodeView, OtherHosts, Tracker,
    parse::{
        EXTERNAL_IPS, FieldError, InvalidObject, ObjectVersion, parse_node, parse_service_cidr, trigger_time,
        write_time,
    },
    tracker::TrackerEvent,
};
use ferroute_source::{Event, Problem, Resource};
use ipnet::IpNet;

use self::{
    node_wait::Missing,
    object_log::{Line, ObjectLog},
};
use crate::{
    observers::{events::EventRecorder, problems::Problems},
    recording::SharedUnused,
    sync::Change,
};

/// Converts the events of a source to changes for one node.
///
/// Invalid objects are reported and ignored: their last valid version stays applied.
pub struct Feed<'a> {
    resolved: &'a Resolved,
    traits: &'static ModeTraits,
    node: NodeView,
    /// The host's addresses, for a Node without addresses.
    host_addresses: Vec<IpAddr>,
    /// Whether the Node has ever had addresses.
    has_node_addresses: bool,
    /// The networks of each ServiceCIDR.
    service_cidrs: BTreeMap<NamespacedName, Vec<IpNet>>,
    /// Resources whose initial list has not been received yet.
    unsynced: BTreeSet<Resource>,
    other_hosts: OtherHosts,
    /// The next hops of this host's routes.
    next_hops: BTreeSet<IpAddr>,
    /// Addresses of other Nodes, if they are needed and the source has them.
    other_nodes: BTreeMap<NamespacedName, Vec<IpAddr>>,
    /// Whether they differ from those of the last change.
    have_nodes_changed: bool,
    events: EventRecorder,
    log: ObjectLog,
    /// The ignored fields of objects that were reported.
    ignored: BTreeMap<(&'static str, NamespacedName), Vec<FieldError>>,
    problems: Problems,
    unused: SharedUnused,
}

impl<'a> Feed<'a> {
    /// Creates a feed. `node` describes the node until its Node is received. In modes that make Service addresses local,
    /// Services may not take over addresses of other Nodes and, as set by [`Feed::set_next_hops`], of next hops.
    pub fn new(resolved: &'a Resolved, traits: &'static ModeTraits, node: NodeView) -> Self {
        Self {
            resolved,
            traits,
            host_addresses: node.addresses.clone(),
            node,
            has_node_addresses: false,
            service_cidrs: BTreeMap::new(),
            unsynced: Resource::ALL.into(),
            other_hosts: OtherHosts {
                addresses: traits.binds_service_addresses.then(Vec::new),
                ..OtherHosts::default()
            },
            next_hops: BTreeSet::new(),
            other_nodes: BTreeMap::new(),
            have_nodes_changed: false,
            events: EventRecorder::none(),
            log: ObjectLog::default(),
            ignored: BTreeMap::new(),
            problems: Problems::default(),
            unused: SharedUnused::default(),
        }
    }

    /// Reports invalid objects as Events, and all problems of the source while they last.
    pub(crate) fn with_reports(self, events: EventRecorder, problems: Problems) -> Self {
        Self { events, problems, ..self }
    }

    /// Returns the state before the first change.
    #[must_use]
    pub fn tracker(&self) -> Tracker {
        let mut tracker = Tracker::new(self.node.clone()).with_traits(self.traits);
        tracker.apply(TrackerEvent::OtherHostsApplied(self.other_hosts.clone()));
        tracker
    }

    /// Sets the next hops of this host's routes. Returns the resulting change, if any.
    pub fn set_next_hops(&mut self, next_hops: BTreeSet<IpAddr>) -> Option<Change> {
        self.next_hops = next_hops;
        self.other_hosts(self.other_hosts.api_server.clone())
    }

    /// Returns the change that results from the addresses of the API server and the other hosts, if any.
    fn other_hosts(&mut self, api_server: Vec<SocketAddr>) -> Option<Change> {
        let all = || self.other_nodes.values().flatten().chain(&self.next_hops).copied().collect::<BTreeSet<_>>();
        let addresses = self.other_hosts.addresses.as_ref().map(|_| all().into_iter().collect());
        let hosts = OtherHosts { api_server, addresses };
        if self.other_hosts == hosts {
            return None;
        }
        self.other_hosts = hosts.clone();
        Some(Change::Desired(TrackerEvent::OtherHostsApplied(hosts), ChangeOrigin::unversioned(Instant::now())))
    }

    /// Sets the addresses of another Node; `None` if it was deleted.
    fn set_other_node(&mut self, name: NamespacedName, node: Option<&Node>) {
        if self.other_hosts.addresses.is_none() {
            return;
        }
        let addresses = match node.map(parse_node) {
            Some(Ok(view)) => Some(view.addresses),
            Some(Err(_)) => return,
            None => None,
        };
        self.have_nodes_changed |= self.other_nodes.get(&name) != addresses.as_ref();
        match addresses {
            Some(addresses) => self.other_nodes.insert(name, addresses),
            None => self.other_nodes.remove(&name),
        };
    }

    /// Returns what is not used of Services. It changes with the feed.
    pub(crate) fn unused(&self) -> SharedUnused {
        self.unused.clone()
    }

    /// Returns the current state of the node.
    pub fn node(&self) -> &NodeView {
        &self.node
    }

    /// Returns the properties of the node that rules need and that are still unknown.
    pub(crate) fn missing(&self) -> Missing {
        let needs_networks = self.resolved.settings.detector == LocalTrafficDetector::NodeCidr;
        Missing { addresses: !self.has_node_addresses, pod_networks: needs_networks && self.node.pod_cidrs.is_empty() }
    }

    /// Returns when [`Feed::log_repeated`] should be called.
    pub(crate) fn repeated_log_due(&self) -> Option<Instant> {
        self.log.due()
    }

    /// Writes log lines that were kept back because there were many about the same object.
    pub(crate) fn log_repeated(&mut self) {
        self.log.write_due(Instant::now());
    }

    /// Reports whether the initial lists of all resources have been received.
    pub fn is_synced(&self) -> bool {
        self.unsynced.is_empty()
    }

    /// Translates a batch of events. Those that are given by value are freed one by one.
    pub fn translate<E: Borrow<Event>>(&mut self, events: impl IntoIterator<Item = E>) -> Vec<Change> {
        let was_synced = self.is_synced();
        let received = Instant::now();
        let mut changes: Vec<Change> =
            events.into_iter().filter_map(|event| self.translate_event(event.borrow(), received)).collect();
        // Once for all Nodes of the first list, of which there may be thousands.
        if self.have_nodes_changed && !self.unsynced.contains(&Resource::Nodes) {
            self.have_nodes_changed = false;
            changes.extend(self.other_hosts(self.other_hosts.api_server.clone()));
        }
        if self.is_synced() && !was_synced {
            tracing::info!("initial lists received");
            changes.push(Change::Synced);
        }
        changes
    }

    fn translate_event(&mut self, event: &Event, received: Instant) -> Option<Change> {
        let unversioned = ChangeOrigin::unversioned(received);
        let origin =
            |metadata: &ObjectMeta| ChangeOrigin { version: ObjectVersion::from_metadata(metadata), ..unversioned };
        match event {
            Event::ServiceApplied(service) => {
                let (service, disabled) = self.without_disabled(service);
                let parsed = TrackerEvent::from_service(&service);
                self.unused.apply(&service, &parsed);
                match self.valid(|| object_of(SERVICE, &service.metadata), parsed)? {
                    TrackerEvent::ServiceApplied(mut view) => {
                        view.ignored = view.ignored.into_iter().chain(disabled).collect();
                        view.ignore_unsupported(self.traits);
                        view.set_defaults(&self.resolved.balancing_defaults(self.traits));
                        self.report_ignored(SERVICE, &view.name, &view.ignored);
                        Some(Change::Desired(TrackerEvent::ServiceApplied(view), origin(&service.metadata)))
                    }
                    event => Some(Change::Desired(event, unversioned)),
                }
            }
            Event::ServiceDeleted(service) => {
                self.problems.end_of_source(|| object(SERVICE, service));
                self.report_ignored(SERVICE, service, &[]);
                self.unused.delete(service);
                Some(Change::Desired(TrackerEvent::ServiceDeleted(service.clone()), unversioned))
            }
            Event::SliceApplied(slice) => {
                let parsed = TrackerEvent::from_slice(slice, &self.node.name);
                match self.valid(|| object_of(SLICE, &slice.metadata), parsed)? {
                    TrackerEvent::SliceApplied(mut view) => {
                        view.ignore_unsupported(self.traits);
                        self.report_ignored(SLICE, &view.name, &view.ignored);
                        let event = TrackerEvent::SliceApplied(view);
                        let trigger = trigger_time(&slice.metadata);
                        let written = write_time(&slice.metadata);
                        Some(Change::Desired(event, ChangeOrigin { trigger, written, ..origin(&slice.metadata) }))
                    }
                    event => Some(Change::Desired(event, unversioned)),
                }
            }
            Event::SliceDeleted(slice) => {
                self.problems.end_of_source(|| object(SLICE, slice));
                self.report_ignored(SLICE, slice, &[]);
                Some(Change::Desired(TrackerEvent::SliceDeleted(slice.clone()), unversioned))
            }
            Event::NodeApplied(node) if node.metadata.name == self.node.name => {
                let mut view = self.valid(|| object_of(NODE, &node.metadata), parse_node(node))?;
                self.has_node_addresses |= !view.addresses.is_empty();
                if view.addresses.is_empty() {
                    view.addresses.clone_from(&self.host_addresses);
                }
                self.node = self.resolved.effective_node(view);
                Some(Change::Desired(TrackerEvent::NodeApplied(self.node.clone()), unversioned))
            }
            Event::NodeDeleted(node) if node.name() == &*self.node.name => {
                self.problems.end_of_source(|| object(NODE, node));
                tracing::warn!(%node, "Node deleted; keeping its last state except for the zone");
                // As in kube-proxy, topology hints for zones no longer apply.
                self.node.zone = None;
                Some(Change::Desired(TrackerEvent::NodeApplied(self.node.clone()), unversioned))
            }
            Event::NodeApplied(node) => {
                self.set_other_node(NamespacedName::from_metadata(&node.metadata), Some(node));
                None
            }
            Event::NodeDeleted(node) => {
                self.set_other_node(node.clone(), None);
                None
            }
            Event::ApiServer(addresses) => self.other_hosts(addresses.clone()),
            Event::ServiceCidrApplied(cidr) => {
                let networks = self.valid(|| object_of(SERVICE_CIDR, &cidr.metadata), parse_service_cidr(cidr))?;
                self.service_cidrs.insert(NamespacedName::from_metadata(&cidr.metadata), networks);
                Some(self.service_cidrs(unversioned))
            }
            Event::ServiceCidrDeleted(cidr) => {
                self.problems.end_of_source(|| object(SERVICE_CIDR, cidr));
                self.service_cidrs.remove(cidr)?;
                Some(self.service_cidrs(unversioned))
            }
            Event::Synced(resource) => {
                self.unsynced.remove(resource);
                None
            }
            Event::Problem(problem) => {
                let line = Line { is_warning: !matches!(**problem, Problem::Ignored { .. }), text: problem.text() };
                if problem.blocks_changes() {
                    self.problems.set_of_source(&line.text, &line.text);
                }
                self.log_problem(problem, line);
                self.events.problem(problem);
                None
            }
            Event::Resolved(problem) => {
                let text = problem.text();
                self.problems.end_of_source(|| text.clone());
                let line = Line { is_warning: false, text: format!("resolved: {text}") };
                self.log_problem(problem, line);
                None
            }
        }
    }

    fn log_problem(&mut self, problem: &Problem, line: Line) {
        let object = match problem {
            Problem::InvalidObject { kind, name, .. } => object(kind.as_str(), name),
            // Errors of the API server, which is queried less and less often.
            Problem::Other(_) => return line.write(),
            // A file, without the cause.
            problem => problem.to_string(),
        };
        self.log.write(object, line, Instant::now());
    }

    /// Returns an object if it is valid. Else, it is a problem until there is a valid version or the object is deleted.
    fn valid<T>(&mut self, object: impl Fn() -> String, parsed: Result<T, InvalidObject>) -> Option<T> {
        let error = match parsed {
            Ok(valid) => {
                self.problems.end_of_source(object);
                return Some(valid);
            }
            Err(error) => error,
        };
        let text = format!("ignoring invalid object; keeping its last valid version: {error}");
        let object = object();
        self.problems.set_of_source(&object, &text);
        self.log.write(object, Line { is_warning: true, text }, Instant::now());
        self.events.invalid(&error);
        None
    }

    /// Returns a Service without the fields whose feature is disabled, and the reason if there are any.
    fn without_disabled<'s>(&self, service: &'s Service) -> (Cow<'s, Service>, Option<FieldError>) {
        if self.resolved.allow_external_ips || service.spec.external_ips.is_empty() {
            return (Cow::Borrowed(service), None);
        }
        let mut service = service.clone();
        service.spec.external_ips.clear();
        let error = FieldError { field: EXTERNAL_IPS.to_owned(), problem: EXTERNAL_IPS_DISABLED.to_owned() };
        (Cow::Owned(service), Some(error))
    }

    /// Reports the ignored fields of an object, unless they are the same as before.
    fn report_ignored(&mut self, kind: &'static str, name: &NamespacedName, ignored: &[FieldError]) {
        if ignored.is_empty() && self.ignored.is_empty() {
            return;
        }
        let key = (kind, name.clone());
        let ignored = &ignored[..ignored.len().min(MAX_IGNORED)];
        if self.ignored.get(&key).map(Vec::as_slice).unwrap_or_default() == ignored {
            return;
        }
        if ignored.is_empty() {
            self.ignored.remove(&key);
            return;
        }
        let fields = ignored.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let line = Line { is_warning: true, text: format!("ignoring fields of {kind} {name}: {fields}") };
        self.log.write(object(kind, name), line, Instant::now());
        self.events.ignored_fields(kind, name, &fields);
        if self.ignored.len() < MAX_REMEMBERED {
            self.ignored.insert(key, ignored.to_vec());
        }
    }

    fn service_cidrs(&self, origin: ChangeOrigin) -> Change {
        let cidrs = self.service_cidrs.values().flatten().copied().collect();
        Change::Desired(TrackerEvent::ServiceCidrsApplied(cidrs), origin)
    }
}

fn object(kind: &str, name: &NamespacedName) -> String {
    format!("{kind} {name}")
}

fn object_of(kind: &str, metadata: &ObjectMeta) -> String {
    object(kind, &NamespacedName::from_metadata(metadata))
}

const SERVICE: &str = Kind::Service.as_str();
const SLICE: &str = Kind::EndpointSlice.as_str();
const NODE: &str = Kind::Node.as_str();
const SERVICE_CIDR: &str = Kind::ServiceCidr.as_str();

/// The reason why external IPs are ignored.
pub const EXTERNAL_IPS_DISABLED: &str = "the feature gate AllowServiceExternalIPs is disabled";

/// Maximum number of ignored fields of an object that are reported.
const MAX_IGNORED: usize = 10;

/// Maximum number of objects whose reported fields are kept. Fields of further objects are reported with each version
/// of the object.
const MAX_REMEMBERED: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ferroute_config::{KubeProxyConfiguration, ModeName};
    use ferroute_core::testing::{Cluster, service};
    use ferroute_modes::REGISTRY;

    use super::*;

    fn resolve(mode: &str) -> Resolved {
        let mut config = KubeProxyConfiguration::default().defaulted();
        config.detect_local_mode = mode.into();
        config.resolve().unwrap()
    }

    /// Returns a feed on a host with one address.
    fn feed(resolved: &Resolved) -> Feed<'_> {
        let addresses = vec!["192.0.2.7".parse().unwrap()];
        Feed::new(
            resolved,
            REGISTRY.active(resolved.mode).traits(),
            NodeView { name: "node-1".into(), addresses, ..NodeView::default() },
        )
    }

    /// Applies a Node and returns the resulting addresses of the node.
    fn apply_node(feed: &mut Feed<'_>, change: impl FnOnce(&mut Node)) -> Vec<String> {
        let mut node = Cluster::new("node-1").node;
        change(&mut node);
        feed.translate(vec![Event::NodeApplied(Box::new(node))]);
        feed.node().addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn host_addresses_are_used_until_node_has_addresses() {
        let resolved = resolve("ClusterCIDR");
        let mut feed = feed(&resolved);
        assert_eq!(apply_node(&mut feed, |node| node.status.addresses.clear()), ["192.0.2.7"]);
        assert_eq!(feed.missing(), Missing { addresses: true, pod_networks: false });
        assert_eq!(apply_node(&mut feed, |_| ()), ["192.168.0.1", "fd00:168::1"]);
        assert_eq!(feed.missing(), Missing::default());
    }

    #[test]
    fn pod_networks_are_required_only_to_detect_local_traffic() {
        let resolved = resolve("NodeCIDR");
        let mut feed = feed(&resolved);
        apply_node(&mut feed, |_| ());
        assert_eq!(feed.missing(), Missing { addresses: false, pod_networks: true });
        apply_node(&mut feed, |node| node.spec.pod_cidrs = vec!["10.244.1.0/24".into()]);
        assert_eq!(feed.missing(), Missing::default());
    }

    #[test]
    fn networks_of_all_service_cidrs_are_applied_together() {
        let resolved = resolve("ClusterCIDR");
        let mut feed = feed(&resolved);
        let mut networks_after = |event| match &feed.translate(vec![event])[..] {
            [Change::Desired(TrackerEvent::ServiceCidrsApplied(networks), _)] => {
                networks.iter().map(ToString::to_string).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        let cidr = |name: &str, network: &str| {
            let mut cidr = ferroute_api::ServiceCidr::default();
            cidr.metadata.name = name.into();
            cidr.spec.cidrs = vec![network.into()];
            Event::ServiceCidrApplied(Box::new(cidr))
        };
        assert_eq!(networks_after(cidr("a", "10.96.0.0/16")), ["10.96.0.0/16"]);
        assert_eq!(networks_after(cidr("b", "10.112.0.0/16")), ["10.96.0.0/16", "10.112.0.0/16"]);
        assert_eq!(networks_after(cidr("a", "10.100.0.0/16")), ["10.100.0.0/16", "10.112.0.0/16"]);
        let deleted = NamespacedName::new("", "b");
        assert_eq!(networks_after(Event::ServiceCidrDeleted(deleted)), ["10.100.0.0/16"]);
    }

    #[test]
    fn external_ips_are_ignored_if_their_gate_is_disabled() {
        let mut config = KubeProxyConfiguration::default().defaulted();
        config.feature_gates.insert("AllowServiceExternalIPs".into(), false);
        let resolved = config.resolve().unwrap();
        let mut feed = feed(&resolved);
        let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080);
        let web = web.external_ip("203.0.113.1").load_balancer("198.51.100.1");
        let changes = feed.translate(vec![Event::ServiceApplied(Box::new(web.build()))]);
        let [Change::Desired(TrackerEvent::ServiceApplied(view), _)] = &changes[..] else { panic!("{changes:?}") };
        let port = &view.ports[0][0].port;
        assert!(port.external_ips.is_empty() && port.node_port.is_some() && port.load_balancer_vips.len() == 1);
        let expected = "spec.externalIPs: the feature gate AllowServiceExternalIPs is disabled";
        assert_eq!(view.ignored.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn host_of_the_api_server_is_reserved_without_next_hops_where_addresses_are_bound() {
        let resolved = Resolved { mode: ModeName::IPVS, ..resolve("ClusterCIDR") };
        let mut feed = feed(&resolved);
        let mut tracker = feed.tracker();
        let api_server = service("default/kubernetes").cluster_ip("10.96.0.1").port("https", 443);
        let endpoints = ferroute_core::testing::slice("default/kubernetes", "kubernetes").port("https", 6443);
        let endpoints = endpoints.pod(ferroute_core::testing::pod("203.0.113.1"));
        let web = service("shop/web").cluster_ip("10.96.0.2").port("http", 80).external_ip("203.0.113.1");
        let events = vec![
            Event::ServiceApplied(Box::new(api_server.build())),
            Event::SliceApplied(Box::new(endpoints.build())),
            Event::ServiceApplied(Box::new(web.build())),
        ];
        for change in feed.translate(events) {
            if let Change::Desired(event, _) = change {
                tracker.apply(event);
            }
        }
        tracker.update(ferroute_core::IpFamily::V4);
        let table = tracker.table(ferroute_core::IpFamily::V4);
        assert_eq!(table.lost.len(), 1, "{:?}", table.lost);
    }

    #[test]
    fn addresses_of_other_nodes_are_applied_once_for_a_list_and_where_they_differ() {
        let resolved = Resolved { mode: ModeName::IPVS, ..resolve("ClusterCIDR") };
        let mut feed = feed(&resolved);
        let node = |number: u8, address: &str| {
            let mut node = Cluster::new(&format!("node-{number}")).node;
            node.status.addresses.truncate(1);
            node.status.addresses[0].address = address.into();
            Event::NodeApplied(Box::new(node))
        };
        let mut after = |events| match &feed.translate(events)[..] {
            [] => None,
            [Change::Desired(TrackerEvent::OtherHostsApplied(hosts), _)] => {
                Some(hosts.addresses.iter().flatten().map(ToString::to_string).collect::<Vec<_>>())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(after(vec![node(2, "192.0.2.2")]), None, "the list has not ended");
        assert_eq!(after(vec![node(3, "192.0.2.3")]), None);
        let both = ["192.0.2.2", "192.0.2.3"].map(str::to_owned).to_vec();
        assert_eq!(after(vec![Event::Synced(Resource::Nodes)]), Some(both));
        assert_eq!(after(vec![node(2, "192.0.2.2")]), None, "another field has changed");
        let deleted = Event::NodeDeleted(NamespacedName::new("", "node-2"));
        assert_eq!(after(vec![deleted, node(3, "192.0.2.4")]), Some(vec!["192.0.2.4".to_owned()]));
    }

    #[test]
    fn log_lines_about_an_object_that_flaps_are_limited() {
        let resolved = resolve("ClusterCIDR");
        let (mut feed, mut others) = (feed(&resolved), feed(&resolved));
        let error = || FieldError { field: "spec".to_owned(), problem: "invalid".to_owned() };
        let name = || NamespacedName::new("shop", "web");
        let problem = Problem::InvalidObject { kind: ferroute_api::Kind::Service, name: name(), error: error() };
        let problem = Arc::new(problem);
        for _ in 0..100 {
            feed.translate(vec![Event::Problem(problem.clone()), Event::Resolved(problem.clone())]);
        }
        assert!(feed.repeated_log_due().is_some(), "most lines are left out, and the last one is kept");
        let invalid = |address: &str| service("shop/other").cluster_ip(address).port("http", 80);
        for address in ["invalid", "10.96.0.1", "invalid"] {
            others.translate(vec![Event::ServiceApplied(Box::new(invalid(address).build()))]);
        }
        assert_eq!(others.repeated_log_due(), None, "a few lines are written at once");
    }

    #[test]
    fn ignored_fields_are_reported_once_until_they_change() {
        let resolved = resolve("ClusterCIDR");
        let mut feed = feed(&resolved);
        let web = |address: &str| service("shop/web").cluster_ip("10.96.0.1").port("http", 80).load_balancer(address);
        let mut reported_after = |event| {
            feed.translate(vec![event]);
            feed.ignored.values().flatten().map(|field| field.problem.clone()).collect::<Vec<_>>()
        };
        let apply = |address: &str| Event::ServiceApplied(Box::new(web(address).build()));
        assert_eq!(reported_after(apply("0.0.0.0")), ["0.0.0.0 is the unspecified address"]);
        assert_eq!(reported_after(apply("127.0.0.1")), ["127.0.0.1 is a loopback address"]);
        assert_eq!(reported_after(apply("198.51.100.1")), [""; 0]);
        reported_after(apply("0.0.0.0"));
        assert_eq!(reported_after(Event::ServiceDeleted(NamespacedName::new("shop", "web"))), [""; 0]);
    }
}
