use std::rc::Rc;

use crate::{Event, way::Notes};

/// What a walker remembers of its way.
pub(crate) trait Path: Notes + Clone + Default {
    /// Somebody will read why rules did not match. To say it takes longer than to find it out.
    const EXPLAINS: bool;
}

/// Nothing: for those who only want to know the end.
impl Path for () {
    const EXPLAINS: bool = false;
}

impl Notes for () {
    fn note(&mut self, _: impl FnOnce() -> Event) {}

    fn note_detail(&mut self, _: impl FnOnce() -> Event) {}
}

/// Everything, in a list that walkers share up to where they split.
#[derive(Clone, Default)]
pub(crate) struct Trail(Option<Rc<Link>>);

struct Link {
    event: Event,
    before: Trail,
}

impl Path for Trail {
    const EXPLAINS: bool = true;
}

impl Notes for Trail {
    fn note(&mut self, event: impl FnOnce() -> Event) {
        let before = std::mem::take(self);
        self.0 = Some(Rc::new(Link { event: event(), before }));
    }

    fn note_detail(&mut self, event: impl FnOnce() -> Event) {
        self.note(event);
    }
}

impl Trail {
    /// The events, the first one first.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events_that(|_| true)
    }

    /// Those events that are `wanted`, the first one first.
    pub(crate) fn events_that(&self, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        let links = std::iter::successors(self.0.as_deref(), |link| link.before.0.as_deref());
        let mut events: Vec<Event> = links.map(|link| &link.event).filter(|event| wanted(event)).cloned().collect();
        events.reverse();
        events
    }
}

impl Drop for Trail {
    /// A list of ten thousand rules must not be dropped by recursion.
    fn drop(&mut self) {
        let mut next = self.0.take();
        while let Some(link) = next {
            next = Rc::try_unwrap(link).ok().and_then(|mut link| link.before.0.take());
        }
    }
}

/// What changed or was decided, and no more: few events, however many rules there are.
#[derive(Clone, Default)]
pub(crate) struct Effects(pub(crate) Vec<Event>);

impl Path for Effects {
    const EXPLAINS: bool = false;
}

impl Notes for Effects {
    fn note(&mut self, event: impl FnOnce() -> Event) {
        self.0.push(event());
    }

    fn note_detail(&mut self, _: impl FnOnce() -> Event) {}
}
