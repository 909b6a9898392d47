//! The offset of the API server's clock.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use ferroute_config::{KubeProxyConfiguration, flags::SourceArgs};
use ferroute_core::error_chain;
use ferroute_kube::{ApiServer, Timing};

use crate::{
    desired::has_api_server,
    doctor::{ClockOffset, Reading},
};

/// Reads the offset; `None` without an API server, or if the credentials of the running proxy are not on this host.
pub(super) fn read(source: &SourceArgs, config: &KubeProxyConfiguration) -> Option<Reading<ClockOffset>> {
    if source.manifests.is_some() || !has_api_server(source, config) {
        return None;
    }
    let connection = source.connection(config.client_connection.clone());
    // The file of a proxy in a container is in the container.
    if source.kubeconfig.is_none() && !connection.kubeconfig.is_empty() && !Path::new(&connection.kubeconfig).exists() {
        return None;
    }
    let offset = async {
        let server = ApiServer::new(&connection, source.master.as_deref(), "").await;
        let server = server.map_err(|error| error_chain(&error))?;
        let server = server.with_timing(Timing { response_timeout: PATIENCE, ..Timing::default() });
        let remote = server.server_time().await.map_err(|error| error_chain(&error))?;
        let local = SystemTime::now();
        Ok(match remote.duration_since(local) {
            Ok(difference) => ClockOffset { difference, ahead: true },
            Err(behind) => ClockOffset { difference: behind.duration(), ahead: false },
        })
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Some(runtime.map_err(|error| error_chain(&error)).and_then(|runtime| runtime.block_on(offset)))
}

/// The time for a response. A diagnosis does not wait as long as a proxy for a server that does not respond.
const PATIENCE: Duration = Duration::from_secs(5);
