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

use crate::{
    Endpoint, ServicePortEntry, NodeView, EndpointSets, ServiceTable, Eligibility,
    eligibility::{Scope, Selection},
};

/// How each endpoint of an [`ServicePortEntry`] stands with both kinds of traffic, in the order of [`ServicePortEntry::endpoints`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointEligibility {
    /// With traffic of policy Cluster; `None` if the service port has no such traffic.
    pub cluster: Option<Vec<Eligibility>>,
    /// With traffic of policy Local; `None` if the service port has no such traffic.
    pub local: Option<Vec<Eligibility>>,
}

impl ServiceTable {
    /// Which endpoints `entry`'s traffic uses on this table's node.
    pub fn endpoint_sets<'a>(&self, entry: &'a ServicePortEntry) -> EndpointSets<'a> {
        let mut sets = EndpointSets::default();
        if entry.endpoints.is_empty() {
            return sets;
        }
        let (cluster, local) = self.selections(entry);
        if let Some(selection) = cluster {
            sets.cluster = selection.choose(&entry.endpoints);
            sets.any_anywhere = !sets.cluster.is_empty();
        }
        let Some(selection) = local else {
            sets.reachable.clone_from(&sets.cluster);
            return sets;
        };
        let usable = |endpoint: &Endpoint| endpoint.ready || endpoint.is_serving_terminating();
        sets.any_anywhere |= entry.endpoints.iter().any(usable);
        sets.local = selection.choose(&entry.endpoints);
        sets.reachable = merge(&sets.cluster, &sets.local);
        sets
    }

    /// Why each endpoint of `entry` is among those of [`ServiceTable::endpoint_sets`], or is not.
    pub fn eligibility(&self, entry: &ServicePortEntry) -> EndpointEligibility {
        let (cluster, local) = self.selections(entry);
        let of_all = |selection: Selection<'_>| entry.endpoints.iter().map(|e| selection.eligibility(e)).collect();
        EndpointEligibility { cluster: cluster.map(of_all), local: local.map(of_all) }
    }

    /// How endpoints are chosen for policy Cluster and for policy Local, where there is such traffic.
    fn selections(&self, entry: &ServicePortEntry) -> (Option<Selection<'_>>, Option<Selection<'_>>) {
        let (service, endpoints) = (&entry.service, &entry.endpoints);
        // Hints are obeyed only where they leave a ready endpoint, so they never narrow the choice of terminating ones.
        let cluster = || Selection::new(endpoints, topology(endpoints, &self.node));
        let local = || Selection::new(endpoints, Scope::ThisNode);
        (service.uses_cluster_endpoints().then(cluster), service.uses_local_endpoints().then(local))
    }
}

/// Hints count only when every ready endpoint has one and at least one is for us; otherwise the hints are taken to be
/// out of date, and obeying them could overload few endpoints or reach none. Node hints come before zone hints.
fn topology<'a>(endpoints: &[Endpoint], node: &'a NodeView) -> Scope<'a> {
    let ready = || endpoints.iter().filter(|endpoint| endpoint.ready);
    let all_have = |has: fn(&crate::Hints) -> bool| ready().all(|e| e.hints.as_ref().is_some_and(|h| has(h)));
    if all_have(|hints| !hints.nodes.is_empty()) && ready().any(|endpoint| endpoint.hints_node(&node.name)) {
        return Scope::HintedNode(&node.name);
    }
    if let Some(zone) = node.zone.as_deref()
        && all_have(|hints| !hints.zones.is_empty())
        && ready().any(|endpoint| endpoint.hints_zone(zone))
    {
        return Scope::HintedZone(zone);
    }
    Scope::Anywhere
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
