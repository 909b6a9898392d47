//! `--cleanup`: removes the rules of every mode.

use std::process::ExitCode;

use ferroute_config::Resolved;

use crate::{logging::chain, planes};

/// Removes everything that a proxy has left on this host, in whichever mode, and nothing else. What cannot be removed is
/// told, and does not keep the rest from being removed.
pub(crate) fn cleanup(resolved: &Resolved) -> anyhow::Result<ExitCode> {
    let mut is_clean = true;
    for mut plane in planes::every(resolved)? {
        if let Err(error) = plane.cleanup() {
            tracing::error!("some rules may still be there: {}", chain(&error));
            is_clean = false;
        }
    }
    if !is_clean {
        return Ok(ExitCode::FAILURE);
    }
    tracing::info!("no rules of a proxy are left");
    Ok(ExitCode::SUCCESS)
}
