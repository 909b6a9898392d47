//! What must hold for the choice of endpoints in every cluster.

use std::{collections::BTreeSet, net::SocketAddr};

use ferroute_core::{Endpoint, ServicePortEntry, IpFamily, EndpointSets, ServiceTable, Eligibility, testing::arbitrary};
use proptest::prelude::*;

fn sockets(endpoints: &[&Endpoint]) -> Vec<SocketAddr> {
    endpoints.iter().map(|endpoint| endpoint.socket()).collect()
}

fn all(entry: &ServicePortEntry, wanted: impl Fn(&Endpoint) -> bool) -> Vec<SocketAddr> {
    entry.endpoints.iter().filter(|endpoint| wanted(endpoint)).map(Endpoint::socket).collect()
}

fn falls_back(endpoint: &Endpoint) -> bool {
    endpoint.serving && endpoint.terminating
}

/// For every service port of both families.
fn for_every_entry(
    cluster: &ferroute_core::testing::Cluster,
    check: impl Fn(&ServiceTable, &ServicePortEntry, EndpointSets<'_>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    for family in IpFamily::BOTH {
        let table = cluster.table(family);
        for entry in table.entries.values() {
            check(&table, entry, table.endpoint_sets(entry))?;
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn routes_hold_endpoints_of_the_entry_in_its_order(cluster in arbitrary::cluster()) {
        for_every_entry(&cluster, |_, entry, sets| {
            for chosen in [&sets.cluster, &sets.local, &sets.reachable] {
                let chosen = sockets(chosen);
                prop_assert_eq!(all(entry, |endpoint| chosen.contains(&endpoint.socket())), chosen);
            }
            Ok(())
        })?;
    }

    #[test]
    fn reachable_is_cluster_and_local_together(cluster in arbitrary::cluster()) {
        for_every_entry(&cluster, |_, entry, sets| {
            let either: BTreeSet<SocketAddr> =
                sockets(&sets.cluster).into_iter().chain(sockets(&sets.local)).collect();
            prop_assert_eq!(sockets(&sets.reachable), all(entry, |endpoint| either.contains(&endpoint.socket())));
            Ok(())
        })?;
    }

    #[test]
    fn traffic_goes_to_ready_endpoints_while_there_are_any_and_else_to_serving_ones(cluster in arbitrary::cluster()) {
        for_every_entry(&cluster, |_, entry, sets| {
            if entry.service.uses_cluster_endpoints() {
                if entry.endpoints.iter().any(|endpoint| endpoint.ready) {
                    prop_assert!(!sets.cluster.is_empty());
                    prop_assert!(sets.cluster.iter().all(|endpoint| endpoint.ready));
                } else {
                    prop_assert_eq!(sockets(&sets.cluster), all(entry, falls_back));
                }
            } else {
                prop_assert!(sets.cluster.is_empty());
            }
            if entry.service.uses_local_endpoints() {
                let ready = all(entry, |endpoint| endpoint.local && endpoint.ready);
                let fallback = all(entry, |endpoint| endpoint.local && falls_back(endpoint));
                prop_assert_eq!(sockets(&sets.local), if ready.is_empty() { fallback } else { ready });
            } else {
                prop_assert!(sets.local.is_empty());
            }
            Ok(())
        })?;
    }

    #[test]
    fn hints_narrow_ready_endpoints_to_those_for_this_node_or_zone_or_not_at_all(cluster in arbitrary::cluster()) {
        for_every_entry(&cluster, |table, entry, sets| {
            let ready = all(entry, |endpoint| endpoint.ready);
            if !entry.service.uses_cluster_endpoints() || ready.is_empty() {
                return Ok(());
            }
            let chosen = sockets(&sets.cluster);
            let for_node = all(entry, |endpoint| endpoint.ready && endpoint.is_hinted_for_node(&table.node.name));
            let zone = table.node.zone.as_deref();
            let for_zone =
                all(entry, |endpoint| endpoint.ready && zone.is_some_and(|zone| endpoint.is_hinted_for_zone(zone)));
            prop_assert!(chosen == ready || chosen == for_node || chosen == for_zone, "{chosen:?} of {ready:?}");
            let unhinted = |endpoint: &Endpoint| endpoint.ready && endpoint.hints.is_none();
            if entry.endpoints.iter().any(unhinted) {
                prop_assert_eq!(chosen, ready);
            }
            Ok(())
        })?;
    }

    #[test]
    fn connections_are_refused_only_where_no_endpoint_serves_anywhere(cluster in arbitrary::cluster()) {
        for_every_entry(&cluster, |_, entry, sets| {
            let usable = |endpoint: &Endpoint| endpoint.ready || falls_back(endpoint);
            prop_assert_eq!(sets.has_any_endpoints, entry.endpoints.iter().any(usable));
            prop_assert!(sets.has_any_endpoints || sets.reachable.is_empty());
            Ok(())
        })?;
    }

    #[test]
    fn the_endpoints_that_are_told_to_be_used_are_those_of_the_routes(cluster in arbitrary::cluster()) {
        for_every_entry(&cluster, |table, entry, sets| {
            let eligibility = table.eligibility(entry);
            for (eligibility, chosen) in [(&eligibility.cluster, &sets.cluster), (&eligibility.local, &sets.local)] {
                let used = eligibility.iter().flat_map(|all| {
                    assert_eq!(all.len(), entry.endpoints.len());
                    entry.endpoints.iter().zip(all).filter(|(_, eligibility)| eligibility.is_used())
                });
                prop_assert_eq!(used.map(|(endpoint, _)| endpoint.socket()).collect::<Vec<_>>(), sockets(chosen));
            }
            prop_assert_eq!(eligibility.cluster.is_some(), entry.service.uses_cluster_endpoints());
            prop_assert_eq!(eligibility.local.is_some(), entry.service.uses_local_endpoints());
            Ok(())
        })?;
    }

    #[test]
    fn the_reason_for_not_using_an_endpoint_is_true(cluster in arbitrary::cluster()) {
        for_every_entry(&cluster, |table, entry, _| {
            let eligibility = table.eligibility(entry);
            for (local, eligibility) in [(false, eligibility.cluster), (true, eligibility.local)] {
                for (endpoint, eligibility) in entry.endpoints.iter().zip(eligibility.into_iter().flatten()) {
                    let node = &table.node;
                    let holds = match eligibility {
                        Eligibility::Ready => endpoint.ready,
                        Eligibility::ServingTerminating => !endpoint.ready && falls_back(endpoint),
                        Eligibility::NotReady => !endpoint.ready && !falls_back(endpoint) && !endpoint.terminating,
                        Eligibility::TerminatingNotServing => !endpoint.ready && !endpoint.serving && endpoint.terminating,
                        Eligibility::Terminating => {
                            falls_back(endpoint) && entry.endpoints.iter().any(|e| e.ready && (e.local || !local))
                        }
                        Eligibility::OtherNode => local && !endpoint.local,
                        Eligibility::HintedOtherNode => {
                            !local && endpoint.ready && !endpoint.is_hinted_for_node(&node.name)
                        }
                        Eligibility::HintedOtherZone => {
                            !local && endpoint.ready && !endpoint.is_hinted_for_zone(node.zone.as_deref().unwrap_or_default())
                        }
                    };
                    prop_assert!(holds, "{endpoint:?} is said to be {eligibility:?} on {node:?}");
                }
            }
            Ok(())
        })?;
    }
}
