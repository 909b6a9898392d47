//! Logs go to standard error, one line each; data goes to standard output.

mod json;

use std::io::IsTerminal;

use ferroute_config::LogFormat;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use crate::{
    observer::{InForce, Observer},
    sync::FamilyOutcome,
};

/// Starts logging. `verbosity` is kube-proxy's `-v`: 0 tells what an operator should see, 2 adds every sync, 4 every
/// event. The environment variable `FERROUTE_LOG` overrides it, by module where wanted (`ferroute=debug`).
pub(crate) fn start(verbosity: u32, format: LogFormat) {
    let level = match verbosity {
        0 | 1 => LevelFilter::INFO,
        2 | 3 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let filter =
        EnvFilter::builder().with_env_var("FERROUTE_LOG").with_default_directive(level.into()).from_env_lossy();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    match format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.event_format(json::KubernetesJson).init(),
    }
}

/// An error with all its causes on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Tells of each sync on one line, if it did something.
pub(crate) struct SyncLog;

impl Observer for SyncLog {
    fn in_force(&mut self, sync: &InForce<'_>) {
        let FamilyOutcome { report, changes, flows_removed, flows_error, took, .. } = sync.outcome;
        let (family, services) = (sync.table.family, changes.services.len());
        if let Some(error) = flows_error {
            tracing::warn!(%family, error = format!("{error:#}"), "cannot remove stale UDP flows");
        }
        match report {
            Some(report) if report.written + report.removed + flows_removed > 0 => tracing::info!(
                %family, services, full = report.full, written = report.written, removed = report.removed,
                total = report.total, stale_flows = flows_removed, ?took, kernel = ?report.kernel_time, "synced"
            ),
            _ => tracing::debug!(%family, stale_flows = flows_removed, ?took, "nothing to sync"),
        }
    }
}
