use ferroute_api::ObjectMeta;

use super::Errors;
use crate::NamespacedName;

/// Parses the name of a namespaced object; `check` validates the name within the namespace.
///
/// Names become part of rule comments, so quotation marks and line breaks in them must be rejected.
pub(super) fn parse_name(
    errors: &mut Errors,
    metadata: &ObjectMeta,
    check: impl Fn(&str) -> Result<(), String>,
) -> NamespacedName {
    errors.keep("metadata.namespace", check_dns_label(&metadata.namespace));
    errors.keep("metadata.name", check(&metadata.name));
    NamespacedName::from_metadata(metadata)
}

/// Checks for a lower-case DNS label (RFC 1123): the names of namespaces, Services and ports.
pub fn check_dns_label(text: &str) -> Result<(), String> {
    if text.len() <= 63 && is_label(text) {
        return Ok(());
    }
    Err(format!("invalid name {text:?} (want 1 to 63 characters: a-z and 0-9, with '-' between them)"))
}

/// Checks for a lower-case DNS subdomain (RFC 1123): labels separated by dots, the names of most other objects.
///
/// As in Kubernetes, only the whole length is limited: the name of a slice is longer than the name of its Service, which
/// may have the maximum length of a label.
pub fn check_dns_subdomain(text: &str) -> Result<(), String> {
    if text.len() <= 253 && text.split('.').all(is_label) {
        return Ok(());
    }
    Err(format!("invalid name {text:?} (want 1 to 253 characters: a-z and 0-9, with '-' and '.' between them)"))
}

fn is_label(text: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    match text.as_bytes() {
        [] => false,
        [only] => alphanumeric(only),
        [first, middle @ .., last] => {
            alphanumeric(first) && alphanumeric(last) && middle.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
        }
    }
}
