//! firewalld starts or reloads: all rules are looked at at once, without waiting for what shows by itself.

use std::time::Duration;

use ferroute_host::FirewalldWatch;
use tokio::sync::mpsc;

use crate::logging::chain;

/// Tells of each start and reload until nobody wants to know. Most hosts have no firewalld, and many containers no bus:
/// that is no news for anybody.
pub(crate) async fn follow(reloads: mpsc::Sender<()>) {
    while !reloads.is_closed() {
        match FirewalldWatch::open().await {
            Ok(mut watch) => loop {
                match watch.reloaded().await {
                    Ok(()) => {
                        tracing::info!("firewalld has started or reloaded: looking at all rules");
                        if reloads.send(()).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::debug!("the message bus has gone: {error}");
                        break;
                    }
                }
            },
            Err(error) if error.is_no_bus() => tracing::trace!("{}", chain(&error)),
            Err(error) => tracing::debug!("{}", chain(&error)),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Until the bus is looked for again: it may start after the proxy.
const PAUSE: Duration = Duration::from_secs(30);
