//! Discovery of the iptables programs of one IP family.

use std::{
    env,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use ferroute_core::IpFamily;

use super::{
    process::{Exec, Exit, Invocation, ProgramError},
    version::{Backend, InvalidRelease, Release},
};
use crate::native::ProbeError;

/// The iptables programs of one IP family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IptablesPrograms {
    /// The IP family.
    pub family: IpFamily,
    /// `iptables` or `ip6tables`.
    pub iptables: PathBuf,
    /// `iptables-save` or `ip6tables-save`.
    pub save: PathBuf,
    /// `iptables-restore` or `ip6tables-restore`.
    pub restore: PathBuf,
    /// Version and backend.
    pub release: Release,
    /// The holder of the xtables lock, which keeps two programs from changing a table at once.
    pub locking: Locking,
}

/// The program that acquires the xtables lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// `iptables-restore` itself, with these arguments.
    Restore(&'static [&'static str]),
    /// Ferroute, because this version of `iptables-restore` does not.
    Ferroute,
}

/// The reason why iptables mode is unavailable for an IP family. The other family may be available.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    /// A program is not installed.
    #[error("{program} not found in {}; it is part of the package \"iptables\"", list(.searched))]
    Missing {
        /// The program's name.
        program: String,
        /// The searched directories.
        searched: Vec<PathBuf>,
    },
    /// A program cannot be run.
    #[error("cannot run {}", .program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// The cause.
        #[source]
        source: ProgramError,
    },
    /// The version of a program cannot be parsed.
    #[error("cannot determine the version of {}", .program.display())]
    Release {
        /// The program.
        program: PathBuf,
        /// The cause.
        #[source]
        source: InvalidRelease,
    },
    /// The rules cannot be accessed in either way.
    #[error("cannot access the {family} rules of nf_tables by netlink, nor by the iptables programs ({programs})")]
    Netlink {
        /// The IP family.
        family: IpFamily,
        /// Reason why the programs cannot be used.
        programs: Box<ProgramsError>,
        /// Reason why netlink cannot be used.
        #[source]
        source: ProbeError,
    },
    /// The kernel has no such tables, access to them is not permitted, or they contain rules that the programs cannot show.
    #[error("{} cannot access the {family} nat table of the kernel: {stderr}", .program.display())]
    NoTable {
        /// The IP family.
        family: IpFamily,
        /// The program.
        program: PathBuf,
        /// Standard error.
        stderr: String,
    },
}

/// Returns the directories to search for programs, in order.
pub fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH");
    let mut directories: Vec<PathBuf> = path.iter().flat_map(env::split_paths).collect();
    for standard in ["/usr/local/sbin", "/usr/sbin", "/sbin"] {
        // The PATH of users other than root often lacks these directories.
        if !directories.iter().any(|directory| directory == Path::new(standard)) {
            directories.push(standard.into());
        }
    }
    directories
}

impl IptablesPrograms {
    /// Finds the default programs of this host for an IP family and checks that the kernel has a nat table.
    ///
    /// # Errors
    /// If a program is missing or fails, or the kernel has no such table.
    pub fn find(family: IpFamily, exec: &dyn Exec, path: &[PathBuf]) -> Result<Self, ProgramsError> {
        let programs = Self::find_installed(family, None, exec, path)?;
        programs.check_kernel(exec)?;
        Ok(programs)
    }

    /// Like [`IptablesPrograms::find`], but finds the programs of a backend: `iptables-legacy`, or `iptables` if it
    /// belongs to this backend.
    ///
    /// # Errors
    /// See [`IptablesPrograms::find`].
    pub fn find_backend(
        family: IpFamily,
        backend: Backend,
        exec: &dyn Exec,
        path: &[PathBuf],
    ) -> Result<Self, ProgramsError> {
        let programs = Self::find_installed(family, Some(backend), exec, path)?;
        programs.check_kernel(exec)?;
        Ok(programs)
    }

    /// Finds the programs of a backend, or otherwise the default ones, without a check of the kernel's tables.
    pub(super) fn find_installed(
        family: IpFamily,
        backend: Option<Backend>,
        exec: &dyn Exec,
        path: &[PathBuf],
    ) -> Result<Self, ProgramsError> {
        let named = Self::find_named(family, backend, exec, path);
        match (named, backend) {
            // Before 1.8 there was only one backend, whose programs had no other names.
            (Err(error @ ProgramsError::Missing { .. }), Some(backend)) => {
                let default = Self::find_named(family, None, exec, path).ok();
                default.filter(|programs| programs.release.backend == backend).ok_or(error)
            }
            (named, _) => named,
        }
    }

    fn find_named(
        family: IpFamily,
        backend: Option<Backend>,
        exec: &dyn Exec,
        path: &[PathBuf],
    ) -> Result<Self, ProgramsError> {
        let find = |suffix| {
            let program = program_name(family, backend, suffix);
            find_in_path(&program, path).ok_or_else(|| ProgramsError::Missing { program, searched: path.to_owned() })
        };
        let (iptables, save, restore) = (find("")?, find("-save")?, find("-restore")?);
        let release = release(exec, &iptables)?;
        let locking = locking(exec, &restore, release);
        Ok(Self { family, iptables, save, restore, release, locking })
    }

    /// Lists a builtin chain of the nat table.
    pub(super) fn check_kernel(&self, exec: &dyn Exec) -> Result<(), ProgramsError> {
        let arguments = [self.release.wait_arguments(), &["-t", "nat", "-S", "POSTROUTING"]].concat();
        let (exit, _) = output(exec, Invocation { program: &self.iptables, arguments: &arguments })
            .map_err(|source| ProgramsError::Run { program: self.iptables.clone(), source })?;
        if exit.status.success() {
            return Ok(());
        }
        Err(ProgramsError::NoTable { family: self.family, program: self.iptables.clone(), stderr: exit.stderr })
    }
}

/// Returns the name of a program: `iptables`, `ip6tables-legacy-save`.
pub(super) fn program_name(family: IpFamily, backend: Option<Backend>, suffix: &str) -> String {
    let base = match family {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    };
    match backend {
        Some(backend) => format!("{base}-{}{suffix}", backend.infix()),
        None => format!("{base}{suffix}"),
    }
}

/// Returns the path of an executable file in one of the directories.
pub(super) fn find_in_path(program: &str, path: &[PathBuf]) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    path.iter().map(|directory| directory.join(program)).find(is_program)
}

fn release(exec: &dyn Exec, program: &Path) -> Result<Release, ProgramsError> {
    let (exit, text) = output(exec, Invocation { program, arguments: &["--version"] })
        .map_err(|source| ProgramsError::Run { program: program.to_owned(), source })?;
    let version = if text.trim().is_empty() { exit.stderr } else { text };
    version.parse().map_err(|source| ProgramsError::Release { program: program.to_owned(), source })
}

/// Determines whether the program or this process holds the lock. Distributions backported `-w` to old versions of
/// `iptables-restore` together with `--version`: a program that prints its version supports `-w`; other versions read
/// their empty input and print nothing.
fn locking(exec: &dyn Exec, restore: &Path, release: Release) -> Locking {
    if release.has_restore_wait() {
        return Locking::Restore(release.wait_arguments());
    }
    match self::release(exec, restore) {
        Ok(_) => Locking::Restore(&["-w"]),
        Err(_) => Locking::Ferroute,
    }
}

/// Runs a program and returns its standard output.
fn output(exec: &dyn Exec, invocation: Invocation<'_>) -> Result<(Exit, String), ProgramError> {
    let mut text = Vec::new();
    let exit = exec.read(invocation, &mut |stdout| stdout.read_to_end(&mut text).map(|_| ()))?;
    Ok((exit, String::from_utf8_lossy(&text).into_owned()))
}

fn list(directories: &[PathBuf]) -> String {
    directories.iter().map(|directory| directory.display().to_string()).collect::<Vec<_>>().join(":")
}
