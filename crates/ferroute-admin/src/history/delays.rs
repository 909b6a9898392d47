//! Waiting times of the last changes before their syncs.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};

/// The delays of the last changes that were applied.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeDelays {
    /// The number of changes.
    pub changes: usize,
    /// The median of the seconds from the receipt of a change to the start of the sync that applied it.
    pub waited_seconds: f64,
    /// The longest of these times.
    pub longest_wait_seconds: f64,
    /// The median of the seconds that the syncs took, each counted once per change.
    pub sync_seconds: f64,
}

/// The waits and the durations of the syncs of the last [`MAX_CHANGES`] changes.
#[derive(Debug, Default)]
pub(super) struct Delays(VecDeque<(Duration, Duration)>);

impl Delays {
    pub(super) fn insert(&mut self, waited: Duration, sync: Duration) {
        self.0.truncate(MAX_CHANGES - 1);
        self.0.push_front((waited, sync));
    }

    pub(super) fn summary(&self) -> Option<ChangeDelays> {
        let sorted = |part: fn(&(Duration, Duration)) -> Duration| {
            let mut times: Vec<Duration> = self.0.iter().map(part).collect();
            times.sort_unstable();
            times
        };
        let (waits, syncs) = (sorted(|(waited, _)| *waited), sorted(|(_, sync)| *sync));
        let median = |times: &[Duration]| times.get(times.len() / 2).map(Duration::as_secs_f64);
        Some(ChangeDelays {
            changes: waits.len(),
            waited_seconds: median(&waits)?,
            longest_wait_seconds: waits.last()?.as_secs_f64(),
            sync_seconds: median(&syncs)?,
        })
    }
}

/// The number of changes that are kept.
const MAX_CHANGES: usize = 128;
