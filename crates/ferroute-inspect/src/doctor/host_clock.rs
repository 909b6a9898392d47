//! The API server's clock beside this host's.

use std::{path::Path, time::SystemTime};

use crate::doctor::{Clock, Looked};
use ferroute_kube::ApiServer;

use ferroute_config::{flags::SourceArgs, settings::Settings};
use ferroute_proxy::logging::chain;

/// An API server is named by somebody, or this is a pod of a cluster.
pub fn has_api_server(source: &SourceArgs, settings: &Settings) -> bool {
    let named = source.kubeconfig.is_some() || source.master.is_some();
    let configured = !settings.config.client_connection.kubeconfig.is_empty();
    named || configured || Path::new(SERVICE_ACCOUNT).exists()
}

/// Asks for the time; `None` where there is nobody to ask.
pub fn look(source: &SourceArgs, settings: &Settings) -> Option<Looked<Clock>> {
    if source.manifests.is_some() || !has_api_server(source, settings) {
        return None;
    }
    let connection = source.connection(settings.config.client_connection.clone());
    let ask = async {
        let server = ApiServer::new(&connection, source.master.as_deref(), "").await;
        let theirs = server.map_err(|error| chain(&error))?.server_time().await.map_err(|error| chain(&error))?;
        let ours = SystemTime::now();
        Ok(match theirs.duration_since(ours) {
            Ok(difference) => Clock { difference, ahead: true },
            Err(behind) => Clock { difference: behind.duration(), ahead: false },
        })
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Some(runtime.map_err(|error| chain(&error)).and_then(|runtime| runtime.block_on(ask)))
}

/// Where Kubernetes puts a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
