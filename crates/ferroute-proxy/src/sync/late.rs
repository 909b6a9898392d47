//! Connection tracking entries that are added late.
//!
//! A packet that was matched against the old rules becomes an entry once it has passed all hooks. That takes microseconds, but
//! its processor may be interrupted meanwhile, in a virtual machine for tenths of a second. If rules are replaced and stale
//! entries deleted in that time, its entry is added later, and its flow would stay at the old endpoint as long as the client
//! continues to send. Stale entries are therefore looked for once more.

use std::time::Duration;

use ferroute_core::StaleConntrackEntries;
use tokio::time::Instant;

/// What makes entries stale since they were looked for once more.
#[derive(Debug, Default)]
pub(super) struct LateEntries {
    stale: StaleConntrackEntries,
    /// When stale entries were deleted, for the first and for the last time.
    deleted: Option<(Instant, Instant)>,
}

impl LateEntries {
    /// Remembers which entries have just been deleted.
    pub(super) fn deleted(&mut self, stale: StaleConntrackEntries) {
        if !stale.is_empty() {
            let now = Instant::now();
            self.stale.merge(stale);
            self.deleted = Some((self.deleted.map_or(now, |(first, _)| first), now));
        }
    }

    /// Returns which entries to delete once more, if it is time.
    pub(super) fn due(&self) -> Option<&StaleConntrackEntries> {
        let (first, last) = self.deleted?;
        (last.elapsed() >= LATENESS || first.elapsed() >= MAX_DELAY).then_some(&self.stale)
    }

    /// Forgets the entries that have been deleted once more, except those that could still be added.
    pub(super) fn deleted_again(&mut self) {
        match self.deleted {
            Some((_, last)) if last.elapsed() < LATENESS => self.deleted = Some((last, last)),
            _ => *self = Self::default(),
        }
    }
}

/// The time in which nearly every packet passes all hooks.
const LATENESS: Duration = Duration::from_secs(1);
/// The time after which entries are looked for although rules have just changed, as they do again and again in busy clusters.
const MAX_DELAY: Duration = Duration::from_secs(5);
