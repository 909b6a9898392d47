//! What has become of each change, from its receipt until it is in force.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant, SystemTime},
};

use ferroute_core::{IpFamily, ServiceName, parse::ObjectVersion};

use crate::{
    receipts::{Filter, Receipts, ReceiptsPage},
    slow::{ChangesPage, SlowChanges},
};

/// The present, by a clock to measure with and one to show.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Nobody can set this one back.
    pub instant: Instant,
    /// The clock on the wall.
    pub wall: SystemTime,
}

/// What a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A Service is new or differs. It has addresses of these families, by [`IpFamily::index`].
    Service([bool; 2]),
    /// A Service is gone.
    ServiceGone,
    /// A slice of this family is new or differs.
    Slice(IpFamily),
    /// A slice is gone. Its family is not known, nor its Service.
    SliceGone,
}

/// A change that was received.
#[derive(Clone, Debug)]
pub struct ObjectChange {
    /// What it is about.
    pub subject: Subject,
    /// The Service that is concerned; where a slice is gone, that slice.
    pub name: ServiceName,
    /// The version of the object.
    pub version: ObjectVersion,
    /// When it came from the source.
    pub received: Instant,
    /// When that happened in the cluster which has made the slice change, if somebody has told.
    pub trigger: Option<SystemTime>,
    /// When the API server wrote the object, cut to whole seconds, if that is known.
    pub written: Option<SystemTime>,
}

/// A sync of one family that has succeeded.
#[derive(Clone, Copy, Debug)]
pub struct InForce<'a> {
    /// When it ended.
    pub now: Now,
    /// Everything was compared, so that every change that was pending has its effect now.
    pub full: bool,
    /// Services that differ from what was in force before.
    pub changed: &'a BTreeSet<ServiceName>,
    /// Time that the kernel took.
    pub kernel: Duration,
}

/// A change that is in force for one family.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The change.
    pub change: ObjectChange,
    /// The family.
    pub family: IpFamily,
    /// When the sync began that has brought it into force.
    pub began: Instant,
    /// When that sync ended.
    pub ended: Now,
    /// Time of it that the kernel took.
    pub kernel: Duration,
    /// The rules of the Service are others now.
    pub has_effect: bool,
}

/// Follows changes; told in turn of changes, of syncs that begin, and of syncs that succeed. What is pending when a sync
/// fails stays so until one succeeds.
///
/// What is listed at the start is only counted, so that a large cluster takes no memory here but for its receipts.
#[derive(Debug)]
pub struct History {
    started: SystemTime,
    families: Vec<IpFamily>,
    /// By [`IpFamily::index`].
    pending: [Pending; 2],
    receipts: Receipts,
    slow: SlowChanges,
}

#[derive(Debug, Default)]
struct Pending {
    changes: Vec<ObjectChange>,
    services: usize,
    slices: usize,
    gone_slices: usize,
    /// When the sync has begun that runs now.
    began: Option<Instant>,
    /// Some sync has succeeded.
    is_in_force: bool,
}

impl History {
    /// Of a proxy that was started then, for both families.
    pub fn new(started: SystemTime) -> Self {
        Self {
            started,
            families: IpFamily::BOTH.to_vec(),
            pending: Default::default(),
            receipts: Receipts::default(),
            slow: SlowChanges::default(),
        }
    }

    /// Only these families are served; which is known once everything has been listed.
    pub fn serve(&mut self, families: &[IpFamily]) {
        self.families = families.to_vec();
        for family in IpFamily::BOTH.into_iter().filter(|family| !families.contains(family)) {
            self.pending[family.index()] = Pending::default();
        }
        self.receipts.serve(families);
    }

    /// A change was received.
    pub fn changed(&mut self, mut change: ObjectChange) {
        // As in kube-proxy, what happened before the start is no measure of how fast this proxy is.
        change.trigger = change.trigger.filter(|trigger| *trigger > self.started);
        self.receipts.changed(&change);
        let concerned = |family: &&IpFamily| match change.subject {
            Subject::Slice(of) => of == **family,
            Subject::Service(_) | Subject::ServiceGone | Subject::SliceGone => true,
        };
        for family in self.families.iter().filter(concerned) {
            self.pending[family.index()].push(change.clone());
        }
    }

    /// Changes of Services and of slices that are not in force for every family.
    pub fn pending(&self) -> (usize, usize) {
        let [v4, v6] = &self.pending;
        let slices = v4.slices + v6.slices + v4.gone_slices.max(v6.gone_slices);
        (v4.services.max(v6.services), slices)
    }

    /// A sync of a family begins.
    pub fn begins(&mut self, family: IpFamily, at: Instant) {
        self.pending[family.index()].began = Some(at);
    }

    /// A sync of a family has succeeded: every change so far is in force, and told to `each`, but for what was listed
    /// at the start.
    pub fn in_force(&mut self, family: IpFamily, sync: &InForce<'_>, mut each: impl FnMut(&Finished)) {
        self.receipts.in_force(family, sync);
        let pending = &mut self.pending[family.index()];
        let done = std::mem::take(pending);
        pending.is_in_force = true;
        let began = done.began.unwrap_or(sync.now.instant);
        for change in done.changes {
            // Whose slice it was that is gone is not known.
            let has_effect = sync.full || change.subject == Subject::SliceGone || sync.changed.contains(&change.name);
            let finished = Finished { change, family, began, ended: sync.now, kernel: sync.kernel, has_effect };
            each(&finished);
            if has_effect {
                self.slow.note(finished);
            }
        }
    }

    /// Which version of each Service is in force, and since when.
    pub fn receipts(&self, filter: &Filter) -> ReceiptsPage {
        self.receipts.page(filter)
    }

    /// The slowest changes of the last hour.
    pub fn slow_changes(&self, now: Instant) -> ChangesPage {
        self.slow.page(now)
    }
}

impl Pending {
    fn push(&mut self, change: ObjectChange) {
        match change.subject {
            Subject::Service(_) | Subject::ServiceGone => self.services += 1,
            Subject::Slice(_) => self.slices += 1,
            Subject::SliceGone => self.gone_slices += 1,
        }
        // What is there before the first sync may have been there for years.
        if self.is_in_force || change.trigger.is_some() {
            self.changes.push(change);
        }
    }
}

impl Finished {
    /// From what happened in the cluster until it was received. Two computers' clocks are compared, so it is only as
    /// good as they agree.
    fn known(&self) -> Option<Duration> {
        let trigger = self.change.trigger?;
        Some(self.received().duration_since(trigger).unwrap_or_default())
    }

    /// From what happened in the cluster until the API server had it: the time of controllers. It is up to a second too
    /// short, because the API server tells whole seconds.
    pub fn api(&self) -> Option<Duration> {
        let took = self.change.written?.duration_since(self.change.trigger?).unwrap_or_default();
        Some(took.min(self.known()?))
    }

    /// From the API server, or where it does not tell, from what happened, until it was received.
    pub fn watch(&self) -> Option<Duration> {
        Some(self.known()? - self.api().unwrap_or_default())
    }

    /// From the receipt until its sync began.
    pub fn queue(&self) -> Duration {
        self.began.saturating_duration_since(self.change.received)
    }

    /// How long the sync took.
    pub fn sync(&self) -> Duration {
        self.ended.instant.saturating_duration_since(self.began)
    }

    /// From what happened in the cluster, or else from the receipt, until it was in force.
    pub fn total(&self) -> Duration {
        self.known().unwrap_or_default() + self.queue() + self.sync()
    }

    /// What `kubeproxy_network_programming_duration_seconds` measures, of the changes that it counts: of slices, since
    /// the start, with an effect, where somebody has told when it happened.
    pub fn programming(&self) -> Option<Duration> {
        let trigger = self.change.trigger.filter(|_| self.has_effect)?;
        Some(self.ended.wall.duration_since(trigger).unwrap_or_default())
    }

    /// When it was received, by the clock on the wall.
    pub fn received(&self) -> SystemTime {
        self.wall(self.change.received)
    }

    /// Another moment by the clock on the wall.
    pub(crate) fn wall(&self, moment: Instant) -> SystemTime {
        let ago = self.ended.instant.saturating_duration_since(moment);
        self.ended.wall.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests;
