//! Logs go to standard error, one line each; data goes to standard output.

mod json;

use std::io::IsTerminal;

use ferroute_config::LogFormat;
use tracing_subscriber::EnvFilter;

use crate::{
    observer::{InForce, Observer},
    sync::FamilyOutcome,
};

/// Starts logging for the daemon. `verbosity` is kube-proxy's `-v`: up to 3 what an operator acts on, each sync that
/// changed something included; 4 and 5 what a developer needs; from 6 on everything, the libraries' messages included.
///
/// The environment variable `FERROUTE_LOG` overrides it, by module where wanted (`ferroute_kube=debug`).
pub fn start(verbosity: u32, format: LogFormat) {
    let directives = match verbosity {
        0..=3 => "warn,ferroute=info",
        4..=5 => "warn,ferroute=debug",
        _ => "trace",
    };
    start_with(directives, format);
}

/// Starts logging for a command that prints an answer: without `-v`, only warnings. The configured verbosity is the
/// daemon's and does not matter.
pub fn start_for_command(verbosity: Option<u32>, format: LogFormat) {
    match verbosity {
        Some(verbosity) => start(verbosity, format),
        None => start_with("warn", format),
    }
}

fn start_with(directives: &str, format: LogFormat) {
    let overrides = std::env::var("FERROUTE_LOG").unwrap_or_default();
    let filter = EnvFilter::builder().parse_lossy(format!("{directives},{overrides}"));
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

/// Formats an error with all its causes on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Logs each sync that changed something, on one line.
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
