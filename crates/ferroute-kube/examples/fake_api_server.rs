//! The fake API server as a program, for conformance tests without an API server: it serves the objects in a file and
//! follows the changes of the file.
//!
//! ```text
//! fake_api_server ADDRESS:PORT FILE
//! ```
//!
//! The file is a JSON array of all Services, EndpointSlices and Nodes. It must be replaced by renaming another file
//! over it, so that it is never read half-written.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, SystemTime},
};

use ferroute_kube::testing::FakeApiServer;
use ferroute_source::Resource;
use serde_json::Value;

/// Kind, namespace and name of an object.
type Key = (Resource, String, String);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, address, path] = arguments.as_slice() else { panic!("usage: fake_api_server ADDRESS:PORT FILE") };
    let address = address.parse().expect("an address and a port");
    // The file is read first, so that all objects are served as soon as the port is open.
    let mut last_modified = modified(path);
    let objects = read(path);
    let fake = FakeApiServer::start_at(address).await;
    let mut served = apply(&fake, objects, &BTreeSet::new());
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = modified(path);
        if now != last_modified {
            last_modified = now;
            served = apply(&fake, read(path), &served);
        }
    }
}

fn modified(path: &str) -> SystemTime {
    fs::metadata(path).and_then(|metadata| metadata.modified()).expect("the file exists and has a modification time")
}

fn read(path: &str) -> Vec<Value> {
    serde_json::from_slice(&fs::read(path).expect("the file is readable")).expect("a JSON array")
}

/// Replaces the objects that are served.
fn apply(fake: &FakeApiServer, objects: Vec<Value>, served: &BTreeSet<Key>) -> BTreeSet<Key> {
    let mut present = BTreeSet::new();
    for mut object in objects {
        let resource = match object["kind"].as_str() {
            Some("Service") => Resource::Services,
            Some("EndpointSlice") => Resource::EndpointSlices,
            Some("Node") => Resource::Nodes,
            kind => panic!("an object of kind {kind:?} (want Service, EndpointSlice or Node)"),
        };
        if resource != Resource::Nodes && object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = "default".into();
        }
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        present.insert((resource, text("namespace"), text("name")));
        fake.apply(resource, object);
    }
    for (resource, namespace, name) in served.difference(&present) {
        fake.delete(*resource, namespace, name);
    }
    present
}
