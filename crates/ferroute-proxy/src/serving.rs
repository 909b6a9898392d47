//! Opening the addresses that the proxy answers on.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context;
use ferroute_admin::{http::{Handler, HttpThread, Limits, ListenError, ListenScope, Server, listen}};

use crate::logging::chain;

/// Serves `what`. With `hard_fail` an address that cannot be opened is an error; else it is told once, and tried again
/// and again.
pub(crate) fn serve(
    http: &HttpThread,
    what: &'static str,
    handler: Arc<dyn Handler>,
    address: SocketAddr,
    hard_fail: bool,
) -> anyhow::Result<Server> {
    let scope = ListenScope::from_bind_address(address.ip());
    if hard_fail {
        let listener = listen(scope, address.port()).with_context(|| format!("cannot serve {what}"))?;
        return Ok(http.serve(listener, handler, Limits::default())?);
    }
    let is_told = AtomicBool::new(false);
    let report = move |error: &ListenError| {
        if is_told.swap(true, Relaxed) {
            tracing::debug!("still cannot serve {what}: {}", chain(error));
        } else {
            tracing::warn!("cannot serve {what}, trying again and again: {}", chain(error));
        }
    };
    Ok(http.serve_when_free(scope, address.port(), handler, Limits::default(), PAUSE, report))
}

/// kube-proxy's pause between two tries.
const PAUSE: Duration = Duration::from_secs(5);
