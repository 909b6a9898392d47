use std::error::Error;

use ferroute_api::{
    Deployment, EndpointSlice, Endpoints, Object, Pod, Service,
    manifest::{self, DocumentError, Found},
};

/// The objects of a YAML file that the demo can bring to life, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Deployments and Pods.
    pub workloads: Vec<Workload>,
    /// Services.
    pub services: Vec<Service>,
    /// Slices of Services that have no selector.
    pub slices: Vec<EndpointSlice>,
    /// The same in the older form.
    pub endpoints: Vec<Endpoints>,
    /// What else is there, by kind and name; the demo does nothing with it.
    pub ignored: Vec<String>,
}

/// What pods come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// A number of like pods.
    Deployment(Deployment),
    /// A pod of its own.
    Pod(Pod),
}

/// Not all of a text could be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct ObjectsError(
    /// Everything that is wrong; never empty.
    pub Vec<DocumentError>,
);

impl Objects {
    /// Reads YAML or JSON, as many documents as there are.
    ///
    /// # Errors
    ///
    /// All documents that cannot be read, by place, object and field. Then nothing of the text is used.
    pub fn parse(text: &str) -> Result<Self, ObjectsError> {
        let mut objects = Self::default();
        let mut errors = Vec::new();
        for found in manifest::read(text) {
            match found {
                Ok(Found::Object(object)) => objects.add(*object),
                Ok(Found::Ignored(ignored)) => objects.ignored.push(format!("{} {}", ignored.kind, ignored.name)),
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
            // The demo has nodes of its own.
            Object::Node(node) => self.ignored.push(format!("Node {}", node.metadata.name)),
            // It gives addresses to Services itself.
            Object::ServiceCidr(cidr) => self.ignored.push(format!("ServiceCIDR {}", cidr.metadata.name)),
        }
    }
}

fn lines(errors: &[DocumentError]) -> String {
    let line = |error: &DocumentError| match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    errors.iter().map(line).collect::<Vec<_>>().join("\n")
}
