//! Selection of the objects of a source that the desired state needs, and handling of missing ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::bail;
use ferroute_api::{
    EndpointSlice, Kind, Object, Service,
    manifest::{Cause, Document, DocumentError, Parsed},
};
use ferroute_core::{NamespacedName, parse::parse_service, tracker::is_api_server};
use ferroute_source::{Event, Input, Problem};

use crate::{about::About, plural};

/// Purpose of the state, which determines the handling of a missing source of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need<'a> {
    /// The absence of objects is an error.
    Objects,
    /// The same, but only the endpoints of this Service are needed.
    Endpoints(&'a NamespacedName),
    /// Without objects, the host alone is examined.
    Host,
}

impl Need<'_> {
    /// Reports whether the state includes the endpoints of a slice. Those of the API server are always included,
    /// because their addresses are reserved.
    pub(super) fn includes(self, slice: &EndpointSlice) -> bool {
        let Self::Endpoints(wanted) = self else { return true };
        let namespace = NamespacedName::from_metadata(&slice.metadata);
        let service = slice.service_name().map(|name| NamespacedName::new(namespace.namespace(), name));
        service.is_some_and(|service| service == *wanted || is_api_server(&service))
    }
}

/// Reports whether a document may be needed: most documents of a large cluster are EndpointSlices of Services other
/// than this one and the API server's.
pub(super) fn may_be_needed(document: &str, service: &str) -> bool {
    let mut owners = document.split("kubernetes.io/service-name: ").skip(1);
    let (Some(owner), None) = (owners.next(), owners.next()) else { return true };
    // Quoted or not, alone in its line or in `{}`.
    let owner = owner.trim_start_matches(['"', '\'']);
    let end = owner.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '.').unwrap_or(owner.len());
    let (owner, rest) = owner.split_at(end);
    let is_plain =
        !owner.is_empty() && rest.chars().next().is_none_or(|c| c.is_ascii_whitespace() || "},\"'".contains(c));
    let is_slice = || document.lines().any(|line| line.trim_end() == "kind: EndpointSlice");
    owner == service || owner == API_SERVER || !is_plain || !is_slice()
}

/// Returns an error if a part of the given files could not be read, because the answer would then be based on other
/// objects than those in the files. Objects that a proxy does not use are not an error, and with `permits_invalid`,
/// single invalid objects are not an error either, as in the proxy.
pub(super) fn ensure_readable(events: &[Event], permits_invalid: bool) -> anyhow::Result<()> {
    let is_error = |problem: &Problem| match problem {
        Problem::Document { error: DocumentError { cause: Cause::Value(_), .. }, .. } => !permits_invalid,
        Problem::NoFiles { .. } => true,
        problem => problem.blocks_changes(),
    };
    let problems = events.iter().filter_map(|event| match event {
        Event::Problem(problem) if is_error(problem) => Some(problem.text()),
        _ => None,
    });
    let problems: Vec<String> = problems.collect();
    match problems.as_slice() {
        [] => Ok(()),
        [problem] => bail!("{problem}"),
        [problem, more @ ..] => bail!("{problem} (and {}; see `ferroute check`)", plural(more.len(), "more problem")),
    }
}

/// The place of an object in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// The file.
    pub file: PathBuf,
    /// The first line of the object, from 1, if it is known.
    pub line: Option<usize>,
}

/// Returns the objects of a document with their lines; none if it cannot be read.
pub(super) fn objects(document: &Document<'_>) -> Vec<(Option<usize>, Object)> {
    let mut objects = Vec::new();
    let read = document.read_each(&mut |place, parsed| {
        if let Ok(Parsed::Object(object)) = parsed {
            objects.push((place.line, *object));
        }
    });
    read.map_or_else(|_| Vec::new(), |()| objects)
}

/// Returns the invalid Services that a source has reported in place of emitting them, as far as their files can be read again.
pub(super) fn rejected_services(events: &[Event], input: &Input) -> Vec<(Service, FilePlace)> {
    let mut files: BTreeMap<&Path, BTreeSet<usize>> = BTreeMap::new();
    for event in events {
        if let Event::Problem(problem) = event
            && let Problem::Document { file, error, .. } = &**problem
            && let Cause::Value(_) = &error.cause
            && error.kind.as_deref() == Some(Kind::Service.as_str())
        {
            files.entry(file).or_default().insert(error.document);
        }
    }
    let mut rejected = Vec::new();
    for (file, numbers) in files {
        let mut add = |(line, object)| {
            if let Object::Service(service) = object
                && parse_service(&service).is_err()
            {
                rejected.push((service, FilePlace { file: file.to_owned(), line }));
            }
        };
        let _ = input.for_each_document(file, &mut |document| {
            if numbers.contains(&document.number) {
                objects(document).into_iter().for_each(&mut add);
            }
        });
    }
    rejected
}

/// Returns the reason why the objects do not describe a node, if they contain only other Nodes.
pub(super) fn missing_node(node: &str, events: &[Event], about: &About) -> Option<String> {
    let names = events.iter().filter_map(|event| match event {
        Event::NodeApplied(node) => Some(node.metadata.name.as_str()),
        _ => None,
    });
    let names: BTreeSet<&str> = names.collect();
    let first = names.first().filter(|_| !names.contains(node))?;
    let listed: Vec<&str> = names.iter().copied().take(MAX_NODES).collect();
    let more = if names.len() > MAX_NODES { ", ..." } else { "" };
    let source = about.objects.as_ref().map_or("the objects", |fact| &fact.value);
    Some(format!("no Node {node} in {source}; it has {}{more}: use --hostname-override {first}", listed.join(", ")))
}

/// Returns the Services in a source's events.
pub(super) fn services(events: Vec<Event>) -> BTreeMap<String, Service> {
    let mut services = BTreeMap::new();
    for event in events {
        match event {
            Event::ServiceApplied(service) => {
                let name = NamespacedName::from_metadata(&service.metadata).to_string();
                services.insert(name, *service);
            }
            Event::ServiceDeleted(name) => _ = services.remove(&name.to_string()),
            _ => {}
        }
    }
    services
}

/// Returns the event that a source emits for an object; `None` for kinds that sources do not read.
pub(super) fn event(object: Object) -> Option<Event> {
    match object {
        Object::Service(service) => Some(Event::ServiceApplied(Box::new(service))),
        Object::EndpointSlice(slice) => Some(Event::SliceApplied(Box::new(slice))),
        Object::Node(node) => Some(Event::NodeApplied(Box::new(node))),
        Object::ServiceCidr(cidr) => Some(Event::ServiceCidrApplied(Box::new(cidr))),
        Object::Endpoints(_) | Object::Pod(_) | Object::Deployment(_) => None,
    }
}

/// The name of the Service of the API server.
const API_SERVER: &str = "kubernetes";

/// The maximum number of Nodes in a hint.
const MAX_NODES: usize = 5;
