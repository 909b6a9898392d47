use std::collections::BTreeSet;

use super::*;
use crate::testing::{namespaced_name, port_name, udp_port_name};

#[test]
fn namespace_and_name_are_returned_unchanged() {
    let long = "é".repeat(40_000);
    for (namespace, name) in [("shop", "web"), ("a/b", "c"), ("a", "b/c"), (&long, "web"), ("ü", &long)] {
        let full = NamespacedName::new(namespace, name);
        assert_eq!((full.namespace(), full.name()), (namespace, name));
        assert_eq!(full.as_str(), format!("{namespace}/{name}"));
        assert_eq!(full.to_string(), full.as_str());
    }
}

#[test]
fn names_without_a_namespace_have_no_slash() {
    for name in ["node-1", "a/b", ""] {
        let full = NamespacedName::new("", name);
        assert_eq!((full.namespace(), full.name(), full.as_str()), ("", name, name));
    }
}

#[test]
fn names_with_equal_text_and_different_parts_differ() {
    let names = [NamespacedName::new("a/b", "c"), NamespacedName::new("a", "b/c"), NamespacedName::new("", "a/b/c")];
    assert_ne!(names[0], names[1]);
    assert_eq!(BTreeSet::from(names).len(), 3);
}

#[test]
fn names_are_ordered_by_their_text() {
    let texts = ["a-b/c", "a/b", "a/b-c", "a/c", "b/a"];
    let sorted: BTreeSet<NamespacedName> = texts.iter().rev().map(|text| namespaced_name(text)).collect();
    assert_eq!(sorted.iter().map(NamespacedName::as_str).collect::<Vec<_>>(), texts);
}

#[test]
fn service_port_names_have_the_format_of_kube_proxy() {
    assert_eq!(port_name("shop/web:http").to_string(), "shop/web:http");
    assert_eq!(port_name("shop/web").to_string(), "shop/web");
}

#[test]
fn service_port_names_are_ordered_by_service_port_and_protocol() {
    let expected =
        [port_name("a/b"), port_name("a/b:dns"), udp_port_name("a/b:dns"), port_name("a/b:http"), port_name("a/c")];
    let sorted: BTreeSet<ServicePortName> = expected.iter().rev().cloned().collect();
    assert_eq!(sorted.into_iter().collect::<Vec<_>>(), expected);
}
