use std::error::Error;

use ferroute_api::{
    Deployment, EndpointSlice, Endpoints, Object, Pod, Service,
    manifest::{self, DocumentError, Parsed},
};

/// The objects of a YAML file that the demo supports, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Deployments and Pods.
    pub workloads: Vec<Workload>,
    /// Services.
    pub services: Vec<Service>,
    /// EndpointSlices of Services without a selector.
    pub slices: Vec<EndpointSlice>,
    /// Endpoints of Services without a selector.
    pub endpoints: Vec<Endpoints>,
    /// The kinds and names of other objects, which the demo ignores.
    pub ignored: Vec<String>,
}

/// An object that defines pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// A Deployment.
    Deployment(Deployment),
    /// A Pod.
    Pod(Pod),
}

/// A text with invalid documents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct ObjectsError(
    /// The errors; never empty.
    pub Vec<DocumentError>,
);

impl Objects {
    /// Parses YAML or JSON documents.
    ///
    /// # Errors
    ///
    /// The errors of all invalid documents, with position, object and field.
    pub fn parse(text: &str) -> Result<Self, ObjectsError> {
        let mut objects = Self::default();
        let mut errors = Vec::new();
        for document in manifest::read(text) {
            match document {
                Ok(Parsed::Object(object)) => objects.add(*object),
                Ok(Parsed::Ignored(ignored)) => objects.ignored.push(format!("{} {}", ignored.kind, ignored.name)),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(objects) } else { Err(ObjectsError(errors)) }
    }

    fn add(&mut self, object: Object) {
        match object {
            Object::Service(service) => self.services.push(service),
            Object::EndpointSlice(slice) => self.slices.push(slice),
            Object::Endpoints(endpoints) => self.endpoints.push(endpoints),
            Object::Pod(pod) => self.workloads.push(Workload::Pod(pod)),
            Object::Deployment(deployment) => self.workloads.push(Workload::Deployment(deployment)),
            // The demo has its own nodes.
            Object::Node(node) => self.ignored.push(format!("Node {}", node.metadata.name)),
            // The demo assigns cluster IPs from its own range.
            Object::ServiceCidr(cidr) => self.ignored.push(format!("ServiceCIDR {}", cidr.metadata.name)),
        }
    }
}

/// Writes objects as YAML, one document each.
///
/// # Errors
///
/// Errors of the serializer; it accepts all of these objects.
pub(crate) fn to_yaml(objects: &[Object]) -> Result<String, serde_saphyr::ser_error::Error> {
    let mut text = String::new();
    for object in objects {
        let kind = object.kind();
        let body = match object {
            Object::Service(object) => serde_saphyr::to_string(object),
            Object::EndpointSlice(object) => serde_saphyr::to_string(object),
            Object::Endpoints(object) => serde_saphyr::to_string(object),
            Object::Node(object) => serde_saphyr::to_string(object),
            Object::ServiceCidr(object) => serde_saphyr::to_string(object),
            Object::Pod(object) => serde_saphyr::to_string(object),
            Object::Deployment(object) => serde_saphyr::to_string(object),
        };
        text.push_str(&format!("---\napiVersion: {}\nkind: {kind}\n{}", kind.api_version(), body?));
    }
    Ok(text)
}

fn lines(errors: &[DocumentError]) -> String {
    let line = |error: &DocumentError| match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    errors.iter().map(line).collect::<Vec<_>>().join("\n")
}
