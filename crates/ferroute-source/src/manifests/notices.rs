//! Waiting for the kernel's notices.

use std::{io, time::Duration};

use futures_util::StreamExt;
use inotify::{EventStream, Inotify};
use tokio::time::{Instant, sleep_until};

use super::{follower::Next, watch::Dirty};

/// The kernel's notices.
pub(super) struct Notices {
    stream: EventStream<Vec<u8>>,
    /// How often to look for changes that gave no notice, and when to do it next.
    look_interval: Duration,
    look_at: Instant,
}

impl Notices {
    pub(super) fn new(inotify: Inotify, look_interval: Duration) -> io::Result<Self> {
        let stream = inotify.into_event_stream(vec![0; BUFFER_SIZE])?;
        Ok(Self { stream, look_interval, look_at: Instant::now() + look_interval })
    }

    /// Waits until something has changed and then a while for more, or until a round is due anyway.
    pub(super) async fn wait(&mut self, next: &Next) -> io::Result<Dirty> {
        let mut dirty = Dirty::default();
        let mut act_at = next.due.map_or(self.look_at, |due| self.look_at.min(due.into()));
        let mut act_by = None;
        loop {
            tokio::select! {
                notice = self.stream.next() => {
                    let notice = notice.ok_or(io::ErrorKind::UnexpectedEof)??;
                    if next.index.note(&notice, &mut dirty) {
                        let now = Instant::now();
                        act_at = (now + QUIET).min(*act_by.get_or_insert(now + MAX_WAIT));
                    }
                }
                () = sleep_until(act_at) => break,
            }
        }
        if self.look_at <= Instant::now() {
            self.look_at = Instant::now() + self.look_interval;
            dirty.look = true;
        }
        Ok(dirty)
    }
}

/// How long there must be no further notice before files are read: tools that write several files do so in one go.
const QUIET: Duration = Duration::from_millis(50);

/// How long to wait for quiet at most.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// Room for hundreds of notices.
const BUFFER_SIZE: usize = 16 * 1024;
