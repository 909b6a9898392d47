use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use arrayvec::ArrayVec;
use ferroute_core::{
    Client, ConnectionLimits, Endpoint, FrontendKind, IpFamily, Method, ModeTraits, PortForwarding, Protocol,
    ServicePort, ServicePortName, limits,
};
use ipnet::IpNet;

use super::{
    Context, Frontend, List, ListNumber,
    capacity::Capacity,
    choice::{Choice, cycle_length},
    existing::Positions,
    kind::{Class, Kind, Refused, Selection},
    slots::{MAX_SLOTS, Slots},
    socket_list::{SocketList, arrange},
    spread::{cycle, hash_table, random, weighted},
};
use crate::model::ClassId;

/// Reason why a service port cannot be planned. The tracker does not create such entries, so it is a defect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    /// An endpoint is in a list twice.
    #[error("an endpoint is listed twice")]
    RepeatedEndpoint,
    /// A list is too long.
    #[error("a list has {positions} positions (want at most {max})")]
    TooManyEndpoints {
        /// Length.
        positions: usize,
        /// The maximum.
        max: usize,
    },
}

/// The plan of a service port: all data that are needed to compute the changes to another plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortElements {
    /// The number that its lists are named after.
    pub(super) number: ListNumber,
    /// Part that does not depend on endpoints.
    pub(super) exposure: Arc<Exposure>,
    /// Endpoints for policy Cluster, by index. Endpoints with weights are repeated; methods other than the random one
    /// repeat all endpoints.
    cluster: SocketList,
    /// Part that most service ports do not have.
    extra: Option<Box<Extra>>,
    /// Handling of the traffic of each list while it is empty, in the order of [`List::ALL`].
    refused: [Refused; 2],
}

/// Part of a plan that most service ports do not have. It is separate, because a large cluster has many service ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Extra {
    /// Endpoints for policy Local, by index.
    local: SocketList,
    /// Endpoints in either list whose connections to themselves are masqueraded.
    hairpins: SocketList,
    /// The slots of both lists, with session affinity.
    slots: Option<[Slots; 2]>,
}

/// The part of a plan that depends on the Service alone. It is computed once, because a Service can have thousands of
/// frontends whose endpoints change every second.
#[derive(Debug)]
pub(super) struct Exposure {
    /// The service port.
    pub(super) service: Arc<ServicePort>,
    /// The frontends, sorted and without duplicates.
    pub(super) frontends: Box<[FrontendPlan]>,
    /// The lists that frontends use, with the kinds of forwarding.
    pub(super) requests: ArrayVec<Request, MAX_REQUESTS>,
    /// The method that chooses endpoints.
    pub(super) method: Method,
    /// The source ranges of restricted frontends, if there are any.
    source_ranges: Option<Box<SourceRanges>>,
    /// Whether the limits of the Service apply.
    has_limits: bool,
    /// Whether another service port has taken frontends, and the lists that these lead to are still there.
    has_lost_frontends: bool,
}

/// The source ranges of restricted frontends.
#[derive(Clone, Debug)]
struct SourceRanges {
    /// The node's address, on which they depend.
    node_ip: Option<IpAddr>,
    /// The aggregated ranges.
    nets: Box<[IpNet]>,
    /// Their prefix lengths, each once.
    prefix_lengths: Box<[u8]>,
    /// Whether they apply to a node port.
    has_node_ports: bool,
}

/// The plan of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrontendPlan {
    pub(super) frontend: Frontend,
    pub(super) request: Request,
    /// Whether source ranges apply.
    pub(super) restricted: bool,
    /// Whether its connections may be in the flowtable.
    pub(super) may_skip_hooks: bool,
}

/// A kind of forwarding to a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Request {
    pub(super) selection: Selection,
    pub(super) list: List,
}

impl PortElements {
    /// Plans a service port, without slots. Endpoints that `old` contains keep their index.
    pub(super) fn new(
        number: ListNumber,
        exposure: Arc<Exposure>,
        family: IpFamily,
        forwarding: &PortForwarding<'_>,
        old: impl Fn(List) -> Positions<SocketAddr>,
    ) -> Result<Self, PlanError> {
        // The tracker enforces these limits, but a table may also come from other code.
        let max_endpoints = limits::max_endpoints(forwarding.service, 1, &ModeTraits::NFTABLES);
        let list = |list: List| {
            let endpoints = forwarding.list(list.policy()).unwrap_or_default();
            let endpoints = &endpoints[..endpoints.len().min(max_endpoints)];
            // They are sorted.
            if endpoints.windows(2).any(|pair| pair[0].socket() == pair[1].socket()) {
                return Err(PlanError::RepeatedEndpoint);
            }
            let positions = match exposure.method {
                Method::RoundRobin if endpoints.len() > 1 => cycle(&weighted(endpoints), cycle_length),
                Method::SourceHash | Method::SourcePortHash if endpoints.len() > 1 => {
                    hash_table(&weighted(endpoints), forwarding.service.balancing.table_size)
                }
                _ => arrange(&old(list), &random(endpoints)),
            };
            check_length(positions.len(), Capacity::MAX as usize)?;
            Ok(SocketList::new(family, positions.into_iter()))
        };
        let reachable = forwarding.endpoints.reachable.iter();
        let hairpins = reachable.filter(|endpoint| forwarding.masquerades_hairpin(endpoint)).map(Endpoint::socket);
        let extra = Extra { local: list(List::Local)?, hairpins: SocketList::new(family, hairpins), slots: None };
        Ok(Self {
            number,
            cluster: list(List::Cluster)?,
            extra: (extra != Extra::default()).then(|| Box::new(extra)),
            refused: List::ALL.map(|list| refused(forwarding, list)),
            exposure,
        })
    }

    /// Returns this plan with different frontends of the service port.
    pub(super) fn with_exposure(&self, exposure: Arc<Exposure>) -> Self {
        Self { exposure, ..self.clone() }
    }

    /// Assigns slots to the endpoints. `previous` returns the slots that endpoints had.
    pub(super) fn assign_slots(
        &mut self,
        previous: impl Fn(List) -> Vec<(SocketAddr, ClassId)>,
    ) -> Result<(), PlanError> {
        let max = usize::from(MAX_SLOTS);
        for list in List::ALL.map(|list| self.list(list)).into_iter().filter(|list| list.len() > max) {
            check_length(list.iter().collect::<HashSet<_>>().len(), max)?;
        }
        let slots = List::ALL.map(|list| Slots::new(self.list(list), &previous(list)));
        self.extra.get_or_insert_default().slots = Some(slots);
        Ok(())
    }

    /// Returns the endpoints of a list with their slots, in the list's order; `None` without session affinity.
    pub(super) fn slots(&self, list: List) -> Option<impl Iterator<Item = (SocketAddr, ClassId)> + '_> {
        let [cluster, local] = self.extra.as_ref()?.slots.as_ref()?;
        let slots = match list {
            List::Cluster => cluster,
            List::Local => local,
        };
        Some(self.list(list).iter().zip(slots.iter(self.number.list(list))))
    }

    /// Returns the endpoints of a list.
    pub(super) fn list(&self, list: List) -> &SocketList {
        match list {
            List::Cluster => &self.cluster,
            List::Local => self.extra.as_ref().map_or(&SocketList::Empty, |extra| &extra.local),
        }
    }

    /// Returns the endpoints in either list whose connections to themselves are masqueraded.
    pub(super) fn hairpins(&self) -> &SocketList {
        self.extra.as_ref().map_or(&SocketList::Empty, |extra| &extra.hairpins)
    }

    /// Returns the session affinity timeout in seconds.
    pub(super) fn affinity(&self) -> Option<u32> {
        self.exposure.service.affinity.map(|affinity| affinity.timeout_seconds)
    }

    /// Returns the current handling of the traffic of a request.
    pub(super) fn class(&self, request: Request) -> Class {
        match self.list(request.list).len() {
            0 => self.refused[request.list as usize].into(),
            positions => Class::Forward(self.kind(request), Choice::new(self.exposure.method, positions)),
        }
    }

    /// Returns the class id of a request: the key of map `lists`, or of map `limited`.
    pub(super) fn request_id(&self, request: Request, is_limited: bool) -> ClassId {
        let (kind, list) = (self.kind(request), self.number.list(request.list));
        if is_limited { kind.limited_request(list) } else { kind.request(list) }
    }

    fn kind(&self, request: Request) -> Kind {
        Kind { sticky: self.affinity().is_some(), selection: request.selection }
    }

    /// Returns the plan of a frontend.
    pub(super) fn frontend(&self, frontend: Frontend) -> Option<&FrontendPlan> {
        let frontends = &self.exposure.frontends;
        frontends.binary_search_by_key(&frontend, |plan| plan.frontend).ok().map(|i| &frontends[i])
    }
}

impl Exposure {
    /// Plans a service port's frontends. They are shared with `old` if they are equal.
    pub(super) fn new(
        name: &ServicePortName,
        service: &Arc<ServicePort>,
        context: &Context,
        old: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let is_same = |old: &&Arc<Self>| {
            (Arc::ptr_eq(&old.service, service) || old.service == *service)
                && !old.has_lost_frontends
                && old.source_ranges.as_ref().is_none_or(|ranges| ranges.node_ip == context.settings.node_ip)
        };
        if let Some(old) = old.filter(is_same) {
            return Arc::clone(old);
        }
        let forwarding =
            PortForwarding::without_endpoints(service, name.protocol, &context.settings, &ModeTraits::NFTABLES);
        let frontends = frontends(&forwarding, context);
        let mut requests: Vec<Request> = frontends.iter().map(|plan| plan.request).collect();
        if requests.iter().any(|request| request.selection == Selection::ExternalLocal) {
            requests.push(Request { selection: Selection::Pick, list: forwarding.external.outside.list.into() });
        }
        requests.sort_unstable();
        requests.dedup();
        let source_ranges = SourceRanges::new(&forwarding, &frontends, context);
        Arc::new(Self {
            service: Arc::clone(service),
            frontends,
            requests: requests.into_iter().collect(),
            method: forwarding.method().unwrap_or(Method::Random),
            source_ranges: source_ranges.map(Box::new),
            has_limits: forwarding.limits().is_some(),
            has_lost_frontends: false,
        })
    }

    /// Returns the exposure after another service port has taken all but these frontends. Packets may still have been led to
    /// all of its lists.
    pub(super) fn retain_frontends(&self, protocol: Protocol, is_kept: impl Fn(Frontend) -> bool) -> Arc<Self> {
        let mut service = ServicePort::clone(&self.service);
        service.retain_frontends(protocol, &is_kept);
        Arc::new(Self {
            service: Arc::new(service),
            frontends: self.frontends.iter().filter(|plan| is_kept(plan.frontend)).copied().collect(),
            requests: self.requests.clone(),
            method: self.method,
            source_ranges: self.source_ranges.clone(),
            has_limits: self.has_limits,
            has_lost_frontends: true,
        })
    }

    /// Returns the aggregated source ranges of restricted frontends.
    pub(super) fn source_ranges(&self) -> &[IpNet] {
        self.source_ranges.as_ref().map_or(&[], |ranges| &ranges.nets)
    }

    /// Returns the prefix lengths of the source ranges, each once.
    pub(super) fn prefix_lengths(&self) -> impl Iterator<Item = u8> + '_ {
        self.source_ranges.iter().flat_map(|ranges| ranges.prefix_lengths.iter().copied())
    }

    /// Reports whether source ranges apply to a node port.
    pub(super) fn restricts_node_ports(&self) -> bool {
        self.source_ranges.as_ref().is_some_and(|ranges| ranges.has_node_ports)
    }

    /// Returns the limits of connections; `None` if there are none.
    pub(super) fn limits(&self) -> Option<&ConnectionLimits> {
        self.service.limits.as_deref().filter(|_| self.has_limits)
    }

    /// Reports whether a frontend uses a list.
    pub(super) fn uses(&self, list: List) -> bool {
        self.requests.iter().any(|request| request.list == list)
    }
}

impl PartialEq for Exposure {
    fn eq(&self, other: &Self) -> bool {
        let node_ip = |exposure: &Self| exposure.source_ranges.as_ref().map(|ranges| ranges.node_ip);
        self.service == other.service
            && node_ip(self) == node_ip(other)
            && self.has_lost_frontends == other.has_lost_frontends
    }
}

impl Eq for Exposure {}

fn check_length(positions: usize, max: usize) -> Result<(), PlanError> {
    if positions > max { Err(PlanError::TooManyEndpoints { positions, max }) } else { Ok(()) }
}

/// Returns the handling of the traffic of a list while it is empty. It is the same for all clients with a route to the
/// list.
fn refused(forwarding: &PortForwarding<'_>, list: List) -> Refused {
    let routes = [FrontendKind::ClusterIp, FrontendKind::NodePort].into_iter();
    let mut routes = routes.flat_map(|kind| Client::ALL.map(|client| (kind, client)));
    let uses = |&(kind, client): &(FrontendKind, Client)| forwarding.routes(kind).of(client).list == list.policy();
    let outcome = routes.find(uses).map(|(kind, client)| forwarding.outcome(kind, client));
    outcome.map_or(Refused::Reject, Refused::new)
}

/// Returns all frontends, sorted. If two kinds have the same address, the first kind wins, as in kube-proxy.
fn frontends(forwarding: &PortForwarding<'_>, context: &Context) -> Box<[FrontendPlan]> {
    let PortForwarding { service, protocol, internal, external, .. } = forwarding;
    // A single rule decides for all cluster IPs which connections are masqueraded.
    let internal = Request { selection: Selection::Pick, list: internal.node.list.into() };
    let external = Request { selection: Selection::new(external), list: external.node.list.into() };
    // The proxy deletes entries of UDP flows to removed endpoints, but the kernel refuses this while a flow is in a
    // flowtable.
    let may_skip_hooks = context.flowtable_packets.is_some() && *protocol == Protocol::Tcp;
    let mut plans: BTreeMap<Frontend, FrontendPlan> = BTreeMap::new();
    for (kind, frontend) in service.frontends(*protocol) {
        let request = if kind == FrontendKind::ClusterIp { internal } else { external };
        plans.entry(frontend).or_insert_with(|| FrontendPlan {
            frontend,
            request,
            restricted: forwarding.is_restricted(kind, frontend),
            may_skip_hooks,
        });
    }
    plans.into_values().collect()
}

impl SourceRanges {
    /// Returns the sources that may use restricted frontends; `None` if there are no such frontends.
    fn new(forwarding: &PortForwarding<'_>, frontends: &[FrontendPlan], context: &Context) -> Option<Self> {
        let restricted = frontends.iter().filter(|plan| plan.restricted).map(|plan| plan.frontend.address);
        restricted.clone().next()?;
        let has_node_ports = restricted.clone().any(|address| address.is_none());
        // The node's own packets never have a cluster IP as their source.
        let addresses: Vec<IpAddr> =
            restricted.flatten().filter(|address| Some(*address) != forwarding.service.cluster_ip).collect();
        let nets: Box<[IpNet]> = IpNet::aggregate(&forwarding.permitted_sources(&addresses)).into();
        let prefix_lengths: BTreeSet<u8> = nets.iter().map(IpNet::prefix_len).collect();
        let prefix_lengths = prefix_lengths.into_iter().collect();
        Some(Self { node_ip: context.settings.node_ip, nets, prefix_lengths, has_node_ports })
    }
}

/// The maximum number of requests of a service port: one of internal traffic, one of external traffic, and one of external
/// traffic to this node's endpoints.
const MAX_REQUESTS: usize = 3;
