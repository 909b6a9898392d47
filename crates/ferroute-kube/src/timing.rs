use std::{ops::Range, time::Duration};

/// How long to wait for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// First wait after a failure; it doubles from there, and is by chance up to three quarters shorter.
    pub first_wait: Duration,
    /// Longest wait after a failure.
    pub longest_wait: Duration,
    /// For an answer to begin, and within a list for it to go on. The API server gives up after a minute itself.
    pub answer: Duration,
    /// For a streaming list to go on. Servers that do not know streaming lists may never begin one.
    pub quiet: Duration,
    /// How long a watch is asked to last; each gets another time, so that not all nodes come back at once. In whole
    /// seconds. client-go's values.
    pub watch: Range<Duration>,
    /// How much longer a watch may last than it was asked to, before the server counts as gone.
    pub grace: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(30),
            answer: Duration::from_secs(60),
            quiet: Duration::from_secs(10),
            watch: Duration::from_secs(300)..Duration::from_secs(600),
            grace: Duration::from_secs(30),
        }
    }
}

impl Timing {
    /// A time for a watch, in seconds.
    pub(crate) fn watch_seconds(&self) -> u64 {
        let (least, most) = (self.watch.start.as_secs(), self.watch.end.as_secs());
        fastrand::u64(least..most.max(least + 1))
    }
}
