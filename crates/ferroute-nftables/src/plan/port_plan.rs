use std::{collections::BTreeMap, net::SocketAddr};

use ferroute_core::{EndpointSets, FrontendKind, ServicePortEntry, ServicePortName, ServiceTable};
use ipnet::IpNet;

use super::{
    Context, Frontend,
    kind::{Kind, ListId, Selection},
    order::Positions,
    slots::{NUMBERS, SlotOwners, Slots},
    socket_list::{SocketList, arrange},
};
use crate::model::ClassId;

/// The plan of a service port: all that is needed to compute the changes to another plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortPlan {
    /// The frontends, without duplicates.
    pub(super) frontends: Box<[FrontendPlan]>,
    /// The cluster IP, if the service port owns it.
    pub(super) cluster_ip: Option<std::net::IpAddr>,
    /// Endpoints for policy Cluster, by index.
    pub(super) cluster: SocketList,
    /// Endpoints for policy Local, by index.
    pub(super) local: SocketList,
    /// The endpoints in either list that are on this node.
    pub(super) on_node: SocketList,
    /// The session affinity.
    pub(super) affinity: Option<Box<Affinity>>,
    /// The aggregated source ranges of restricted frontends.
    pub(super) source_ranges: Box<[IpNet]>,
    /// Whether `internalTrafficPolicy` is Local and only other nodes have endpoints.
    pub(super) no_local_internal: bool,
    /// The same for `externalTrafficPolicy`.
    pub(super) no_local_external: bool,
}

/// Session affinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Affinity {
    /// The timeout in seconds.
    pub(super) seconds: u32,
    /// Slots of [`PortPlan::cluster`].
    cluster: Slots,
    /// Slots of [`PortPlan::local`].
    local: Slots,
}

/// The plan of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrontendPlan {
    pub(super) frontend: Frontend,
    pub(super) action: Action,
    /// Whether source ranges apply.
    pub(super) restricted: bool,
}

/// What happens to a frontend's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Reject: there are no endpoints anywhere.
    Reject,
    /// Drop: the traffic policy is Local, and only other nodes have endpoints.
    Drop,
    /// Forward to an endpoint.
    Forward(Selection),
}

impl PortPlan {
    /// Plans a service port, without slots. Endpoints that `old` contains keep their index.
    pub(super) fn new(
        name: &ServicePortName,
        entry: &ServicePortEntry,
        table: &ServiceTable,
        context: &Context,
        old: impl Fn(&[FrontendPlan], ListId) -> Positions<SocketAddr>,
    ) -> Self {
        let service = &entry.service;
        let sets = table.endpoint_sets(entry);
        let frontends = frontends(name, entry, &sets);
        let max_endpoints = if service.affinity.is_some() { NUMBERS.into() } else { MAX_ENDPOINTS };
        let list = |list, endpoints: &[&ferroute_core::Endpoint]| {
            let desired: Vec<SocketAddr> = endpoints.iter().take(max_endpoints).map(|e| e.socket()).collect();
            SocketList::new(context.family, arrange(&old(&frontends, list), &desired).into_iter())
        };
        let on_node = sets.reachable.iter().filter(|endpoint| endpoint.local).map(|endpoint| endpoint.socket());
        let no_local = sets.has_any_endpoints && sets.local.is_empty();
        Self {
            cluster_ip: service.cluster_ip,
            cluster: list(ListId::Cluster, &sets.cluster),
            local: list(ListId::Local, &sets.local),
            on_node: SocketList::new(context.family, on_node),
            affinity: None,
            source_ranges: source_ranges(entry, context),
            no_local_internal: no_local && service.internal_local(),
            no_local_external: no_local && service.external_local() && service.externally_accessible(),
            frontends,
        }
    }

    /// Assigns slots to the endpoints. `previous` returns the slots that endpoints had.
    pub(super) fn assign_slots(
        &mut self,
        name: &ServicePortName,
        seconds: u32,
        previous: impl Fn(ListId) -> Vec<(SocketAddr, ClassId)>,
        owners: &mut SlotOwners,
    ) {
        let mut slots = |list: ListId| Slots::new((name, list), self.list(list), &previous(list), owners);
        let (cluster, local) = (slots(ListId::Cluster), slots(ListId::Local));
        self.affinity = Some(Box::new(Affinity { seconds, cluster, local }));
    }

    /// Returns the endpoints of a list with their slots, in the list's order; nothing without session affinity.
    pub(super) fn slots(&self, list: ListId) -> impl Iterator<Item = (SocketAddr, ClassId)> + '_ {
        let slots = self.affinity.iter().flat_map(move |affinity| affinity.slots(list).iter());
        self.list(list).iter().zip(slots)
    }

    /// Releases the owner numbers of the slots.
    pub(super) fn release_slots(&self, owners: &mut SlotOwners) {
        if let Some(affinity) = &self.affinity {
            ListId::ALL.into_iter().for_each(|list| affinity.slots(list).release(owners));
        }
    }

    /// Returns the endpoints of a list.
    pub(super) fn list(&self, list: ListId) -> &SocketList {
        match list {
            ListId::Cluster => &self.cluster,
            ListId::Local => &self.local,
        }
    }

    /// Returns the kind of a frontend.
    pub(super) fn kind(&self, plan: &FrontendPlan, selection: Selection) -> Kind {
        Kind { node_port: plan.frontend.address.is_none(), sticky: self.affinity.is_some(), selection }
    }
}

impl Affinity {
    fn slots(&self, list: ListId) -> &Slots {
        match list {
            ListId::Cluster => &self.cluster,
            ListId::Local => &self.local,
        }
    }
}

impl FrontendPlan {
    /// Reports whether the frontend's packets can go to endpoints of a list.
    pub(super) fn uses(&self, list: ListId) -> bool {
        match (self.action, list) {
            (Action::Reject | Action::Drop, _) => false,
            (Action::Forward(Selection::Pick | Selection::External), list) => list == ListId::Cluster,
            (Action::Forward(Selection::PickLocal), list) => list == ListId::Local,
            (Action::Forward(Selection::ExternalLocal), _) => true,
        }
    }
}

/// Returns all frontends, sorted. If two kinds have the same address, the first kind wins, as in kube-proxy.
fn frontends(name: &ServicePortName, entry: &ServicePortEntry, sets: &EndpointSets<'_>) -> Box<[FrontendPlan]> {
    let service = &entry.service;
    let has_source_ranges = !service.load_balancer_source_ranges.is_empty();
    let (internal, external) = actions(entry, sets);
    let mut plans: BTreeMap<Frontend, FrontendPlan> = BTreeMap::new();
    for (kind, frontend) in service.frontends(name.protocol) {
        let action = if kind == FrontendKind::ClusterIp { internal } else { external };
        let restricted = has_source_ranges && kind == FrontendKind::LoadBalancer;
        let plan = plans.entry(frontend).or_insert(FrontendPlan { frontend, action, restricted });
        plan.restricted |= restricted;
    }
    plans.into_values().collect()
}

/// Returns the actions for internal and external traffic.
fn actions(entry: &ServicePortEntry, sets: &EndpointSets<'_>) -> (Action, Action) {
    if !sets.has_any_endpoints {
        return (Action::Reject, Action::Reject);
    }
    let service = &entry.service;
    // If there are endpoints anywhere, the cluster list is not empty.
    let internal = match service.internal_local() {
        false => Action::Forward(Selection::Pick),
        true if sets.local.is_empty() => Action::Drop,
        true => Action::Forward(Selection::PickLocal),
    };
    let external = if service.external_local() { Selection::ExternalLocal } else { Selection::External };
    (internal, Action::Forward(external))
}

/// Returns the source ranges of a service port.
///
/// As in kube-proxy, the load balancer's own addresses are allowed if the node's is: where they are assigned to the
/// node, its own packets have them as source.
fn source_ranges(entry: &ServicePortEntry, context: &Context) -> Box<[IpNet]> {
    let service = &entry.service;
    let mut nets = service.load_balancer_source_ranges.clone();
    if nets.is_empty() || service.load_balancer_vips.is_empty() {
        return Box::default();
    }
    if context.node_ip.is_some_and(|ip| nets.iter().any(|net| net.contains(&ip))) {
        nets.extend(service.load_balancer_vips.iter().copied().map(IpNet::from));
    }
    // The kernel rejects overlapping ranges.
    IpNet::aggregate(&nets).into()
}

/// An index has 16 bits and starts at 1.
const MAX_ENDPOINTS: usize = u16::MAX as usize;
