//! Stale flows leave the kernel's connection table.

use std::net::SocketAddr;

use anyhow::Context;
use ferroute_core::{IpFamily, Protocol};
use ferroute_host::conntrack;

use crate::sync::FlowTable;

/// The connection table of this thread's network namespace.
pub(crate) struct KernelFlows;

impl FlowTable for KernelFlows {
    fn remove_udp(
        &mut self,
        family: IpFamily,
        is_stale: &mut dyn FnMut(SocketAddr, SocketAddr) -> bool,
    ) -> anyhow::Result<usize> {
        let result = conntrack::delete_if(family, Protocol::Udp, |entry| {
            is_stale(entry.original_destination, entry.reply_source)
        })
        .context("cannot delete stale UDP conntrack entries")?;
        tracing::debug!(%family, seen = result.seen, deleted = result.deleted, "checked for stale UDP conntrack entries");
        Ok(result.deleted)
    }
}
