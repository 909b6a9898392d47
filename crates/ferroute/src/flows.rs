//! Stale flows leave the kernel's connection table.

use std::net::SocketAddr;

use anyhow::Context;
use ferroute_conntrack::remove_flows;
use ferroute_core::{IpFamily, Protocol};

use crate::sync::FlowTable;

/// The connection table of this thread's network namespace.
pub(crate) struct KernelFlows;

impl FlowTable for KernelFlows {
    fn remove_udp(
        &mut self,
        family: IpFamily,
        is_stale: &mut dyn FnMut(SocketAddr, SocketAddr) -> bool,
    ) -> anyhow::Result<usize> {
        let removed =
            remove_flows(family, Protocol::Udp, |flow| is_stale(flow.original_destination, flow.reply_source))
                .context("stale UDP flows may go on to endpoints that are gone")?;
        tracing::debug!(%family, seen = removed.seen, removed = removed.removed, "looked for stale UDP flows");
        Ok(removed.removed)
    }
}
