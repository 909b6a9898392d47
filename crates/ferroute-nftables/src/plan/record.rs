use std::{collections::BTreeMap, net::SocketAddr};

use ferroute_core::{Entry, Routes, ServicePortName, ServiceTable};
use ipnet::IpNet;

use super::{
    Context, Frontend,
    backends::{Backends, arrange},
    kind::{Kind, List, Way},
    order::Places,
    slots::{NUMBERS, SlotOwners, Slots},
};
use crate::model::Class;

/// What is in force for a service port, as compactly as a change of it can be worked out from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Its frontends, each once.
    pub(super) frontends: Box<[Plan]>,
    /// Address within the cluster.
    pub(super) cluster_ip: std::net::IpAddr,
    /// Endpoints for policy Cluster, by index.
    pub(super) cluster: Backends,
    /// Endpoints for policy Local, by index.
    pub(super) local: Backends,
    /// Endpoints of this node that are among them.
    pub(super) own: Backends,
    /// Where clients keep their endpoint.
    pub(super) affinity: Option<Box<Affinity>>,
    /// Who may use the load-balancer addresses, none within another; for restricted frontends only.
    pub(super) sources: Box<[IpNet]>,
    /// Internal traffic must stay on this node but there is nothing here.
    pub(super) no_local_internal: bool,
    /// The same for external traffic.
    pub(super) no_local_external: bool,
}

/// What clients that keep their endpoint are known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Affinity {
    /// For how many seconds.
    pub(super) seconds: u32,
    /// Slots of [`Record::cluster`].
    cluster: Slots,
    /// Slots of [`Record::local`].
    local: Slots,
}

/// What is done for one frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) frontend: Frontend,
    pub(super) answer: Answer,
    /// Source ranges apply.
    pub(super) restricted: bool,
}

/// What a frontend's packets get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A refusal: there is no endpoint anywhere.
    Refuse,
    /// Silence: there is none here, and policy asks for one here.
    Drop,
    /// An endpoint.
    Serve(Way),
}

impl Record {
    /// Plans a service port, without slots. Where `old` endpoints stay they keep their index.
    pub(super) fn new(
        name: &ServicePortName,
        entry: &Entry,
        table: &ServiceTable,
        context: &Context,
        old: impl Fn(&[Plan], List) -> Places<SocketAddr>,
    ) -> Self {
        let service = &entry.service;
        let routes = table.routes(entry);
        let frontends = frontends(name, entry, &routes);
        let most = if service.affinity.is_some() { NUMBERS.into() } else { MAX_ENDPOINTS };
        let list = |list, endpoints: &[&ferroute_core::Endpoint]| {
            let wanted: Vec<SocketAddr> = endpoints.iter().take(most).map(|e| e.socket()).collect();
            Backends::new(context.family, arrange(&old(&frontends, list), &wanted).into_iter())
        };
        let own = routes.reachable.iter().filter(|endpoint| endpoint.local).map(|endpoint| endpoint.socket());
        let no_local = routes.any_anywhere && routes.local.is_empty();
        Self {
            cluster_ip: service.cluster_ip,
            cluster: list(List::Cluster, &routes.cluster),
            local: list(List::Local, &routes.local),
            own: Backends::new(context.family, own),
            affinity: None,
            sources: sources(entry, context),
            no_local_internal: no_local && service.internal_local(),
            no_local_external: no_local && service.external_local() && service.externally_accessible(),
            frontends,
        }
    }

    /// Gives slots to the endpoints, for clients that keep theirs. `known` tells the slots that they have or had.
    pub(super) fn remember(
        &mut self,
        name: &ServicePortName,
        seconds: u32,
        known: impl Fn(List) -> Vec<(SocketAddr, Class)>,
        owners: &mut SlotOwners,
    ) {
        let mut slots = |list: List| Slots::new((name, list), self.list(list), &known(list), owners);
        let (cluster, local) = (slots(List::Cluster), slots(List::Local));
        self.affinity = Some(Box::new(Affinity { seconds, cluster, local }));
    }

    /// The endpoints of a list with their slots, in the list's order; nothing without affinity.
    pub(super) fn slots(&self, list: List) -> impl Iterator<Item = (SocketAddr, Class)> + '_ {
        let slots = self.affinity.iter().flat_map(move |affinity| affinity.slots(list).iter());
        self.list(list).iter().zip(slots)
    }

    /// Others may have the numbers that the slots belong to.
    pub(super) fn release_slots(&self, owners: &mut SlotOwners) {
        if let Some(affinity) = &self.affinity {
            List::ALL.into_iter().for_each(|list| affinity.slots(list).release(owners));
        }
    }

    /// The endpoints of a list.
    pub(super) fn list(&self, list: List) -> &Backends {
        match list {
            List::Cluster => &self.cluster,
            List::Local => &self.local,
        }
    }

    /// The kind for a way of a frontend.
    pub(super) fn kind(&self, plan: &Plan, way: Way) -> Kind {
        Kind { node_port: plan.frontend.address.is_none(), sticky: self.affinity.is_some(), way }
    }
}

impl Affinity {
    fn slots(&self, list: List) -> &Slots {
        match list {
            List::Cluster => &self.cluster,
            List::Local => &self.local,
        }
    }
}

impl Plan {
    /// Whether the frontend's packets can go to endpoints of a list.
    pub(super) fn uses(&self, list: List) -> bool {
        match (self.answer, list) {
            (Answer::Refuse | Answer::Drop, _) => false,
            (Answer::Serve(Way::Pick | Way::External), list) => list == List::Cluster,
            (Answer::Serve(Way::PickLocal), list) => list == List::Local,
            (Answer::Serve(Way::ExternalLocal), _) => true,
        }
    }
}

/// All frontends, sorted; where two kinds of address are the same, the first kind counts, as in kube-proxy.
fn frontends(name: &ServicePortName, entry: &Entry, routes: &Routes<'_>) -> Box<[Plan]> {
    let service = &entry.service;
    let guarded = !service.load_balancer_source_ranges.is_empty();
    let (internal, external) = answers(entry, routes);
    let at = |address| Frontend { address: Some(address), protocol: name.protocol, port: service.port };
    let node_port = service.node_port.map(|port| Frontend { address: None, protocol: name.protocol, port: port.get() });
    let inside = [(at(service.cluster_ip), internal, false)].into_iter();
    let outside = service.external_ips.iter().map(|address| (at(*address), external, false));
    let balancers = service.load_balancer_vips.iter().map(|address| (at(*address), external, guarded));
    let node_ports = node_port.into_iter().map(|frontend| (frontend, external, false));
    let mut plans: BTreeMap<Frontend, Plan> = BTreeMap::new();
    for (frontend, answer, restricted) in inside.chain(outside).chain(balancers).chain(node_ports) {
        let plan = plans.entry(frontend).or_insert(Plan { frontend, answer, restricted });
        plan.restricted |= restricted;
    }
    plans.into_values().collect()
}

/// For traffic to the cluster IP and for traffic to all other addresses.
fn answers(entry: &Entry, routes: &Routes<'_>) -> (Answer, Answer) {
    if !routes.any_anywhere {
        return (Answer::Refuse, Answer::Refuse);
    }
    let service = &entry.service;
    // With endpoints anywhere, those for policy Cluster are never none.
    let internal = match service.internal_local() {
        false => Answer::Serve(Way::Pick),
        true if routes.local.is_empty() => Answer::Drop,
        true => Answer::Serve(Way::PickLocal),
    };
    let external = if service.external_local() { Way::ExternalLocal } else { Way::External };
    (internal, Answer::Serve(external))
}

/// As in kube-proxy, a load balancer's own addresses may be sources if the node may: where they are addresses of the
/// node, its packets to them come from them.
fn sources(entry: &Entry, context: &Context) -> Box<[IpNet]> {
    let service = &entry.service;
    let mut nets = service.load_balancer_source_ranges.clone();
    if nets.is_empty() || service.load_balancer_vips.is_empty() {
        return Box::default();
    }
    if context.node_ip.is_some_and(|ip| nets.iter().any(|net| net.contains(&ip))) {
        nets.extend(service.load_balancer_vips.iter().copied().map(IpNet::from));
    }
    // The kernel takes no ranges that overlap.
    IpNet::aggregate(&nets).into()
}

/// An index has 16 bits and starts at 1.
const MAX_ENDPOINTS: usize = u16::MAX as usize;
