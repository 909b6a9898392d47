//! `kubectl ferroute top`: the rates of all nodes together.

use std::collections::BTreeMap;

use ferroute_inspect::top::{Row, sum};
use serde::Serialize;

use crate::{
    Fleet, NodeProxy,
    answer::{answered, decode},
};

/// The busiest Services of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterTop {
    /// The rates, summed over all nodes that answer.
    pub services: Vec<Row>,
    /// The nodes that do not answer, with the reasons.
    pub failures: BTreeMap<String, String>,
}

/// Counts new connections for `interval` on all nodes.
pub async fn top(fleet: &Fleet, proxies: &[NodeProxy], interval: &str) -> ClusterTop {
    let interval = interval.to_owned();
    let answers = fleet.ask(proxies, |fleet, proxy| {
        let interval = interval.clone();
        async move {
            let output = fleet.run(&proxy, &["top", "--once", "--interval", &interval, "-o", "json"]).await?;
            decode::<Vec<Row>>(&answered(output, &[0])?)
        }
    });
    let (mut nodes, mut failures) = (Vec::new(), BTreeMap::new());
    for answer in answers.await {
        match answer.result {
            Ok(rows) => nodes.push(rows),
            Err(error) => _ = failures.insert(answer.proxy.node, error),
        }
    }
    ClusterTop { services: sum(nodes), failures }
}
