//! Events for service ports whose protocol the mode does not support.

use super::EventRecorder;
use crate::observers::FamilySynced;

/// Reports the service ports that the dataplane found in this sync.
pub(super) fn report_unsupported_protocols(events: &EventRecorder, sync: &FamilySynced<'_>) {
    let (family, Some(report)) = (sync.table.family, &sync.outcome.report) else { return };
    for service_port in report.unsupported.iter().take(MAX_REPORTS) {
        let protocol = service_port.protocol.as_str().to_uppercase();
        tracing::warn!(%family, %service_port, "the proxy mode does not support {protocol}; connections are rejected");
        events.unsupported_protocol(service_port);
    }
    if let Some(more) = report.unsupported.len().checked_sub(MAX_REPORTS).filter(|more| *more > 0) {
        tracing::warn!(%family, "{more} more service ports have a protocol that the proxy mode does not support");
    }
}

/// Maximum number of service ports that are reported one by one after a sync.
const MAX_REPORTS: usize = 20;
