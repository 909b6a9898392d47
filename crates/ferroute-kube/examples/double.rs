//! The API server double as a program, for a conformance lab that has no API server: it serves the objects in a file,
//! and follows the file.
//!
//!     double ADDRESS:PORT FILE
//!
//! The file holds a JSON array of Services, EndpointSlices and Nodes, the whole of what there is. Replace it by renaming
//! another over it: half a file is not read.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, SystemTime},
};

use ferroute_kube::testing::ApiDouble;
use ferroute_source::Resource;
use serde_json::Value;

/// What an object is known by.
type Name = (Resource, String, String);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, address, path] = arguments.as_slice() else { panic!("usage: double ADDRESS:PORT FILE") };
    let address = address.parse().expect("an address and a port");
    // Read first: whoever finds the port open finds everything.
    let mut read_at = modified(path);
    let first = read(path);
    let double = ApiDouble::start_at(address).await;
    let mut known = apply(&double, first, &BTreeSet::new());
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = modified(path);
        if now != read_at {
            read_at = now;
            known = apply(&double, read(path), &known);
        }
    }
}

fn modified(path: &str) -> SystemTime {
    fs::metadata(path).and_then(|metadata| metadata.modified()).expect("the file is there and has a time")
}

fn read(path: &str) -> Vec<Value> {
    serde_json::from_slice(&fs::read(path).expect("the file can be read")).expect("a JSON array")
}

/// Brings these objects, and no others, into the double.
fn apply(double: &ApiDouble, objects: Vec<Value>, known: &BTreeSet<Name>) -> BTreeSet<Name> {
    let mut present = BTreeSet::new();
    for mut object in objects {
        let resource = match object["kind"].as_str() {
            Some("Service") => Resource::Services,
            Some("EndpointSlice") => Resource::EndpointSlices,
            Some("Node") => Resource::Nodes,
            other => panic!("an object of kind {other:?} (want Service, EndpointSlice or Node)"),
        };
        if resource != Resource::Nodes && object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = "default".into();
        }
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        present.insert((resource, text("namespace"), text("name")));
        double.apply(resource, object);
    }
    for (resource, namespace, name) in known.difference(&present) {
        double.delete(*resource, namespace, name);
    }
    present
}
