use std::error::Error;

/// Formats an error and its sources on one line: `cannot write rules: permission denied`.
///
/// ```
/// let error = std::io::Error::other("disk full");
/// assert_eq!(ferroute_core::error_chain(&error), "disk full");
/// ```
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
