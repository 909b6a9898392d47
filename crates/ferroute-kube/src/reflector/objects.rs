use std::{collections::HashMap, sync::Arc};

use ferroute_core::{NamespacedName, parse::FieldError};
use ferroute_source::{Event, Problem, Resource};

use super::version_cache::{Removed, ResourceVersion, VersionCache};
use crate::{
    decode::{self, MissingName, RawObject},
    error::{ApiError, Cause},
};

/// State of the objects of one kind: turns the objects that the server sends into events for new versions.
#[derive(Debug)]
pub(super) struct ObjectState {
    resource: Resource,
    versions: VersionCache,
    /// Objects whose last version is invalid, with the problem that has been reported.
    invalid: HashMap<NamespacedName, Arc<Problem>>,
    /// Whether an object without a name has been reported.
    has_reported_missing_name: bool,
    /// Whether [`Event::Synced`] has been emitted.
    synced: bool,
}

impl ObjectState {
    pub(super) fn new(resource: Resource) -> Self {
        Self {
            resource,
            versions: VersionCache::default(),
            invalid: HashMap::new(),
            has_reported_missing_name: false,
            synced: false,
        }
    }

    /// Begins a list. An unfinished list is discarded.
    pub(super) fn begin_list(&mut self) {
        self.versions.begin_list();
    }

    /// Adds an object of the list. Returns its version if it has a name.
    pub(super) fn listed(&mut self, object: RawObject<'_>, events: &mut Vec<Event>) -> Option<String> {
        self.update(object, events, VersionCache::listed)
    }

    /// Completes a list as of a version: objects that were not in it are deleted.
    pub(super) fn end_list(&mut self, version: &str, events: &mut Vec<Event>) {
        for removed in self.versions.end_list(ResourceVersion::parse(version)) {
            self.remove(removed, events);
        }
        self.synced = true;
        events.push(Event::Synced(self.resource));
    }

    /// Reports the kind as synced where the server does not return it, unless that is reported already.
    pub(super) fn unavailable(&mut self, events: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.synced, true) {
            events.push(Event::Synced(self.resource));
        }
    }

    /// Adds or changes an object. Returns its version if it has a name.
    pub(super) fn applied(&mut self, object: RawObject<'_>, events: &mut Vec<Event>) -> Option<String> {
        self.update(object, events, VersionCache::applied)
    }

    /// Deletes an object. Returns the version of the deletion if the object has a name.
    pub(super) fn deleted(&mut self, object: RawObject<'_>, events: &mut Vec<Event>) -> Option<String> {
        let (name, version) = match decode::name(object) {
            Ok(named) => named,
            Err(error) => return self.missing_name(&error, events),
        };
        if let Some(removed) = self.versions.deleted(name, ResourceVersion::parse(&version)) {
            self.remove(removed, events);
        }
        Some(version)
    }

    /// Records that all changes up to this version have been received.
    pub(super) fn settle(&mut self, version: &str) {
        self.versions.settle(ResourceVersion::parse(version));
    }

    /// `is_new` records the version in the cache and reports whether it is new.
    fn update(
        &mut self,
        object: RawObject<'_>,
        events: &mut Vec<Event>,
        is_new: impl FnOnce(&mut VersionCache, &NamespacedName, ResourceVersion, bool) -> bool,
    ) -> Option<String> {
        let decoded = match decode::object(self.resource, object) {
            Ok(decoded) => decoded,
            Err(error) => return self.missing_name(&error, events),
        };
        let version = ResourceVersion::parse(&decoded.version);
        if is_new(&mut self.versions, &decoded.name, version, decoded.event.is_ok()) {
            match decoded.event {
                Ok(event) => {
                    events.push(event);
                    self.resolve(&decoded.name, events);
                }
                Err(error) => self.report_invalid(decoded.name, error, events),
            }
        }
        Some(decoded.version)
    }

    fn remove(&mut self, Removed { name, emitted }: Removed, events: &mut Vec<Event>) {
        self.resolve(&name, events);
        if emitted {
            events.push(Event::deleted(self.resource, name));
        }
    }

    fn report_invalid(&mut self, name: NamespacedName, error: FieldError, events: &mut Vec<Event>) {
        let problem = Arc::new(Problem::InvalidObject { kind: self.resource.kind(), name: name.clone(), error });
        if self.invalid.get(&name).is_some_and(|reported| reported.text() == problem.text()) {
            return;
        }
        self.resolve(&name, events);
        events.push(Event::Problem(Arc::clone(&problem)));
        self.invalid.insert(name, problem);
    }

    fn resolve(&mut self, name: &NamespacedName, events: &mut Vec<Event>) {
        events.extend(self.invalid.remove(name).map(Event::Resolved));
    }

    fn missing_name(&mut self, error: &MissingName, events: &mut Vec<Event>) -> Option<String> {
        if !std::mem::replace(&mut self.has_reported_missing_name, true) {
            let error = ApiError::MissingName { resource: self.resource, cause: Cause::innermost(error) };
            events.push(Event::Problem(Arc::new(error.into())));
        }
        None
    }
}
