//! Removes what proxies leave on a host: everything for `--cleanup`, and what other modes left once a mode is active.
//!
//! | leftovers | mode | removed by |
//! | --- | --- | --- |
//! | chains `KUBE-*` and the jumps to them | iptables and ipvs mode, of Ferroute and kube-proxy | `iptables-restore` |
//! | nfacct counters that rules refer to | iptables mode | netlink |
//! | tables `ip ferroute`, `ip6 ferroute` | nftables mode of Ferroute | netlink |
//! | tables `ip kube-proxy`, `ip6 kube-proxy` | nftables mode of kube-proxy | netlink |
//! | virtual servers, `kube-ipvs0`, ipsets `KUBE-*` | ipvs mode | netlink |
//!
//! Not removed, as in kube-proxy: `KUBE-FIREWALL` in table filter and the kubelet's own chains, which the kubelet uses;
//! and sysctls, because their earlier values are unknown and other programs may rely on the present ones.

use std::process::ExitCode;

use crate::{logging::chain, modes::REGISTRY};

/// The outcome of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What was removed.
    pub removed: Vec<String>,
    /// What remains, or may remain, and why.
    pub remaining: Vec<String>,
}

impl Report {
    /// Adds something that was removed.
    pub fn removed(&mut self, what: impl Into<String>) {
        self.removed.push(what.into());
    }

    /// Adds something that remains, with the reason.
    pub fn remains(&mut self, what: impl Into<String>) {
        self.remaining.push(what.into());
    }

    /// Adds an error because of which something may remain.
    pub fn failed(&mut self, error: &dyn std::error::Error) {
        self.remaining.push(chain(error));
    }
}

/// Something that a proxy may have left behind.
pub trait Leftovers: Send {
    /// Removes it. A failure does not keep the next thing from being removed; it is no failure if nothing is present.
    fn remove(&mut self, report: &mut Report);
}

/// Removes everything that a proxy has left on this host, in any mode, and nothing else, and logs what was removed. Fails
/// if something remains.
pub fn cleanup() -> ExitCode {
    let mut report = Report::default();
    REGISTRY.leftovers().into_iter().for_each(|mut leftovers| leftovers.remove(&mut report));
    for removed in &report.removed {
        tracing::info!("removed {removed}");
    }
    for remaining in &report.remaining {
        tracing::error!("{remaining}");
    }
    match (report.removed.len(), report.remaining.len()) {
        (0, 0) => tracing::info!("nothing to clean up"),
        (_, 0) => tracing::info!("cleanup complete; sysctls keep their values"),
        (_, remaining) => {
            tracing::error!(remaining, "cleanup incomplete");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
