//! From values to objects: which kind it is, whether it is read in that version, and its name.

use serde::Deserialize;

use super::{
    Document,
    decode::{self, FieldError},
    error::{Cause, DocumentError},
    json,
    value::{Node, Root, Sink, SyntaxError, Value},
    yaml,
};
use crate::{Kind, Object, ObjectMeta};

/// What a document, or an item of a list, holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// An object of a kind that Ferroute reads.
    Object(Box<Object>),
    /// An object of another kind.
    Ignored(Ignored),
}

/// An object of a kind that Ferroute does not read. Nothing in it has been looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ignored {
    /// Its `apiVersion`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// `namespace/name`, as far as it has them.
    pub name: String,
}

pub(super) fn read_each(
    document: &Document<'_>,
    each: &mut dyn FnMut(Result<Found, DocumentError>),
) -> Result<(), DocumentError> {
    let mut collector = Collector { document, each, unknown: Vec::new() };
    let parsed = match json::meant(document.text) {
        Some(text) => json::parse(text, &mut collector),
        None => yaml::parse(document.text, &mut collector),
    };
    parsed.map_err(|SyntaxError { line, cause }| {
        let line = absolute_line(document, line);
        DocumentError { document: document.number, line, kind: None, name: None, field: None, cause }
    })
}

/// Decodes the parts of a document as they come.
struct Collector<'c, 't> {
    document: &'c Document<'t>,
    each: &'c mut dyn FnMut(Result<Found, DocumentError>),
    /// Items that do not say what they are, which the list may know.
    unknown: Vec<(usize, Node<'t>)>,
}

impl Collector<'_, '_> {
    fn decode(&mut self, item: Option<usize>, node: Node<'_>, list: Option<&ListType>) {
        let place = Place { document: self.document, item };
        if let Some(found) = place.decode(node, list).transpose() {
            (self.each)(found);
        }
    }
}

impl<'t> Sink<'t> for Collector<'_, 't> {
    fn item(&mut self, index: usize, node: Node<'t>) {
        if node.get("kind").is_none() && node.get("apiVersion").is_none() {
            self.unknown.push((index, node));
        } else {
            self.decode(Some(index), node, None);
        }
    }

    fn root(&mut self, root: Root<'t>) {
        if !root.is_list {
            return self.decode(None, root.node, None);
        }
        let list = ListType::of(&root.node);
        for (index, node) in std::mem::take(&mut self.unknown) {
            self.decode(Some(index), node, list.as_ref());
        }
    }
}

/// What the items of a list are where they do not say so: a `ServiceList` holds Services.
struct ListType {
    api_version: String,
    kind: String,
}

impl ListType {
    fn of(root: &Node<'_>) -> Option<Self> {
        let kind = root.get("kind").and_then(Node::text)?.strip_suffix("List").filter(|kind| !kind.is_empty())?;
        let api_version = root.get("apiVersion").and_then(Node::text)?;
        Some(Self { api_version: api_version.to_owned(), kind: kind.to_owned() })
    }
}

/// Where an object stands.
struct Place<'p> {
    document: &'p Document<'p>,
    /// Position in the list, if it is an item of one.
    item: Option<usize>,
}

impl Place<'_> {
    /// `None`: nothing is there, as in an empty document.
    fn decode(&self, node: Node<'_>, list: Option<&ListType>) -> Result<Option<Found>, DocumentError> {
        if node.value == Value::Null {
            return Ok(None);
        }
        let mut identity = Identity { line: node.line, ..Identity::default() };
        if !matches!(node.value, Value::Map(_)) {
            let cause = Cause::Type { got: node.value.describe().into(), want: "an object".into() };
            return Err(self.error(&identity, identity.line, "", cause));
        }
        let name = |key| node.get("metadata").and_then(|metadata| metadata.get(key)).and_then(Node::text);
        identity.namespace = name("namespace").map(str::to_owned);
        identity.name = name("name").map(str::to_owned);
        let kind = self.type_field(&identity, &node, "kind", list.map(|list| &*list.kind))?.to_owned();
        identity.kind = Some(kind.as_str().into());
        let api_version =
            self.type_field(&identity, &node, "apiVersion", list.map(|list| &*list.api_version))?.to_owned();

        let known = Kind::ALL.into_iter().find(|known| known.as_str() == kind);
        let Some(known) = known.filter(|known| known.api_version() == api_version || is_builtin(&api_version)) else {
            return Ok(Some(Found::Ignored(Ignored { api_version, name: identity.full_name(), kind })));
        };
        identity.namespaced = known.is_namespaced();
        if known.api_version() != api_version {
            let cause = Cause::Version { got: api_version, want: known.api_version() };
            return Err(self.error(&identity, identity.line, "apiVersion", cause));
        }
        let object = match known {
            Kind::Service => self.typed(&identity, node, Object::Service, |object| &mut object.metadata),
            Kind::EndpointSlice => self.typed(&identity, node, Object::EndpointSlice, |object| &mut object.metadata),
            Kind::Endpoints => self.typed(&identity, node, Object::Endpoints, |object| &mut object.metadata),
            Kind::Node => self.typed(&identity, node, Object::Node, |object| &mut object.metadata),
            Kind::ServiceCidr => self.typed(&identity, node, Object::ServiceCidr, |object| &mut object.metadata),
            Kind::Pod => self.typed(&identity, node, Object::Pod, |object| &mut object.metadata),
            Kind::Deployment => self.typed(&identity, node, Object::Deployment, |object| &mut object.metadata),
        }?;
        Ok(Some(Found::Object(Box::new(object))))
    }

    /// `kind` or `apiVersion`: the object's own, or what the list says.
    fn type_field<'n>(
        &self,
        identity: &Identity,
        node: &'n Node<'_>,
        field: &str,
        inherited: Option<&'n str>,
    ) -> Result<&'n str, DocumentError> {
        match node.get(field).map(|own| (own.line, &own.value)) {
            Some((_, Value::Text(text))) if !text.is_empty() => Ok(text),
            None | Some((_, Value::Null | Value::Text(_))) => {
                inherited.ok_or_else(|| self.error(identity, identity.line, field, Cause::Missing))
            }
            Some((line, value)) => {
                let cause = Cause::Type { got: value.describe().into(), want: "text".into() };
                Err(self.error(identity, line, field, cause))
            }
        }
    }

    fn typed<'t, T: Deserialize<'t>>(
        &self,
        identity: &Identity,
        node: Node<'t>,
        wrap: fn(T) -> Object,
        metadata: fn(&mut T) -> &mut ObjectMeta,
    ) -> Result<Object, DocumentError> {
        let name_line = node.get("metadata").map_or(node.line, |metadata| metadata.line);
        let mut object: T = decode::decode(node).map_err(|error| self.field_error(identity, error))?;
        let meta = metadata(&mut object);
        if !identity.namespaced {
            meta.namespace.clear();
        } else if meta.namespace.is_empty() {
            meta.namespace = DEFAULT_NAMESPACE.to_owned();
        }
        if meta.name.is_empty() {
            return Err(self.error(identity, name_line, "metadata.name", Cause::Missing));
        }
        Ok(wrap(object))
    }

    fn field_error(&self, identity: &Identity, error: FieldError) -> DocumentError {
        self.error(identity, error.line, &error.field(), error.cause)
    }

    fn error(&self, identity: &Identity, line: u32, field: &str, cause: Cause) -> DocumentError {
        let field = match self.item {
            Some(index) if field.is_empty() => format!("items[{index}]"),
            Some(index) => format!("items[{index}].{field}"),
            None => field.to_owned(),
        };
        DocumentError {
            document: self.document.number,
            line: absolute_line(self.document, line),
            kind: identity.kind.clone(),
            name: Some(identity.full_name()).filter(|name| !name.is_empty()).map(Into::into),
            field: Some(field).filter(|field| !field.is_empty()).map(Into::into),
            cause,
        }
    }
}

/// What is known of an object before it is decoded.
#[derive(Default)]
struct Identity {
    /// The line that it begins on, within the document.
    line: u32,
    kind: Option<Box<str>>,
    namespaced: bool,
    namespace: Option<String>,
    name: Option<String>,
}

impl Identity {
    /// `namespace/name`, as far as they are known; empty if the name is not.
    fn full_name(&self) -> String {
        let Some(name) = &self.name else { return String::new() };
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{name}"),
            None if self.namespaced => format!("{DEFAULT_NAMESPACE}/{name}"),
            None => name.clone(),
        }
    }
}

/// Whether a version is of a group that belongs to Kubernetes itself. There, a kind that is known by name can only be
/// the one that is meant; in other groups it is something else (`serving.knative.dev/v1` has Services too).
fn is_builtin(api_version: &str) -> bool {
    match api_version.split_once('/') {
        Some((group, _)) => !group.contains('.') || group.ends_with(".k8s.io"),
        None => true,
    }
}

/// Counted in the whole text. 0 is no line.
fn absolute_line(document: &Document<'_>, line: u32) -> Option<usize> {
    usize::try_from(line).ok()?.checked_sub(1).map(|before| document.line + before)
}

/// Where objects go that name no namespace.
const DEFAULT_NAMESPACE: &str = "default";
