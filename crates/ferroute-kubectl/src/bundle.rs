//! `kubectl ferroute bundle`: the recordings of all nodes in one archive.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    time::SystemTime,
};

use crate::{Fleet, NodeProxy, answer::answered};

/// Writes a tar archive with the bundle of each node, `NODE.json`, and the failures, `failures.txt`, if there are any. Returns
/// the failures by node.
///
/// # Errors
/// If the archive cannot be written.
pub async fn write_bundles_into(
    out: impl Write,
    fleet: &Fleet,
    proxies: &[NodeProxy],
) -> io::Result<BTreeMap<String, String>> {
    let mut archive = tar::Builder::new(out);
    let mut failures = BTreeMap::new();
    // Bundles of large clusters are large, so only those of a few nodes are in memory at a time.
    for some in proxies.chunks(fleet.parallel.max(1)) {
        let answers = fleet.ask(some, |fleet, proxy| async move {
            answered(fleet.run_limited(&proxy, &["bundle"], MAX_BUNDLE).await?, &[0])
        });
        for answer in answers.await {
            match answer.result {
                Ok(bundle) => append(&mut archive, &file_name(&answer.proxy.node), &bundle)?,
                Err(error) => _ = failures.insert(answer.proxy.node, error),
            }
        }
    }
    if !failures.is_empty() {
        let text: String = failures.iter().map(|(node, error)| format!("{node}: {error}\n")).collect();
        append(&mut archive, "failures.txt", text.as_bytes())?;
    }
    archive.into_inner()?.flush()?;
    Ok(failures)
}

/// Returns the name of a node's file. Names of Nodes that API servers accept need no replacements; any other name must
/// neither end the archive nor leave the directory to which it is extracted.
fn file_name(node: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let name: String = node.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    // Neither hidden nor `..`.
    match name.strip_prefix('.') {
        Some(rest) => format!("_{rest}.json"),
        None => format!("{name}.json"),
    }
}

fn append(archive: &mut tar::Builder<impl Write>, name: &str, contents: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(contents.len() as u64);
    // Bundles contain the names of Services, which are not for everybody.
    header.set_mode(0o600);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    header.set_mtime(now.as_secs());
    archive.append_data(&mut header, name, contents)
}

/// The maximum length of a node's bundle in bytes: several times that of a large cluster.
const MAX_BUNDLE: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_of_a_node_is_a_file_of_the_archive() {
        assert_eq!(file_name("node-1.example.com"), "node-1.example.com.json");
        let mut archive = tar::Builder::new(Vec::new());
        let long = "n".repeat(300);
        for name in ["..", "../../etc/passwd", "/root/.ssh", ".", "a/../b", "a\0b", "", &long] {
            append(&mut archive, &file_name(name), b"{}").unwrap();
        }
        let bytes = archive.into_inner().unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let paths = archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().into_owned());
        for path in paths {
            assert_eq!(path.components().count(), 1, "{}", path.display());
            assert!(!path.to_string_lossy().starts_with("..") && path.is_relative());
        }
    }
}
