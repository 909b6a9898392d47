//! The objects of an API server, listed once.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context, bail};
use ferroute_api::Pod;
use ferroute_config::{ClientConnectionConfiguration, KubeProxyConfiguration, Resolved, flags::SourceArgs};
use ferroute_kube::ApiServer;
use ferroute_modes::REGISTRY;
use ferroute_proxy::node_name;
use ferroute_source::{Event, Resource};
use tokio::{sync::mpsc, time::Instant};

use crate::waiting::Waiting;

/// Reports whether an API server is given or configured, or this is a pod of a cluster.
pub fn has_api_server(source: &SourceArgs, config: &KubeProxyConfiguration) -> bool {
    let in_arguments = source.kubeconfig.is_some() || source.master.is_some();
    let configured = !config.client_connection.kubeconfig.is_empty();
    in_arguments || configured || Path::new(SERVICE_ACCOUNT).exists()
}

/// Lists all objects, without watching for changes. Logs a message if it waits longer than a second.
pub(super) fn list(
    source: &SourceArgs,
    configured: ClientConnectionConfiguration,
    resolved: &Resolved,
) -> anyhow::Result<Vec<Event>> {
    // Credential plugins may take long.
    let connecting = Waiting::for_work("connecting to the API server".to_owned());
    ask(source, configured, resolved, Duration::MAX, |server| {
        drop(connecting);
        follow_until_synced(server, true)
    })
}

/// Like [`list`], within this time, and without a word.
pub(super) fn list_quickly(
    source: &SourceArgs,
    configured: ClientConnectionConfiguration,
    resolved: &Resolved,
    at_most: Duration,
) -> anyhow::Result<Vec<Event>> {
    ask(source, configured, resolved, at_most, |server| follow_until_synced(server, false))
}

/// Lists the pods of the node, within this time.
pub(super) fn list_pods(
    source: &SourceArgs,
    configured: ClientConnectionConfiguration,
    resolved: &Resolved,
    at_most: Duration,
) -> anyhow::Result<Vec<Pod>> {
    ask(source, configured, resolved, at_most, |server| async move { Ok(server.pods_of_node().await?) })
}

/// Runs a request to the API server.
fn ask<T, F: Future<Output = anyhow::Result<T>>>(
    source: &SourceArgs,
    configured: ClientConnectionConfiguration,
    resolved: &Resolved,
    at_most: Duration,
    request: impl FnOnce(ApiServer) -> F,
) -> anyhow::Result<T> {
    let connection = source.connection(configured);
    let node = node_name(resolved)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let response = async {
        let server = ApiServer::new(&connection, source.master.as_deref(), &node).await;
        let binds_addresses = REGISTRY.active(resolved.mode).traits().binds_service_addresses;
        let server = server.context("cannot connect to the API server")?.with_all_nodes(binds_addresses);
        // The reflector would retry, but such an error is permanent.
        server.prepare().await?;
        request(server).await
    };
    runtime.block_on(async {
        tokio::time::timeout(at_most, response).await.context("the API server does not respond in time")?
    })
}

async fn follow_until_synced(server: ApiServer, reports_waiting: bool) -> anyhow::Result<Vec<Event>> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let reflector = tokio::spawn(server.follow(sender));
    let events = until_synced(receiver, reports_waiting).await;
    reflector.abort();
    events
}

/// Receives events until all kinds of objects are synced. The reflector retries forever; this function does not.
async fn until_synced(mut receiver: mpsc::Receiver<Vec<Event>>, reports_waiting: bool) -> anyhow::Result<Vec<Event>> {
    let mut events: Vec<Event> = Vec::new();
    let mut missing = Resource::ALL.to_vec();
    let mut progress = Progress::default();
    let (mut last_event, mut report_at) = (Instant::now(), Instant::now() + FIRST_REPORT);
    while !missing.is_empty() {
        let wake_at = if reports_waiting { report_at.min(last_event + TIMEOUT) } else { last_event + TIMEOUT };
        let batch = tokio::time::timeout_at(wake_at, receiver.recv()).await;
        if reports_waiting && Instant::now() >= report_at {
            tracing::warn!("{}", progress.report());
            report_at = Instant::now() + NEXT_REPORT;
        }
        let Ok(batch) = batch else {
            if last_event.elapsed() < TIMEOUT {
                continue;
            }
            bail!("cannot list all objects: {}", progress.failure());
        };
        last_event = Instant::now();
        for event in batch.context("the connection to the API server ended")? {
            match &event {
                Event::Synced(resource) => missing.retain(|kind| kind != resource),
                event => progress.add(event),
            }
            events.push(event);
        }
    }
    Ok(events)
}

/// Objects received from an API server so far.
#[derive(Debug, Default)]
struct Progress {
    objects: usize,
    /// The last error that lasts.
    error: Option<String>,
    /// Addresses, once they are resolved.
    addresses: Vec<SocketAddr>,
}

impl Progress {
    fn add(&mut self, event: &Event) {
        match event {
            Event::Problem(problem) => self.error = Some(problem.text()),
            Event::Resolved(problem) => _ = self.error.take_if(|error| *error == problem.text()),
            Event::ApiServer(addresses) => self.addresses.clone_from(addresses),
            _ => self.objects += 1,
        }
    }

    fn server(&self) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        if addresses.is_empty() {
            "the API server".to_owned()
        } else {
            format!("the API server at {}", addresses.join(", "))
        }
    }

    /// Describes the current state of waiting.
    fn report(&self) -> String {
        match (&self.error, self.objects) {
            (Some(error), _) => format!("waiting for the API server: {error}"),
            (None, 0) => format!("waiting for {}, which does not respond", self.server()),
            (None, count) => format!("reading objects of {}: {count} so far", self.server()),
        }
    }

    /// Describes why no more is sent.
    fn failure(&self) -> String {
        let no_response = || format!("no response from {} for {} s", self.server(), TIMEOUT.as_secs());
        self.error.clone().unwrap_or_else(no_response)
    }
}

/// The token of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// The capacity of the channel, in batches.
const QUEUE: usize = 64;

/// Time to wait for an event. It is longer than the first retry interval, so that one refused connection is not an
/// error.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Time after which a command reports that it waits for the API server, and interval of further reports.
const FIRST_REPORT: Duration = Duration::from_secs(1);
const NEXT_REPORT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ferroute_source::Problem;

    use super::*;

    #[test]
    fn server_that_accepts_connections_has_not_sent_objects() {
        let mut progress = Progress::default();
        progress.add(&Event::ApiServer(vec!["192.0.2.1:6443".parse().unwrap()]));
        assert_eq!(progress.report(), "waiting for the API server at 192.0.2.1:6443, which does not respond");
        assert_eq!(progress.failure(), "no response from the API server at 192.0.2.1:6443 for 10 s");
    }

    #[test]
    fn error_that_has_ended_is_not_waited_for() {
        let problem = |text: &str| Arc::new(Problem::Other(text.into()));
        let mut progress = Progress::default();
        progress.add(&Event::Problem(problem("refused")));
        progress.add(&Event::Resolved(problem("another")));
        assert_eq!(progress.failure(), "refused");
        progress.add(&Event::Resolved(problem("refused")));
        progress.add(&Event::NodeDeleted(ferroute_core::NamespacedName::new("", "node")));
        assert_eq!(progress.report(), "reading objects of the API server: 1 so far");
    }
}
