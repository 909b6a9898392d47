//! Events for Services that claim addresses that other Services own.

use std::collections::{BTreeMap, BTreeSet};

use ferroute_core::{LostFrontend, NamespacedName, ServicePortName, ServiceTable};

use super::EventRecorder;
use crate::observers::FamilySynced;

/// Reports the Services that lost frontends in this sync; after a full sync, all Services with lost frontends.
pub(super) fn report_lost_frontends(events: &EventRecorder, sync: &FamilySynced<'_>) {
    let is_full = sync.outcome.report.as_ref().is_some_and(|report| report.full);
    let conflicts = match is_full {
        true => conflicts(sync.table, sync.table.lost.keys()),
        false => conflicts(sync.table, &sync.outcome.changes.lost),
    };
    for (service, conflict) in conflicts.iter().take(MAX_REPORTS) {
        tracing::warn!(%service, "other Services own addresses of the Service: {conflict}");
        events.address_conflict(service, conflict);
    }
    if let Some(more) = conflicts.len().checked_sub(MAX_REPORTS).filter(|more| *more > 0) {
        tracing::warn!("other Services own addresses of {more} more Services");
    }
}

/// Returns the lost frontends of these service ports by Service, as text.
fn conflicts<'a>(
    table: &ServiceTable,
    names: impl IntoIterator<Item = &'a ServicePortName>,
) -> BTreeMap<NamespacedName, String> {
    let services: BTreeSet<&NamespacedName> = names.into_iter().map(|name| &name.service).collect();
    let lost_by = |service: &NamespacedName| -> Vec<&LostFrontend> {
        let ports = table.ports_of(service).filter_map(|(name, _)| table.lost.get(name));
        ports.flat_map(|lost| &lost.frontends).collect()
    };
    let conflict = |service: &NamespacedName| {
        let lost = lost_by(service);
        let first = lost.first()?;
        let more = if lost.len() > 1 { format!(" (and {} more)", lost.len() - 1) } else { String::new() };
        Some((service.clone(), format!("{first}{more}")))
    };
    services.into_iter().filter_map(conflict).collect()
}

/// Maximum number of Services that are reported one by one after a sync.
const MAX_REPORTS: usize = 20;

#[cfg(test)]
mod tests {
    use ferroute_core::{
        IpFamily,
        testing::{Cluster, service},
    };

    use super::*;

    #[test]
    fn conflict_names_first_lost_frontend_and_its_owner() {
        let dns = service("kube-system/kube-dns").cluster_ip("10.96.0.10").udp("dns", 53).port("dns-tcp", 53);
        let evil = service("aaa/evil").cluster_ip("10.96.0.66").udp("dns", 53).port("dns-tcp", 53);
        let table = Cluster::new("node-1").service(dns).service(evil.external_ip("10.96.0.10")).table(IpFamily::V4);
        let expected = "external IP 10.96.0.10:53/udp belongs to kube-system/kube-dns:dns (cluster IP) (and 1 more)";
        let evil = NamespacedName::new("aaa", "evil");
        assert_eq!(conflicts(&table, table.lost.keys()), BTreeMap::from([(evil, expected.to_owned())]));
        assert_eq!(conflicts(&table, table.entries.keys()).len(), 1, "owners have no conflict");
    }
}
