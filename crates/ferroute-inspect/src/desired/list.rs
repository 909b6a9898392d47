//! An API server asked once.

use std::time::Duration;

use anyhow::{Context, bail};
use ferroute_config::{ClientConnectionConfiguration, Resolved};
use ferroute_kube::ApiServer;
use ferroute_source::{Event, Resource};
use tokio::sync::mpsc;

use ferroute_config::flags::SourceArgs;
use ferroute_proxy::node_name;

/// Everything that an API server lists, and no changes after that.
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
        let server = server.context("no source of Services (give --manifests to do without an API server)")?;
        let (batches, received) = mpsc::channel(QUEUE);
        let follower = tokio::spawn(server.follow(batches));
        let events = until_listed(received).await;
        follower.abort();
        events
    })
}

/// Waits until each kind has been told in full. A source goes on trying for ever; we do not.
async fn until_listed(mut batches: mpsc::Receiver<Vec<Event>>) -> anyhow::Result<Vec<Event>> {
    let mut events: Vec<Event> = Vec::new();
    let mut missing = Resource::ALL.to_vec();
    let mut trouble = None;
    while !missing.is_empty() {
        let Ok(batch) = tokio::time::timeout(PATIENCE, batches.recv()).await else {
            bail!("the API server does not tell everything: {}", trouble.unwrap_or_else(|| "no answer".to_owned()));
        };
        for event in batch.context("the API server tells no more")? {
            match &event {
                Event::Synced(resource) => missing.retain(|kind| kind != resource),
                Event::Problem(problem) => trouble = Some(problem.text()),
                _ => {}
            }
            events.push(event);
        }
    }
    Ok(events)
}

/// Batches that may wait.
const QUEUE: usize = 64;

/// How long an API server may be silent. Longer than a first retry, so that a connection that is refused once is no
/// failure.
const PATIENCE: Duration = Duration::from_secs(10);
