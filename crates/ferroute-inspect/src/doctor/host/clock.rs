//! The offset of the API server's clock.

use std::{path::Path, time::SystemTime};

use ferroute_config::{flags::SourceArgs, settings::Settings};
use ferroute_kube::ApiServer;
use ferroute_proxy::logging::chain;

use crate::doctor::{ClockOffset, Reading};

/// Reports whether an API server is configured, or this is a pod of a cluster.
pub fn has_api_server(source: &SourceArgs, settings: &Settings) -> bool {
    let in_arguments = source.kubeconfig.is_some() || source.master.is_some();
    let configured = !settings.config.client_connection.kubeconfig.is_empty();
    in_arguments || configured || Path::new(SERVICE_ACCOUNT).exists()
}

/// Reads the offset; `None` without an API server.
pub(super) fn read(source: &SourceArgs, settings: &Settings) -> Option<Reading<ClockOffset>> {
    if source.manifests.is_some() || !has_api_server(source, settings) {
        return None;
    }
    let connection = source.connection(settings.config.client_connection.clone());
    let offset = async {
        let server = ApiServer::new(&connection, source.master.as_deref(), "").await;
        let remote = server.map_err(|error| chain(&error))?.server_time().await.map_err(|error| chain(&error))?;
        let local = SystemTime::now();
        Ok(match remote.duration_since(local) {
            Ok(difference) => ClockOffset { difference, ahead: true },
            Err(behind) => ClockOffset { difference: behind.duration(), ahead: false },
        })
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Some(runtime.map_err(|error| chain(&error)).and_then(|runtime| runtime.block_on(offset)))
}

/// The token of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
