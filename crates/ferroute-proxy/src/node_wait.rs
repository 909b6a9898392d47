//! Waiting for this node's Node before any rule is written: its addresses decide which node ports there are and which IP
//! family comes first, and its pod networks what local traffic is.
//!
//! As in kube-proxy, a Node that does not come is waited for in vain for half a minute, then the proxy goes on with what
//! the host tells itself; but without pod networks that the configuration asks for there are no right rules, so after
//! five more minutes the proxy ends. What is *not* here: changes of the Node later on, which are like any other change.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// What is not known yet of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Its Node has not been told, or has no addresses.
    pub(crate) addresses: bool,
    /// The configuration tells local traffic by the Node's pod networks, and it has none.
    pub(crate) pod_networks: bool,
}

/// The pod networks have not come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Node {node} has had no spec.podCIDRs for {} s, which detectLocalMode NodeCIDR needs (give another mode, or see why \
     the cluster gives the node no networks)", POD_NETWORKS.as_secs()
)]
pub(crate) struct NoPodNetworks {
    node: String,
}

/// See the module's text.
pub(crate) struct NodeWait {
    node: String,
    /// When waiting has begun; `None` before that.
    start: Option<Instant>,
    /// Since when only pod networks are waited for.
    networks: Option<Instant>,
    /// Nothing is waited for.
    is_over: bool,
}

impl NodeWait {
    /// For the Node of this name; `is_told`: the source has Nodes, so that it is worth waiting.
    pub(crate) fn new(node: &str, is_told: bool) -> Self {
        Self { node: node.to_owned(), start: None, networks: None, is_over: !is_told }
    }

    /// Whether to wait on.
    ///
    /// # Errors
    ///
    /// It has been waited for too long for something that the proxy cannot do without.
    pub(crate) fn is_on(&mut self, missing: Missing) -> Result<bool, NoPodNetworks> {
        if self.is_over {
            return Ok(false);
        }
        if missing == Missing::default() {
            self.is_over = true;
            return Ok(false);
        }
        let start = *self.start.get_or_insert_with(|| {
            let node = &self.node;
            tracing::info!(
                node,
                addresses = missing.addresses,
                pod_networks = missing.pod_networks,
                "waiting for the Node"
            );
            Instant::now()
        });
        if missing.addresses && self.networks.is_none() && start.elapsed() < ADDRESSES {
            return Ok(true);
        }
        if missing.pod_networks {
            let since = *self.networks.get_or_insert_with(Instant::now);
            let is_late = since.elapsed() >= POD_NETWORKS;
            return if is_late { Err(NoPodNetworks { node: self.node.clone() }) } else { Ok(true) };
        }
        let node = &self.node;
        tracing::warn!(
            node,
            "the Node has not come or has no addresses: going on with those of this host until it does"
        );
        self.is_over = true;
        Ok(false)
    }

    /// Waits until [`NodeWait::is_on`] may give another answer with nothing told.
    pub(crate) async fn time_is_up(&self) {
        match (self.start, self.networks) {
            (_, Some(since)) => sleep_until(since + POD_NETWORKS).await,
            (Some(start), None) => sleep_until(start + ADDRESSES).await,
            (None, None) => std::future::pending().await,
        }
    }
}

/// As long as kube-proxy 1.36 waits for a Node with addresses.
const ADDRESSES: Duration = Duration::from_secs(30);

/// As long as kube-proxy 1.36 then waits for pod networks.
const POD_NETWORKS: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    const NO_ADDRESSES: Missing = Missing { addresses: true, pod_networks: false };
    const NO_NETWORKS: Missing = Missing { addresses: false, pod_networks: true };

    #[tokio::test(start_paused = true)]
    async fn addresses_are_waited_for_and_then_done_without() {
        let mut wait = NodeWait::new("node-1", true);
        assert_eq!(wait.is_on(NO_ADDRESSES), Ok(true));
        tokio::time::advance(ADDRESSES - Duration::from_millis(1)).await;
        assert_eq!(wait.is_on(NO_ADDRESSES), Ok(true));
        wait.time_is_up().await;
        assert_eq!(wait.is_on(NO_ADDRESSES), Ok(false));
        assert_eq!(wait.is_on(NO_ADDRESSES), Ok(false), "it is over for good");
    }

    #[tokio::test(start_paused = true)]
    async fn pod_networks_are_waited_for_longer_and_not_done_without() {
        let mut wait = NodeWait::new("node-1", true);
        let start = Instant::now();
        assert_eq!(wait.is_on(Missing { addresses: true, pod_networks: true }), Ok(true));
        wait.time_is_up().await;
        assert_eq!(wait.is_on(NO_NETWORKS), Ok(true));
        wait.time_is_up().await;
        let waited = start.elapsed();
        assert!((ADDRESSES + POD_NETWORKS..ADDRESSES + POD_NETWORKS * 2).contains(&waited), "{waited:?}");
        let error = wait.is_on(NO_NETWORKS).unwrap_err().to_string();
        assert!(error.starts_with("Node node-1 has had no spec.podCIDRs for 300 s"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_has_come_ends_the_wait() {
        let mut wait = NodeWait::new("node-1", true);
        assert_eq!(wait.is_on(NO_NETWORKS), Ok(true));
        assert_eq!(wait.is_on(Missing::default()), Ok(false));
        assert_eq!(wait.is_on(NO_ADDRESSES), Ok(false), "what goes later is no reason to wait");
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_without_nodes_is_not_waited_for() {
        assert_eq!(NodeWait::new("node-1", false).is_on(NO_NETWORKS), Ok(false));
    }
}
