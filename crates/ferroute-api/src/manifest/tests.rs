mod documents;
mod errors;
mod json;
mod lists;
mod properties;
mod yaml;

use super::{DocumentError, Found, read};
use crate::{Object, Service};

/// What a text holds, a line for each thing: `Service default/web`, `ignored v1 Secret default/s`, or an error with its
/// cause.
fn summary(text: &str) -> Vec<String> {
    read(text).iter().map(describe).collect()
}

fn describe(found: &Result<Found, DocumentError>) -> String {
    match found {
        Ok(Found::Object(object)) => {
            let metadata = object.metadata();
            match &*metadata.namespace {
                "" => format!("{} {}", object.kind(), metadata.name),
                namespace => format!("{} {namespace}/{}", object.kind(), metadata.name),
            }
        }
        Ok(Found::Ignored(ignored)) => format!("ignored {} {} {}", ignored.api_version, ignored.kind, ignored.name),
        Err(error) => format!("error: {error}: {}", error.cause),
    }
}

/// The one Service of a text that must be right.
#[track_caller]
fn service(text: &str) -> Service {
    let mut found = read(text);
    assert_eq!(found.len(), 1, "{:?}", summary(text));
    match found.remove(0) {
        Ok(Found::Object(object)) => match *object {
            Object::Service(service) => service,
            other => panic!("not a Service: {other:?}"),
        },
        other => panic!("not an object: {}", describe(&other)),
    }
}

/// A Service with the given lines of YAML below its name.
fn named(name: &str, rest: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n{rest}")
}
