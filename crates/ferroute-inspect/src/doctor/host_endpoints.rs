//! Whether endpoints can be reached from this host.

use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc, time::Duration};

use ferroute_core::{IpFamily, Protocol};
use crate::doctor::{EndpointProbe, Reached};
use tokio::{net::TcpStream, sync::Semaphore, task::JoinSet, time::timeout};

use crate::desired::Desired;

/// Connects once to each ready endpoint of TCP, as far as there is time for them.
pub fn try_all(desired: &Desired) -> Vec<EndpointProbe> {
    let targets = targets(desired);
    // A runtime that does not come about leaves nothing tried, and nothing is said about endpoints then.
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let reached = runtime.block_on(reach(targets.keys().copied().collect()));
    let mut probes = Vec::new();
    for (endpoint, services) in targets {
        let Some(reached) = reached.get(&endpoint) else { continue };
        let of_service = |service| EndpointProbe { service, endpoint, reached: reached.clone() };
        probes.extend(services.into_iter().map(of_service));
    }
    probes
}

/// Endpoints with the service ports that have them.
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
    if targets.len() > MOST {
        tracing::info!("connecting to {MOST} of {} endpoints only", targets.len());
    }
    targets.into_iter().take(MOST).collect()
}

async fn reach(targets: Vec<SocketAddr>) -> BTreeMap<SocketAddr, Reached> {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut tries = JoinSet::new();
    for target in targets {
        let turns = turns.clone();
        tries.spawn(async move {
            // Nobody closes it.
            let _turn = turns.acquire().await;
            (target, connect(target).await)
        });
    }
    tries.join_all().await.into_iter().collect()
}

async fn connect(target: SocketAddr) -> Reached {
    match timeout(PATIENCE, TcpStream::connect(target)).await {
        Err(_) => Reached::Silent,
        Ok(Ok(_)) => Reached::Yes,
        Ok(Err(error)) => match error.kind() {
            io::ErrorKind::ConnectionRefused => Reached::Refused,
            io::ErrorKind::TimedOut => Reached::Silent,
            _ => Reached::NoWay(error.to_string()),
        },
    }
}

/// Endpoints that are tried: all of most clusters, and a sample of the largest.
const MOST: usize = 1000;

/// Connections that are tried at the same time.
const AT_ONCE: usize = 128;

/// How long a connection may take. The kernel asks a second time after one second.
const PATIENCE: Duration = Duration::from_millis(2500);
