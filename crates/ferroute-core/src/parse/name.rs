use ferroute_api::ObjectMeta;

use super::Faults;
use crate::NamespacedName;

/// Reads the name of an object that lives in a namespace.
///
/// Names go into rules' comments, which are text to the programs that read them, so that a quotation mark or a line
/// break in one must never come that far.
pub(super) fn parse_name(
    faults: &mut Faults,
    metadata: &ObjectMeta,
    check: impl Fn(&str) -> Result<(), String>,
) -> NamespacedName {
    faults.keep("metadata.namespace", check_label(&metadata.namespace));
    faults.keep("metadata.name", check(&metadata.name));
    NamespacedName::new(&metadata.namespace, &metadata.name)
}

/// The names of namespaces, Services and ports are labels of the domain name system (RFC 1123), in lower case.
pub fn check_label(text: &str) -> Result<(), String> {
    if text.len() <= 63 && is_label(text) {
        return Ok(());
    }
    Err(format!("invalid name {text:?} (want 1 to 63 characters: a-z and 0-9, with '-' between them)"))
}

/// Most other names are such labels with dots between them. Kubernetes limits the length of the whole only: a slice's
/// name is longer than its Service's, which may be as long as a label can be.
pub fn check_subdomain(text: &str) -> Result<(), String> {
    if text.len() <= 253 && text.split('.').all(is_label) {
        return Ok(());
    }
    Err(format!("invalid name {text:?} (want 1 to 253 characters: a-z and 0-9, with '-' and '.' between them)"))
}

fn is_label(text: &str) -> bool {
    let edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    match text.as_bytes() {
        [] => false,
        [only] => edge(only),
        [first, middle @ .., last] => {
            edge(first) && edge(last) && middle.iter().all(|byte| edge(byte) || *byte == b'-')
        }
    }
}
