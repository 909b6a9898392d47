//! The versions of the desired state over time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// All versions of a part of the desired state that may still be active.
#[derive(Debug)]
pub(crate) struct History<T>(Vec<Version<T>>);

#[derive(Debug)]
struct Version<T> {
    value: Arc<T>,
    /// Just before the version was published.
    published: Instant,
    /// When the next version was published.
    superseded: Option<Instant>,
    /// From when on no new connection may follow this version.
    retired: Option<Instant>,
}

impl<T> History<T> {
    pub(crate) fn new(value: T, now: Instant) -> Self {
        Self(vec![Version { value: Arc::new(value), published: now, superseded: None, retired: None }])
    }

    /// Returns the current version.
    pub(crate) fn current(&self) -> &Arc<T> {
        &self.0.last().expect("there is always a version").value
    }

    /// Adds a version, which is about to be published.
    pub(crate) fn publish(&mut self, value: T, now: Instant) {
        self.add(Arc::new(value), now);
    }

    /// Like `publish`; the version shares its value with an equal one.
    pub(crate) fn publish_equal(&mut self, value: &T, now: Instant)
    where
        T: Clone + PartialEq,
    {
        let equal = self.0.iter().find(|version| *version.value == *value);
        self.add(equal.map_or_else(|| Arc::new(value.clone()), |version| version.value.clone()), now);
    }

    fn add(&mut self, value: Arc<T>, now: Instant) {
        if let Some(last) = self.0.last_mut() {
            last.superseded = Some(now);
        }
        self.0.push(Version { value, published: now, superseded: None, retired: None });
    }

    /// Retires all versions that were superseded until `superseded`.
    pub(crate) fn retire(&mut self, superseded: Instant, now: Instant) {
        for version in &mut self.0 {
            if version.superseded.is_some_and(|at| at <= superseded) {
                version.retired.get_or_insert(now);
            }
        }
    }

    /// Returns the versions that a connection may have followed that was opened between two points in time.
    pub(crate) fn between(&self, start: Instant, end: Instant) -> impl Iterator<Item = &Arc<T>> {
        let may_apply =
            move |version: &&Version<T>| version.published <= end && version.retired.is_none_or(|at| at >= start);
        self.0.iter().filter(may_apply).map(|version| &version.value)
    }

    /// Removes versions that were retired long ago.
    pub(crate) fn prune(&mut self, now: Instant) {
        self.0.retain(|version| version.retired.is_none_or(|at| now - at < KEPT));
    }
}

/// Longer than any connection takes to be established or to fail.
const KEPT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_apply_from_their_publication_until_they_are_retired() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut history = History::new('a', at(0));
        history.publish('b', at(10));
        history.publish('c', at(20));
        let between = |history: &History<char>, from, to| -> String {
            history.between(at(from), at(to)).map(|version| **version).collect()
        };
        assert_eq!(between(&history, 0, 9), "a");
        assert_eq!(between(&history, 30, 31), "abc");
        // The proxy has applied all versions until 15, which is known at 25.
        history.retire(at(15), at(25));
        assert_eq!(between(&history, 24, 31), "abc");
        assert_eq!(between(&history, 26, 31), "bc");
        history.prune(at(25) + KEPT);
        assert_eq!(between(&history, 0, 31), "bc");
    }
}
