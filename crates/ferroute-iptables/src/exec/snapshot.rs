//! The rules of all programs, in both backends.

use std::{path::PathBuf, process::ExitStatus};

use ferroute_core::IpFamily;
use ferroute_host::KernelGeneration;

use super::{
    process::{Exec, Invocation, ProgramError, for_each_line},
    programs::{find_in_path, program_name},
    version::{Backend, Release},
};
use crate::{
    ParseError, Policy, RuleSet, SavedRules, SavedRulesReader, TableName,
    native::{NativeRules, ReadError},
};

/// The rules of one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSnapshot {
    /// The backend. The kernel applies the rules of both.
    pub backend: Backend,
    /// The rules.
    pub saved: SavedRules,
}

/// A failure to read rules. Retrying may succeed.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A program could not be run.
    #[error(transparent)]
    Run(#[from] ProgramError),
    /// A program failed.
    #[error("{} -c failed with {status}: {stderr}", .program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// Its exit status.
        status: ExitStatus,
        /// Its standard error.
        stderr: String,
    },
    /// The rules could not be read by netlink.
    #[error(transparent)]
    Netlink(#[from] ReadError),
    /// The output of a program is truncated.
    #[error("cannot parse the output of {} -c", .program.display())]
    Parse {
        /// The program.
        program: PathBuf,
        /// The cause.
        #[source]
        source: ParseError,
    },
}

/// Reads all rules of an IP family with the programs in the directories of `path`, or those of nf_tables by netlink if their
/// program is not there. Backends without rules, and a legacy backend without programs, are left out.
///
/// # Errors
/// If one of the programs fails, or the kernel refuses.
pub fn snapshot_rules(
    family: IpFamily,
    exec: &dyn Exec,
    path: &[PathBuf],
) -> Result<Vec<BackendSnapshot>, SnapshotError> {
    let mut snapshots = Vec::new();
    let programs = save_programs(family, exec, path)?;
    if !programs.iter().any(|(backend, _)| *backend == Backend::NfTables) && has_nf_tables() {
        let rules = NativeRules::open(family).map_err(|source| ReadError { table: TableName::Filter, source })?;
        let saved = rules.snapshot()?;
        if affects_packets(&saved) {
            snapshots.push(BackendSnapshot { backend: Backend::NfTables, saved });
        }
    }
    for (backend, program) in programs {
        let saved = save(family, exec, program)?;
        if affects_packets(&saved) {
            snapshots.push(BackendSnapshot { backend, saved });
        }
    }
    Ok(snapshots)
}

/// Reports whether the kernel has nf_tables that this process may read.
fn has_nf_tables() -> bool {
    KernelGeneration::open().is_ok_and(|generation| generation.is_some())
}

/// Returns the programs that print rules, at most one per backend.
fn save_programs(
    family: IpFamily,
    exec: &dyn Exec,
    path: &[PathBuf],
) -> Result<Vec<(Backend, PathBuf)>, SnapshotError> {
    let named = [Backend::NfTables, Backend::Legacy]
        .into_iter()
        .filter_map(|backend| Some((backend, find_in_path(&program_name(family, Some(backend), "-save"), path)?)));
    let named: Vec<_> = named.collect();
    if !named.is_empty() {
        return Ok(named);
    }
    // Before 1.8 there was only one backend, whose programs had no other names.
    let Some(program) = find_in_path(&program_name(family, None, "-save"), path) else { return Ok(Vec::new()) };
    let mut version = String::new();
    exec.read(Invocation { program: &program, arguments: &["--version"] }, &mut |stdout| {
        stdout.read_to_string(&mut version).map(|_| ())
    })?;
    let backend = version.parse::<Release>().map_or(Backend::Legacy, |release| release.backend);
    Ok(vec![(backend, program)])
}

fn save(family: IpFamily, exec: &dyn Exec, program: PathBuf) -> Result<SavedRules, SnapshotError> {
    let mut reader = SavedRulesReader::new(family);
    // All tables: the legacy programs create a table that is named in their arguments.
    let invocation = Invocation { program: &program, arguments: &["-c"] };
    // Comments of other programs may not be UTF-8.
    let mut line = |line: &[u8]| reader.line(&String::from_utf8_lossy(line));
    let exit = exec.read(invocation, &mut |stdout| for_each_line(stdout, &mut line))?;
    if !exit.status.success() {
        return Err(SnapshotError::Failed { program, status: exit.status, stderr: exit.stderr });
    }
    reader.finish().map_err(|source| SnapshotError::Parse { program, source })
}

/// Reports whether there is anything but empty builtin chains with policy ACCEPT.
fn affects_packets(SavedRules { rules, unread, partial, .. }: &SavedRules) -> bool {
    let RuleSet { tables, .. } = rules;
    let mut chains = tables.values().flat_map(|table| table.chains.iter());
    let has_effect = chains.any(|(name, chain)| {
        let policy = chain.head.and_then(|head| head.policy);
        !name.is_builtin() || !chain.rules.is_empty() || policy == Some(Policy::Drop)
    });
    has_effect || !unread.is_empty() || !partial.is_empty()
}
