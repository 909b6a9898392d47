//! Deduplicates and limits Events, as client-go's event correlator does.

use std::{collections::HashMap, time::Duration};

use ferroute_core::TokenBucket;
use ferroute_kube::{EventHandle, KubeEvent, ObjectReference};
use tokio::time::Instant;

/// The recent Events.
pub(super) struct EventCorrelator {
    recent: HashMap<Key, Recent>,
    /// Limits the rate of writes.
    tokens: TokenBucket,
}

/// Write that an occurrence requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A new Event.
    Create,
    /// The number of occurrences to the series of an existing Event.
    UpdateSeries(EventHandle, u32),
    /// No write.
    Skip,
}

/// The identity of an Event. Its note is not part of it, because it may contain times and numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    regarding: ObjectReference,
    reason: &'static str,
    action: &'static str,
}

struct Recent {
    handle: Option<EventHandle>,
    count: u32,
    last: Instant,
}

impl EventCorrelator {
    pub(super) fn new(now: Instant) -> Self {
        Self { recent: HashMap::new(), tokens: TokenBucket::new(REFILL, BURST, now.into_std()) }
    }

    /// Counts an occurrence and returns the required write.
    pub(super) fn observe(&mut self, event: &KubeEvent, now: Instant) -> Action {
        self.recent.retain(|_, recent| now.duration_since(recent.last) < RETENTION);
        let (key, has_capacity) = (Key::new(event), self.recent.len() < CAPACITY);
        let action = match self.recent.get_mut(&key) {
            Some(recent) => {
                recent.count += 1;
                recent.last = now;
                match &recent.handle {
                    // Only at powers of two, so that a condition that lasts for hours causes a dozen writes.
                    Some(handle) if recent.count.is_power_of_two() => {
                        Action::UpdateSeries(handle.clone(), recent.count)
                    }
                    Some(_) | None => Action::Skip,
                }
            }
            None if has_capacity => {
                self.recent.insert(key.clone(), Recent { handle: None, count: 1, last: now });
                Action::Create
            }
            None => Action::Skip,
        };
        if action == Action::Skip || self.tokens.try_take(now.into_std()) {
            return action;
        }
        if action == Action::Create {
            // The next occurrence counts as the first one.
            self.recent.remove(&key);
        }
        Action::Skip
    }

    /// Sets the handle of a written Event. If it is `None` because the write failed, the next occurrence counts as the
    /// first one.
    pub(super) fn set_handle(&mut self, event: &KubeEvent, handle: Option<EventHandle>) {
        let key = Key::new(event);
        match (self.recent.get_mut(&key), handle) {
            (Some(recent), Some(handle)) => recent.handle = Some(handle),
            (Some(_), None) => {
                self.recent.remove(&key);
            }
            (None, _) => {}
        }
    }
}

impl Key {
    fn new(event: &KubeEvent) -> Self {
        let KubeEvent { regarding, event_type: _, reason, action, note: _ } = event;
        Self { regarding: regarding.clone(), reason, action }
    }
}

/// Time after the last occurrence until an Event counts as new; client-go's value.
const RETENTION: Duration = Duration::from_secs(360);

/// Maximum number of recent Events.
const CAPACITY: usize = 256;

/// Number of Events that may be written without delay; client-go's value for one object.
const BURST: u32 = 25;

/// Interval of further Events.
const REFILL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use ferroute_kube::{ApiServer, EventType, testing::FakeApiServer};

    use super::*;

    fn event(name: &str) -> KubeEvent {
        KubeEvent {
            regarding: ObjectReference::service("shop", name),
            event_type: EventType::Warning,
            reason: "InvalidObject",
            action: "Parse",
            note: String::new(),
        }
    }

    /// Returns the handle of an Event on a fake API server.
    async fn handle() -> EventHandle {
        let server = FakeApiServer::start().await;
        let server = ApiServer::new(&Default::default(), Some(&server.url()), "node-1").await.unwrap();
        server.writer().create_event(&event("web"), std::time::SystemTime::now()).await.unwrap()
    }

    #[tokio::test]
    async fn series_is_updated_at_powers_of_two() {
        let (mut correlator, handle) = (EventCorrelator::new(Instant::now()), handle().await);
        let start = Instant::now();
        assert_eq!(correlator.observe(&event("web"), start), Action::Create);
        correlator.set_handle(&event("web"), Some(handle.clone()));
        let actions: Vec<Action> = (1..=8).map(|_| correlator.observe(&event("web"), start)).collect();
        let counts: Vec<u32> = actions
            .iter()
            .filter_map(|action| match action {
                Action::UpdateSeries(updated, count) => {
                    assert_eq!(*updated, handle);
                    Some(*count)
                }
                _ => None,
            })
            .collect();
        assert_eq!(counts, [2, 4, 8]);
        assert_eq!(correlator.observe(&event("web"), start + RETENTION), Action::Create, "after the retention time");
    }

    #[tokio::test]
    async fn rate_of_new_events_is_limited() {
        let start = Instant::now();
        let mut correlator = EventCorrelator::new(start);
        let is_created = |correlator: &mut EventCorrelator, name: u32, at| {
            correlator.observe(&event(&format!("s{name}")), at) == Action::Create
        };
        let created = (0..100).filter(|name| is_created(&mut correlator, *name, start)).count();
        assert_eq!(created, BURST as usize);
        assert!(is_created(&mut correlator, 99, start + REFILL), "a later occurrence of a skipped Event");
        assert!(!is_created(&mut correlator, 98, start + REFILL));
    }

    #[tokio::test]
    async fn failed_event_is_created_at_next_occurrence() {
        let start = Instant::now();
        let mut correlator = EventCorrelator::new(start);
        assert_eq!(correlator.observe(&event("web"), start), Action::Create);
        correlator.set_handle(&event("web"), None);
        assert_eq!(correlator.observe(&event("web"), start), Action::Create);
    }
}
