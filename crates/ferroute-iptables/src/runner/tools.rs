//! Where the tools of one IP family are, and what they can do.

use std::{
    env, fmt,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use ferroute_core::IpFamily;

use super::{
    programs::{Call, Exit, Programs, RunError},
    version::{Backend, Release, UnknownRelease},
};

/// The tools of one IP family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    /// The family.
    pub family: IpFamily,
    /// `iptables` or `ip6tables`.
    pub iptables: PathBuf,
    /// `iptables-save` or `ip6tables-save`.
    pub save: PathBuf,
    /// `iptables-restore` or `ip6tables-restore`.
    pub restore: PathBuf,
    /// Their version and backend.
    pub release: Release,
    /// Who sees to it that two programs do not change a table at once.
    pub locking: Locking,
}

/// Who takes the lock that `iptables` programs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// `iptables-restore` itself, given these arguments.
    Restore(&'static [&'static str]),
    /// We do, because this `iptables-restore` is too old to.
    Ours,
}

/// Why iptables mode cannot be had for a family. For IPv6 that is no reason to give up IPv4.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// A program is not installed.
    #[error("{program} is in none of {}; it comes with the package \"iptables\"", list(.searched))]
    Missing {
        /// The program's name.
        program: String,
        /// Where it was looked for.
        searched: Vec<PathBuf>,
    },
    /// A program does not run.
    #[error("{} does not run", .program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// Why not.
        #[source]
        source: RunError,
    },
    /// A program does not tell its version.
    #[error("{} does not tell its version", .program.display())]
    Release {
        /// The program.
        program: PathBuf,
        /// What it said.
        #[source]
        source: UnknownRelease,
    },
    /// The kernel has no such tables, or we may not see them.
    #[error("the kernel gives no {family} nat table to {}: {stderr}", .program.display())]
    Kernel {
        /// The family.
        family: IpFamily,
        /// The program that asked.
        program: PathBuf,
        /// What it said.
        stderr: String,
    },
}

/// What the tools of the other backend see on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherBackend {
    /// Which one that is.
    pub backend: Backend,
    /// Rules there. The kernel obeys them as well, before or after ours.
    pub rules: usize,
    /// kubelet keeps its chains there and not with us: the host has chosen the other one.
    pub has_kubelet: bool,
}

impl fmt::Display for OtherBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, rules, has_kubelet } = self;
        write!(f, "iptables ({backend}) holds {rules} rules that the kernel obeys as well as ours")?;
        if *has_kubelet {
            write!(f, ", and the kubelet uses it: ours may go past its rules and those of the network plugin")?;
        }
        Ok(())
    }
}

/// Directories to look for programs in, in order.
pub fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH");
    let mut directories: Vec<PathBuf> = path.iter().flat_map(env::split_paths).collect();
    for usual in ["/usr/local/sbin", "/usr/sbin", "/sbin"] {
        // A user's path often lacks these.
        if !directories.iter().any(|directory| directory == Path::new(usual)) {
            directories.push(usual.into());
        }
    }
    directories
}

impl Tools {
    /// Finds the tools that this host uses for a family, and asks the kernel for its `nat` table.
    ///
    /// # Errors
    /// When a program is missing or does not work, or the kernel has no such table.
    pub fn find(family: IpFamily, programs: &dyn Programs, path: &[PathBuf]) -> Result<Self, Unusable> {
        Self::find_named(family, None, programs, path)
    }

    /// As [`Tools::find`], but takes the tools that are named for a backend (`iptables-legacy`).
    ///
    /// # Errors
    /// As [`Tools::find`].
    pub fn find_backend(
        family: IpFamily,
        backend: Backend,
        programs: &dyn Programs,
        path: &[PathBuf],
    ) -> Result<Self, Unusable> {
        Self::find_named(family, Some(backend), programs, path)
    }

    /// As [`Tools::find`], but takes the backend that the kubelet uses, where only the other one shows that it does. All
    /// programs of a host should use the same, and an image brings a default that knows nothing of the host.
    ///
    /// # Errors
    /// As [`Tools::find`].
    pub fn find_beside_kubelet(family: IpFamily, programs: &dyn Programs, path: &[PathBuf]) -> Result<Self, Unusable> {
        let tools = Self::find(family, programs, path)?;
        // What cannot be looked at cannot be followed; who warns of the other backend tells why.
        let Ok(Some(OtherBackend { backend, has_kubelet: true, .. })) = tools.other_backend(programs, path) else {
            return Ok(tools);
        };
        Ok(Self::find_backend(family, backend, programs, path).unwrap_or(tools))
    }

    /// Looks whether rules lie in the other backend, if its tools are here.
    ///
    /// # Errors
    /// When its tools are here and do not run.
    pub fn other_backend(&self, programs: &dyn Programs, path: &[PathBuf]) -> Result<Option<OtherBackend>, RunError> {
        let backend = self.release.backend.other();
        let Some(save) = locate(&name(self.family, Some(backend), "-save"), path) else { return Ok(None) };
        // All tables, for to name one makes the legacy tools create it.
        let (rules, kubelet_there) = glance(programs, Call { program: &save, arguments: &[] })?;
        if rules == 0 && !kubelet_there {
            return Ok(None);
        }
        let mangle = Call { program: &self.save, arguments: &["-t", "mangle"] };
        let has_kubelet = kubelet_there && !glance(programs, mangle)?.1;
        Ok(Some(OtherBackend { backend, rules, has_kubelet }))
    }

    fn find_named(
        family: IpFamily,
        backend: Option<Backend>,
        programs: &dyn Programs,
        path: &[PathBuf],
    ) -> Result<Self, Unusable> {
        let find = |suffix| {
            let program = name(family, backend, suffix);
            locate(&program, path).ok_or_else(|| Unusable::Missing { program, searched: path.to_owned() })
        };
        let (iptables, save, restore) = (find("")?, find("-save")?, find("-restore")?);
        let release = release(programs, &iptables)?;
        let locking = locking(programs, &restore, release);
        let tools = Self { family, iptables, save, restore, release, locking };
        tools.check_kernel(programs)?;
        Ok(tools)
    }

    /// Asks for a chain that every kernel with this table has.
    fn check_kernel(&self, programs: &dyn Programs) -> Result<(), Unusable> {
        let arguments = [self.release.wait_arguments(), &["-t", "nat", "-S", "POSTROUTING"]].concat();
        let (exit, _) = output(programs, Call { program: &self.iptables, arguments: &arguments })
            .map_err(|source| Unusable::Run { program: self.iptables.clone(), source })?;
        if exit.status.success() {
            return Ok(());
        }
        Err(Unusable::Kernel { family: self.family, program: self.iptables.clone(), stderr: exit.stderr })
    }
}

/// The name of a program: `iptables`, `ip6tables-legacy-save`.
pub(super) fn name(family: IpFamily, backend: Option<Backend>, suffix: &str) -> String {
    let base = match family {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    };
    match backend {
        Some(backend) => format!("{base}-{}{suffix}", backend.infix()),
        None => format!("{base}{suffix}"),
    }
}

pub(super) fn locate(program: &str, path: &[PathBuf]) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    path.iter().map(|directory| directory.join(program)).find(is_program)
}

fn release(programs: &dyn Programs, program: &Path) -> Result<Release, Unusable> {
    let (exit, text) = output(programs, Call { program, arguments: &["--version"] })
        .map_err(|source| Unusable::Run { program: program.to_owned(), source })?;
    let said = if text.trim().is_empty() { exit.stderr } else { text };
    said.parse().map_err(|source| Unusable::Release { program: program.to_owned(), source })
}

/// Distributions have brought `-w` to old versions of `iptables-restore`, together with `--version`: one that tells its
/// version also takes the lock. One that does not reads its empty input and says nothing.
fn locking(programs: &dyn Programs, restore: &Path, release: Release) -> Locking {
    if release.has_restore_wait() {
        return Locking::Restore(release.wait_arguments());
    }
    match self::release(programs, restore) {
        Ok(_) => Locking::Restore(&["-w"]),
        Err(_) => Locking::Ours,
    }
}

/// Runs a program and keeps what it prints.
fn output(programs: &dyn Programs, call: Call<'_>) -> Result<(Exit, String), RunError> {
    let mut text = Vec::new();
    let exit = programs.read(call, &mut |stdout| stdout.read_to_end(&mut text).map(|_| ()))?;
    Ok((exit, String::from_utf8_lossy(&text).into_owned()))
}

/// Counts rules in the output of `iptables-save`, and looks for the chains that kubelet makes in `mangle` to show which
/// backend it uses.
fn glance(programs: &dyn Programs, call: Call<'_>) -> Result<(usize, bool), RunError> {
    let (mut rules, mut kubelet) = (0, false);
    programs.read(call, &mut |stdout| {
        let mut line = Vec::new();
        loop {
            line.clear();
            if stdout.read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            rules += usize::from(line.starts_with(b"-"));
            kubelet |=
                [&b":KUBE-IPTABLES-HINT "[..], b":KUBE-KUBELET-CANARY "].iter().any(|chain| line.starts_with(chain));
        }
    })?;
    Ok((rules, kubelet))
}

fn list(directories: &[PathBuf]) -> String {
    directories.iter().map(|directory| directory.display().to_string()).collect::<Vec<_>>().join(":")
}
