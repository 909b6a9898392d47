use std::rc::Rc;

use crate::Event;

/// Level of detail in the record of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Only the verdict.
    Verdict,
    /// Only [changes and verdicts](Event::is_step) of rules: few events for any number of rules.
    Steps,
    /// Every event but rules that do not match, of which there are thousands.
    Matches,
    /// Every event, with the reason why each rule does not match.
    Events,
}

/// The events of a walk so far.
#[derive(Clone)]
pub(crate) enum Record {
    Verdict,
    Steps(EventList),
    Matches(EventList),
    Events(EventList),
}

/// A list of events, the last one first. Walkers share it up to the point where they fork.
#[derive(Clone, Default)]
pub(crate) struct EventList(Option<Rc<Link>>);

struct Link {
    event: Event,
    before: EventList,
}

impl Record {
    pub(crate) fn new(detail: Detail) -> Self {
        match detail {
            Detail::Verdict => Self::Verdict,
            Detail::Steps => Self::Steps(EventList::default()),
            Detail::Matches => Self::Matches(EventList::default()),
            Detail::Events => Self::Events(EventList::default()),
        }
    }

    /// Records a change or a verdict. The event is only built if it is kept.
    pub(crate) fn step(&mut self, event: impl FnOnce() -> Event) {
        match self {
            Self::Verdict => {}
            Self::Steps(events) | Self::Matches(events) | Self::Events(events) => events.push(event()),
        }
    }

    /// Records any other event, of which there are many more. The event is built only if it is kept.
    pub(crate) fn detail(&mut self, event: impl FnOnce() -> Event) {
        if let Self::Matches(events) | Self::Events(events) = self {
            events.push(event());
        }
    }

    /// Reports whether rules that do not match are recorded.
    pub(crate) fn has_mismatches(&self) -> bool {
        matches!(self, Self::Events(_))
    }

    /// Returns the changes and verdicts, in order.
    pub(crate) fn steps(&self) -> Vec<Event> {
        match self {
            Self::Verdict => Vec::new(),
            Self::Steps(events) | Self::Matches(events) | Self::Events(events) => events.filter(Event::is_step),
        }
    }

    /// Returns all events, in order; none if only steps are recorded.
    pub(crate) fn events(&self) -> Vec<Event> {
        match self {
            Self::Verdict | Self::Steps(_) => Vec::new(),
            Self::Matches(events) | Self::Events(events) => events.filter(|_| true),
        }
    }
}

impl EventList {
    fn push(&mut self, event: Event) {
        let before = std::mem::take(self);
        self.0 = Some(Rc::new(Link { event, before }));
    }

    /// Returns copies of the events for which `keep` holds, in order.
    fn filter(&self, keep: impl Fn(&Event) -> bool) -> Vec<Event> {
        let links = std::iter::successors(self.0.as_deref(), |link| link.before.0.as_deref());
        let mut events: Vec<Event> = links.map(|link| &link.event).filter(|event| keep(event)).cloned().collect();
        events.reverse();
        events
    }
}

impl Drop for EventList {
    /// Drops the links in a loop: recursion over ten thousand rules would overflow the stack.
    fn drop(&mut self) {
        let mut next = self.0.take();
        while let Some(link) = next {
            next = Rc::try_unwrap(link).ok().and_then(|mut link| link.before.0.take());
        }
    }
}
