//! What the demo keeps on disk while it is up: the lock that says who runs it, the manifests that its proxies read,
//! their configuration, logs, and how everything is.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{instance::Instance, layout::NodeId, plan::ClusterPlan, process::ProcessId};

/// A file of the demo could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    /// Reading or writing failed.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried: `read`, `write`.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The content is not what the demo writes.
    #[error("cannot make sense of {}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// Where it goes wrong.
        #[source]
        source: serde_json::Error,
    },
    /// Somebody else has the lock.
    #[error("a demo is already up: {owner} (ferroute demo down takes it down)")]
    AlreadyUp {
        /// Who.
        owner: Owner,
    },
}

/// Who runs a demo, and from which file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    /// The process that keeps the cluster.
    pub(crate) keeper: ProcessId,
    /// The YAML file that the cluster follows.
    pub(crate) yaml: PathBuf,
}

/// How the cluster is. Written after every change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The file that the cluster follows.
    pub(crate) yaml: PathBuf,
    pub(crate) plan: ClusterPlan,
    /// By [`crate::plan::PlannedPod::short_name`].
    pub(crate) pods: BTreeMap<String, Run>,
    pub(crate) proxies: BTreeMap<NodeId, Run>,
    /// Objects of the YAML that the demo does nothing with.
    pub(crate) ignored: Vec<String>,
    /// What is wrong with the YAML; the cluster is then as it was before.
    pub(crate) problem: Option<String>,
}

/// How a process of the cluster is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Run {
    /// It runs and takes connections.
    Running { pid: i32 },
    /// It does not, and will be started again soon.
    Down { reason: String },
}

/// The demo's directory.
#[derive(Clone, Debug)]
pub(crate) struct StateDirectory {
    root: PathBuf,
}

/// The right to run the demo; it ends with the process.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: Flock<File>,
}

impl StateDirectory {
    pub(crate) fn of(instance: &Instance) -> Self {
        Self { root: instance.directory() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.root.join("manifests")
    }

    pub(crate) fn proxy_config(&self, node: NodeId) -> PathBuf {
        self.root.join(format!("config-{node}.yaml"))
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("log")
    }

    /// What a process has written to its log.
    pub(crate) fn read_log(&self, of: &str) -> Result<String, StateError> {
        let path = self.logs().join(of);
        fs::read(&path).map(|text| String::from_utf8_lossy(&text).into_owned()).map_err(file_error("read", &path))
    }

    /// A log to write to, with nothing in it.
    pub(crate) fn open_log(&self, of: &str) -> Result<File, StateError> {
        let path = self.logs().join(of);
        File::create(&path).map_err(file_error("create", &path))
    }

    /// Makes the directories within.
    pub(crate) fn prepare(&self) -> Result<(), StateError> {
        create_directory(&self.manifests())?;
        create_directory(&self.logs())
    }

    /// Makes the directory, and becomes its owner.
    pub(crate) fn lock(&self, owner: &Owner) -> Result<Lock, StateError> {
        loop {
            create_directory(&self.root)?;
            let path = self.lock_file();
            let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let file = open.map_err(file_error("open", &path))?;
            let Ok(mut file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
                return Err(StateError::AlreadyUp { owner: self.owner()? });
            };
            // Its owner may have removed the file while we were opening it.
            let is_current = |file: &File| Ok::<_, io::Error>(file.metadata()?.ino() == fs::metadata(&path)?.ino());
            if !is_current(&file).unwrap_or(false) {
                continue;
            }
            let text = serde_json::to_string(owner).expect("numbers and a path can always be written as JSON");
            let write = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
            write.map_err(file_error("write", &path))?;
            return Ok(Lock { _file: file });
        }
    }

    /// Who runs this demo now; `None` when nobody does, whatever may be left of an earlier one.
    pub(crate) fn current_owner(&self) -> Result<Option<Owner>, StateError> {
        let path = self.lock_file();
        match fs::exists(&path).map_err(file_error("find", &path))? {
            true => Ok(self.owner().ok().filter(|owner| owner.keeper.is_alive())),
            false => Ok(None),
        }
    }

    /// Removes everything but the lock.
    pub(crate) fn clear(&self) -> Result<(), StateError> {
        for entry in fs::read_dir(&self.root).map_err(file_error("read", &self.root))? {
            let path = entry.map_err(file_error("read", &self.root))?.path();
            if path != self.lock_file() {
                let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.map_err(file_error("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Removes the directory, which is there, with all that is in it; the lock goes last.
    pub(crate) fn remove(&self) -> Result<(), StateError> {
        self.clear()?;
        fs::remove_dir_all(&self.root).map_err(file_error("remove", &self.root))
    }

    /// Writes a file so that others see either all of the old text or all of the new one. What is half-written is in
    /// none of the directories that somebody watches.
    pub(crate) fn write(&self, path: &Path, text: &[u8]) -> Result<(), StateError> {
        let new = self.root.join("new");
        fs::write(&new, text).map_err(file_error("write", &new))?;
        fs::rename(&new, path).map_err(file_error("replace", path))
    }

    pub(crate) fn write_status(&self, status: &Status) -> Result<(), StateError> {
        let text = serde_json::to_vec(status).expect("keys are text, so it can always be written as JSON");
        self.write(&self.status_file(), &text)
    }

    pub(crate) fn read_status(&self) -> Result<Status, StateError> {
        read_json(&self.status_file())
    }

    fn owner(&self) -> Result<Owner, StateError> {
        read_json(&self.lock_file())
    }

    fn lock_file(&self) -> PathBuf {
        self.root.join("lock")
    }

    fn status_file(&self) -> PathBuf {
        self.root.join("status.json")
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} runs {}", self.keeper.pid(), self.yaml.display())
    }
}

fn create_directory(path: &Path) -> Result<(), StateError> {
    fs::create_dir_all(path).map_err(file_error("create", path))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, StateError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|mut file| file.read_to_string(&mut text));
    read.map_err(file_error("read", path))?;
    serde_json::from_str(&text).map_err(|source| StateError::Content { path: path.to_owned(), source })
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError + use<> {
    let path = path.to_owned();
    move |source| StateError::File { action, path, source }
}

#[cfg(test)]
mod tests {
    use nix::unistd::Pid;

    use super::*;

    fn directory() -> (tempfile::TempDir, StateDirectory) {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().join("demo");
        (temporary, StateDirectory { root })
    }

    fn owner() -> Owner {
        Owner { keeper: ProcessId::of(Pid::this()).unwrap(), yaml: "/a.yaml".into() }
    }

    #[test]
    fn there_is_one_owner_at_a_time() {
        let (_temporary, directory) = directory();
        assert_eq!(directory.current_owner().unwrap(), None);
        let lock = directory.lock(&owner()).unwrap();
        assert_eq!(directory.current_owner().unwrap(), Some(owner()));
        let error = directory.lock(&owner()).unwrap_err().to_string();
        let own = std::process::id();
        assert_eq!(
            error,
            format!("a demo is already up: process {own} runs /a.yaml (ferroute demo down takes it down)")
        );
        drop(lock);
        directory.lock(&owner()).unwrap();
    }

    #[test]
    fn a_removed_directory_can_be_locked_anew() {
        let (_temporary, directory) = directory();
        let _first = directory.lock(&owner()).unwrap();
        directory.remove().unwrap();
        // The first lock is on a file that nobody can find any more.
        let _second = directory.lock(&owner()).unwrap();
    }

    #[test]
    fn clearing_leaves_the_lock() {
        let (_temporary, directory) = directory();
        let _lock = directory.lock(&owner()).unwrap();
        directory.prepare().unwrap();
        directory.write(&directory.manifests().join("a.yaml"), b"a").unwrap();
        directory.clear().unwrap();
        let left: Vec<_> = fs::read_dir(directory.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
    }

    #[test]
    fn an_owner_that_has_ended_owns_nothing() {
        let (_temporary, directory) = directory();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let keeper = ProcessId::of(Pid::from_raw(child.id().try_into().unwrap())).unwrap();
        let _lock = directory.lock(&Owner { keeper, yaml: "/a.yaml".into() }).unwrap();
        assert!(directory.current_owner().unwrap().is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(directory.current_owner().unwrap(), None);
    }
}
