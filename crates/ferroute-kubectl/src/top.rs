//! `kubectl ferroute top`: the rates of all nodes together.

use std::collections::BTreeMap;

use ferroute_inspect::top::{Rates, sum};
use serde::Serialize;

use crate::{
    Fleet, NodeProxy,
    answer::{answered, decode},
};

/// The busiest Services of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterTop {
    /// The rates, summed over all nodes that answer.
    #[serde(flatten)]
    pub rates: Rates,
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
            decode::<Rates>(&answered(output, &[0])?)
        }
    });
    let (mut nodes, mut failures) = (Vec::new(), BTreeMap::new());
    for answer in answers.await {
        match answer.result {
            Ok(rates) => nodes.push(rates.service_ports),
            Err(error) => _ = failures.insert(answer.proxy.node, error),
        }
    }
    ClusterTop { rates: Rates { service_ports: sum(nodes) }, failures }
}
