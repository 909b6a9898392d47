//! Events for Services that exceed a limit.

use std::collections::{BTreeMap, BTreeSet};

use ferroute_core::{NamespacedName, ServicePortName, ServiceTable, SyncReport};

use super::EventRecorder;
use crate::observers::FamilySynced;

/// Reports Services once when they exceed a limit, and again after each full sync.
#[derive(Debug, Default)]
pub(super) struct LimitReports {
    /// The service ports without a number, by family.
    unserved: [BTreeSet<ServicePortName>; 2],
}

impl LimitReports {
    /// Reports the Services of which a part is not served since this sync; after a full sync, all of them.
    pub(super) fn report(&mut self, events: &EventRecorder, sync: &FamilySynced<'_>) {
        let family = sync.table.family;
        let services = self.exceeding(sync.table, sync.outcome.report.as_ref(), &sync.outcome.changes.excess);
        for (service, excess) in services.iter().take(MAX_REPORTS) {
            tracing::warn!(%family, %service, "a limit is exceeded: {excess}");
            events.limit_exceeded(service, excess);
        }
        if let Some(more) = services.len().checked_sub(MAX_REPORTS).filter(|more| *more > 0) {
            tracing::warn!(%family, "{more} more Services exceed a limit");
        }
    }

    fn exceeding(
        &mut self,
        table: &ServiceTable,
        report: Option<&SyncReport>,
        changed: &BTreeSet<ServicePortName>,
    ) -> BTreeMap<NamespacedName, String> {
        let is_full = report.is_some_and(|report| report.full);
        let with_excess = table.excess.iter().filter(|(name, _)| is_full || changed.contains(*name));
        let mut services: BTreeMap<NamespacedName, String> = with_excess
            .map(|(name, excess)| {
                let used = table.entries.get(name).map_or(0, |entry| entry.endpoints.len());
                (name.service.clone(), format!("{excess} endpoints of {name} are not used, the limit is {used}"))
            })
            .collect();
        if let Some(report) = report {
            let reported = &mut self.unserved[table.family.index()];
            for name in report.unserved.iter().filter(|name| is_full || !reported.contains(*name)) {
                let excess = format!("there are more service ports than the mode can serve, {name} is one of them");
                services.insert(name.service.clone(), excess);
            }
            reported.clone_from(&report.unserved);
        }
        services
    }
}

/// Maximum number of Services that are reported one by one after a sync.
const MAX_REPORTS: usize = 20;

#[cfg(test)]
mod tests {
    use ferroute_core::{
        IpFamily,
        testing::{node, port_name, table},
    };

    use super::*;

    #[test]
    fn limits_are_reported_when_they_are_exceeded_and_after_full_syncs() {
        let [web, cart] = ["shop/web:http", "shop/cart:http"].map(port_name);
        let mut table = table(IpFamily::V4, node("node-1"), []);
        let mut reports = LimitReports::default();
        let report = |full, unserved: &[&ServicePortName]| SyncReport {
            full,
            unserved: unserved.iter().map(|name| (*name).clone()).collect(),
            ..SyncReport::default()
        };
        let names = |services: BTreeMap<NamespacedName, String>| -> Vec<String> {
            services.into_keys().map(|name| name.to_string()).collect()
        };
        let changed = BTreeSet::from([web.clone()]);
        assert!(reports.exceeding(&table, Some(&report(true, &[])), &changed).is_empty());
        table.excess.insert(web.clone(), 5);
        let exceeding = reports.exceeding(&table, None, &changed);
        assert_eq!(exceeding[&web.service], "5 endpoints of shop/web:http are not used, the limit is 0");
        assert!(reports.exceeding(&table, Some(&report(false, &[])), &BTreeSet::new()).is_empty());
        for expected in [&["shop/cart"][..], &[]] {
            assert_eq!(names(reports.exceeding(&table, Some(&report(false, &[&cart])), &BTreeSet::new())), expected);
        }
        assert_eq!(
            names(reports.exceeding(&table, Some(&report(true, &[&cart])), &BTreeSet::new())),
            ["shop/cart", "shop/web"]
        );
    }
}
