use ferroute_api::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, ObjectMeta, labels};

use super::*;

fn endpoints(ready: &[&str], not_ready: &[&str], port: EndpointPort) -> Endpoints {
    let list = |addresses: &[&str]| {
        let address = |ip: &&str| EndpointAddress { ip: (*ip).to_owned(), node_name: None };
        addresses.iter().map(address).collect()
    };
    let subset = EndpointSubset { addresses: list(ready), not_ready_addresses: list(not_ready), ports: vec![port] };
    let metadata = ObjectMeta { name: "web".to_owned(), namespace: "shop".to_owned(), ..ObjectMeta::default() };
    Endpoints { metadata, subsets: vec![EndpointSubset::default(), subset] }
}

fn port(number: i32) -> EndpointPort {
    EndpointPort { port: Some(number), ..EndpointPort::default() }
}

#[test]
fn single_unusable_addresses_are_ignored_by_field() {
    let object = endpoints(&["10.0.0.1", "127.0.0.1", "10.0.0.300", "010.0.0.2"], &["fe80::1"], port(80));
    let MirroredEndpoints { slices, ignored } = parse_endpoints(&object).unwrap();
    let addresses: Vec<&str> =
        slices.iter().flat_map(|slice| &slice.endpoints).map(|endpoint| &*endpoint.addresses[0]).collect();
    assert_eq!(addresses, ["10.0.0.1", "010.0.0.2"]);
    assert!(slices.iter().all(|slice| parse_slice(slice, "").is_ok_and(|view| view.is_some())));
    let ignored: Vec<&str> = ignored.iter().map(|error| &*error.field).collect();
    assert_eq!(
        ignored,
        ["subsets[1].addresses[1].ip", "subsets[1].addresses[2].ip", "subsets[1].notReadyAddresses[0].ip"]
    );
}

#[test]
fn errors_of_endpoints_name_their_fields() {
    let port = EndpointPort { protocol: Some("tcp".to_owned()), ..port(70_000) };
    let mut object = endpoints(&["10.0.0.1"], &[], port);
    object.metadata.name = "Web".to_owned();
    let invalid = parse_endpoints(&object).unwrap_err();
    assert_eq!((invalid.kind, invalid.name.to_string()), ("Endpoints", "shop/Web".to_owned()));
    let fields: Vec<&str> = invalid.errors.iter().map(|error| &*error.field).collect();
    assert_eq!(fields, ["metadata.name", "subsets[1].ports[0].port", "subsets[1].ports[0].protocol"]);
    // Not mirrored, so its fields have no effect.
    object.metadata.labels.insert(labels::SKIP_MIRROR.to_owned(), "true".to_owned());
    assert_eq!(parse_endpoints(&object), Ok(MirroredEndpoints::default()));
}
