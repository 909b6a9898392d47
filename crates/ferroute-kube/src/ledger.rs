use std::{collections::HashMap, sync::Arc};

use ferroute_source::{Event, ObjectName, Problem, Resource};

use crate::{
    decode::{self, Nameless, ObjectError, Raw},
    kinds,
    known::{Gone, Known, Version},
    trouble::{Cause, Trouble},
};

/// From objects of one kind, as they are sent, to the events that tell what is news in them.
#[derive(Debug)]
pub(crate) struct Ledger {
    resource: Resource,
    known: Known,
    /// Objects whose present state is bad, and what has been told about that.
    bad: HashMap<ObjectName, Arc<Problem>>,
    /// It has been told that there are objects without names.
    nameless: bool,
    /// A list has begun and not ended.
    listing: bool,
}

impl Ledger {
    /// Nothing is known yet.
    pub(crate) fn new(resource: Resource) -> Self {
        Self { resource, known: Known::default(), bad: HashMap::new(), nameless: false, listing: false }
    }

    /// A list begins: what comes from now on belongs to it.
    pub(crate) fn begin_listing(&mut self) {
        self.listing = true;
        self.known.begin_listing();
    }

    /// Whether a list has begun and not ended.
    pub(crate) fn is_listing(&self) -> bool {
        self.listing
    }

    /// The list is complete, as of a version.
    pub(crate) fn end_listing(&mut self, version: &str, events: &mut Vec<Event>) {
        self.listing = false;
        for gone in self.known.end_listing(Version::of(version)) {
            self.gone(gone, events);
        }
        events.push(Event::Synced(self.resource));
    }

    /// An object is there, or has changed. Gives its version if it has one.
    pub(crate) fn applied(&mut self, object: Raw<'_>, events: &mut Vec<Event>) -> Option<String> {
        let sent = match decode::object(self.resource, object, &mut self.known) {
            Ok(sent) => sent,
            Err(error) => return self.without_name(&error, events),
        };
        let (version, good) = (sent.version(), sent.applied.is_ok());
        let news = match self.listing {
            true => self.known.listed(&sent.name, version, good),
            false => self.known.applied(&sent.name, version, good),
        };
        match sent.applied {
            Ok(event) if news => {
                events.push(event);
                self.solved(&sent.name, events);
            }
            Err(error) if news => self.passed_over(sent.name, &error, events),
            Ok(_) | Err(_) => {}
        }
        Some(sent.version)
    }

    /// An object is gone. Gives the version of that if it has one.
    pub(crate) fn deleted(&mut self, object: Raw<'_>, events: &mut Vec<Event>) -> Option<String> {
        let (name, version) = match decode::name(object, &mut self.known) {
            Ok(named) => named,
            Err(error) => return self.without_name(&error, events),
        };
        if let Some(gone) = self.known.deleted(name, Version::of(&version)) {
            self.gone(gone, events);
        }
        Some(version)
    }

    /// Everything up to this version has come.
    pub(crate) fn settle(&mut self, version: &str) {
        self.known.settle(Version::of(version));
    }

    fn gone(&mut self, Gone { name, told }: Gone, events: &mut Vec<Event>) {
        self.solved(&name, events);
        if told {
            events.push(kinds::deleted(self.resource, name));
        }
    }

    fn passed_over(&mut self, name: ObjectName, error: &ObjectError, events: &mut Vec<Event>) {
        let trouble = Trouble::BadObject { resource: self.resource, name: name.clone(), cause: Cause::whole(error) };
        let problem = Arc::new(trouble.into_problem());
        if self.bad.get(&name).is_some_and(|known| known.text() == problem.text()) {
            return;
        }
        self.solved(&name, events);
        events.push(Event::Problem(Arc::clone(&problem)));
        self.bad.insert(name, problem);
    }

    fn solved(&mut self, name: &ObjectName, events: &mut Vec<Event>) {
        events.extend(self.bad.remove(name).map(Event::Solved));
    }

    fn without_name(&mut self, error: &Nameless, events: &mut Vec<Event>) -> Option<String> {
        if !std::mem::replace(&mut self.nameless, true) {
            let trouble = Trouble::Nameless { resource: self.resource, cause: Cause::innermost(error) };
            events.push(Event::Problem(Arc::new(trouble.into_problem())));
        }
        None
    }
}
