//! The endpoints that the traffic of a service port uses on this node.
//!
//! ```text
//!   ready endpoints, restricted by topology hints ──┐ none?
//!                                                   ├──► cluster
//!   serving, terminating endpoints ─────────────────┘
//!
//!   ready endpoints on this node ───────────────────┐ none?
//!                                                   ├──► local
//!   serving, terminating endpoints on this node ────┘
//! ```

use crate::{
    Eligibility, Endpoint, Hints, ModeTraits, NodeView, ServicePort, ServicePortEntry, ServicePortName, ServiceTable,
    eligibility::{Scope, Selection},
};

/// The sets of endpoints that the traffic of a service port uses on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSets {
    /// Endpoints for traffic with policy Cluster, restricted by topology; empty without such traffic.
    pub cluster: Vec<Endpoint>,
    /// Endpoints for traffic with policy Local; empty without such traffic.
    pub local: Vec<Endpoint>,
    /// The union of both sets, in the order of [`ServicePortEntry::endpoints`].
    pub reachable: Vec<Endpoint>,
    /// Some node of the cluster has a usable endpoint. If false, connections are rejected.
    pub has_any_endpoints: bool,
}

/// The eligibility of all endpoints of a [`ServicePortEntry`], in the order of [`ServicePortEntry::endpoints`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointEligibility {
    /// For traffic with policy Cluster; `None` without such traffic.
    pub cluster: Option<Vec<Eligibility>>,
    /// For traffic with policy Local; `None` without such traffic.
    pub local: Option<Vec<Eligibility>>,
}

impl ServiceTable {
    /// Returns the endpoints that the traffic of `entry` uses on the node of this table.
    pub fn endpoint_sets(&self, entry: &ServicePortEntry) -> EndpointSets {
        let mut sets = EndpointSets::default();
        if entry.endpoints.is_empty() {
            return sets;
        }
        let endpoints: Vec<Endpoint> = entry.endpoints.iter().collect();
        let (cluster, local) = self.selections(&entry.service, &endpoints);
        if let Some(selection) = cluster {
            sets.cluster = selection.select(&endpoints);
            sets.has_any_endpoints = !sets.cluster.is_empty();
        }
        let Some(local) = local else {
            sets.reachable.clone_from(&sets.cluster);
            return sets;
        };
        sets.has_any_endpoints |= endpoints.iter().any(Endpoint::is_usable);
        sets.local = local.select(&endpoints);
        let is_reachable = |endpoint: &Endpoint| {
            let selections = cluster.iter().chain([&local]);
            selections.into_iter().any(|selection| selection.eligibility(endpoint).is_eligible())
        };
        sets.reachable = endpoints.into_iter().filter(is_reachable).collect();
        sets
    }

    /// Returns the reason why each endpoint of `entry` is, or is not, in the sets of [`ServiceTable::endpoint_sets`].
    pub fn eligibility(&self, entry: &ServicePortEntry) -> EndpointEligibility {
        let endpoints: Vec<Endpoint> = entry.endpoints.iter().collect();
        let (cluster, local) = self.selections(&entry.service, &endpoints);
        let each = |selection: Selection<'_>| endpoints.iter().map(|e| selection.eligibility(e)).collect();
        EndpointEligibility { cluster: cluster.map(each), local: local.map(each) }
    }

    /// Like [`ServiceTable::eligibility`], of a service port in a mode with these traits, which may not support its protocol.
    pub fn eligibility_in(
        &self,
        name: &ServicePortName,
        entry: &ServicePortEntry,
        traits: &ModeTraits,
    ) -> EndpointEligibility {
        let mut eligibility = self.eligibility(entry);
        // Without usable endpoints, connections are rejected for that reason in every mode.
        if !traits.protocols.contains(&name.protocol) && self.endpoint_sets(entry).has_any_endpoints {
            for all in [&mut eligibility.cluster, &mut eligibility.local] {
                all.iter_mut().flatten().for_each(|reason| *reason = Eligibility::UnsupportedProtocol);
            }
        }
        eligibility
    }

    /// Returns the selections for policy Cluster and for policy Local; `None` without such traffic.
    fn selections(
        &self,
        service: &ServicePort,
        endpoints: &[Endpoint],
    ) -> (Option<Selection<'_>>, Option<Selection<'_>>) {
        // Hints apply only if they leave a ready endpoint, so they never restrict the terminating ones.
        let cluster = || Selection::new(endpoints, topology(endpoints, &self.node));
        let local = || Selection::new(endpoints, Scope::Local);
        (service.uses_cluster_endpoints().then(cluster), service.uses_local_endpoints().then(local))
    }
}

/// Returns the scope that topology hints result in. Node hints take precedence over zone hints.
///
/// Hints apply only if every ready endpoint has one and at least one is for this node or zone. Otherwise they are out of
/// date, and following them could overload few endpoints or reach none.
fn topology<'a>(endpoints: &[Endpoint], node: &'a NodeView) -> Scope<'a> {
    let ready = || endpoints.iter().filter(|endpoint| endpoint.accepts());
    let all_have = |has: fn(&Hints) -> bool| ready().all(|e| e.hints.as_ref().is_some_and(|hints| has(hints)));
    if all_have(|hints| !hints.nodes.is_empty()) && ready().any(|endpoint| endpoint.is_hinted_for_node(&node.name)) {
        return Scope::HintedNode(&node.name);
    }
    if let Some(zone) = node.zone.as_deref()
        && all_have(|hints| !hints.zones.is_empty())
        && ready().any(|endpoint| endpoint.is_hinted_for_zone(zone))
    {
        return Scope::HintedZone(zone);
    }
    Scope::Cluster
}

#[cfg(test)]
mod tests;
