use super::{
    super::{
        name::{check_dns_label, check_dns_subdomain},
        parse_service, parse_slice,
    },
    assert_errors,
};
use crate::testing::{service, slice};

#[test]
fn labels_have_lower_case_letters_digits_and_inner_hyphens() {
    for text in ["a", "7", "web", "3scale", "a-b", "a--b", &"x".repeat(63)] {
        assert_eq!(check_dns_label(text), Ok(()), "{text}");
    }
    for text in ["", "-", "-a", "a-", "A", "aB", "a.b", "a_b", "a b", "a\nb", "a\"b", "ä", "aäb", &"x".repeat(64)] {
        let error = check_dns_label(text).unwrap_err();
        assert!(error.starts_with(&format!("invalid name {text:?} (want 1 to 63 ")), "{error}");
    }
}

#[test]
fn subdomains_are_labels_separated_by_dots() {
    let longest_service = format!("{}-x5k2p", "s".repeat(63));
    let longest = format!("{}.{}", "a".repeat(126), "b".repeat(126));
    for text in ["a", "web-1.example", "a.b.c", &longest_service, &longest] {
        assert_eq!(check_dns_subdomain(text), Ok(()), "{text}");
    }
    for text in ["", ".", ".a", "a.", "a..b", "a.-b", "A.b", "a/b", &format!("{longest}c")] {
        let error = check_dns_subdomain(text).unwrap_err();
        assert!(error.starts_with(&format!("invalid name {text:?} (want 1 to 253 ")), "{error}");
    }
}

#[test]
fn names_that_could_end_a_rule_comment_are_rejected() {
    let valid = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).build();
    assert!(parse_service(&valid).is_ok());
    for bad in ["web\" -j ACCEPT -m comment --comment \"", "web\nCOMMIT", "", "web.shop"] {
        let mut named = valid.clone();
        named.metadata.name = bad.to_owned();
        assert_errors(parse_service(&named), &[("metadata.name", "invalid name")]);
        let mut namespaced = valid.clone();
        namespaced.metadata.namespace = bad.to_owned();
        assert_errors(parse_service(&namespaced), &[("metadata.namespace", "invalid name")]);
    }
    for bad in ["http\" -j ACCEPT", "ht\ntp", "HTTP", "a.b"] {
        let mut port = valid.clone();
        port.spec.ports[0].name = bad.to_owned();
        assert_errors(parse_service(&port), &[("spec.ports[0].name", "invalid name")]);
    }
}

#[test]
fn slice_requires_name_and_namespace() {
    let valid = slice("shop/web-a.b", "web").build();
    assert!(parse_slice(&valid, "node-1").is_ok());
    let mut invalid = valid;
    invalid.metadata.name.clear();
    invalid.metadata.namespace.clear();
    assert_errors(
        parse_slice(&invalid, "node-1"),
        &[("metadata.namespace", "invalid name"), ("metadata.name", "invalid name")],
    );
}
