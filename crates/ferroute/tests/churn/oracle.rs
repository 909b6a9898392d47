//! Decides whether the result of a connection is allowed.
//!
//! Versions of four parts of the desired state are recorded: Services, EndpointSlices, the Node, the node's addresses.
//! The proxy receives the versions of each part in order, but the parts independently, so any combination of versions
//! that may be active may also be active together. A superseded version is **retired** when
//!
//! - the proxy has shown to have applied a later version of all Services and slices (see `Driver::settle`), or
//! - it has been superseded for [`PROMISED_DELAY`] without a fault, which is the guarantee of the proxy.
//!
//! Packets are accounted for as the kernel handles them: rules of nftables mode change at once, tables of iptables mode one
//! after the other, and a packet that is sent again is translated as the first one was.
//!
//! While a fault is declared, no version is retired: the rules may be old, but they must be those of one version. Only
//! while another program has changed the rules, connections may fail in any way; but even then none may reach an
//! endpoint that no such version permits.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use ferroute_api::{EndpointSlice, Node, NodeSpec, Service};
use ferroute_config::ModeName;
use ferroute_core::{Protocol, ProxySettings, testing::Cluster};

use crate::{
    clients::{Outcome, Record, Reply},
    history::History,
    network::node_addresses,
    results::{Addresses, Allowed, Case, Class, Shared, allowed, endpoints, rank, source_of},
    world::Client,
};

/// Maximum time until the proxy applies a change while it runs without a fault: several sync periods of a debug build,
/// without the time for which it waits for a processor. The usual time is some milliseconds.
pub(crate) const PROMISED_DELAY: Duration = Duration::from_secs(8);

/// The desired state over time, and the periods of faults.
pub(crate) struct Oracle {
    settings: ProxySettings,
    services: History<Vec<Arc<Service>>>,
    slices: History<Vec<Arc<EndpointSlice>>>,
    node: History<Node>,
    host: History<Vec<IpAddr>>,
    mode: History<ModeName>,
    /// Start and end of periods in which no version is retired.
    faults: Vec<(Instant, Option<Instant>)>,
    /// Start and end of periods in which connections may fail.
    interferences: Vec<(Instant, Option<Instant>)>,
    /// Start and end of periods in which connections are not checked.
    suspensions: Vec<(Instant, Option<Instant>)>,
    /// Combinations of versions that connections have followed.
    recent: Vec<Combination>,
    /// The results that have been derived so far.
    derived: HashMap<Case, Arc<Allowed>>,
    addresses: HashMap<Setup, Arc<Addresses>>,
    /// Endpoints that clients of Services with affinity have used since the last fault.
    sessions: HashMap<Session, Vec<Use>>,
    /// UDP flows whose entries a killed proxy may have left behind, with their endpoints: the next one cannot know them if
    /// nothing has the frontend or the endpoint any more.
    left_behind: HashMap<Flow, SocketAddr>,
    /// UDP flows of the node to one of its own addresses, which come from that address and are lost with it.
    own_flows: HashSet<Flow>,
    /// The proxy was killed, and the next one has not shown yet that it has applied everything.
    was_killed: bool,
}

/// A client with its port, and its target.
type Flow = (Client, u16, SocketAddr);

/// Versions that may be active at the same time.
#[derive(Clone)]
struct Combination {
    services: Shared<Vec<Arc<Service>>>,
    slices: Shared<Vec<Arc<EndpointSlice>>>,
    node: Shared<Node>,
    host: Shared<Vec<IpAddr>>,
    mode: ModeName,
}

/// The connections of a client to a service port with affinity, while neither the Service nor its slices change.
#[derive(PartialEq, Eq, Hash)]
struct Session {
    source: IpAddr,
    protocol: Protocol,
    /// The name of the port.
    port: String,
    service: Shared<Service>,
    slices: Vec<Shared<EndpointSlice>>,
}

/// One of these connections.
struct Use {
    start: Instant,
    end: Instant,
    endpoint: SocketAddr,
    /// Endpoints that the rules chose from: policies have separate lists.
    candidates: BTreeSet<SocketAddr>,
}

/// All objects that determine the addresses of a Service.
#[derive(PartialEq, Eq, Hash)]
struct Setup {
    service: Shared<Service>,
    node: Shared<Node>,
    host: Shared<Vec<IpAddr>>,
}

impl Oracle {
    pub(crate) fn new(settings: ProxySettings, mode: ModeName, cluster: &Cluster, now: Instant) -> Self {
        Self {
            settings,
            services: History::new(share(&[], &cluster.services), now),
            slices: History::new(share(&[], &cluster.slices), now),
            node: History::new(cluster.node.clone(), now),
            host: History::new(node_addresses(), now),
            mode: History::new(mode, now),
            faults: Vec::new(),
            interferences: Vec::new(),
            suspensions: Vec::new(),
            recent: Vec::new(),
            derived: HashMap::new(),
            addresses: HashMap::new(),
            sessions: HashMap::new(),
            left_behind: HashMap::new(),
            own_flows: HashSet::new(),
            was_killed: false,
        }
    }

    /// Declares that the proxy was killed, which may have been between the removal of rules and that of entries.
    pub(crate) fn proxy_was_killed(&mut self) {
        self.was_killed = true;
    }

    /// Records the selection of a mode. The rules of the old mode stay until those of the new mode have been written.
    pub(crate) fn select_mode(&mut self, mode: ModeName) {
        self.mode.publish(mode, Instant::now());
    }

    /// Reports whether iptables mode may have been active between two points in time.
    fn uses_iptables(&self, start: Instant, end: Instant) -> bool {
        self.mode.between(start, end).any(|mode| mode.as_str() == "iptables")
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
        // Clients do not use any of the frontends and endpoints that depend on these fields.
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

    /// Checks no connection until the faults end.
    pub(crate) fn suspend(&mut self) {
        self.suspensions.push((Instant::now(), None));
    }

    /// Declares that the effects of all faults are over.
    pub(crate) fn faults_end(&mut self) {
        let now = Instant::now();
        for (_, end) in self.faults.iter_mut().chain(&mut self.interferences).chain(&mut self.suspensions) {
            end.get_or_insert(now);
        }
        self.sessions.clear();
        if std::mem::take(&mut self.was_killed) {
            let (services, slices) = (self.services.current(), self.slices.current());
            let known = endpoints(services, slices, self.node.current(), &self.settings);
            self.left_behind.retain(|_, endpoint| !known.contains(&endpoint.ip()));
        }
    }

    /// Retires Services and slices that were superseded until `superseded`.
    pub(crate) fn applied(&mut self, superseded: Instant) {
        let now = Instant::now();
        self.services.retire(superseded, now);
        self.slices.retire(superseded, now);
    }

    /// Retires versions that were superseded before this time, which is [`PROMISED_DELAY`] ago.
    pub(crate) fn tick(&mut self, superseded: Instant) {
        let now = Instant::now();
        let healthy_since = match self.faults.last() {
            Some((_, None)) => return,
            Some((_, Some(end))) => Some(*end),
            None => None,
        };
        if healthy_since.is_none_or(|end| end <= superseded) {
            self.services.retire(superseded, now);
            self.slices.retire(superseded, now);
            self.node.retire(superseded, now);
            self.host.retire(superseded, now);
            self.mode.retire(superseded, now);
        }
        self.services.prune(now);
        self.slices.prune(now);
        self.node.prune(now);
        self.host.prune(now);
        self.mode.prune(now);
    }

    /// Checks the result of a connection.
    ///
    /// # Errors
    /// If the result is not allowed, with an explanation.
    pub(crate) fn check(&mut self, record: &Record) -> Result<(), String> {
        let overlaps = |(start, end): &(Instant, Option<Instant>)| {
            *start <= record.end && end.is_none_or(|end| end >= record.start)
        };
        let interference = self.interferences.iter().any(overlaps);
        let flow = (record.client.clone(), record.port, record.target);
        let may_be_own = self.host.between(record.start, record.end).any(|host| host.contains(&record.target.ip()));
        if !record.continues && record.client == Client::Node && may_be_own {
            self.own_flows.insert(flow.clone());
        }
        if self.suspensions.iter().any(overlaps) {
            return Ok(());
        }
        // Without a chain of type nat, the kernel does not translate packets of established connections either.
        if interference && !matches!(record.outcome, Outcome::Endpoint(_)) {
            return Ok(());
        }
        if matches!(record.outcome, Outcome::Broken(_)) {
            return Err(format!("established connections must not break: {record:?}"));
        }
        if self.was_killed
            && record.protocol == Protocol::Udp
            && let Outcome::Endpoint(reply) = &record.outcome
        {
            self.left_behind.insert(flow.clone(), reply.endpoint);
        }
        let fault = self.faults.iter().any(overlaps);
        // A flow keeps the endpoint of its first packet, which may be older than the affinity.
        if !fault
            && !record.continues
            && let Outcome::Endpoint(reply) = &record.outcome
        {
            self.check_session(record, reply)?;
        }
        if !interference && record.was_repeated && self.expected(record).iter().all(|all| all.always_delivers()) {
            return Err(format!("a packet was lost: {record:?}"));
        }
        if self.any_allows(record) {
            return Ok(());
        }
        let since = if record.continues { before(record.start, STALE) } else { record.start };
        let expected = self.expected_between(record, since);
        // The first packet was not translated, because the Service did not exist yet. Its repetitions are then not
        // translated either, and rules of the Service that drop or reject other packets do the same with them.
        let is_older = expected.iter().any(|expected| expected.results.contains(&Class::Unreachable));
        let is_dropped_later = is_older && expected.iter().any(|expected| expected.drops);
        let is_rejected_later = is_older && expected.iter().any(|expected| expected.rejects);
        // Each iptables table is replaced separately: a packet may pass one table of a version that no longer rejects,
        // and another table of a version that does not translate yet.
        let translates =
            |expected: &Arc<Allowed>| expected.results.iter().any(|class| matches!(class, Class::Endpoint(..)));
        let is_own = self.host.between(since, record.end).any(|host| host.contains(&record.target.ip()));
        let is_mixed = self.uses_iptables(since, record.end)
            && expected.iter().any(translates)
            && !expected.iter().all(translates);
        let passes = is_mixed
            && match &record.outcome {
                Outcome::Refused => is_own,
                Outcome::Unreachable => !is_own,
                _ => false,
            };
        // Instead of rejecting it, the other version may drop a packet that has not been translated.
        let drops = is_mixed && expected.iter().any(|expected| expected.drops);
        let is_lost = self.own_flows.contains(&flow)
            && !self.host.between(since, record.end).all(|host| host.contains(&record.target.ip()));
        // The node did not have the address yet when the first packet was not translated.
        let has_become_own = is_own && is_older;
        // Another program may have removed the rule that restricts sources or endpoints. The entry of a flow stays as
        // long as its endpoint belongs to the service port.
        let is_endpoint = |reply: &Reply| expected.iter().any(|expected| expected.reachable.contains(&reply.endpoint));
        let is_known = record.continues && expected.iter().any(|expected| expected.allows(&record.outcome));
        match &record.outcome {
            _ if passes || is_known => Ok(()),
            Outcome::Timeout if is_dropped_later || drops || is_lost => Ok(()),
            Outcome::Refused if has_become_own || is_rejected_later => Ok(()),
            Outcome::Endpoint(reply) if (interference || record.continues) && is_endpoint(reply) => Ok(()),
            Outcome::Endpoint(reply) if record.continues && self.left_behind.get(&flow) == Some(&reply.endpoint) => {
                Ok(())
            }
            _ => Err(format!("{record:?}\n  allowed: {expected:?}")),
        }
    }

    /// Checks that a client of a Service with affinity reaches an endpoint that it has used before.
    ///
    /// A list of endpoints is compared only with itself: the proxy need not recognise that another list also has the
    /// client's endpoint. An endpoint of another list is accepted.
    fn check_session(&mut self, record: &Record, reply: &Reply) -> Result<(), String> {
        let (start, end) = (record.start, record.end);
        let Some(versions) = self.only_combination(start, end) else { return Ok(()) };
        let Some(service) = self.owner(&versions, record) else { return Ok(()) };
        let Some(timeout) = affinity_timeout(&service.0) else { return Ok(()) };
        let frontend = self.addresses(&service.0, &versions).frontends[&(record.protocol, record.target)];
        let allowed = self.derive(versions.case(service.clone(), record));
        let candidates = allowed.endpoints();
        let source = source_of(&record.client, record.target, frontend, &versions.host.0, versions.mode);
        let slices = slices_of(&service.0, &versions.slices.0);
        let session = Session { source, protocol: record.protocol, port: allowed.port.clone(), service, slices };
        let uses = self.sessions.entry(session).or_default();
        let may_expect =
            |used: &&Use| used.end < start && used.start + timeout.mul_f64(0.8) > end && used.candidates == candidates;
        let is_known = uses.iter().any(|used| used.endpoint == reply.endpoint);
        let expected: BTreeSet<SocketAddr> = uses.iter().filter(may_expect).map(|used| used.endpoint).collect();
        uses.push(Use { start, end, endpoint: reply.endpoint, candidates });
        if is_known || expected.is_empty() {
            return Ok(());
        }
        Err(format!("the client has used other endpoints of a Service with affinity: {expected:?}, now {record:?}"))
    }

    /// Returns the versions between two points in time, unless there are several of any part.
    fn only_combination(&self, start: Instant, end: Instant) -> Option<Combination> {
        fn only<'a, T: 'a>(mut versions: impl Iterator<Item = &'a Arc<T>>) -> Option<Shared<T>> {
            let version = versions.next()?.clone();
            versions.next().is_none().then_some(Shared(version))
        }
        Some(Combination {
            services: only(self.services.between(start, end))?,
            slices: only(self.slices.between(start, end))?,
            node: only(self.node.between(start, end))?,
            host: only(self.host.between(start, end))?,
            mode: *only(self.mode.between(start, end))?.0,
        })
    }

    /// Reports whether any combination of versions allows the result of a connection. Combinations that other
    /// connections followed are tried first, then later before earlier ones.
    fn any_allows(&mut self, record: &Record) -> bool {
        let Record { start, end, .. } = *record;
        let hosts: Vec<_> = self.host.between(start, end).cloned().map(Shared).collect();
        let nodes: Vec<_> = self.node.between(start, end).cloned().map(Shared).collect();
        let services: Vec<_> = self.services.between(start, end).cloned().map(Shared).collect();
        let slices: Vec<_> = self.slices.between(start, end).cloned().map(Shared).collect();
        let modes: Vec<_> = self.mode.between(start, end).map(|mode| **mode).collect();
        let is_active = |combination: &Combination| {
            services.contains(&combination.services)
                && slices.contains(&combination.slices)
                && nodes.contains(&combination.node)
                && hosts.contains(&combination.host)
                && modes.contains(&combination.mode)
        };
        for index in 0..self.recent.len() {
            let combination = self.recent[index].clone();
            let owner = is_active(&combination).then(|| self.owner(&combination, record));
            if owner.is_some_and(|owner| self.allows(&combination, owner, record)) {
                // The most recent ones come first.
                self.recent[..=index].rotate_right(1);
                return true;
            }
        }
        for mode in modes.into_iter().rev() {
            // Most versions of other Services make no difference.
            let mut tried = HashSet::new();
            let hosts_and_nodes =
                || hosts.iter().rev().flat_map(|host| nodes.iter().rev().map(move |node| (host, node)));
            for (services, (host, node)) in
                services.iter().rev().flat_map(|services| hosts_and_nodes().map(move |others| (services, others)))
            {
                let versions = |slices: &Shared<Vec<Arc<EndpointSlice>>>| Combination {
                    services: services.clone(),
                    slices: slices.clone(),
                    node: node.clone(),
                    host: host.clone(),
                    mode,
                };
                let owner = self.owner(&versions(&slices[0]), record);
                if owner.is_some() && !tried.insert((owner.clone(), host.clone(), node.clone())) {
                    continue;
                }
                for slices in slices.iter().rev() {
                    let combination = versions(slices);
                    if self.allows(&combination, owner.clone(), record) {
                        self.recent.insert(0, combination);
                        self.recent.truncate(MAX_RECENT);
                        return true;
                    }
                    if owner.is_none() {
                        break;
                    }
                }
            }
        }
        false
    }

    /// Reports whether these versions allow the result of a connection to a Service, or to none.
    fn allows(&mut self, versions: &Combination, owner: Option<Shared<Service>>, record: &Record) -> bool {
        match owner {
            Some(service) => self.derive(versions.case(service, record)).allows(&record.outcome),
            None => self.untouched(versions, record).allows(&record.outcome),
        }
    }

    /// Returns all results that are allowed for a connection.
    fn expected(&mut self, record: &Record) -> Vec<Arc<Allowed>> {
        self.expected_between(record, record.start)
    }

    /// Like `expected`, also from versions that were retired since then.
    fn expected_between(&mut self, record: &Record, since: Instant) -> Vec<Arc<Allowed>> {
        let (start, end) = (since, record.end);
        let hosts: HashSet<_> = self.host.between(start, end).cloned().map(Shared).collect();
        let nodes: HashSet<_> = self.node.between(start, end).cloned().map(Shared).collect();
        let modes: HashSet<_> = self.mode.between(start, end).map(|mode| **mode).collect();
        let services: Vec<_> = self.services.between(start, end).cloned().map(Shared).collect();
        let slices: Vec<_> = self.slices.between(start, end).cloned().map(Shared).collect();
        let mut all: Vec<Arc<Allowed>> = Vec::new();
        let setups = hosts.iter().flat_map(|host| nodes.iter().map(move |node| (host, node)));
        for ((host, node), mode) in setups.flat_map(|setup| modes.iter().map(move |mode| (setup, *mode))) {
            let mut owners = HashSet::new();
            for services in &services {
                let slices = slices[0].clone();
                let versions =
                    Combination { services: services.clone(), slices, node: node.clone(), host: host.clone(), mode };
                match self.owner(&versions, record) {
                    Some(owner) => _ = owners.insert(owner),
                    None => all.push(Arc::new(self.untouched(&versions, record))),
                }
            }
            for service in owners {
                let cases: HashSet<_> = slices.iter().map(|slices| slices_of(&service.0, &slices.0)).collect();
                for slices in cases {
                    let (node, host, client) = (node.clone(), host.clone(), record.client.clone());
                    let Record { protocol, target, .. } = *record;
                    let service = service.clone();
                    all.push(self.derive(Case { service, slices, node, host, mode, client, protocol, target }));
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

    fn untouched(&mut self, versions: &Combination, record: &Record) -> Allowed {
        let ip = record.target.ip();
        let services = versions.services.0.iter();
        let is_cluster_ip = services.clone().any(|service| self.addresses(service, versions).cluster_ips.contains(&ip));
        Allowed::untouched(versions.host.0.contains(&ip), is_cluster_ip, versions.mode)
    }

    /// Returns the Service that a connection is for: if several claim the address, one of them owns it
    /// (`docs/compat.md`).
    fn owner(&mut self, versions: &Combination, record: &Record) -> Option<Shared<Service>> {
        let target = (record.protocol, record.target);
        let claims = versions.services.0.iter().filter_map(|service| {
            let frontend = *self.addresses(service, versions).frontends.get(&target)?;
            let metadata = &service.metadata;
            Some(((rank(frontend), &metadata.creation_timestamp, &metadata.namespace, &metadata.name), service))
        });
        claims.min_by_key(|(claim, _)| *claim).map(|(_, service)| Shared(service.clone()))
    }

    fn addresses(&mut self, service: &Arc<Service>, versions: &Combination) -> Arc<Addresses> {
        if self.addresses.len() > MAX_DERIVED {
            self.addresses.clear();
        }
        let (node, host) = (versions.node.clone(), versions.host.clone());
        let setup = Setup { service: Shared(service.clone()), node, host };
        let settings = &self.settings;
        let derived = self.addresses.entry(setup).or_insert_with_key(|Setup { service, node, host }| {
            Arc::new(Addresses::new(settings, &service.0, &node.0, &host.0))
        });
        derived.clone()
    }

    /// Returns the addresses of all current Services that clients can connect to.
    pub(crate) fn targets(&mut self) -> Vec<(Protocol, SocketAddr)> {
        let versions = Combination {
            services: Shared(self.services.current().clone()),
            slices: Shared(self.slices.current().clone()),
            node: Shared(self.node.current().clone()),
            host: Shared(self.host.current().clone()),
            mode: **self.mode.current(),
        };
        let services = versions.services.0.iter();
        let all =
            services.flat_map(|service| Vec::from_iter(self.addresses(service, &versions).frontends.keys().copied()));
        all.collect()
    }

    /// Returns a description of the versions that may be active now.
    pub(crate) fn describe(&self) -> String {
        let now = Instant::now();
        let (services, slices) = (self.services.between(now, now).count(), self.slices.between(now, now).count());
        format!("{services} versions of Services and {slices} of slices may be active; {} faults", self.faults.len())
    }
}

impl Combination {
    fn case(&self, service: Shared<Service>, record: &Record) -> Case {
        let slices = slices_of(&service.0, &self.slices.0);
        let Record { protocol, target, .. } = *record;
        let (node, host, client) = (self.node.clone(), self.host.clone(), record.client.clone());
        Case { service, slices, node, host, mode: self.mode, client, protocol, target }
    }
}

/// Returns the affinity timeout of a Service, if it has affinity.
fn affinity_timeout(service: &Service) -> Option<Duration> {
    let has_affinity = service.spec.session_affinity.as_deref() == Some("ClientIP");
    let config = service.spec.session_affinity_config.as_ref();
    let seconds = config.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    has_affinity.then(|| Duration::from_secs(seconds.and_then(|seconds| seconds.try_into().ok()).unwrap_or(10_800)))
}

fn before(time: Instant, duration: Duration) -> Instant {
    time.checked_sub(duration).unwrap_or(time)
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
/// Time in which connection tracking entries are removed after the rules that they follow, on a busy machine.
const STALE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
