//! Decides whether the result of a connection is allowed.
//!
//! Versions of four parts of the desired state are recorded: Services, EndpointSlices, the Node, the node's addresses. The
//! proxy receives each part in order, but the parts independently, so any combination of versions may be active that may
//! each be active by itself. A superseded version is **retired** when
//!
//! - the proxy has shown to have applied a later version of all Services and slices (see `Driver::settle`), or
//! - it has been superseded for [`PROMISED_DELAY`] without a fault: this is what the proxy promises.
//!
//! Packets are accounted for as the kernel handles them: rules of nftables mode change at once, tables of iptables mode one
//! after the other, and a packet that is sent again is translated as the first one was.
//!
//! While a fault is declared, nothing is retired: the rules may be old, but they must be those of one version. Only while
//! another program has changed the rules, connections may fail in any way; but even then none may reach an endpoint that no
//! such version permits.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use ferroute_api::{EndpointSlice, Node, NodeSpec, Service};
use ferroute_core::{Protocol, ProxySettings, testing::Cluster};

use crate::{
    clients::{Outcome, Record},
    history::History,
    network::node_addresses,
    results::{Allowed, Case, Class, Shared, addresses, allowed},
    world::Client,
};

/// The time within which the proxy applies a change while it runs without a fault: several sync periods of a debug build
/// on a busy machine. The usual time is some milliseconds.
pub(crate) const PROMISED_DELAY: Duration = Duration::from_secs(8);

/// The desired state over time, and the periods of faults.
pub(crate) struct Oracle {
    settings: ProxySettings,
    services: History<Vec<Arc<Service>>>,
    slices: History<Vec<Arc<EndpointSlice>>>,
    node: History<Node>,
    host: History<Vec<IpAddr>>,
    /// Start and end of periods in which nothing is retired.
    faults: Vec<(Instant, Option<Instant>)>,
    /// Start and end of periods in which connections may fail.
    interferences: Vec<(Instant, Option<Instant>)>,
    /// Combinations of versions that connections have followed.
    recent: Vec<Combination>,
    /// The modes in the order of their selection.
    modes: Vec<(Instant, String)>,
    /// The results that have been derived so far.
    derived: HashMap<Case, Arc<Allowed>>,
    addresses: HashMap<Setup, HashSet<(Protocol, SocketAddr)>>,
}

/// Versions that may be active at the same time.
#[derive(Clone)]
struct Combination {
    services: Shared<Vec<Arc<Service>>>,
    slices: Shared<Vec<Arc<EndpointSlice>>>,
    node: Shared<Node>,
    host: Shared<Vec<IpAddr>>,
}

/// Everything that determines the addresses of a Service.
#[derive(PartialEq, Eq, Hash)]
struct Setup {
    service: Shared<Service>,
    node: Shared<Node>,
    host: Shared<Vec<IpAddr>>,
}

impl Oracle {
    pub(crate) fn new(settings: ProxySettings, cluster: &Cluster, now: Instant) -> Self {
        Self {
            settings,
            services: History::new(share(&[], &cluster.services), now),
            slices: History::new(share(&[], &cluster.slices), now),
            node: History::new(cluster.node.clone(), now),
            host: History::new(node_addresses(), now),
            faults: Vec::new(),
            interferences: Vec::new(),
            recent: Vec::new(),
            modes: Vec::new(),
            derived: HashMap::new(),
            addresses: HashMap::new(),
        }
    }

    /// Records the selection of a mode.
    pub(crate) fn select_mode(&mut self, mode: &str) {
        self.modes.push((Instant::now(), mode.to_owned()));
    }

    /// Reports whether iptables mode may have been active between two points in time.
    fn uses_iptables(&self, start: Instant, end: Instant) -> bool {
        let next = self.modes.iter().skip(1).map(|(selected, _)| *selected + PROMISED_DELAY).chain([end]);
        let mut periods = self.modes.iter().zip(next);
        periods.any(|((selected, mode), until)| mode == "iptables" && *selected <= end && until >= start)
    }

    /// Adds a version of all Services.
    pub(crate) fn publish_services(&mut self, services: &[Service], now: Instant) {
        self.services.publish(share(self.services.current(), services), now);
    }

    /// Adds a version of all slices.
    pub(crate) fn publish_slices(&mut self, slices: &[EndpointSlice], now: Instant) {
        self.slices.publish(share(self.slices.current(), slices), now);
    }

    /// Adds a version of the Node.
    pub(crate) fn publish_node(&mut self, node: &Node, now: Instant) {
        let mut relevant = node.clone();
        // Clients use none of the frontends and endpoints that depend on these.
        relevant.spec = NodeSpec::default();
        relevant.status.addresses.retain(|address| address.type_ == "InternalIP");
        self.node.publish_equal(&relevant, now);
    }

    /// Adds a version of the node's addresses.
    pub(crate) fn publish_host(&mut self, addresses: &Vec<IpAddr>, now: Instant) {
        self.host.publish_equal(addresses, now);
    }

    /// Declares the start of a fault.
    pub(crate) fn fault_starts(&mut self, interference: bool) {
        let now = Instant::now();
        self.faults.push((now, None));
        if interference {
            self.interferences.push((now, None));
        }
    }

    /// Declares that the effects of all faults are over.
    pub(crate) fn faults_end(&mut self) {
        let now = Instant::now();
        for (_, end) in self.faults.iter_mut().chain(&mut self.interferences) {
            end.get_or_insert(now);
        }
    }

    /// Retires Services and slices that were superseded until `superseded`.
    pub(crate) fn applied(&mut self, superseded: Instant) {
        let now = Instant::now();
        self.services.retire(superseded, now);
        self.slices.retire(superseded, now);
    }

    /// Retires versions according to [`PROMISED_DELAY`].
    pub(crate) fn tick(&mut self) {
        let now = Instant::now();
        let healthy_since = match self.faults.last() {
            Some((_, None)) => return,
            Some((_, Some(end))) => Some(*end),
            None => None,
        };
        let Some(superseded) = now.checked_sub(PROMISED_DELAY) else { return };
        if healthy_since.is_none_or(|end| end <= superseded) {
            self.services.retire(superseded, now);
            self.slices.retire(superseded, now);
            self.node.retire(superseded, now);
            self.host.retire(superseded, now);
        }
        self.services.prune(now);
        self.slices.prune(now);
        self.node.prune(now);
        self.host.prune(now);
    }

    /// Checks the result of a connection.
    ///
    /// # Errors
    /// If it is not allowed, with an explanation.
    pub(crate) fn check(&mut self, record: &Record) -> Result<(), String> {
        let overlaps = |(start, end): &(Instant, Option<Instant>)| {
            *start <= record.end && end.is_none_or(|end| end >= record.start)
        };
        let interference = self.interferences.iter().any(overlaps);
        // Without a chain of type nat, the kernel does not translate packets of established connections either.
        if interference && !matches!(record.outcome, Outcome::Endpoint(_)) {
            return Ok(());
        }
        if matches!(record.outcome, Outcome::Broken(_)) {
            return Err(format!("established connections must not break: {record:?}"));
        }
        if self.any_allows(record) {
            return Ok(());
        }
        let expected = self.expected(record);
        // The first packet was not translated, because the Service did not exist yet. Then its repetitions are not translated
        // either, and rules of the Service that drop other packets drop them, too.
        let is_older = expected.iter().any(|expected| expected.results.contains(&Class::Unreachable))
            && expected.iter().any(|expected| expected.drops);
        // Each iptables table is replaced by itself: a packet may find that of one version, which does not reject any more,
        // and that of another, which does not translate yet.
        let translates =
            |expected: &Arc<Allowed>| expected.results.iter().any(|class| matches!(class, Class::Endpoint(_)));
        let is_own = self.host.between(record.start, record.end).any(|host| host.contains(&record.target.ip()));
        let is_mixed = self.uses_iptables(record.start, record.end)
            && expected.iter().any(translates)
            && !expected.iter().all(translates);
        let passes = is_mixed && Allowed::untouched(is_own, record.target).allows(&record.outcome);
        // Instead of rejecting it, the other version may drop what has not been translated.
        let drops = is_mixed && expected.iter().any(|expected| expected.drops);
        // The node's connections to an address of its own come from it, and are lost with it.
        let is_lost = record.client == Client::Node
            && is_own
            && !self.host.between(record.start, record.end).all(|host| host.contains(&record.target.ip()));
        // The node did not have the address yet when the first packet was not translated.
        let has_become_own = is_own && expected.iter().any(|expected| expected.results.contains(&Class::Unreachable));
        // Another program may have removed the rule that restricts sources or endpoints.
        let is_endpoint = |endpoint: &SocketAddr| expected.iter().any(|expected| expected.reachable.contains(endpoint));
        match &record.outcome {
            _ if passes => Ok(()),
            Outcome::Timeout if is_older || drops || is_lost => Ok(()),
            Outcome::Refused if has_become_own => Ok(()),
            Outcome::Endpoint(endpoint) if interference && is_endpoint(endpoint) => Ok(()),
            _ => Err(format!("{record:?}\n  allowed: {expected:?}")),
        }
    }

    /// Reports whether any combination of versions allows the result of a connection. The combinations that others
    /// followed are tried first, then later before earlier ones.
    fn any_allows(&mut self, record: &Record) -> bool {
        let Record { start, end, .. } = *record;
        let hosts: Vec<_> = self.host.between(start, end).cloned().map(Shared).collect();
        let nodes: Vec<_> = self.node.between(start, end).cloned().map(Shared).collect();
        let services: Vec<_> = self.services.between(start, end).cloned().map(Shared).collect();
        let slices: Vec<_> = self.slices.between(start, end).cloned().map(Shared).collect();
        let is_active = |combination: &Combination| {
            services.contains(&combination.services)
                && slices.contains(&combination.slices)
                && nodes.contains(&combination.node)
                && hosts.contains(&combination.host)
        };
        for index in 0..self.recent.len() {
            let combination = self.recent[index].clone();
            if is_active(&combination) && self.allows(&combination, record) {
                // The most recent ones come first.
                self.recent[..=index].rotate_right(1);
                return true;
            }
        }
        for (services, host) in
            services.iter().rev().flat_map(|services| hosts.iter().rev().map(move |host| (services, host)))
        {
            for (slices, node) in
                slices.iter().rev().flat_map(|slices| nodes.iter().rev().map(move |node| (slices, node)))
            {
                let (services, slices) = (services.clone(), slices.clone());
                let combination = Combination { services, slices, node: node.clone(), host: host.clone() };
                if self.allows(&combination, record) {
                    self.recent.insert(0, combination);
                    self.recent.truncate(MAX_RECENT);
                    return true;
                }
            }
        }
        false
    }

    /// Reports whether these versions allow the result of a connection.
    fn allows(&mut self, versions: &Combination, record: &Record) -> bool {
        let Combination { services, slices, node, host } = versions.clone();
        let Record { protocol, target, .. } = *record;
        let Some(service) = self.owner(&services.0, &node.0, &host.0, record) else {
            return Allowed::untouched(host.0.contains(&target.ip()), target).allows(&record.outcome);
        };
        let (client, slices) = (record.client.clone(), slices_of(&service.0, &slices.0));
        self.derive(Case { service, slices, node, host, client, protocol, target }).allows(&record.outcome)
    }

    /// Returns all results that are allowed for a connection.
    fn expected(&mut self, record: &Record) -> Vec<Arc<Allowed>> {
        let Record { start, end, .. } = *record;
        let hosts: HashSet<_> = self.host.between(start, end).cloned().map(Shared).collect();
        let nodes: HashSet<_> = self.node.between(start, end).cloned().map(Shared).collect();
        let services: Vec<_> = self.services.between(start, end).cloned().collect();
        let slices: Vec<_> = self.slices.between(start, end).cloned().collect();
        let mut all: Vec<Arc<Allowed>> = Vec::new();
        for (Shared(host), Shared(node)) in hosts.iter().flat_map(|host| nodes.iter().map(move |node| (host, node))) {
            let owners: HashSet<_> = services.iter().map(|services| self.owner(services, node, host, record)).collect();
            for owner in owners {
                let Some(service) = owner else {
                    let is_own = host.contains(&record.target.ip());
                    all.push(Arc::new(Allowed::untouched(is_own, record.target)));
                    continue;
                };
                let cases: HashSet<_> = slices.iter().map(|slices| slices_of(&service.0, slices)).collect();
                for slices in cases {
                    let (node, host) = (Shared(node.clone()), Shared(host.clone()));
                    let Record { protocol, target, .. } = *record;
                    let client = record.client.clone();
                    all.push(self.derive(Case {
                        service: service.clone(),
                        slices,
                        node,
                        host,
                        client,
                        protocol,
                        target,
                    }));
                }
            }
        }
        all.sort();
        all.dedup();
        all
    }

    fn derive(&mut self, case: Case) -> Arc<Allowed> {
        if self.derived.len() > MAX_DERIVED {
            self.derived.clear();
        }
        let settings = &self.settings;
        let allowed = self.derived.entry(case).or_insert_with_key(|case| Arc::new(allowed(case, settings)));
        allowed.clone()
    }

    /// Returns the Service that a connection is for.
    fn owner(
        &mut self,
        services: &Arc<Vec<Arc<Service>>>,
        node: &Arc<Node>,
        host: &Arc<Vec<IpAddr>>,
        record: &Record,
    ) -> Option<Shared<Service>> {
        if self.addresses.len() > MAX_DERIVED {
            self.addresses.clear();
        }
        let has_address = |service: &&Arc<Service>| {
            let (node, host) = (Shared(node.clone()), Shared(host.clone()));
            let setup = Setup { service: Shared(Arc::clone(service)), node, host };
            let all = self.addresses.entry(setup).or_insert_with_key(|Setup { service, node, host }| {
                addresses(&self.settings, std::slice::from_ref(&service.0), &node.0, &host.0).into_iter().collect()
            });
            all.contains(&(record.protocol, record.target))
        };
        services.iter().find(has_address).cloned().map(Shared)
    }

    /// Returns the addresses of all current Services that clients can connect to.
    pub(crate) fn targets(&self) -> Vec<(Protocol, SocketAddr)> {
        addresses(&self.settings, self.services.current(), self.node.current(), self.host.current())
    }

    /// Returns a description of the versions that may be active now.
    pub(crate) fn describe(&self) -> String {
        let now = Instant::now();
        let (services, slices) = (self.services.between(now, now).count(), self.slices.between(now, now).count());
        format!("{services} versions of Services and {slices} of slices may be active; {} faults", self.faults.len())
    }
}

/// Returns the slices of a Service.
fn slices_of(service: &Service, slices: &[Arc<EndpointSlice>]) -> Vec<Shared<EndpointSlice>> {
    let belongs = |slice: &&Arc<EndpointSlice>| {
        slice.service_name() == Some(&service.metadata.name) && slice.metadata.namespace == service.metadata.namespace
    };
    slices.iter().filter(belongs).cloned().map(Shared).collect()
}

/// Returns `new` with the objects of `old` that have not changed.
fn share<T: Clone + PartialEq>(old: &[Arc<T>], new: &[T]) -> Vec<Arc<T>> {
    let shared = |object: &T| old.iter().find(|old| ***old == *object).cloned();
    new.iter().map(|object| shared(object).unwrap_or_else(|| Arc::new(object.clone()))).collect()
}

const MAX_DERIVED: usize = 10_000;
const MAX_RECENT: usize = 8;
