//! Properties of the selection of endpoints, in generated clusters.

use std::{collections::BTreeSet, net::SocketAddr};

use ferroute_core::{
    Eligibility, Endpoint, EndpointSets, IpFamily, ServicePortEntry, ServiceTable, testing::arbitrary,
};
use proptest::prelude::*;

fn sockets(endpoints: &[Endpoint]) -> Vec<SocketAddr> {
    endpoints.iter().map(|endpoint| endpoint.socket()).collect()
}

fn filtered(entry: &ServicePortEntry, condition: impl Fn(&Endpoint) -> bool) -> Vec<SocketAddr> {
    entry.endpoints.iter().filter(|endpoint| condition(endpoint)).map(|endpoint| endpoint.socket()).collect()
}

fn is_fallback(endpoint: &Endpoint) -> bool {
    endpoint.serving && endpoint.terminating
}

/// Checks all service ports of both families.
fn check_entries(
    cluster: &ferroute_core::testing::Cluster,
    check: impl Fn(&ServiceTable, &ServicePortEntry, EndpointSets) -> Result<(), TestCaseError>,
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
    fn sets_are_subsets_in_the_order_of_the_entry(cluster in arbitrary::cluster()) {
        check_entries(&cluster, |_, entry, sets| {
            for selected in [&sets.cluster, &sets.local, &sets.reachable] {
                let selected = sockets(selected);
                prop_assert_eq!(filtered(entry, |endpoint| selected.contains(&endpoint.socket())), selected);
            }
            Ok(())
        })?;
    }

    #[test]
    fn reachable_is_the_union_of_cluster_and_local(cluster in arbitrary::cluster()) {
        check_entries(&cluster, |_, entry, sets| {
            let union: BTreeSet<SocketAddr> =
                sockets(&sets.cluster).into_iter().chain(sockets(&sets.local)).collect();
            prop_assert_eq!(sockets(&sets.reachable), filtered(entry, |endpoint| union.contains(&endpoint.socket())));
            Ok(())
        })?;
    }

    #[test]
    fn ready_endpoints_are_used_before_serving_terminating_ones(cluster in arbitrary::cluster()) {
        check_entries(&cluster, |_, entry, sets| {
            if entry.service.uses_cluster_endpoints() {
                if entry.endpoints.iter().any(|endpoint| endpoint.ready) {
                    prop_assert!(!sets.cluster.is_empty());
                    prop_assert!(sets.cluster.iter().all(|endpoint| endpoint.ready));
                } else {
                    prop_assert_eq!(sockets(&sets.cluster), filtered(entry, is_fallback));
                }
            } else {
                prop_assert!(sets.cluster.is_empty());
            }
            if entry.service.uses_local_endpoints() {
                let ready = filtered(entry, |endpoint| endpoint.local && endpoint.ready);
                let fallback = filtered(entry, |endpoint| endpoint.local && is_fallback(endpoint));
                prop_assert_eq!(sockets(&sets.local), if ready.is_empty() { fallback } else { ready });
            } else {
                prop_assert!(sets.local.is_empty());
            }
            Ok(())
        })?;
    }

    #[test]
    fn hints_restrict_ready_endpoints_to_this_node_or_zone_or_are_ignored(cluster in arbitrary::cluster()) {
        check_entries(&cluster, |table, entry, sets| {
            let ready = filtered(entry, |endpoint| endpoint.ready);
            if !entry.service.uses_cluster_endpoints() || ready.is_empty() {
                return Ok(());
            }
            let selected = sockets(&sets.cluster);
            let for_node = filtered(entry, |endpoint| endpoint.ready && endpoint.is_hinted_for_node(&table.node.name));
            let zone = table.node.zone.as_deref();
            let for_zone =
                filtered(entry, |endpoint| endpoint.ready && zone.is_some_and(|zone| endpoint.is_hinted_for_zone(zone)));
            prop_assert!(selected == ready || selected == for_node || selected == for_zone, "{selected:?} of {ready:?}");
            let has_no_hints = |endpoint: &Endpoint| endpoint.ready && endpoint.hints.is_none();
            if entry.endpoints.iter().any(|endpoint| has_no_hints(&endpoint)) {
                prop_assert_eq!(selected, ready);
            }
            Ok(())
        })?;
    }

    #[test]
    fn has_any_endpoints_is_false_only_without_usable_endpoints(cluster in arbitrary::cluster()) {
        check_entries(&cluster, |_, entry, sets| {
            let usable = |endpoint: &Endpoint| endpoint.ready || is_fallback(endpoint);
            prop_assert_eq!(sets.has_any_endpoints, entry.endpoints.iter().any(|endpoint| usable(&endpoint)));
            prop_assert!(sets.has_any_endpoints || sets.reachable.is_empty());
            Ok(())
        })?;
    }

    #[test]
    fn eligible_endpoints_are_those_of_the_sets(cluster in arbitrary::cluster()) {
        check_entries(&cluster, |table, entry, sets| {
            let eligibility = table.eligibility(entry);
            for (eligibility, selected) in [(&eligibility.cluster, &sets.cluster), (&eligibility.local, &sets.local)] {
                let used = eligibility.iter().flat_map(|all| {
                    assert_eq!(all.len(), entry.endpoints.len());
                    entry.endpoints.iter().zip(all).filter(|(_, eligibility)| eligibility.is_eligible())
                });
                prop_assert_eq!(used.map(|(endpoint, _)| endpoint.socket()).collect::<Vec<_>>(), sockets(selected));
            }
            prop_assert_eq!(eligibility.cluster.is_some(), entry.service.uses_cluster_endpoints());
            prop_assert_eq!(eligibility.local.is_some(), entry.service.uses_local_endpoints());
            Ok(())
        })?;
    }

    #[test]
    fn the_reason_for_not_using_an_endpoint_is_true(cluster in arbitrary::cluster()) {
        check_entries(&cluster, |table, entry, _| {
            let eligibility = table.eligibility(entry);
            for (local, eligibility) in [(false, eligibility.cluster), (true, eligibility.local)] {
                for (endpoint, eligibility) in entry.endpoints.iter().zip(eligibility.into_iter().flatten()) {
                    let node = &table.node;
                    let holds = match eligibility {
                        Eligibility::Ready => endpoint.ready,
                        Eligibility::ServingTerminating => !endpoint.ready && is_fallback(&endpoint),
                        Eligibility::NotReady => !endpoint.ready && !is_fallback(&endpoint) && !endpoint.terminating,
                        Eligibility::TerminatingNotServing => !endpoint.ready && !endpoint.serving && endpoint.terminating,
                        Eligibility::Terminating => {
                            is_fallback(&endpoint) && entry.endpoints.iter().any(|e| e.ready && (e.local || !local))
                        }
                        Eligibility::Drained => endpoint.weight == 0,
                        Eligibility::Ejected => endpoint.ejected,
                        // Endpoints are selected without regard to the protocol.
                        Eligibility::UnsupportedProtocol => false,
                        Eligibility::OtherNode => local && !endpoint.local,
                        Eligibility::HintedOtherNode => {
                            !local && endpoint.ready && !endpoint.is_hinted_for_node(&node.name)
                        }
                        Eligibility::HintedOtherZone => {
                            !local && endpoint.ready && !endpoint.is_hinted_for_zone(node.zone.as_deref().unwrap_or_default())
                        }
                    };
                    prop_assert!(holds, "{eligibility:?} for {endpoint:?} on {node:?}");
                }
            }
            Ok(())
        })?;
    }
}
