//! Which endpoints a service port's traffic uses on this node.
//!
//! ```text
//!   ready endpoints, narrowed by topology hints ──┐ none?
//!                                                 ├──► cluster
//!   serving endpoints that terminate ─────────────┘
//!
//!   ready endpoints of this node ─────────────────┐ none?
//!                                                 ├──► local
//!   serving, terminating endpoints of this node ──┘
//! ```

use crate::{Endpoint, Entry, NodeView, Routes, ServiceTable};

impl ServiceTable {
    /// Which endpoints `entry`'s traffic uses on this table's node.
    pub fn routes<'a>(&self, entry: &'a Entry) -> Routes<'a> {
        let service = &entry.service;
        let mut routes = Routes::default();
        if entry.endpoints.is_empty() {
            return routes;
        }
        if service.uses_cluster_endpoints() {
            routes.cluster = cluster_endpoints(&entry.endpoints, &self.node);
            routes.any_anywhere = !routes.cluster.is_empty();
        }
        if !service.uses_local_endpoints() {
            routes.reachable.clone_from(&routes.cluster);
            return routes;
        }
        let usable = |endpoint: &Endpoint| endpoint.ready || endpoint.is_serving_terminating();
        routes.any_anywhere |= entry.endpoints.iter().any(usable);
        routes.local = ready_or_terminating(&entry.endpoints, |endpoint| endpoint.local);
        routes.reachable = merge(&routes.cluster, &routes.local);
        routes
    }
}

/// What topology hints narrow the choice down to.
#[derive(Clone, Copy)]
enum Topology<'a> {
    Anywhere,
    SameNode(&'a str),
    SameZone(&'a str),
}

impl Topology<'_> {
    fn allows(self, endpoint: &Endpoint) -> bool {
        match self {
            Self::Anywhere => true,
            Self::SameNode(node) => endpoint.hints_node(node),
            Self::SameZone(zone) => endpoint.hints_zone(zone),
        }
    }
}

fn cluster_endpoints<'a>(endpoints: &'a [Endpoint], node: &NodeView) -> Vec<&'a Endpoint> {
    // Hints are obeyed only where they leave a ready endpoint, so they never narrow the choice of terminating ones.
    let topology = topology(endpoints, node);
    ready_or_terminating(endpoints, |endpoint| topology.allows(endpoint))
}

/// Ready endpoints among the eligible; if there are none, those that still serve while they terminate.
fn ready_or_terminating(endpoints: &[Endpoint], eligible: impl Fn(&Endpoint) -> bool) -> Vec<&Endpoint> {
    let ready: Vec<&Endpoint> = endpoints.iter().filter(|e| e.ready && eligible(e)).collect();
    if !ready.is_empty() {
        return ready;
    }
    endpoints.iter().filter(|e| e.is_serving_terminating() && eligible(e)).collect()
}

/// Hints count only when every ready endpoint has one and at least one is for us; otherwise the hints are taken to be
/// out of date, and obeying them could overload few endpoints or reach none. Node hints come before zone hints.
fn topology<'a>(endpoints: &[Endpoint], node: &'a NodeView) -> Topology<'a> {
    let ready = || endpoints.iter().filter(|endpoint| endpoint.ready);
    let all_have = |has: fn(&crate::Hints) -> bool| ready().all(|e| e.hints.as_ref().is_some_and(|h| has(h)));
    if all_have(|hints| !hints.nodes.is_empty()) && ready().any(|endpoint| endpoint.hints_node(&node.name)) {
        return Topology::SameNode(&node.name);
    }
    if let Some(zone) = node.zone.as_deref()
        && all_have(|hints| !hints.zones.is_empty())
        && ready().any(|endpoint| endpoint.hints_zone(zone))
    {
        return Topology::SameZone(zone);
    }
    Topology::Anywhere
}

/// Both lists are parts of one list and in its order, so their addresses in memory tell which comes first.
fn merge<'a>(a: &[&'a Endpoint], b: &[&'a Endpoint]) -> Vec<&'a Endpoint> {
    let mut all: Vec<&Endpoint> = a.iter().chain(b).copied().collect();
    all.sort_unstable_by_key(|endpoint| std::ptr::from_ref(*endpoint));
    all.dedup_by_key(|endpoint| std::ptr::from_ref(*endpoint));
    all
}

#[cfg(test)]
mod tests;
