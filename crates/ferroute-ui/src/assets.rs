//! The files of the page, embedded in the program.

use std::borrow::Cow;

/// Returns the media type and the content of a file. Development builds prefer the file in the source directory, so
/// that the program need not be rebuilt after a change to the page.
pub(crate) fn find(name: &str) -> Option<(&'static str, Cow<'static, [u8]>)> {
    let (_, embedded) = FILES.iter().find(|(file, _)| *file == name)?;
    Some((media_type(name)?, current(name).map_or(Cow::Borrowed(*embedded), Cow::Owned)))
}

#[cfg(debug_assertions)]
fn current(name: &str) -> Option<Vec<u8>> {
    std::fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("web").join(name)).ok()
}

#[cfg(not(debug_assertions))]
fn current(_: &str) -> Option<Vec<u8>> {
    None
}

fn media_type(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    Some(match extension {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => return None,
    })
}

include!(concat!(env!("OUT_DIR"), "/files.rs"));
