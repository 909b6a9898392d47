use super::*;
use crate::{EndpointSubset, Object, manifest};

fn endpoints(yaml: &str) -> Endpoints {
    let parsed = manifest::read(&format!("apiVersion: v1\nkind: Endpoints\n{yaml}")).remove(0);
    let Ok(manifest::Parsed::Object(object)) = parsed else { panic!("{parsed:?}") };
    let Object::Endpoints(endpoints) = *object else { panic!("{object:?}") };
    endpoints
}

/// Returns a slice of the Service `web`; each endpoint is given as address, readiness and node.
fn slice(name: &str, family: &str, ports: &[(&str, i32)], endpoints: &[(&str, bool, Option<&str>)]) -> EndpointSlice {
    EndpointSlice {
        metadata: ObjectMeta {
            name: name.to_owned(),
            namespace: "shop".to_owned(),
            labels: [(labels::SERVICE_NAME.to_owned(), "web".to_owned())].into(),
            ..ObjectMeta::default()
        },
        address_type: family.to_owned(),
        ports: ports
            .iter()
            .map(|(name, port)| EndpointPort {
                name: (*name).to_owned(),
                protocol: Some("TCP".to_owned()),
                port: Some(*port),
            })
            .collect(),
        endpoints: endpoints
            .iter()
            .map(|(address, ready, node)| SliceEndpoint {
                addresses: vec![(*address).to_owned()],
                conditions: EndpointConditions { ready: Some(*ready), ..EndpointConditions::default() },
                node_name: node.map(str::to_owned),
                hints: None,
                zone: None,
                target_ref: None,
            })
            .collect(),
    }
}

#[test]
fn addresses_are_grouped_by_family_and_ports() {
    let endpoints = endpoints(
        "
metadata: {name: web, namespace: shop}
subsets:
- addresses:
  - {ip: 10.0.0.1, nodeName: n1}
  - {ip: 'fd00::1'}
  notReadyAddresses:
  - {ip: 10.0.0.2}
  ports:
  - {name: b, port: 2, protocol: TCP}
  - {name: a, port: 1, protocol: TCP}
- addresses:
  - {ip: 10.0.0.3}
  ports:
  - {name: a, port: 7, protocol: TCP}
- addresses:
  - {ip: 10.0.0.4}
  ports:
  - {name: a, port: 1, protocol: TCP}
  - {name: b, port: 2, protocol: TCP}
",
    );
    assert_eq!(
        mirror(&endpoints),
        [
            slice(
                "web-mirrored-ipv4",
                "IPv4",
                &[("a", 1), ("b", 2)],
                &[("10.0.0.1", true, Some("n1")), ("10.0.0.2", false, None), ("10.0.0.4", true, None)]
            ),
            slice("web-mirrored-ipv6", "IPv6", &[("a", 1), ("b", 2)], &[("fd00::1", true, None)]),
            slice("web-mirrored-ipv4-2", "IPv4", &[("a", 7)], &[("10.0.0.3", true, None)]),
        ]
    );
}

#[test]
fn labels_are_copied_and_service_name_is_replaced() {
    let endpoints = endpoints(
        "
metadata:
  name: web
  labels: {service.kubernetes.io/headless: '', kubernetes.io/service-name: other}
subsets: [{addresses: [{ip: 10.0.0.1}]}]
",
    );
    let expected = [(labels::HEADLESS, ""), (labels::SERVICE_NAME, "web")];
    let labels = mirror(&endpoints).remove(0).metadata.labels;
    assert_eq!(labels.iter().map(|(key, value)| (&**key, &**value)).collect::<Vec<_>>(), {
        let mut expected = expected;
        expected.sort_unstable();
        expected
    });
}

#[test]
fn locks_and_objects_with_skip_label_are_not_mirrored() {
    let subsets = vec![EndpointSubset {
        addresses: vec![EndpointAddress { ip: "10.0.0.1".to_owned(), node_name: None }],
        ..EndpointSubset::default()
    }];
    let plain = Endpoints { subsets, ..Endpoints::default() };
    assert_eq!(mirror(&plain).len(), 1);

    let mut skipped = plain.clone();
    skipped.metadata.labels.insert(labels::SKIP_MIRROR.to_owned(), "true".to_owned());
    assert_eq!(mirror(&skipped), []);
    skipped.metadata.labels.insert(labels::SKIP_MIRROR.to_owned(), "false".to_owned());
    assert_eq!(mirror(&skipped).len(), 1);

    let mut lock = plain;
    lock.metadata.annotations.insert(labels::LEADER.to_owned(), "{}".to_owned());
    assert_eq!(mirror(&lock), []);
}

#[test]
fn addresses_are_normalized_and_invalid_ones_are_kept() {
    let endpoints = endpoints(
        "
metadata: {name: web}
subsets:
- addresses: [{ip: '::ffff:10.0.0.1'}, {ip: 'FD00:0::1'}, {ip: 'fd00::x'}, {ip: 10.0.0}]
",
    );
    let addresses: Vec<_> = mirror(&endpoints)
        .iter()
        .map(|slice| (slice.address_type.clone(), slice.endpoints.iter().map(|e| e.addresses[0].clone()).collect()))
        .collect();
    let expected: [(String, Vec<String>); 2] = [
        ("IPv4".into(), vec!["10.0.0.1".into(), "10.0.0".into()]),
        ("IPv6".into(), vec!["fd00::1".into(), "fd00::x".into()]),
    ];
    assert_eq!(addresses, expected);
}
