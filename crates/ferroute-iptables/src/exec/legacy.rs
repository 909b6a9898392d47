//! The legacy backend, which only its programs can read and write.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitStatus,
};

use ferroute_core::IpFamily;

use super::{
    process::{Exec, Invocation, ProgramError, for_each_line},
    programs::{IptablesPrograms, ProgramsError},
    version::Backend,
};
use crate::{ParseError, SavedRules, SavedRulesReader, TableName};

/// Reason why the rules of the legacy backend could not be read. There may be some.
#[derive(Debug, thiserror::Error)]
pub enum LegacyError {
    /// The tables cannot be listed.
    #[error("cannot list the {family} tables of iptables (legacy): {}", .path.display())]
    List {
        /// The IP family.
        family: IpFamily,
        /// The file that lists them.
        path: &'static Path,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// There are tables, but no programs that could read them.
    #[error("cannot read the {family} tables of iptables (legacy): {}", .tables.join(", "))]
    Programs {
        /// The IP family.
        family: IpFamily,
        /// The names of the tables.
        tables: Vec<String>,
        /// The cause.
        #[source]
        source: Box<ProgramsError>,
    },
    /// A program could not be run.
    #[error(transparent)]
    Run(#[from] ProgramError),
    /// A program failed.
    #[error("{} failed with {status}: {stderr}", .program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// Exit status.
        status: ExitStatus,
        /// Standard error.
        stderr: String,
    },
    /// The output of a program is truncated.
    #[error("cannot parse the output of {}", .program.display())]
    Parse {
        /// The program.
        program: PathBuf,
        /// The cause.
        #[source]
        source: ParseError,
    },
}

/// Returns the names of the tables that the legacy backend has in the calling thread's network namespace.
pub(super) fn tables(family: IpFamily) -> Result<Vec<String>, LegacyError> {
    let path = Path::new(match family {
        IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
        IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
    });
    match fs::read_to_string(path) {
        Ok(names) => Ok(names.split_whitespace().map(str::to_owned).collect()),
        // The module is not loaded.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(LegacyError::List { family, path, source }),
    }
}

/// Returns the programs of the legacy backend; `None` if it has no tables.
pub(super) fn programs(
    family: IpFamily,
    exec: &dyn Exec,
    path: &[PathBuf],
) -> Result<Option<IptablesPrograms>, LegacyError> {
    let tables = tables(family)?;
    if tables.is_empty() {
        return Ok(None);
    }
    // Their check of the kernel would create a table.
    let found = IptablesPrograms::find_installed(family, Some(Backend::Legacy), exec, path);
    found.map(Some).map_err(|source| LegacyError::Programs { family, tables, source: source.into() })
}

/// Reads all tables, or only `table`; `None` if there are none.
pub(super) fn snapshot(
    family: IpFamily,
    only: Option<TableName>,
    exec: &dyn Exec,
    path: &[PathBuf],
) -> Result<Option<SavedRules>, LegacyError> {
    let Some(IptablesPrograms { save: program, .. }) = programs(family, exec, path)? else { return Ok(None) };
    let arguments = match only {
        None => vec!["-c"],
        // The programs create a table that is named in their arguments.
        Some(table) if !tables(family)?.iter().any(|name| name == table.as_str()) => return Ok(None),
        Some(table) => vec!["-c", "-t", table.as_str()],
    };
    let mut reader = SavedRulesReader::new(family);
    // Comments of other programs may not be UTF-8.
    let mut line = |line: &[u8]| reader.line(&String::from_utf8_lossy(line));
    let invocation = Invocation { program: &program, arguments: &arguments };
    let exit = exec.read(invocation, &mut |stdout| for_each_line(stdout, &mut line))?;
    if !exit.status.success() {
        return Err(LegacyError::Failed { program, status: exit.status, stderr: exit.stderr });
    }
    reader.finish().map(Some).map_err(|source| LegacyError::Parse { program, source })
}
