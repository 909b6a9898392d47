//! The conversion of values to objects: kind, `apiVersion`, name, and typed decoding.

use serde::Deserialize;

use super::{
    Document,
    decode::{self, FieldError},
    error::{Cause, DocumentError, UnknownKind},
    json, schema,
    value::{Node, Part, SyntaxError, Value},
    yaml,
};
use crate::{Kind, Object, ObjectMeta};

/// A document, or an item of a list, that was read without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// An object of a kind that Ferroute reads.
    Object(Box<Object>),
    /// An object of another kind.
    Ignored(IgnoredObject),
}

/// An object of a kind that Ferroute does not read. Its content has not been checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IgnoredObject {
    /// `apiVersion`.
    pub api_version: String,
    /// `kind`.
    pub kind: String,
    /// `namespace/name`, as far as they are set.
    pub name: String,
}

/// The place of an object in a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Its first line, from 1; `None` if unknown, as for items of a list in JSON.
    pub line: Option<usize>,
    /// Names and lines of the fields in `spec` that have a value, also those that no proxy reads; empty unless the document
    /// is checked.
    pub spec: Vec<(String, Option<usize>)>,
    /// Index in each list that contains the object, the outermost first.
    items: Vec<usize>,
}

impl Place {
    /// Returns the path of a field of the object, from the top of the document: `items[3].spec.ports[0].port`.
    pub fn field(&self, field: &str) -> String {
        let items = self.items.iter().map(|index| format!("items[{index}]"));
        let path: Vec<String> = items.chain(Some(field.to_owned()).filter(|field| !field.is_empty())).collect();
        path.join(".")
    }
}

/// A callback for what was read, with its place.
pub(super) type Each<'f> = dyn FnMut(&Place, Result<Parsed, DocumentError>) + 'f;

/// Passes the objects of a document to `each`, and its ignored parts to `unknown`, if it is given.
pub(super) fn read_each<'f>(
    document: &Document<'_>,
    each: &'f mut Each<'f>,
    unknown: Option<&'f mut dyn FnMut(DocumentError)>,
) -> Result<(), DocumentError> {
    let mut reader = Reader { location: Location { document, place: Place::default() }, each, unknown };
    // Items without a type; they have the type that the list implies.
    let mut untyped = Vec::new();
    let mut sink = |part| match part {
        Part::Item(index, node) if is_untyped(&node) => untyped.push((index, node)),
        Part::Item(index, node) => reader.item(index, node, None),
        Part::Root { node, is_list: false } => reader.object(node, None),
        Part::Root { node, is_list: true } => {
            let list = ListType::of(&node);
            for (index, node) in std::mem::take(&mut untyped) {
                reader.item(index, node, list.as_ref());
            }
        }
    };
    let parsed = match json::detect(document.text) {
        Some(text) => json::parse(text, &mut sink),
        None => yaml::parse(document.text, &mut sink),
    };
    parsed.map_err(|SyntaxError { line, cause }| {
        let line = absolute_line(document, line);
        DocumentError { document: document.number, line, kind: None, name: None, field: None, cause }
    })
}

/// Passes the objects of a document on, including those of nested lists.
struct Reader<'d, 'f> {
    location: Location<'d>,
    each: &'f mut Each<'f>,
    unknown: Option<&'f mut dyn FnMut(DocumentError)>,
}

impl Reader<'_, '_> {
    fn item(&mut self, index: usize, node: Node<'_>, list: Option<&ListType>) {
        self.location.place.items.push(index);
        self.object(node, list);
        self.location.place.items.pop();
    }

    /// Reads an object, or all objects of a list. The parsers limit the depth of lists in lists.
    fn object(&mut self, mut node: Node<'_>, list: Option<&ListType>) {
        let Some(items) = node.take_items() else {
            self.location.set_line(node.line);
            if self.unknown.is_some() {
                self.location.set_spec(&node);
            }
            if let Some(parsed) = self.location.decode(node, list, &mut self.unknown).transpose() {
                (self.each)(&self.location.place, parsed);
            }
            return;
        };
        let list = ListType::of(&node);
        for (index, node) in items.into_iter().enumerate() {
            let list = list.as_ref().filter(|_| is_untyped(&node));
            self.item(index, node, list);
        }
    }
}

/// Reports whether an item has no type.
fn is_untyped(node: &Node<'_>) -> bool {
    node.get("kind").is_none() && node.get("apiVersion").is_none()
}

/// The type that a list implies for its items: the items of a `ServiceList` are Services.
struct ListType {
    api_version: String,
    kind: String,
}

impl ListType {
    fn of(list: &Node<'_>) -> Option<Self> {
        let kind = list.get("kind").and_then(Node::non_empty_str)?;
        let kind = kind.strip_suffix("List").filter(|kind| !kind.is_empty())?;
        let api_version = list.get("apiVersion").and_then(Node::non_empty_str)?;
        Some(Self { api_version: api_version.to_owned(), kind: kind.to_owned() })
    }
}

/// The location of an object.
struct Location<'d> {
    document: &'d Document<'d>,
    place: Place,
}

impl Location<'_> {
    /// Sets the line of the object, which is known within the document.
    fn set_line(&mut self, line: u32) {
        let is_item = !self.place.items.is_empty();
        self.place.line = absolute_line(self.document, line).or((!is_item).then_some(self.document.line));
    }

    fn set_spec(&mut self, object: &Node<'_>) {
        let entries = match object.get("spec").map(|spec| &spec.value) {
            Some(Value::Map(entries)) => entries.as_slice(),
            _ => &[],
        };
        let is_set = |node: &Node<'_>| !matches!(&node.value, Value::Null) && node.value != Value::String("".into());
        let set = entries.iter().filter(|(_, node)| is_set(node));
        self.place.spec = set.map(|(key, node)| (key.to_string(), absolute_line(self.document, node.line))).collect();
    }

    /// Decodes an object. Returns `None` for an empty document or item.
    fn decode(
        &self,
        node: Node<'_>,
        list: Option<&ListType>,
        unknown: &mut Option<&mut dyn FnMut(DocumentError)>,
    ) -> Result<Option<Parsed>, DocumentError> {
        if node.value == Value::Null {
            return Ok(None);
        }
        let mut identity = Identity { line: node.line, ..Identity::default() };
        if !matches!(node.value, Value::Map(_)) {
            let cause = Cause::Type { got: node.value.describe().into(), want: "an object".into() };
            return Err(self.error(&identity, identity.line, "", cause));
        }
        let metadata = |key| node.get("metadata").and_then(|metadata| metadata.get(key)).and_then(Node::non_empty_str);
        identity.namespace = metadata("namespace").map(str::to_owned);
        identity.name = metadata("name").map(str::to_owned);
        let type_name = self.type_field(&identity, &node, "kind", list.map(|list| &*list.kind))?.to_owned();
        identity.kind = Some(type_name.as_str().into());
        let api_version =
            self.type_field(&identity, &node, "apiVersion", list.map(|list| &*list.api_version))?.to_owned();

        let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == type_name);
        let Some(kind) = kind.filter(|kind| kind.api_version() == api_version || is_builtin(&api_version)) else {
            let cause = if is_builtin(&api_version) && schema::is_list(&type_name) {
                // Go programs print lists without items as `null`.
                if node.get("items").is_some_and(|items| items.value == Value::Null) {
                    return Ok(None);
                }
                Some(("items", Cause::Missing))
            } else {
                schema::unknown_kind(&api_version, &type_name).map(|similar| {
                    let kind = UnknownKind { api_version: api_version.clone(), kind: type_name.clone(), similar };
                    ("", Cause::UnknownKind(Box::new(kind)))
                })
            };
            if let (Some((field, cause)), Some(unknown)) = (cause, unknown) {
                unknown(self.error(&identity, identity.line, field, cause));
            }
            let ignored = IgnoredObject { api_version, name: identity.full_name(), kind: type_name };
            return Ok(Some(Parsed::Ignored(ignored)));
        };
        identity.namespaced = kind.is_namespaced();
        if kind.api_version() != api_version {
            let cause = Cause::Version { got: api_version, want: kind.api_version() };
            return Err(self.error(&identity, identity.line, "apiVersion", cause));
        }
        if let Some(unknown) = unknown {
            schema::unknown_fields(kind, &node, &mut |line, field, similar| {
                unknown(self.error(&identity, line, field, Cause::UnknownField { similar }));
            });
        }
        let object = match kind {
            Kind::Service => self.typed(&identity, node, Object::Service, |object| &mut object.metadata),
            Kind::EndpointSlice => self.typed(&identity, node, Object::EndpointSlice, |object| &mut object.metadata),
            Kind::Endpoints => self.typed(&identity, node, Object::Endpoints, |object| &mut object.metadata),
            Kind::Node => self.typed(&identity, node, Object::Node, |object| &mut object.metadata),
            Kind::ServiceCidr => self.typed(&identity, node, Object::ServiceCidr, |object| &mut object.metadata),
            Kind::Pod => self.typed(&identity, node, Object::Pod, |object| &mut object.metadata),
            Kind::Deployment => self.typed(&identity, node, Object::Deployment, |object| &mut object.metadata),
        }?;
        Ok(Some(Parsed::Object(Box::new(object))))
    }

    /// Returns `kind` or `apiVersion`, from the object or else from its list.
    fn type_field<'n>(
        &self,
        identity: &Identity,
        node: &'n Node<'_>,
        field: &str,
        inherited: Option<&'n str>,
    ) -> Result<&'n str, DocumentError> {
        match node.get(field).map(|own| (own.line, &own.value)) {
            Some((_, Value::String(text))) if !text.is_empty() => Ok(text),
            None | Some((_, Value::Null | Value::String(_))) => {
                inherited.ok_or_else(|| self.error(identity, identity.line, field, Cause::Missing))
            }
            Some((line, value)) => {
                let cause = Cause::Type { got: value.describe().into(), want: "a string".into() };
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
        DocumentError {
            document: self.document.number,
            line: absolute_line(self.document, line),
            kind: identity.kind.clone(),
            name: Some(identity.full_name()).filter(|name| !name.is_empty()).map(Into::into),
            field: Some(self.place.field(field)).filter(|path| !path.is_empty()).map(Into::into),
            cause,
        }
    }
}

/// Identity of an object, as far as it is known before decoding.
#[derive(Default)]
struct Identity {
    /// First line, within the document.
    line: u32,
    kind: Option<Box<str>>,
    namespaced: bool,
    namespace: Option<String>,
    name: Option<String>,
}

impl Identity {
    /// Returns `namespace/name`, as far as known; empty without a name.
    fn full_name(&self) -> String {
        let Some(name) = &self.name else { return String::new() };
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{name}"),
            None if self.namespaced => format!("{DEFAULT_NAMESPACE}/{name}"),
            None => name.clone(),
        }
    }
}

/// Reports whether a version belongs to a built-in API group. A kind of the same name in another group is unrelated
/// (`serving.knative.dev/v1` has Services too).
fn is_builtin(api_version: &str) -> bool {
    match api_version.split_once('/') {
        Some((group, _)) => !group.contains('.') || group.ends_with(".k8s.io"),
        None => true,
    }
}

/// Converts a line of the document to a line of the whole text; `None` for the unknown line 0.
fn absolute_line(document: &Document<'_>, line: u32) -> Option<usize> {
    usize::try_from(line).ok()?.checked_sub(1).map(|before| document.line + before)
}

/// Namespace of objects that omit it.
const DEFAULT_NAMESPACE: &str = "default";
