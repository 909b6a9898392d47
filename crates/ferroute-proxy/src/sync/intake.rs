//! Where changes come in, from the first one on: also before it is known which families there are.

use ferroute_core::Tracker;

use super::Change;
use crate::observer::Observer;

/// What is wanted, and those who are told of changes. The list that a source begins with goes in here object by object,
/// so that a large cluster is never in memory twice.
pub struct Intake {
    pub(super) tracker: Tracker,
    pub(super) observers: Vec<Box<dyn Observer>>,
}

impl Intake {
    /// Nothing has come but what the tracker knows.
    pub fn new(tracker: Tracker, observers: Vec<Box<dyn Observer>>) -> Self {
        Self { tracker, observers }
    }

    /// What is wanted.
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// Takes a change of what is wanted and tells the observers. Gives back one that is for the sync loop to take.
    pub fn take(&mut self, change: Change) -> Option<Change> {
        if matches!(change, Change::Listed | Change::Host) {
            return Some(change);
        }
        self.taken(&change);
        if let Change::Desired(event, _) = change {
            self.tracker.apply(event);
        }
        None
    }

    /// Tells every observer of a change.
    pub(super) fn taken(&mut self, change: &Change) {
        tracing::trace!(?change, "change");
        self.observers.iter_mut().for_each(|observer| observer.taken(change, &self.tracker));
    }

    /// Lets every observer do what it could not do before.
    pub(super) fn look(&mut self) {
        self.observers.iter_mut().for_each(|observer| observer.look(&self.tracker));
    }

    /// Tells every observer something.
    pub(super) fn tell(&mut self, mut what: impl FnMut(&mut dyn Observer)) {
        for observer in &mut self.observers {
            what(&mut **observer);
        }
    }
}
