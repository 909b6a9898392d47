//! Events for Services whose rules the kernel refused.

use std::collections::BTreeMap;

use ferroute_core::{NamespacedName, Rejection};

use super::EventRecorder;
use crate::observers::FamilySynced;

/// Reports the Services whose rules were refused in this sync.
pub(super) fn report_rejected_rules(events: &EventRecorder, sync: &FamilySynced<'_>) {
    let Some(report) = &sync.outcome.report else { return };
    let services = by_service(&report.rejected);
    for (service, error) in services.iter().take(MAX_REPORTS) {
        tracing::error!(family = %sync.table.family, %service, "cannot write the Service's rules, all others are applied: {error}");
        events.rules_rejected(service, error);
    }
    if let Some(more) = services.len().checked_sub(MAX_REPORTS).filter(|more| *more > 0) {
        tracing::error!(family = %sync.table.family, "cannot write the rules of {more} more Services");
    }
}

/// Returns the first error of each Service.
fn by_service(rejected: &[Rejection]) -> BTreeMap<&NamespacedName, String> {
    let mut services = BTreeMap::new();
    for Rejection { service_port, error } in rejected {
        services.entry(&service_port.service).or_insert_with(|| format!("{service_port}: {error}"));
    }
    services
}

/// Maximum number of Services that are reported one by one after a sync.
const MAX_REPORTS: usize = 20;

#[cfg(test)]
mod tests {
    use ferroute_core::testing::{namespaced_name, port_name};

    use super::*;

    #[test]
    fn service_is_reported_once_with_its_first_error() {
        let rejection = |name: &str, error: &str| Rejection { service_port: port_name(name), error: error.to_owned() };
        let rejected = [
            rejection("shop/web:http", "exists"),
            rejection("shop/web:https", "full"),
            rejection("shop/cart:http", "full"),
        ];
        let (web, cart) = (namespaced_name("shop/web"), namespaced_name("shop/cart"));
        let expected = [(&cart, "shop/cart:http: full".to_owned()), (&web, "shop/web:http: exists".to_owned())];
        assert_eq!(by_service(&rejected), expected.into());
    }
}
