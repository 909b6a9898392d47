//! The next hops of the host's routes, which Services may not take over in modes that make their addresses local.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use ferroute_core::error_chain;
use ferroute_host::{KernelRoutes, RouteError, run_blocking};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

/// Reads the next hops; `None` on failure.
pub(crate) async fn read() -> Option<BTreeSet<IpAddr>> {
    let next_hops = run_blocking("routes", || -> Result<_, RouteError> { KernelRoutes::open()?.next_hops() }).await;
    match next_hops {
        Ok(Ok(next_hops)) => return Some(next_hops),
        Ok(Err(error)) => tracing::debug!("cannot read next hops: {}", error_chain(&error)),
        Err(error) => tracing::debug!("cannot read next hops: {error}"),
    }
    None
}

/// Sends the next hops whenever they differ from before, until the receiver is dropped.
pub(crate) async fn watch(changes: mpsc::Sender<BTreeSet<IpAddr>>) {
    let mut sent = None;
    loop {
        let start = Instant::now();
        let next_hops = read().await;
        if next_hops.is_some() && next_hops != sent {
            sent.clone_from(&next_hops);
            let Some(next_hops) = next_hops else { continue };
            if changes.send(next_hops).await.is_err() {
                return;
            }
        }
        // Hosts can have a million routes.
        sleep(INTERVAL.max(start.elapsed() * 100)).await;
    }
}

/// Interval of reading routes. Next hops change when nodes join and leave.
const INTERVAL: Duration = Duration::from_secs(5);
