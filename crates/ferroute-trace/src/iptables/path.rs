use std::rc::Rc;

use crate::Event;

/// What a walker remembers of its way.
pub(super) trait Path: Clone + Default {
    /// Something happened; `event` is made only if somebody wants it.
    fn note(&mut self, event: impl FnOnce() -> Event);
}

/// Nothing: for those who only want to know the end.
impl Path for () {
    fn note(&mut self, _: impl FnOnce() -> Event) {}
}

/// Everything, in a list that walkers share up to where they split.
#[derive(Clone, Default)]
pub(super) struct Trail(Option<Rc<Link>>);

struct Link {
    event: Event,
    before: Trail,
}

impl Path for Trail {
    fn note(&mut self, event: impl FnOnce() -> Event) {
        let before = std::mem::take(self);
        self.0 = Some(Rc::new(Link { event: event(), before }));
    }
}

impl Trail {
    /// The events, the first one first.
    pub(super) fn into_events(self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut here = self;
        while let Some(link) = here.0.take() {
            match Rc::try_unwrap(link) {
                Ok(link) => {
                    events.push(link.event);
                    here = link.before;
                }
                Err(shared) => {
                    events.push(shared.event.clone());
                    here = shared.before.clone();
                }
            }
        }
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
