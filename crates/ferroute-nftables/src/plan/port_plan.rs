use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use arrayvec::ArrayVec;
use ferroute_core::{
    Endpoint, FrontendKind, Protocol, ServicePort, ServicePortEntry, ServicePortName, ServiceTable, limits,
};
use ipnet::IpNet;

use super::{
    Context, Frontend, List, ListNumber,
    capacity::Capacity,
    existing::Positions,
    kind::{Class, Kind, Selection},
    slots::Slots,
    socket_list::{SocketList, arrange},
};
use crate::model::ClassId;

/// The plan of a service port: all that is needed to compute the changes to another plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortPlan {
    /// The number that its lists are named after.
    pub(super) number: ListNumber,
    /// What does not depend on endpoints.
    pub(super) exposure: Arc<Exposure>,
    /// Endpoints for policy Cluster, by index.
    cluster: SocketList,
    /// What most service ports do not have.
    extra: Option<Box<Extra>>,
    /// Whether any node has endpoints.
    pub(super) has_any_endpoints: bool,
}

/// The part of a plan that most service ports do not have. It is separate, because a large cluster has many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Extra {
    /// Endpoints for policy Local, by index.
    local: SocketList,
    /// The endpoints in either list that are on this node.
    on_node: SocketList,
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
    /// The source ranges of restricted frontends, if there are any.
    source_ranges: Option<Box<SourceRanges>>,
}

/// The source ranges of restricted frontends.
#[derive(Debug)]
struct SourceRanges {
    /// [`Context::node_ip`], on which they depend.
    node_ip: Option<IpAddr>,
    /// The aggregated ranges.
    nets: Box<[IpNet]>,
    /// Their prefix lengths, each once.
    prefix_lengths: Box<[u8]>,
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

impl PortPlan {
    /// Plans a service port, without slots. Endpoints that `old` contains keep their index.
    pub(super) fn new(
        number: ListNumber,
        exposure: Arc<Exposure>,
        entry: &ServicePortEntry,
        table: &ServiceTable,
        old: impl Fn(List) -> Positions<SocketAddr>,
    ) -> Self {
        let service = &entry.service;
        let sets = table.endpoint_sets(entry);
        // The tracker keeps them; tables may also come from elsewhere.
        let max_endpoints = limits::max_endpoints(service.affinity.is_some(), 1);
        let list = |list, endpoints: &[Endpoint]| {
            let desired: Vec<SocketAddr> = endpoints.iter().take(max_endpoints).map(|e| e.socket()).collect();
            SocketList::new(table.family, arrange(&old(list), &desired).into_iter())
        };
        let on_node = sets.reachable.iter().filter(|endpoint| endpoint.local).map(|endpoint| endpoint.socket());
        let extra = Extra {
            local: list(List::Local, &sets.local),
            on_node: SocketList::new(table.family, on_node),
            slots: None,
        };
        Self {
            number,
            cluster: list(List::Cluster, &sets.cluster),
            extra: (extra != Extra::default()).then(|| Box::new(extra)),
            has_any_endpoints: sets.has_any_endpoints,
            exposure,
        }
    }

    /// Returns this plan with other frontends of the service port.
    pub(super) fn with_exposure(&self, exposure: Arc<Exposure>) -> Self {
        Self { exposure, ..self.clone() }
    }

    /// Assigns slots to the endpoints. `previous` returns the slots that endpoints had.
    pub(super) fn assign_slots(&mut self, previous: impl Fn(List) -> Vec<(SocketAddr, ClassId)>) {
        let slots = List::ALL.map(|list| Slots::new(self.list(list), &previous(list)));
        self.extra.get_or_insert_default().slots = Some(slots);
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

    /// Returns the endpoints in either list that are on this node.
    pub(super) fn on_node(&self) -> &SocketList {
        self.extra.as_ref().map_or(&SocketList::Empty, |extra| &extra.on_node)
    }

    /// Returns the session affinity timeout in seconds.
    pub(super) fn affinity(&self) -> Option<u32> {
        self.exposure.service.affinity.map(|affinity| affinity.timeout_seconds)
    }

    /// Returns what is done with the traffic of a request now.
    pub(super) fn class(&self, request: Request) -> Class {
        match self.list(request.list).len() {
            0 => request.list.empty_class(self.has_any_endpoints),
            endpoints => Class::Forward(self.kind(request), Capacity::fitting(endpoints)),
        }
    }

    /// Returns the class id of a request, the key of map `lists`.
    pub(super) fn request_id(&self, request: Request) -> ClassId {
        self.kind(request).request(self.number.list(request.list))
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
    /// Plans a service port's frontends. They are taken from `old` if they are the same.
    pub(super) fn new(
        name: &ServicePortName,
        service: &Arc<ServicePort>,
        context: &Context,
        old: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let is_same = |old: &&Arc<Self>| {
            (Arc::ptr_eq(&old.service, service) || old.service == *service)
                && old.source_ranges.as_ref().is_none_or(|ranges| ranges.node_ip == context.node_ip)
        };
        if let Some(old) = old.filter(is_same) {
            return Arc::clone(old);
        }
        let frontends = frontends(name, service, context);
        let mut requests: Vec<Request> = frontends.iter().map(|plan| plan.request).collect();
        requests.sort_unstable();
        requests.dedup();
        if requests.iter().any(|request| request.selection == Selection::ExternalLocal) {
            requests.push(Request { selection: Selection::Pick, list: List::Local });
            requests.sort_unstable();
            requests.dedup();
        }
        Arc::new(Self {
            service: Arc::clone(service),
            frontends,
            requests: requests.into_iter().collect(),
            source_ranges: SourceRanges::new(service, context).map(Box::new),
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

    /// Reports whether a frontend uses a list.
    pub(super) fn uses(&self, list: List) -> bool {
        self.requests.iter().any(|request| request.list == list)
    }
}

impl PartialEq for Exposure {
    fn eq(&self, other: &Self) -> bool {
        let node_ip = |exposure: &Self| exposure.source_ranges.as_ref().map(|ranges| ranges.node_ip);
        self.service == other.service && node_ip(self) == node_ip(other)
    }
}

impl Eq for Exposure {}

/// Returns all frontends, sorted. If two kinds have the same address, the first kind wins, as in kube-proxy.
fn frontends(name: &ServicePortName, service: &ServicePort, context: &Context) -> Box<[FrontendPlan]> {
    let has_source_ranges = !service.load_balancer_source_ranges.is_empty();
    let (internal, external) = requests(service);
    // The proxy deletes entries of UDP flows to endpoints that are gone, but the kernel refuses that while they are in a
    // flowtable.
    let may_skip_hooks = context.flowtable_packets.is_some() && name.protocol == Protocol::Tcp;
    let mut plans: BTreeMap<Frontend, FrontendPlan> = BTreeMap::new();
    for (kind, frontend) in service.frontends(name.protocol) {
        let request = if kind == FrontendKind::ClusterIp { internal } else { external };
        let restricted = has_source_ranges && kind == FrontendKind::LoadBalancer;
        let plan = plans.entry(frontend).or_insert(FrontendPlan { frontend, request, restricted, may_skip_hooks });
        plan.restricted |= restricted;
    }
    plans.into_values().collect()
}

/// Returns the requests of internal and external traffic.
fn requests(service: &ServicePort) -> (Request, Request) {
    let internal = if service.internal_local() { List::Local } else { List::Cluster };
    let external = if service.external_local() { Selection::ExternalLocal } else { Selection::External };
    (Request { selection: Selection::Pick, list: internal }, Request { selection: external, list: List::Cluster })
}

impl SourceRanges {
    /// Returns the source ranges of a service port; `None` if it has none.
    ///
    /// As in kube-proxy, the load balancer's own addresses are allowed if the node's is: where they are assigned to the
    /// node, its own packets have them as source.
    fn new(service: &ServicePort, context: &Context) -> Option<Self> {
        let mut nets = service.load_balancer_source_ranges.clone();
        if nets.is_empty() || service.load_balancer_vips.is_empty() {
            return None;
        }
        if context.node_ip.is_some_and(|ip| nets.iter().any(|net| net.contains(&ip))) {
            nets.extend(service.load_balancer_vips.iter().copied().map(IpNet::from));
        }
        let nets: Box<[IpNet]> = IpNet::aggregate(&nets).into();
        let prefix_lengths: BTreeSet<u8> = nets.iter().map(IpNet::prefix_len).collect();
        Some(Self { node_ip: context.node_ip, nets, prefix_lengths: prefix_lengths.into_iter().collect() })
    }
}

/// The maximum number of requests of a service port: one of internal traffic, one of external traffic, and one of external
/// traffic to this node's endpoints.
const MAX_REQUESTS: usize = 3;
