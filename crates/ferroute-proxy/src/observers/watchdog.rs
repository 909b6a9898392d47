//! Notices from another thread that the sync thread hangs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
    },
    time::Duration,
};

use ferroute_core::{DataplaneError, Heartbeat, IpFamily, Tracker};

use crate::{
    observers::{FamilySynced, Observer},
    sync::Change,
};

/// The watcher of the sync thread. Clones share their state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watchdog {
    heartbeat: Heartbeat,
    /// The last work that the sync thread began: an index of [`ACTIVITIES`].
    activity: Arc<AtomicU8>,
    /// Whether the thread has been reported.
    is_reported: Arc<AtomicBool>,
}

impl Watchdog {
    /// Returns the heartbeat of the sync thread.
    pub(crate) fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    /// Reports at an interval whether the sync thread makes progress. Never returns.
    pub(crate) async fn watch(&self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.check();
        }
    }

    /// Logs if the sync thread has hung for too long, and when it continues.
    fn check(&self) {
        let silence = self.heartbeat.silence();
        let hangs = silence >= LONGEST_SILENCE;
        if self.is_reported.swap(hangs, Relaxed) == hangs {
            return;
        }
        let activity = ACTIVITIES.get(usize::from(self.activity.load(Relaxed))).unwrap_or(&"work");
        if hangs {
            tracing::warn!(since = ?silence, "the sync thread makes no progress; changes wait for: {activity}");
        } else {
            tracing::info!("the sync thread makes progress again");
        }
    }

    fn begin(&self, activity: u8) {
        self.activity.store(activity, Relaxed);
        self.heartbeat.beat();
    }
}

impl Observer for Watchdog {
    fn on_change(&mut self, _: &Change, _before: &Tracker) {
        self.begin(CHANGES);
    }

    fn on_sync_start(&mut self, family: IpFamily, _full: bool) {
        self.begin(match family {
            IpFamily::V4 => SYNC_V4,
            IpFamily::V6 => SYNC_V6,
        });
    }

    fn on_synced(&mut self, _: &FamilySynced<'_>) {
        self.begin(AFTER_SYNC);
    }

    fn on_failure(&mut self, _: IpFamily, _: &DataplaneError) {
        self.begin(AFTER_SYNC);
    }

    fn on_tick(&mut self, _: &Tracker) {
        self.begin(POLL);
    }
}

const CHANGES: u8 = 0;
const SYNC_V4: u8 = 1;
const SYNC_V6: u8 = 2;
const AFTER_SYNC: u8 = 3;
const POLL: u8 = 4;

const ACTIVITIES: [&str; 5] = [
    "a change of the desired state",
    "the sync of IPv4",
    "the sync of IPv6",
    "work after a sync, such as the removal of another mode's rules",
    "the check for modifications by other programs",
];

const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Time without progress after which the thread is reported. The sync thread usually reports progress at least once a
/// second; one transaction of the kernel, or the work of `iptables-restore` after it has read its input, takes a few
/// seconds in large clusters.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);
