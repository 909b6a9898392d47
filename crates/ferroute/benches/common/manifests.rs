//! A cluster as manifests on disk.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use ferroute_api::{Node, NodeAddress, ObjectMeta};
use serde::Serialize;

use super::cluster::{self, Size};

/// The format of manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Documents in block style, separated by `---`, like the output of `kubectl get -o yaml`.
    Yaml,
    /// One object per line.
    Json,
}

/// A directory of manifests. Each file contains a group of Services with their slices.
pub(crate) struct Manifests {
    directory: PathBuf,
    format: Format,
    size: Size,
}

impl Manifests {
    /// Writes all manifests to an existing directory, without keeping them in memory.
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

    /// Prepares the file of a Service with one endpoint replaced by another one, which is different in each `round`. All other
    /// Services in the file are unchanged.
    pub(crate) fn prepare_change(&self, number: u32, round: u32) -> io::Result<PreparedFile> {
        let file = number / SERVICES_PER_FILE;
        let path = self.file(file);
        let temporary = self.write_temporary(&path, |out| self.write_services(out, file, Some((number, round))))?;
        Ok(PreparedFile { temporary, path })
    }

    fn write_services(&self, out: &mut dyn Write, file: u32, changed: Option<(u32, u32)>) -> io::Result<()> {
        let first = file * SERVICES_PER_FILE;
        for number in first..self.size.services.min(first + SERVICES_PER_FILE) {
            let slice = match changed {
                Some((changed, round)) if changed == number => cluster::changed_slice(self.size, number, round),
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
        fs::rename(self.write_temporary(path, write)?, path)
    }

    /// Writes to a temporary file, which the proxy ignores.
    fn write_temporary(
        &self,
        path: &Path,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let temporary = path.with_extension("new");
        let mut out = BufWriter::new(File::create(&temporary)?);
        write(&mut out)?;
        out.flush()?;
        Ok(temporary)
    }
}

/// A changed file before its rename.
pub(crate) struct PreparedFile {
    temporary: PathBuf,
    path: PathBuf,
}

impl PreparedFile {
    /// Renames the file.
    pub(crate) fn commit(self) -> io::Result<()> {
        fs::rename(self.temporary, self.path)
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

/// An object with its type.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest<'a, T: Serialize> {
    api_version: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    object: &'a T,
}

/// A small number, so that a change rewrites a small file.
const SERVICES_PER_FILE: u32 = 100;
