//! Connections without a reply that began before the rules were repaired.
//!
//! The kernel translates the first packet of a connection, and treats all later packets in the same way, including
//! repeated segments and further datagrams of a UDP flow. A connection that began while rules were missing or wrong is
//! therefore never answered while the client continues to send, although the rules are correct by then. If its entry is
//! deleted, its next packet is translated by the new rules. Entries without a translation are deleted at once: no host
//! answers at an address of a Service, and rules may reject the packets. Other entries may lead to the wrong endpoint,
//! or lack the source address that replies need, which cannot be determined. The entry of a connection that will be
//! answered must stay, because otherwise the answer would not reach the client. Entries without a reply at the time of
//! the repair are therefore checked again after a while.

use std::{
    cell::LazyCell,
    collections::HashSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ferroute_core::{Frontend, IpFamily, ServiceTable};
use ferroute_host::conntrack::Entry;
use tokio::time::Instant;

use super::family::ConntrackTable;

/// The connections of one IP family that had no reply when rules were repaired.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    /// Whether rules were repaired and the connections have not been read since.
    due: bool,
    observed: Vec<(Instant, HashSet<Entry>)>,
}

impl Unanswered {
    /// Makes the next call of [`Self::observe`] read the connections.
    pub(super) fn rules_were_repaired(&mut self) {
        self.due = true;
    }

    /// Reports whether the next call of [`Self::observe`] reads the connections.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// If rules were repaired since the last call, reads the connections to frontends of `table` that have no reply,
    /// and deletes the entries of those that are not translated. Returns their number. `is_local` reports whether an
    /// address is one of the host's; `is_relayed` reports whether replies from an address come from a process of the
    /// host that relays the connection.
    ///
    /// # Errors
    /// If the connection tracking table cannot be read, or an entry cannot be deleted. The next call tries again.
    pub(super) fn observe(
        &mut self,
        family: IpFamily,
        table: &ServiceTable,
        conntrack: &mut dyn ConntrackTable,
        is_local: impl Fn(IpAddr) -> bool,
        is_relayed: impl Fn(SocketAddr) -> bool,
    ) -> anyhow::Result<usize> {
        if !self.due {
            return Ok(0);
        }
        // On an idle node there may be no connection to look up, in large clusters there are many frontends.
        let frontends = LazyCell::new(|| -> HashSet<Frontend> {
            let all = table.entries.iter().flat_map(|(name, entry)| entry.service.frontends(name.protocol));
            all.map(|(_, frontend)| frontend).collect()
        });
        let mut entries = HashSet::new();
        let limit = MAX_OBSERVED.saturating_sub(self.observed.iter().map(|(_, entries)| entries.len()).sum());
        let deleted = conntrack.delete_unanswered(family, &mut |entry| {
            let (protocol, to) = (entry.protocol, entry.original_destination);
            let has = |address| frontends.contains(&Frontend { address, protocol, port: to.port() });
            let is_frontend = has(Some(to.ip())) || is_local(to.ip()) && has(None);
            if !is_frontend || is_relayed(entry.reply_source) {
                return false;
            }
            let is_translated = entry.reply_source != to;
            if is_translated && entries.len() < limit {
                entries.insert(*entry);
            }
            !is_translated
        })?;
        self.due = false;
        if !entries.is_empty() {
            self.observed.push((Instant::now(), entries));
        }
        Ok(deleted)
    }

    /// Deletes the entries of the connections that have not been answered for a while.
    ///
    /// # Errors
    /// If an entry cannot be deleted. The next call tries again.
    pub(super) fn delete(&mut self, family: IpFamily, conntrack: &mut dyn ConntrackTable) -> anyhow::Result<usize> {
        let Some((since, entries)) = self.observed.first() else { return Ok(0) };
        if since.elapsed() < ANSWER {
            return Ok(0);
        }
        let deleted = conntrack.delete_unanswered(family, &mut |entry| entries.contains(entry))?;
        self.observed.remove(0);
        Ok(deleted)
    }
}

/// The time in which nearly every connection is answered that will be.
const ANSWER: Duration = Duration::from_secs(1);
/// Maximum number of connections that are kept, using some megabytes: a flood of first packets has no end. The kernel's
/// timeouts end further connections.
const MAX_OBSERVED: usize = 16_384;
