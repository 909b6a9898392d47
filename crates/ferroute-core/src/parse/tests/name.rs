use super::{
    super::{
        name::{check_label, check_subdomain},
        parse_service, parse_slice,
    },
    assert_faults,
};
use crate::testing::{service, slice};

#[test]
fn labels_are_lower_case_letters_digits_and_inner_hyphens() {
    for text in ["a", "7", "web", "3scale", "a-b", "a--b", &"x".repeat(63)] {
        assert_eq!(check_label(text), Ok(()), "{text}");
    }
    for text in ["", "-", "-a", "a-", "A", "aB", "a.b", "a_b", "a b", "a\nb", "a\"b", "ä", "aäb", &"x".repeat(64)] {
        let error = check_label(text).unwrap_err();
        assert!(error.starts_with(&format!("invalid name {text:?} (want 1 to 63 ")), "{error}");
    }
}

#[test]
fn subdomains_are_labels_with_dots_between_them() {
    let of_the_longest_service = format!("{}-x5k2p", "s".repeat(63));
    let longest = format!("{}.{}", "a".repeat(126), "b".repeat(126));
    for text in ["a", "web-1.example", "a.b.c", &of_the_longest_service, &longest] {
        assert_eq!(check_subdomain(text), Ok(()), "{text}");
    }
    for text in ["", ".", ".a", "a.", "a..b", "a.-b", "A.b", "a/b", &format!("{longest}c")] {
        let error = check_subdomain(text).unwrap_err();
        assert!(error.starts_with(&format!("invalid name {text:?} (want 1 to 253 ")), "{error}");
    }
}

#[test]
fn a_name_that_could_break_out_of_a_comment_is_refused() {
    let good = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).build();
    assert!(parse_service(&good).is_ok());
    for bad in ["web\" -j ACCEPT -m comment --comment \"", "web\nCOMMIT", "", "web.shop"] {
        let mut named = good.clone();
        named.metadata.name = bad.to_owned();
        assert_faults(parse_service(&named), &[("metadata.name", "invalid name")]);
        let mut namespaced = good.clone();
        namespaced.metadata.namespace = bad.to_owned();
        assert_faults(parse_service(&namespaced), &[("metadata.namespace", "invalid name")]);
    }
    for bad in ["http\" -j ACCEPT", "ht\ntp", "HTTP", "a.b"] {
        let mut port = good.clone();
        port.spec.ports[0].name = bad.to_owned();
        assert_faults(parse_service(&port), &[("spec.ports[0].name", "invalid name")]);
    }
}

#[test]
fn a_slice_needs_a_name_and_a_namespace() {
    let good = slice("shop/web-a.b", "web").build();
    assert!(parse_slice(&good, "node-1").is_ok());
    let mut bad = good;
    bad.metadata.name.clear();
    bad.metadata.namespace.clear();
    assert_faults(
        parse_slice(&bad, "node-1"),
        &[("metadata.namespace", "invalid name"), ("metadata.name", "invalid name")],
    );
}
