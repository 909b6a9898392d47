use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    thread,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns, unshare},
    unistd::{AccessFlags, Pid, access, sethostname},
};

use super::program::{ProgramError, ip};

/// Something with a network namespace did not work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NamespaceError {
    /// It could not be made or removed.
    #[error("cannot change the network namespaces")]
    Program(#[from] ProgramError),
    /// It is not there, or not open to this user.
    #[error("cannot open the network namespace {name}")]
    Open {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel did not let us in.
    #[error("cannot enter the network namespace {name}")]
    Enter {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: Errno,
    },
    /// The list of namespaces, or of processes, could not be read.
    #[error("cannot read {}", path.display())]
    List {
        /// What was read.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A network namespace with a name, as `ip netns` shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    pub(crate) fn named(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }

    /// All of this machine whose names begin with `prefix`, in the order of their names.
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

    /// Takes the name away; the namespace itself goes with the last process in it.
    pub(crate) fn delete(&self) -> Result<(), NamespaceError> {
        Ok(ip(&["netns", "delete", &self.name]).map(drop)?)
    }

    /// Runs `work` on a thread inside. Sockets that it opens stay inside for ever, wherever they are used later.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        on_new_thread(|| self.enter_network().map(|()| work()))
    }

    /// Runs `work` on a thread inside, with all that a program in there should see: this namespace's devices under
    /// `/sys`, its sysctls to write, and `hostname` as the name of the machine. Programs that it starts inherit this.
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

    /// The processes whose first thread is inside.
    pub(crate) fn processes(&self) -> Result<Vec<Pid>, NamespaceError> {
        let own = fs::metadata(self.path()).map_err(|source| self.open_error(source))?;
        let entries = fs::read_dir("/proc").map_err(|source| NamespaceError::List { path: "/proc".into(), source })?;
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        // A process that cannot be looked at has just ended.
        let is_inside = |pid: &i32| {
            fs::metadata(format!("/proc/{pid}/ns/net"))
                .is_ok_and(|its| (its.dev(), its.ino()) == (own.dev(), own.ino()))
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

/// The kernel keeps the namespace per thread, so a thread that changes its own must not be anybody else's.
fn on_new_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Mounts `/sys` anew, because it shows the devices of the namespace that it was mounted in. Where a container does not
/// allow that, programs see the wrong devices under `/sys`, which few of them look at.
fn show_own_devices() {
    let _ = umount2("/sys", MntFlags::MNT_DETACH)
        .and_then(|()| mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), NONE));
}

/// In most containers `/proc/sys` is mounted read-only although the sysctls of a namespace of our own are ours. Where
/// this cannot be changed, writing tells why.
pub(super) fn make_sysctls_writable() {
    if access("/proc/sys/net/ipv4/ip_forward", AccessFlags::W_OK) == Err(Errno::EROFS) {
        let _ = mount(NONE, "/proc/sys", NONE, MsFlags::MS_REMOUNT | MsFlags::MS_BIND, NONE);
    }
}

const NONE: Option<&str> = None;

/// Where `ip netns` keeps the names.
const DIRECTORY: &str = "/var/run/netns";

/// Longer names of pods are cut off in clusters too.
const MAX_HOSTNAME: usize = 63;
