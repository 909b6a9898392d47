//! A cluster as manifests on disk.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use ferroute_api::{Node, NodeAddress, ObjectMeta};
use serde::Serialize;

use super::cluster::{self, Size};

/// How manifests are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Documents between `---`, in block style, as `kubectl get -o yaml` gives them.
    Yaml,
    /// One object per line.
    Json,
}

/// A directory of manifests. A Service and its slice are in the same file, with those of their neighbours.
pub(crate) struct Manifests {
    directory: PathBuf,
    format: Format,
    size: Size,
}

impl Manifests {
    /// Writes all of them into a directory, which must be there, without holding them in memory.
    pub(crate) fn write(directory: PathBuf, format: Format, size: Size) -> io::Result<Self> {
        let manifests = Self { directory, format, size };
        let mut node = Node {
            metadata: ObjectMeta { name: cluster::NODE.to_owned(), ..ObjectMeta::default() },
            ..Node::default()
        };
        node.status.addresses =
            vec![NodeAddress { type_: "InternalIP".to_owned(), address: cluster::NODE_IP.to_owned() }];
        manifests.replace(&manifests.path("node"), |out| manifests.format.write(out, "v1", "Node", &node))?;
        for file in 0..size.services.div_ceil(SERVICES_PER_FILE) {
            manifests.replace(&manifests.file(file), |out| manifests.write_services(out, file, None))?;
        }
        Ok(manifests)
    }

    /// Writes the file of a Service anew, with one endpoint replaced by another one each `turn`. All other Services in
    /// it are as they were at first.
    pub(crate) fn change(&self, number: u32, turn: u32) -> io::Result<Ready> {
        let file = number / SERVICES_PER_FILE;
        let path = self.file(file);
        let aside = self.write_aside(&path, |out| self.write_services(out, file, Some((number, turn))))?;
        Ok(Ready { aside, path })
    }

    fn write_services(&self, out: &mut dyn Write, file: u32, changed: Option<(u32, u32)>) -> io::Result<()> {
        let first = file * SERVICES_PER_FILE;
        for number in first..self.size.services.min(first + SERVICES_PER_FILE) {
            let slice = match changed {
                Some((changed, turn)) if changed == number => cluster::changed_slice(self.size, number, turn),
                _ => cluster::slice(self.size, number),
            };
            self.format.write(out, "v1", "Service", &cluster::service(number))?;
            self.format.write(out, "discovery.k8s.io/v1", "EndpointSlice", &slice)?;
        }
        Ok(())
    }

    fn file(&self, file: u32) -> PathBuf {
        self.path(&format!("{file:05}"))
    }

    fn path(&self, stem: &str) -> PathBuf {
        self.directory.join(format!("{stem}.{}", self.format.extension()))
    }

    fn replace(&self, path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        fs::rename(self.write_aside(path, write)?, path)
    }

    /// Where the proxy does not look.
    fn write_aside(&self, path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<PathBuf> {
        let aside = path.with_extension("new");
        let mut out = BufWriter::new(File::create(&aside)?);
        write(&mut out)?;
        out.flush()?;
        Ok(aside)
    }
}

/// A changed file that is not in its place yet.
pub(crate) struct Ready {
    aside: PathBuf,
    path: PathBuf,
}

impl Ready {
    /// Moves it into its place.
    pub(crate) fn put(self) -> io::Result<()> {
        fs::rename(self.aside, self.path)
    }
}

impl Format {
    fn extension(self) -> &'static str {
        match self {
            Self::Yaml => "yaml",
            Self::Json => "json",
        }
    }

    fn write(
        self,
        out: &mut dyn Write,
        api_version: &'static str,
        kind: &'static str,
        object: &impl Serialize,
    ) -> io::Result<()> {
        let manifest = Manifest { api_version, kind, object };
        match self {
            Self::Yaml => {
                let text = serde_saphyr::to_string(&manifest).map_err(io::Error::other)?;
                writeln!(out, "---\n{}", text.trim_end())
            }
            Self::Json => {
                serde_json::to_writer(&mut *out, &manifest)?;
                writeln!(out)
            }
        }
    }
}

/// An object with what says of which kind it is.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest<'a, T: Serialize> {
    api_version: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    object: &'a T,
}

/// Few enough that a change of one touches a small file.
const SERVICES_PER_FILE: u32 = 100;
