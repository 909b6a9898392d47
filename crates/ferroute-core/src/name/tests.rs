use std::collections::BTreeSet;

use super::*;
use crate::testing::{port_name, service_name, udp_port_name};

#[test]
fn a_service_name_gives_back_what_it_was_made_of() {
    let long = "é".repeat(40_000);
    for (namespace, name) in [("shop", "web"), ("", ""), ("a/b", "c"), ("a", "b/c"), (&long, "web"), ("ü", &long)] {
        let full = NamespacedName::new(namespace, name);
        assert_eq!((full.namespace(), full.name()), (namespace, name));
        assert_eq!(full.as_str(), format!("{namespace}/{name}"));
        assert_eq!(full.to_string(), full.as_str());
    }
}

#[test]
fn names_with_the_same_text_are_different_in_sets_too() {
    let names = [NamespacedName::new("a/b", "c"), NamespacedName::new("a", "b/c")];
    assert_ne!(names[0], names[1]);
    assert_eq!(BTreeSet::from(names).len(), 2);
}

#[test]
fn service_names_are_in_the_order_of_their_texts() {
    let texts = ["a-b/c", "a/b", "a/b-c", "a/c", "b/a"];
    let sorted: BTreeSet<NamespacedName> = texts.iter().rev().map(|text| service_name(text)).collect();
    assert_eq!(sorted.iter().map(NamespacedName::as_str).collect::<Vec<_>>(), texts);
}

#[test]
fn a_port_name_is_written_as_kube_proxy_writes_it() {
    assert_eq!(port_name("shop/web:http").to_string(), "shop/web:http");
    assert_eq!(port_name("shop/web").to_string(), "shop/web");
}

#[test]
fn ports_are_in_the_order_of_service_port_and_protocol() {
    let expected =
        [port_name("a/b"), port_name("a/b:dns"), udp_port_name("a/b:dns"), port_name("a/b:http"), port_name("a/c")];
    let sorted: BTreeSet<ServicePortName> = expected.iter().rev().cloned().collect();
    assert_eq!(sorted.into_iter().collect::<Vec<_>>(), expected);
}
