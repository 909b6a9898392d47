use crate::{Event, way::Notes};

/// How much of a walk somebody will read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// Only how it ends.
    Nothing,
    /// What changes and decides.
    Effects,
    /// Every rule, with the reason why it does not match.
    Everything,
}

/// What a walker remembers of its way.
#[derive(Clone, Debug)]
pub(super) struct Log {
    detail: Detail,
    /// What happened, in order.
    pub(super) events: Vec<Event>,
}

impl Log {
    pub(super) fn new(detail: Detail) -> Self {
        Self { detail, events: Vec::new() }
    }

    /// Somebody will read why rules did not match. To say it takes longer than to find it out.
    pub(super) fn explains(&self) -> bool {
        self.detail == Detail::Everything
    }
}

impl Notes for Log {
    fn note(&mut self, event: impl FnOnce() -> Event) {
        if self.detail != Detail::Nothing {
            self.events.push(event());
        }
    }

    fn note_detail(&mut self, event: impl FnOnce() -> Event) {
        if self.explains() {
            self.events.push(event());
        }
    }
}
