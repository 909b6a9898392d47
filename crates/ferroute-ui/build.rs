//! Lists the files of the page, so that a new one cannot be forgotten.

use std::{env, fs, io, path::Path};

fn main() -> io::Result<()> {
    let root = env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?;
    let out = env::var("OUT_DIR").map_err(io::Error::other)?;
    let directory = Path::new(&root).join("web");
    println!("cargo::rerun-if-changed={}", directory.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(&directory)? {
        let path = entry?.path();
        if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
            files.push(format!("({name:?}, include_bytes!({path:?}))"));
        }
    }
    files.sort();
    let text = format!("/// Names and contents.\nconst FILES: &[(&str, &[u8])] = &[{}];\n", files.join(", "));
    fs::write(Path::new(&out).join("files.rs"), text)
}
