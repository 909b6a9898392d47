//! Logs of syncs.

use super::{FamilySynced, Observer};
use crate::sync::FamilyOutcome;

/// Logs each sync that changed something.
pub(crate) struct SyncLog;

impl Observer for SyncLog {
    fn on_synced(&mut self, sync: &FamilySynced<'_>) {
        let FamilyOutcome { report, changes, conntrack_deleted, conntrack_error, took, .. } = sync.outcome;
        let (family, services) = (sync.table.family, changes.services.len());
        if let Some(error) = conntrack_error {
            tracing::warn!(%family, error = format!("{error:#}"), "cannot delete stale UDP conntrack entries");
        }
        match report {
            Some(report) if report.written + report.removed + conntrack_deleted > 0 => tracing::info!(
                %family, services, full = report.full, written = report.written, removed = report.removed,
                total = report.total, stale_conntrack = conntrack_deleted, ?took, kernel = ?report.kernel_time, "synced"
            ),
            _ => tracing::debug!(%family, stale_conntrack = conntrack_deleted, ?took, "nothing to sync"),
        }
    }
}
