//! The files of the page, embedded in the program.

/// Returns the media type and the content of a file.
pub(crate) fn find(name: &str) -> Option<(&'static str, &'static [u8])> {
    let (_, content) = FILES.iter().find(|(file, _)| *file == name)?;
    Some((media_type(name)?, content))
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
