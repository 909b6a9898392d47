mod store;
mod sync;
mod watch;

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{Event, Problem};

/// A directory of manifests that is removed at the end of the test.
struct Directory {
    _guard: TempDir,
    path: PathBuf,
}

impl Directory {
    fn new() -> Self {
        let guard = tempfile::tempdir().unwrap();
        let path = guard.path().canonicalize().unwrap().join("manifests");
        fs::create_dir(&path).unwrap();
        Self { _guard: guard, path }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file in place, as some editors do.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).unwrap();
    }

    /// Writes a temporary file and renames it, as tools that write atomically do.
    fn replace(&self, name: &str, text: &str) {
        self.write(".new", text);
        fs::rename(self.file(".new"), self.file(name)).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.file(name)).unwrap();
    }

    /// Returns sorted lines that describe the events, with paths relative to this directory, except for that of an empty
    /// directory.
    fn lines(&self, events: &[Event]) -> Vec<String> {
        let events = events.iter().filter(|event| !is_of_empty_directory(event));
        let mut lines: Vec<_> = events.map(|event| describe(event, &self.path)).collect();
        lines.sort_unstable();
        lines
    }
}

/// Reports whether an event is about a directory without manifests.
fn is_of_empty_directory(event: &Event) -> bool {
    matches!(event, Event::Problem(problem) | Event::Resolved(problem) if matches!(**problem, Problem::NoFiles { .. }))
}

fn describe(event: &Event, directory: &Path) -> String {
    match event {
        Event::ServiceApplied(service) => {
            format!("apply service {} {}", service.metadata.name, service.spec.cluster_ip.as_deref().unwrap_or("-"))
        }
        Event::ServiceDeleted(name) => format!("delete service {name}"),
        Event::SliceApplied(slice) => {
            let addresses: Vec<_> = slice.endpoints.iter().map(|endpoint| &*endpoint.addresses[0]).collect();
            format!("apply slice {} {}", slice.metadata.name, addresses.join(","))
        }
        Event::SliceDeleted(name) => format!("delete slice {name}"),
        Event::NodeApplied(node) => format!("apply node {}", node.metadata.name),
        Event::NodeDeleted(name) => format!("delete node {name}"),
        Event::ServiceCidrApplied(cidr) => {
            format!("apply service CIDR {} {}", cidr.metadata.name, cidr.spec.cidrs.join(","))
        }
        Event::ServiceCidrDeleted(name) => format!("delete service CIDR {name}"),
        Event::ApiServer(addresses) => format!("API server at {addresses:?}"),
        Event::Synced(resource) => format!("synced {resource:?}"),
        Event::Problem(problem) => format!("problem: {}", problem.text()),
        Event::Resolved(problem) => format!("resolved: {}", problem.text()),
    }
    .replace(&format!("{}/", directory.display()), "")
}

/// Returns a document with a Service.
fn service(name: &str, ip: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: '{name}'}}\nspec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}\n"
    )
}

/// Returns a document with an EndpointSlice that contains one address.
fn slice(name: &str, service: &str, address: &str) -> String {
    format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}, labels: {{kubernetes.io/service-name: {service}}}}}\n\
         addressType: IPv4\nendpoints: [{{addresses: [{address}]}}]\n"
    )
}

/// Returns a document with Endpoints that contain one address.
fn endpoints(service: &str, address: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Endpoints\nmetadata: {{name: {service}}}\nsubsets: [{{addresses: [{{ip: {address}}}]}}]\n"
    )
}

/// An invalid document.
const INVALID: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: http}]}\n";

/// The object, field and cause in its error.
const INVALID_FIELD: &str = "Service default/bad: spec.ports[0].port: got string \"http\", want a number";

const SYNCED: [&str; 4] = ["synced EndpointSlices", "synced Nodes", "synced ServiceCidrs", "synced Services"];
