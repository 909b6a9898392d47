//! Which happenings become Events: each once, its repetitions as a count, and all together not too many.

use std::{collections::HashMap, time::Duration};

use ferroute_core::TokenBucket;
use ferroute_kube::{ObjectReference, KubeEvent, EventHandle};
use tokio::time::Instant;

/// What has been told.
pub(super) struct Series {
    told: HashMap<Key, Told>,
    /// Limits how many Events are written.
    tokens: TokenBucket,
}

/// What to do about something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Write an Event.
    Write,
    /// Write on in one that is there: it has happened so many times.
    Count(EventHandle, u32),
    /// Nothing.
    Nothing,
}

/// The same thing, whatever its note says: a note may hold times and numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    regarding: ObjectReference,
    reason: &'static str,
    action: &'static str,
}

struct Told {
    reported: Option<EventHandle>,
    count: u32,
    last: Instant,
}

impl Series {
    pub(super) fn new(now: Instant) -> Self {
        Self { told: HashMap::new(), tokens: TokenBucket::new(REFILL, BURST, now.into_std()) }
    }

    /// Something has happened.
    pub(super) fn happened(&mut self, report: &KubeEvent, now: Instant) -> Step {
        self.told.retain(|_, told| now.duration_since(told.last) < MEMORY);
        let (key, has_room) = (Key::of(report), self.told.len() < MOST);
        let step = match self.told.get_mut(&key) {
            Some(told) => {
                told.count += 1;
                told.last = now;
                match &told.reported {
                    // Every doubling: what goes on for hours is told a dozen times.
                    Some(reported) if told.count.is_power_of_two() => Step::Count(reported.clone(), told.count),
                    Some(_) | None => Step::Nothing,
                }
            }
            None if has_room => {
                self.told.insert(key.clone(), Told { reported: None, count: 1, last: now });
                Step::Write
            }
            None => Step::Nothing,
        };
        if step == Step::Nothing || self.tokens.try_take(now.into_std()) {
            return step;
        }
        if step == Step::Write {
            // The next time is the first one then.
            self.told.remove(&key);
        }
        Step::Nothing
    }

    /// The Event of a happening has been written; `None`: it could not be, so that the next time is the first one.
    pub(super) fn written(&mut self, report: &KubeEvent, reported: Option<EventHandle>) {
        let key = Key::of(report);
        match (self.told.get_mut(&key), reported) {
            (Some(told), Some(reported)) => told.reported = Some(reported),
            (Some(_), None) => {
                self.told.remove(&key);
            }
            (None, _) => {}
        }
    }
}

impl Key {
    fn of(report: &KubeEvent) -> Self {
        let KubeEvent { regarding, event_type: _, reason, action, note: _ } = report;
        Self { regarding: regarding.clone(), reason, action }
    }
}

/// How long a thing must not happen until it counts as new; client-go's value.
const MEMORY: Duration = Duration::from_secs(360);

/// Things that are remembered.
const MOST: usize = 256;

/// Events that may be written at once; client-go's value for one object.
const BURST: u32 = 25;

/// After that, one each time.
const REFILL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use ferroute_kube::{ApiServer, EventType, testing::FakeApiServer};

    use super::*;

    fn report(name: &str) -> KubeEvent {
        KubeEvent {
            regarding: ObjectReference::service("shop", name),
            event_type: EventType::Warning,
            reason: "InvalidObject",
            action: "Parse",
            note: String::new(),
        }
    }

    /// What a server gives for an Event.
    async fn reported() -> EventHandle {
        let server = FakeApiServer::start().await;
        let server = ApiServer::new(&Default::default(), Some(&server.url()), "node-1").await.unwrap();
        server.writer().create_event(&report("web"), std::time::SystemTime::now()).await.unwrap()
    }

    #[tokio::test]
    async fn repetitions_are_counted_and_told_at_every_doubling() {
        let (mut series, reported) = (Series::new(Instant::now()), reported().await);
        let start = Instant::now();
        assert_eq!(series.happened(&report("web"), start), Step::Write);
        series.written(&report("web"), Some(reported.clone()));
        let steps: Vec<Step> = (1..=8).map(|_| series.happened(&report("web"), start)).collect();
        let counts: Vec<u32> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Count(same, count) => {
                    assert_eq!(*same, reported);
                    Some(*count)
                }
                _ => None,
            })
            .collect();
        assert_eq!(counts, [2, 4, 8]);
        assert_eq!(series.happened(&report("web"), start + MEMORY), Step::Write, "it is new again");
    }

    #[tokio::test]
    async fn many_things_at_once_are_held_back() {
        let start = Instant::now();
        let mut series = Series::new(start);
        let write =
            |series: &mut Series, name: u32, at| series.happened(&report(&format!("s{name}")), at) == Step::Write;
        let written = (0..100).filter(|name| write(&mut series, *name, start)).count();
        assert_eq!(written, BURST as usize);
        assert!(write(&mut series, 99, start + REFILL), "what was held back is told when it happens again later");
        assert!(!write(&mut series, 98, start + REFILL));
    }

    #[tokio::test]
    async fn what_could_not_be_written_is_tried_when_it_happens_again() {
        let start = Instant::now();
        let mut series = Series::new(start);
        assert_eq!(series.happened(&report("web"), start), Step::Write);
        series.written(&report("web"), None);
        assert_eq!(series.happened(&report("web"), start), Step::Write);
    }
}
