//! `kubectl ferroute flows`: the connections through Services of all nodes.

use std::{collections::BTreeMap, sync::Arc};

use ferroute_core::error_chain;
use ferroute_inspect::{
    flows::{FlowEvent, Labels},
    report::Versioned,
};
use ferroute_kube::ExecLimits;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use crate::{Fleet, NodeProxy, answer::answered, proxies::pod_names};

/// Runs `ferroute` with these arguments on all nodes, and calls `on_event` with the output of each as it arrives.
/// Returns the nodes without an answer, with the reasons, when all have ended.
///
/// All nodes are queried at the same time if `is_endless`.
pub async fn flows<E>(
    fleet: &Fleet,
    proxies: &[NodeProxy],
    arguments: &[String],
    is_endless: bool,
    mut on_event: impl FnMut(&str, FlowEvent) -> Result<(), E>,
) -> Result<BTreeMap<String, String>, E> {
    let permits = if is_endless { Semaphore::MAX_PERMITS } else { fleet.parallel.max(1) };
    let permits = Arc::new(Semaphore::new(permits));
    let (events, mut received) = mpsc::channel(MAX_EVENTS);
    let mut tasks = JoinSet::new();
    for proxy in proxies {
        let (fleet, proxy, events, permits) = (fleet.clone(), proxy.clone(), events.clone(), permits.clone());
        let command: Vec<String> = ["ferroute".to_owned()].into_iter().chain(arguments.iter().cloned()).collect();
        tasks.spawn(async move {
            // Closed never.
            let _permit = permits.acquire().await;
            let result = match proxy.problem.clone() {
                Some(problem) => Err(problem),
                None => follow(&fleet, &proxy, &command, &events).await.map_err(|error| proxy.failure(error)),
            };
            (proxy.node, result)
        });
    }
    drop(events);
    while let Some((node, event)) = received.recv().await {
        on_event(&node, event)?;
    }
    let results = tasks.join_all().await;
    Ok(results.into_iter().filter_map(|(node, result)| Some((node, result.err()?))).collect())
}

async fn follow(
    fleet: &Fleet,
    proxy: &NodeProxy,
    command: &[String],
    events: &mpsc::Sender<(Arc<str>, FlowEvent)>,
) -> Result<(), String> {
    let node = Arc::<str>::from(proxy.node.as_str());
    let (lines, mut received) = mpsc::channel::<Vec<u8>>(MAX_LINES);
    let decode = async {
        let mut result = Ok(());
        while let Some(line) = received.recv().await {
            match serde_json::from_slice::<Versioned<FlowEvent>>(&line) {
                Ok(versioned) => {
                    // The receiver is dropped if the output was closed.
                    if events.send((node.clone(), versioned.report)).await.is_err() {
                        break;
                    }
                }
                Err(error) => result = Err(format!("invalid answer of the node: {error}")),
            }
        }
        result
    };
    let limits = ExecLimits { time: fleet.limit, output: MAX_LINE };
    let (output, decoded) = tokio::join!(fleet.cluster.exec_lines(&proxy.container, command, limits, lines), decode);
    let rest = answered(output.map_err(|error| error_chain(&error))?, &[0])?;
    decoded?;
    if rest.is_empty() { Ok(()) } else { Err("invalid answer of the node: its last line is incomplete".to_owned()) }
}

/// Returns the names of all pods, for flows of nodes that have only the names of endpoints; and the reason if there are
/// none.
pub async fn pod_labels(fleet: &Fleet) -> (Labels, Option<anyhow::Error>) {
    let mut labels = Labels::default();
    match pod_names(&fleet.cluster).await {
        Ok(names) => {
            names.into_iter().for_each(|(address, name)| labels.add_pod(address, &name));
            (labels, None)
        }
        Err(error) => (labels, Some(error)),
    }
}

/// The events that wait for the output.
const MAX_EVENTS: usize = 4096;
/// Maximum number of lines of one node that wait to be decoded.
const MAX_LINES: usize = 256;
/// The maximum length of a line, and of standard error, in bytes.
const MAX_LINE: usize = 64 << 10;
