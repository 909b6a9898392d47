//! Connection attempts to endpoints.

use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc, time::Duration};

use ferroute_core::{IpFamily, Protocol};
use tokio::{net::TcpStream, sync::Semaphore, task::JoinSet, time::timeout};

use crate::{
    desired::Desired,
    doctor::{EndpointProbe, ProbeResult},
};

/// Connects once to each of at most [`MAX_ENDPOINTS`] ready TCP endpoints.
pub(super) fn probe(desired: &Desired) -> Vec<EndpointProbe> {
    let targets = targets(desired);
    // Without a runtime, there are no results, and the check passes without findings.
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let results = runtime.block_on(connect_all(targets.keys().copied().collect()));
    let mut probes = Vec::new();
    for (endpoint, services) in targets {
        let Some(result) = results.get(&endpoint) else { continue };
        let probe = |service| EndpointProbe { service, endpoint, result: result.clone() };
        probes.extend(services.into_iter().map(probe));
    }
    probes
}

/// Returns the endpoints to connect to, with their service ports.
fn targets(desired: &Desired) -> BTreeMap<SocketAddr, Vec<String>> {
    let mut targets: BTreeMap<SocketAddr, Vec<String>> = BTreeMap::new();
    for (name, entry) in IpFamily::BOTH.into_iter().flat_map(|family| &desired.table(family).entries) {
        if name.protocol != Protocol::Tcp {
            continue;
        }
        for endpoint in entry.endpoints.iter().filter(|endpoint| endpoint.ready) {
            targets.entry(endpoint.socket()).or_default().push(name.to_string());
        }
    }
    if targets.len() > MAX_ENDPOINTS {
        tracing::info!("connecting only to {MAX_ENDPOINTS} of {} endpoints", targets.len());
    }
    targets.into_iter().take(MAX_ENDPOINTS).collect()
}

async fn connect_all(targets: Vec<SocketAddr>) -> BTreeMap<SocketAddr, ProbeResult> {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
    let mut attempts = JoinSet::new();
    for target in targets {
        let permits = permits.clone();
        attempts.spawn(async move {
            // The semaphore is never closed.
            let _permit = permits.acquire().await;
            (target, connect(target).await)
        });
    }
    attempts.join_all().await.into_iter().collect()
}

async fn connect(target: SocketAddr) -> ProbeResult {
    match timeout(TIMEOUT, TcpStream::connect(target)).await {
        Err(_) => ProbeResult::TimedOut,
        Ok(Ok(_)) => ProbeResult::Connected,
        Ok(Err(error)) => match error.kind() {
            io::ErrorKind::ConnectionRefused => ProbeResult::Refused,
            io::ErrorKind::TimedOut => ProbeResult::TimedOut,
            _ => ProbeResult::Unreachable(error.to_string()),
        },
    }
}

/// The maximum number of endpoints: all in most clusters, a sample in the largest.
const MAX_ENDPOINTS: usize = 1000;

/// The maximum number of concurrent attempts.
const MAX_CONCURRENT: usize = 128;

/// The timeout of an attempt. The kernel retransmits the SYN after one second.
const TIMEOUT: Duration = Duration::from_millis(2500);
