//! The objects of an API server, listed once.

use std::{path::Path, time::Duration};

use anyhow::{Context, bail};
use ferroute_config::{ClientConnectionConfiguration, KubeProxyConfiguration, Resolved, flags::SourceArgs};
use ferroute_kube::ApiServer;
use ferroute_proxy::node_name;
use ferroute_source::{Event, Resource};
use tokio::sync::mpsc;

/// Reports whether an API server is given or configured, or this is a pod of a cluster.
pub fn has_api_server(source: &SourceArgs, config: &KubeProxyConfiguration) -> bool {
    let in_arguments = source.kubeconfig.is_some() || source.master.is_some();
    let configured = !config.client_connection.kubeconfig.is_empty();
    in_arguments || configured || Path::new(SERVICE_ACCOUNT).exists()
}

/// Lists all objects, without watching for changes.
pub(super) fn list(
    source: &SourceArgs,
    configured: ClientConnectionConfiguration,
    resolved: &Resolved,
) -> anyhow::Result<Vec<Event>> {
    let connection = source.connection(configured);
    let node = node_name(resolved)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = ApiServer::new(&connection, source.master.as_deref(), &node).await;
        let server = server.context("cannot connect to the API server")?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        let reflector = tokio::spawn(server.follow(sender));
        let events = until_synced(receiver).await;
        reflector.abort();
        events
    })
}

/// Receives events until all kinds of objects are synced. The reflector retries forever; this function does not.
async fn until_synced(mut receiver: mpsc::Receiver<Vec<Event>>) -> anyhow::Result<Vec<Event>> {
    let mut events: Vec<Event> = Vec::new();
    let mut missing = Resource::ALL.to_vec();
    let mut last_error = None;
    while !missing.is_empty() {
        let Ok(batch) = tokio::time::timeout(TIMEOUT, receiver.recv()).await else {
            bail!(
                "cannot list all objects: {}",
                last_error.unwrap_or_else(|| "no response from the API server".to_owned())
            );
        };
        for event in batch.context("the connection to the API server ended")? {
            match &event {
                Event::Synced(resource) => missing.retain(|kind| kind != resource),
                Event::Problem(problem) => last_error = Some(problem.text()),
                _ => {}
            }
            events.push(event);
        }
    }
    Ok(events)
}

/// The token of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// The capacity of the channel, in batches.
const QUEUE: usize = 64;

/// The time to wait for an event. It is longer than the first retry interval, so that one refused connection is not an
/// error.
const TIMEOUT: Duration = Duration::from_secs(10);
