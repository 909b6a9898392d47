//! Removes objects that proxies have left on a host: all of them for `--cleanup`, and those of other modes once a mode
//! is active.
//!
//! | leftovers | mode | removed by |
//! | --- | --- | --- |
//! | chains `KUBE-*` and the jumps to them | iptables, ipvs and userspace mode, of Ferroute and kube-proxy | netlink; `iptables-restore` in the legacy backend |
//! | nfacct counters that rules refer to | iptables mode | netlink |
//! | tables `ip ferroute`, `ip6 ferroute` | nftables mode of Ferroute | netlink |
//! | local routes to `::1` with protocol 70 | nftables mode of Ferroute | netlink |
//! | tables `ip kube-proxy`, `ip6 kube-proxy` | nftables mode of kube-proxy | netlink |
//! | virtual servers, `kube-ipvs0`, ipsets `KUBE-*` | ipvs mode | netlink |
//! | worker processes | userspace mode of Ferroute | a request to drain |
//!
//! Not removed, as in kube-proxy: `KUBE-FIREWALL` in table filter and the kubelet's own chains, which the kubelet uses;
//! and sysctls, except for those of strict ARP, because their earlier values are unknown and other programs may rely on the present
//! ones.

use std::{collections::BTreeSet, fmt, process::ExitCode};

use ferroute_core::{Frontend, error_chain};

use crate::Registry;

/// The outcome of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovalReport {
    /// Removed objects.
    pub removed: Vec<String>,
    /// Objects that remain or may remain, with reasons.
    pub remaining: Vec<String>,
    /// UDP frontends of removed rules. Flows to those that no service port has any more are stale.
    pub udp_frontends: BTreeSet<Frontend>,
}

impl RemovalReport {
    /// Adds a removed object.
    pub fn removed(&mut self, object: impl Into<String>) {
        self.removed.push(object.into());
    }

    /// Adds an object that remains, with the reason.
    pub fn remains(&mut self, object: impl Into<String>) {
        self.remaining.push(object.into());
    }

    /// Adds an error because of which objects may remain.
    pub fn failed(&mut self, error: &dyn std::error::Error) {
        self.remaining.push(error_chain(error));
    }
}

/// Objects in the kernel that a proxy may have left behind.
pub trait Leftovers: fmt::Debug + Send {
    /// Removes the objects. An error for one object does not prevent the removal of others; missing objects are not an
    /// error.
    fn remove(&mut self, report: &mut RemovalReport);
}

/// Removes all objects that proxies have left on this host in any mode of the registry, and no other objects. Logs what
/// was removed. Fails if something remains.
pub fn cleanup(registry: &Registry) -> ExitCode {
    let mut report = RemovalReport::default();
    registry.leftovers().into_iter().for_each(|mut leftovers| leftovers.remove(&mut report));
    for removed in &report.removed {
        tracing::info!("removed {removed}");
    }
    for remaining in &report.remaining {
        tracing::error!("{remaining}");
    }
    match (report.removed.len(), report.remaining.len()) {
        (0, 0) => tracing::info!("nothing to clean up"),
        (_, 0) => tracing::info!("cleanup complete; other sysctls keep their values"),
        (_, remaining) => {
            tracing::error!(remaining, "cleanup incomplete");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
