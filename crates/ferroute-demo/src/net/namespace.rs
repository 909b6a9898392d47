use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns, unshare},
    unistd::{AccessFlags, Pid, access, sethostname},
};

use super::program::{ProgramError, ip};

/// An error with a network namespace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NamespaceError {
    /// A namespace could not be created or removed.
    #[error("cannot change the network namespaces")]
    Program(#[from] ProgramError),
    /// The namespace does not exist, or permission was denied.
    #[error("cannot open the network namespace {name}")]
    Open {
        /// The name.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The process could not enter it.
    #[error("cannot enter the network namespace {name}")]
    Enter {
        /// The name.
        name: String,
        /// The cause.
        #[source]
        source: Errno,
    },
    /// The list of namespaces or processes could not be read.
    #[error("cannot read {}", path.display())]
    List {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A named network namespace, as `ip netns` manages it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    pub(crate) fn named(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }

    /// Returns all network namespaces whose names start with `prefix`, sorted.
    pub(crate) fn list(prefix: &str) -> Result<Vec<Self>, NamespaceError> {
        let entries = match fs::read_dir(DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.and_then(Iterator::collect::<io::Result<Vec<_>>>),
        };
        let entries = entries.map_err(|source| NamespaceError::List { path: DIRECTORY.into(), source })?;
        let names = entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok());
        let mut all: Vec<Self> = names.filter(|name| name.starts_with(prefix)).map(Self::named).collect();
        all.sort_unstable();
        Ok(all)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn create(&self) -> Result<(), NamespaceError> {
        Ok(ip(&["netns", "add", &self.name]).map(drop)?)
    }

    /// Removes the name. The kernel removes the namespace with its last process.
    pub(crate) fn delete(&self) -> Result<(), NamespaceError> {
        Ok(ip(&["netns", "delete", &self.name]).map(drop)?)
    }

    /// Runs `work` on a new thread in the namespace. Sockets that it opens belong to the namespace.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        on_new_thread(|| self.enter_network().map(|()| work()))
    }

    /// Runs `work` on a new thread in the namespace, with `/sys` and writable sysctls of the namespace and its own
    /// `hostname`. Child processes inherit these.
    pub(crate) fn run_as_machine<T: Send>(
        &self,
        hostname: &str,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, NamespaceError> {
        let enter_machine = || -> Result<(), Errno> {
            unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)?;
            sethostname(hostname.chars().take(MAX_HOSTNAME).collect::<String>())?;
            mount(NONE, "/", NONE, MsFlags::MS_SLAVE | MsFlags::MS_REC, NONE)
        };
        on_new_thread(|| {
            self.enter_network()?;
            enter_machine().map_err(|source| NamespaceError::Enter { name: self.name.clone(), source })?;
            show_own_devices();
            make_sysctls_writable();
            Ok(work())
        })
    }

    /// Returns the processes whose main thread is in the namespace.
    pub(crate) fn processes(&self) -> Result<Vec<Pid>, NamespaceError> {
        let namespace = fs::metadata(self.path()).map_err(|source| self.open_error(source))?;
        let entries = fs::read_dir("/proc").map_err(|source| NamespaceError::List { path: "/proc".into(), source })?;
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        // A process that cannot be read has just ended.
        let is_inside = |pid: &i32| {
            fs::metadata(format!("/proc/{pid}/ns/net"))
                .is_ok_and(|its| (its.dev(), its.ino()) == (namespace.dev(), namespace.ino()))
        };
        Ok(pids.filter(is_inside).map(Pid::from_raw).collect())
    }

    fn enter_network(&self) -> Result<(), NamespaceError> {
        let file = File::open(self.path()).map_err(|source| self.open_error(source))?;
        setns(file, CloneFlags::CLONE_NEWNET)
            .map_err(|source| NamespaceError::Enter { name: self.name.clone(), source })
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(DIRECTORY).join(&self.name)
    }

    fn open_error(&self, source: io::Error) -> NamespaceError {
        NamespaceError::Open { name: self.name.clone(), source }
    }
}

/// Runs `work` on a new thread: network namespaces are per thread, and the current one must not change.
fn on_new_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Remounts `/sys`, which shows the devices of the namespace that it was mounted in. Some containers do not allow that;
/// programs then see the host's devices in `/sys`.
fn show_own_devices() {
    let _ = umount2("/sys", MntFlags::MNT_DETACH)
        .and_then(|()| mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), NONE));
}

/// Remounts `/proc/sys` for writing: in most containers it is read-only, although the sysctls of the namespace could be
/// changed. Errors appear when a sysctl is written.
pub(super) fn make_sysctls_writable() {
    if access("/proc/sys/net/ipv4/ip_forward", AccessFlags::W_OK) == Err(Errno::EROFS) {
        let _ = mount(NONE, "/proc/sys", NONE, MsFlags::MS_REMOUNT | MsFlags::MS_BIND, NONE);
    }
}

/// Makes this process and its children resolve names according to `configuration`, instead of the host's resolver. The
/// process must have a separate mount namespace. Files are kept in `directory`. If this is not possible, names are not
/// resolved.
pub(crate) fn use_resolver(directory: &Path, configuration: &str) {
    let cover = |name: &str, content: String, path: &str| {
        let file = directory.join(name);
        let _ = fs::write(&file, content).map(|()| mount(Some(&file), path, NONE, MsFlags::MS_BIND, NONE));
    };
    // There may be other ways to resolve names, such as systemd-resolved, which belong to the host.
    let services = fs::read_to_string("/etc/nsswitch.conf").unwrap_or_default();
    let services: Vec<&str> =
        services.lines().map(|line| if line.starts_with("hosts:") { "hosts: files dns" } else { line }).collect();
    cover("nsswitch.conf", services.join("\n") + "\n", "/etc/nsswitch.conf");
    cover(&format!("resolv-{}.conf", std::process::id()), configuration.to_owned(), "/etc/resolv.conf");
}

const NONE: Option<&str> = None;

/// The directory of named network namespaces.
const DIRECTORY: &str = "/var/run/netns";

/// The maximum length of a host name; Kubernetes truncates longer pod names too.
const MAX_HOSTNAME: usize = 63;
