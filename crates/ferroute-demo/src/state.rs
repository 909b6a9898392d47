//! The files of a running demo: the lock with its owner, the manifests and configurations of the proxies, logs, and the
//! status.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    instance::Instance,
    layout::NodeId,
    net::search_path,
    plan::{ClusterPlan, Objects, Workload},
    process::ProcessId,
};

/// A file of the demo could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    /// Reading or writing failed.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The operation, such as `read`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The content is invalid.
    #[error("invalid content in {}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The position and cause.
        #[source]
        source: serde_json::Error,
    },
    /// Another process holds the lock.
    #[error("a demo is already running: {owner} (remove it with `ferroute demo down`)")]
    AlreadyRunning {
        /// The owner of the running demo.
        owner: Owner,
    },
}

/// The owner of a running demo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    /// The supervisor process.
    pub(crate) supervisor: ProcessId,
    /// The cluster's YAML file.
    pub(crate) yaml: PathBuf,
}

/// The status of the cluster. Written after every change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The cluster's YAML file.
    pub(crate) yaml: PathBuf,
    pub(crate) plan: ClusterPlan,
    /// By [`crate::plan::PlannedPod::short_name`].
    pub(crate) pods: BTreeMap<String, ProcessState>,
    pub(crate) proxies: BTreeMap<NodeId, ProcessState>,
    /// Objects in the file that the demo ignores.
    pub(crate) ignored: Vec<String>,
    /// The error in the file; the cluster is then unchanged.
    pub(crate) problem: Option<String>,
}

/// Changes on top of the YAML file, made on the demo's page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Adjustments {
    /// The replicas of Deployments, by `namespace/name`.
    pub(crate) replicas: BTreeMap<String, i32>,
    /// The [short names](crate::plan::PlannedPod::short_name) of pods that are not ready although they run.
    pub(crate) not_ready: BTreeSet<String>,
}

impl Adjustments {
    /// Changes the Deployments.
    pub(crate) fn apply(&self, objects: &mut Objects) {
        for workload in &mut objects.workloads {
            let Workload::Deployment(deployment) = workload else { continue };
            let name = format!("{}/{}", deployment.metadata.namespace, deployment.metadata.name);
            if let Some(replicas) = self.replicas.get(&name) {
                deployment.spec.replicas = Some(*replicas);
            }
        }
    }
}

/// The state of a pod or proxy process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ProcessState {
    /// The process is running.
    Running { pid: i32 },
    /// The process has ended and will be restarted.
    Down { reason: String },
}

/// The demo's directory.
#[derive(Clone, Debug)]
pub(crate) struct StateDirectory {
    root: PathBuf,
}

/// The exclusive right to run the demo, released with this value.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: Flock<File>,
}

impl StateDirectory {
    pub(crate) fn new(instance: &Instance) -> Self {
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

    /// Reads the log of a process.
    pub(crate) fn read_log(&self, name: &str) -> Result<String, StateError> {
        let path = self.logs().join(name);
        fs::read(&path).map(|text| String::from_utf8_lossy(&text).into_owned()).map_err(file_error("read", &path))
    }

    /// Creates an empty log.
    pub(crate) fn open_log(&self, name: &str) -> Result<File, StateError> {
        let path = self.logs().join(name);
        File::create(&path).map_err(file_error("create", &path))
    }

    /// Makes this program available as `ferroute` in the search path of the demo's machines.
    pub(crate) fn link_program(&self, program: &Path) -> Result<(), StateError> {
        let directory = self.programs();
        create_directory(&directory)?;
        let link = directory.join("ferroute");
        symlink(program, &link).map_err(file_error("create", &link))
    }

    /// Returns the search path of the demo's machines: that of this process, and the program itself.
    pub(crate) fn search_path(&self) -> OsString {
        let mut path = OsString::from(self.programs());
        path.push(":");
        path.push(search_path());
        path
    }

    fn programs(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// Creates the subdirectories.
    pub(crate) fn prepare(&self) -> Result<(), StateError> {
        create_directory(&self.manifests())?;
        create_directory(&self.logs())
    }

    /// Creates the directory and locks it for `owner`.
    pub(crate) fn lock(&self, owner: &Owner) -> Result<Lock, StateError> {
        loop {
            create_directory(&self.root)?;
            let path = self.lock_file();
            let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let file = open.map_err(file_error("open", &path))?;
            let Ok(mut file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
                return Err(StateError::AlreadyRunning { owner: self.owner()? });
            };
            // The previous owner may have removed the file after it was opened here.
            let is_current = |file: &File| Ok::<_, io::Error>(file.metadata()?.ino() == fs::metadata(&path)?.ino());
            if !is_current(&file).unwrap_or(false) {
                continue;
            }
            let text = serde_json::to_string(owner).expect("bug: an owner is always serializable");
            let write = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
            write.map_err(file_error("write", &path))?;
            return Ok(Lock { _file: file });
        }
    }

    /// Returns the owner of the running demo; `None` if there are no more than leftovers of an earlier one.
    pub(crate) fn current_owner(&self) -> Result<Option<Owner>, StateError> {
        let path = self.lock_file();
        match fs::exists(&path).map_err(file_error("find", &path))? {
            true => Ok(self.owner().ok().filter(|owner| owner.supervisor.is_alive())),
            false => Ok(None),
        }
    }

    /// Removes all files except the lock.
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

    /// Removes the directory, the lock file last.
    pub(crate) fn remove(&self) -> Result<(), StateError> {
        self.clear()?;
        fs::remove_dir_all(&self.root).map_err(file_error("remove", &self.root))
    }

    /// Replaces a file atomically. The temporary file is outside of the directories that proxies watch.
    pub(crate) fn write(&self, path: &Path, text: &[u8]) -> Result<(), StateError> {
        // The supervisor and the page write at the same time.
        let new = self.root.join(format!("new-{}", std::process::id()));
        fs::write(&new, text).map_err(file_error("write", &new))?;
        fs::rename(&new, path).map_err(file_error("replace", path))
    }

    pub(crate) fn write_status(&self, status: &Status) -> Result<(), StateError> {
        let text = serde_json::to_vec(status).expect("bug: a status is always serializable");
        self.write(&self.status_file(), &text)
    }

    pub(crate) fn write_adjustments(&self, adjustments: &Adjustments) -> Result<(), StateError> {
        let text = serde_json::to_vec(adjustments).expect("bug: adjustments are always serializable");
        self.write(&self.adjustments_file(), &text)
    }

    pub(crate) fn adjustments_file(&self) -> PathBuf {
        self.root.join("adjustments.json")
    }

    /// Returns the changes that the page has made; none if it has not made any.
    pub(crate) fn read_adjustments(&self) -> Adjustments {
        read_json(&self.adjustments_file()).unwrap_or_default()
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
        write!(f, "process {} runs {}", self.supervisor.pid(), self.yaml.display())
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
        Owner { supervisor: ProcessId::from_pid(Pid::this()).unwrap(), yaml: "/a.yaml".into() }
    }

    #[test]
    fn lock_has_one_owner() {
        let (_temporary, directory) = directory();
        assert_eq!(directory.current_owner().unwrap(), None);
        let lock = directory.lock(&owner()).unwrap();
        assert_eq!(directory.current_owner().unwrap(), Some(owner()));
        let error = directory.lock(&owner()).unwrap_err().to_string();
        let own = std::process::id();
        assert_eq!(
            error,
            format!("a demo is already running: process {own} runs /a.yaml (remove it with `ferroute demo down`)")
        );
        drop(lock);
        directory.lock(&owner()).unwrap();
    }

    #[test]
    fn removed_directory_can_be_locked_again() {
        let (_temporary, directory) = directory();
        let _first = directory.lock(&owner()).unwrap();
        directory.remove().unwrap();
        // The first lock is on a file that has been unlinked.
        let _second = directory.lock(&owner()).unwrap();
    }

    #[test]
    fn clear_keeps_the_lock() {
        let (_temporary, directory) = directory();
        let _lock = directory.lock(&owner()).unwrap();
        directory.prepare().unwrap();
        directory.write(&directory.manifests().join("a.yaml"), b"a").unwrap();
        directory.clear().unwrap();
        let left: Vec<_> = fs::read_dir(directory.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
    }

    #[test]
    fn process_that_has_ended_is_no_owner() {
        let (_temporary, directory) = directory();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let supervisor = ProcessId::from_pid(Pid::from_raw(child.id().try_into().unwrap())).unwrap();
        let _lock = directory.lock(&Owner { supervisor, yaml: "/a.yaml".into() }).unwrap();
        assert!(directory.current_owner().unwrap().is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(directory.current_owner().unwrap(), None);
    }
}
