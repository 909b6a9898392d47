mod documents;
mod errors;
mod fields;
mod json;
mod lists;
mod properties;
mod yaml;

use super::{DocumentError, Parsed, read};
use crate::{Object, Service};

/// Returns a line for each object of a text: `Service default/web`, `ignored v1 Secret default/s`, or an error with its
/// cause.
fn summary(text: &str) -> Vec<String> {
    read(text).iter().map(describe).collect()
}

fn describe(parsed: &Result<Parsed, DocumentError>) -> String {
    match parsed {
        Ok(Parsed::Object(object)) => {
            let metadata = object.metadata();
            match &*metadata.namespace {
                "" => format!("{} {}", object.kind(), metadata.name),
                namespace => format!("{} {namespace}/{}", object.kind(), metadata.name),
            }
        }
        Ok(Parsed::Ignored(ignored)) => format!("ignored {} {} {}", ignored.api_version, ignored.kind, ignored.name),
        Err(error) => format!("error: {error}: {}", error.cause),
    }
}

/// Returns the only object of a valid text, a Service.
#[track_caller]
fn service(text: &str) -> Service {
    let mut objects = read(text);
    assert_eq!(objects.len(), 1, "{:?}", summary(text));
    match objects.remove(0) {
        Ok(Parsed::Object(object)) => match *object {
            Object::Service(service) => service,
            other => panic!("not a Service: {other:?}"),
        },
        other => panic!("not an object: {}", describe(&other)),
    }
}

/// Returns the YAML of a Service, with the given lines after its name.
fn named(name: &str, rest: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n{rest}")
}
