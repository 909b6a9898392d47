//! Waits for this node's Node before the first sync: its addresses determine node ports and the primary IP family, and its
//! pod networks determine local traffic.
//!
//! As in kube-proxy, the proxy waits half a minute for a Node with addresses and then uses the host's addresses. If the
//! configuration requires pod networks, there are no correct rules without them, so the proxy exits after another five
//! minutes. Later changes of the Node are ordinary changes and not handled here.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Properties of this node that are required and still unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// The Node has not been received, or has no addresses.
    pub(crate) addresses: bool,
    /// The configuration detects local traffic by the Node's pod networks, and the Node has none.
    pub(crate) pod_networks: bool,
}

/// The Node did not get pod networks in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Node {node} had no spec.podCIDRs for {} s, which detectLocalMode NodeCIDR requires (use another mode, or check why \
     the cluster assigns no pod networks)", POD_NETWORKS.as_secs()
)]
pub(crate) struct NoPodNetworks {
    node: String,
}

/// The state of the wait; see the [module documentation](self).
pub(crate) struct NodeWait {
    node: String,
    /// Start of the wait.
    start: Option<Instant>,
    /// Start of the wait for pod networks only.
    networks_start: Option<Instant>,
    is_over: bool,
}

impl NodeWait {
    /// Creates the wait for the Node `node`. If `source_has_nodes` is false, there is no wait.
    pub(crate) fn new(node: &str, source_has_nodes: bool) -> Self {
        Self { node: node.to_owned(), start: None, networks_start: None, is_over: !source_has_nodes }
    }

    /// Reports whether to wait for `missing`.
    ///
    /// # Errors
    /// If the pod networks are still missing after the maximum time.
    pub(crate) fn must_wait(&mut self, missing: Missing) -> Result<bool, NoPodNetworks> {
        if self.is_over {
            return Ok(false);
        }
        if missing == Missing::default() {
            self.is_over = true;
            return Ok(false);
        }
        let start = *self.start.get_or_insert_with(|| {
            let (node, Missing { addresses, pod_networks }) = (&self.node, missing);
            tracing::info!(node, addresses, pod_networks, "waiting for the Node");
            Instant::now()
        });
        if missing.addresses && self.networks_start.is_none() && start.elapsed() < ADDRESSES {
            return Ok(true);
        }
        if missing.pod_networks {
            let start = *self.networks_start.get_or_insert_with(Instant::now);
            let is_late = start.elapsed() >= POD_NETWORKS;
            return if is_late { Err(NoPodNetworks { node: self.node.clone() }) } else { Ok(true) };
        }
        tracing::warn!(node = self.node, "no Node with addresses; using the addresses of this host until there is one");
        self.is_over = true;
        Ok(false)
    }

    /// Waits until [`NodeWait::must_wait`] may return another result for the same `missing`.
    pub(crate) async fn timeout(&self) {
        match (self.start, self.networks_start) {
            (_, Some(start)) => sleep_until(start + POD_NETWORKS).await,
            (Some(start), None) => sleep_until(start + ADDRESSES).await,
            (None, None) => std::future::pending().await,
        }
    }
}

/// Maximum wait for a Node with addresses, as in kube-proxy 1.36.
const ADDRESSES: Duration = Duration::from_secs(30);

/// Maximum wait for pod networks after that, as in kube-proxy 1.36.
const POD_NETWORKS: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    const NO_ADDRESSES: Missing = Missing { addresses: true, pod_networks: false };
    const NO_NETWORKS: Missing = Missing { addresses: false, pod_networks: true };

    #[tokio::test(start_paused = true)]
    async fn wait_for_addresses_ends_after_timeout() {
        let mut wait = NodeWait::new("node-1", true);
        assert_eq!(wait.must_wait(NO_ADDRESSES), Ok(true));
        tokio::time::advance(ADDRESSES - Duration::from_millis(1)).await;
        assert_eq!(wait.must_wait(NO_ADDRESSES), Ok(true));
        wait.timeout().await;
        assert_eq!(wait.must_wait(NO_ADDRESSES), Ok(false));
        assert_eq!(wait.must_wait(NO_ADDRESSES), Ok(false), "the wait has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn wait_for_pod_networks_fails_after_timeout() {
        let mut wait = NodeWait::new("node-1", true);
        let start = Instant::now();
        assert_eq!(wait.must_wait(Missing { addresses: true, pod_networks: true }), Ok(true));
        wait.timeout().await;
        assert_eq!(wait.must_wait(NO_NETWORKS), Ok(true));
        wait.timeout().await;
        let waited = start.elapsed();
        assert!((ADDRESSES + POD_NETWORKS..ADDRESSES + POD_NETWORKS * 2).contains(&waited), "{waited:?}");
        let expected = NoPodNetworks { node: "node-1".to_owned() };
        assert_eq!(wait.must_wait(NO_NETWORKS), Err(expected));
    }

    #[tokio::test(start_paused = true)]
    async fn complete_node_ends_wait() {
        let mut wait = NodeWait::new("node-1", true);
        assert_eq!(wait.must_wait(NO_NETWORKS), Ok(true));
        assert_eq!(wait.must_wait(Missing::default()), Ok(false));
        assert_eq!(wait.must_wait(NO_ADDRESSES), Ok(false), "later removals do not restart the wait");
    }

    #[tokio::test(start_paused = true)]
    async fn source_without_nodes_needs_no_wait() {
        assert_eq!(NodeWait::new("node-1", false).must_wait(NO_NETWORKS), Ok(false));
    }
}
