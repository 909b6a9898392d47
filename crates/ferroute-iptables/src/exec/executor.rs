//! The executor of `iptables-save` and `iptables-restore` for one IP family.

use std::{
    fmt,
    io::{self, Write},
    path::PathBuf,
    process::ExitStatus,
    sync::Arc,
    time::Duration,
};

use super::{
    lock::{LockError, LockLocation, XtablesLock},
    process::{Exec, Invocation, ProgramError, for_each_line},
    programs::{IptablesPrograms, Locking},
};
use crate::{
    ChainName, ParseError, TableName,
    native::{Obstacle, ReadError, WriteError},
};

/// A failure to write rules.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The xtables lock cannot be acquired.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The program could not be run.
    #[error(transparent)]
    Run(#[from] ProgramError),
    /// The rules could not be written by netlink.
    #[error(transparent)]
    Netlink(#[from] WriteError),
    /// Another program keeps the programs from writing some rules. All others are written, unless they were rejected, too.
    #[error("{obstacle}")]
    Obstacle {
        /// What is in the way.
        obstacle: Obstacle,
        /// The rejection of all other rules.
        #[source]
        source: Option<Box<Self>>,
    },
    /// The program or the kernel rejected a line of the input. If the line is `COMMIT`, the kernel rejected the table without
    /// a reason.
    #[error("{} rejected line {line} of its input, {text:?}: {message}", .program.display())]
    Line {
        /// The program.
        program: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The line.
        text: String,
        /// The program's standard error, on one line.
        message: String,
    },
    /// The program failed without naming a line.
    #[error("{} failed with {status}: {message}", .program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// Exit status.
        status: ExitStatus,
        /// Standard error, on one line.
        message: String,
    },
}

/// A failure to read rules.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The program could not be run.
    #[error(transparent)]
    Run(#[from] ProgramError),
    /// The rules could not be read by netlink.
    #[error(transparent)]
    Netlink(#[from] ReadError),
    /// The program failed.
    #[error("{} -t {table} failed with {status}: {message}", .program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// The table.
        table: TableName,
        /// Exit status.
        status: ExitStatus,
        /// Standard error, on one line.
        message: String,
    },
    /// The output of the program is invalid.
    #[error("cannot parse the output of {} -t {table}", .program.display())]
    Parse {
        /// The program.
        program: PathBuf,
        /// The table.
        table: TableName,
        /// The cause.
        #[source]
        source: ParseError,
    },
    /// The output of the program ends before the end of the table.
    #[error("truncated output of {} -t {table}", .program.display())]
    Truncated {
        /// The program.
        program: PathBuf,
        /// The table.
        table: TableName,
    },
}

impl RestoreError {
    /// Reports whether the rules that were read before are outdated: another program has committed a transaction since
    /// the required generation, or has deleted a rule that was to be deleted.
    pub(super) fn is_outdated(&self) -> bool {
        match self {
            Self::Netlink(WriteError::Commit { source, .. }) => source.is_outdated(),
            Self::Netlink(WriteError::NoRule { .. }) => true,
            _ => false,
        }
    }

    /// Returns the chain that the kernel refused to delete because other objects refer to it. Only netlink identifies
    /// it.
    pub(super) fn busy_chain(&self) -> Option<ChainName> {
        match self {
            Self::Netlink(WriteError::Refused { deleted, source, .. }) if source.is_busy() => *deleted,
            _ => None,
        }
    }

    /// Returns the text of the rejected line.
    pub(super) fn line(&self) -> Option<&str> {
        match self {
            Self::Line { text, .. } => Some(text),
            Self::Netlink(WriteError::Refused { change, .. } | WriteError::Unsupported { rule: change }) => {
                Some(change)
            }
            _ => None,
        }
    }
}

/// The iptables programs of one IP family, and the means to run them.
#[derive(Clone)]
pub(super) struct Executor {
    pub(super) programs: IptablesPrograms,
    pub(super) exec: Arc<dyn Exec>,
}

impl Executor {
    /// Runs `iptables-restore` with the text that `write` writes, and returns its duration. After a failure, `write` is
    /// called once more to find the rejected line, and must write the same text.
    ///
    /// # Errors
    /// If a line is rejected or the program fails. Tables before the rejected line are applied nevertheless.
    pub(super) fn restore(
        &self,
        write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Duration, RestoreError> {
        let (_lock, wait) = match self.programs.locking {
            Locking::Restore(arguments) => (None, arguments),
            Locking::Ferroute => (Some(XtablesLock::acquire(LockLocation::xtables(), LOCK_TIMEOUT)?), &[][..]),
        };
        let arguments = [wait, &["--noflush", "--counters"]].concat();
        let invocation = Invocation { program: &self.programs.restore, arguments: &arguments };
        let exit = self.exec.feed(invocation, &mut |stdin| write(stdin))?;
        if exit.status.success() {
            if !exit.stderr.is_empty() {
                tracing::debug!(program = %invocation.program.display(), stderr = exit.stderr, "iptables-restore warns");
            }
            return Ok(exit.took);
        }
        let program = self.programs.restore.clone();
        let message = on_one_line(&exit.stderr);
        let rejected = rejected_line(&exit.stderr).and_then(|line| Some((line, nth_line(line, write)?)));
        Err(match rejected {
            Some((line, text)) => RestoreError::Line { program, line, text, message },
            None => RestoreError::Failed { program, status: exit.status, message },
        })
    }

    /// Runs `iptables-save` for a table, passes each line to `parse`, and returns the time that the program took.
    ///
    /// # Errors
    /// If the program fails or its output is truncated, or the first error of `parse`.
    pub(super) fn save(
        &self,
        table: TableName,
        parse: &mut dyn FnMut(&str) -> Result<(), ParseError>,
    ) -> Result<Duration, SaveError> {
        let arguments = ["-t", table.as_str()];
        let invocation = Invocation { program: &self.programs.save, arguments: &arguments };
        let mut parsed = Ok(());
        let mut in_table = false;
        let exit = self.exec.read(invocation, &mut |stdout| {
            for_each_line(stdout, |line| {
                in_table = (in_table || line.starts_with(b"*")) && line.trim_ascii_end() != b"COMMIT";
                // After an error, the rest is read and ignored, so that the program can exit.
                if parsed.is_ok() {
                    // Comments of other programs may not be UTF-8.
                    parsed = parse(&String::from_utf8_lossy(line));
                }
            })
        })?;
        let program = || self.programs.save.clone();
        if !exit.status.success() {
            let message = on_one_line(&exit.stderr);
            return Err(SaveError::Failed { program: program(), table, status: exit.status, message });
        }
        if in_table {
            return Err(SaveError::Truncated { program: program(), table });
        }
        parsed.map(|()| exit.took).map_err(|source| self.parse_error(table, source))
    }

    /// Creates the error for invalid output of `iptables-save`.
    pub(super) fn parse_error(&self, table: TableName, source: ParseError) -> SaveError {
        SaveError::Parse { program: self.programs.save.clone(), table, source }
    }

    /// Reports whether a chain exists; `None` if another program holds the xtables lock.
    ///
    /// # Errors
    /// If the program cannot be run.
    pub(super) fn has_chain(&self, table: TableName, chain: ChainName) -> Result<Option<bool>, ProgramError> {
        let arguments = ["-t", table.as_str(), "-S", chain.as_str()];
        let invocation = Invocation { program: &self.programs.iptables, arguments: &arguments };
        let exit = self.exec.read(invocation, &mut |stdout| io::copy(stdout, &mut io::sink()).map(|_| ()))?;
        Ok((exit.status.code() != Some(RESOURCE_PROBLEM)).then(|| exit.status.success()))
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("programs", &self.programs).finish_non_exhaustive()
    }
}

/// Returns the line with this number, from 1, of the text that `write` writes.
fn nth_line(number: usize, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Option<String> {
    let mut finder = LineFinder { before: number.checked_sub(1)?, line: Vec::new(), complete: false };
    write(&mut finder).ok()?;
    let line = String::from_utf8_lossy(&finder.line).into_owned();
    (finder.complete || !line.is_empty()).then_some(line)
}

/// A writer that stores one line of the text.
struct LineFinder {
    /// Number of lines still to be skipped.
    before: usize,
    line: Vec<u8>,
    /// The line was written to its end.
    complete: bool,
}

impl Write for LineFinder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let ends = piece.ends_with(b"\n");
            if self.before > 0 {
                self.before -= usize::from(ends);
            } else if !self.complete {
                self.line.extend(piece.strip_suffix(b"\n").unwrap_or(piece));
                self.complete = ends;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the number, from 1, of the first line that an error of `iptables-restore` names. Messages differ between
/// versions and backends, but all contain `line 3` or `line: 3`:
///
/// ```text
///   iptables-restore: line 3 failed                                        legacy; rejected by the kernel
///   iptables-restore v1.8.9 (legacy): unknown option "--x"                 both; rejected by the parser
///   Error occurred at line: 3
///   iptables-nft-restore: line 3 failed: No chain/target/match by that name.
///   line 4: RULE_APPEND failed (Invalid argument): rule in chain A         nf_tables; rejected by the kernel
///   iptables-restore: COMMIT expected at line 4
/// ```
fn rejected_line(message: &str) -> Option<usize> {
    let mut words = message.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let Some(next) = words.peek() else { break };
        let digits = next.find(|c: char| !c.is_ascii_digit()).unwrap_or(next.len());
        if matches!(word, "line" | "line:")
            && let Ok(line) = next[..digits].parse()
        {
            return Some(line);
        }
    }
    None
}

/// Joins the lines of a program's standard error.
fn on_one_line(message: &str) -> String {
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

/// Timeout for acquiring the xtables lock, the same as for the programs.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// The programs' exit status `RESOURCE_PROBLEM`, above all if another program holds the lock.
const RESOURCE_PROBLEM: i32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_across_writes_of_any_size() {
        let text = "*nat\n:A - [0:0]\n-A A -j RETURN\nCOMMIT\n";
        for size in 1..text.len() {
            let mut write =
                |out: &mut dyn Write| text.as_bytes().chunks(size).try_for_each(|chunk| out.write_all(chunk));
            assert_eq!(nth_line(1, &mut write).as_deref(), Some("*nat"));
            assert_eq!(nth_line(3, &mut write).as_deref(), Some("-A A -j RETURN"));
            assert_eq!(nth_line(4, &mut write).as_deref(), Some("COMMIT"));
            assert_eq!(nth_line(5, &mut write), None);
            assert_eq!(nth_line(0, &mut write), None);
        }
    }

    #[test]
    fn lines_of_standard_error_are_joined() {
        assert_eq!(
            on_one_line("\nx v1 (nf_tables): \nline 5: CHAIN_DEL failed\n"),
            "x v1 (nf_tables):; line 5: CHAIN_DEL failed"
        );
    }

    #[test]
    fn the_rejected_line_is_found_in_errors_of_every_version_and_backend() {
        let messages = [
            ("iptables-restore: line 51 failed", 51),
            ("iptables-restore v1.6.1: iptables-restore: unable to initialize table 'x'\nError occurred at line: 7", 7),
            (
                "iptables-restore v1.8.9 (legacy): unknown option \"--nonsense\"\nError occurred at line: 3\nTry `iptables-restore -h' or 'iptables-restore --help' for more information.",
                3,
            ),
            (
                "Bad argument `bogus'\nError occurred at line: 12\nTry `iptables-nft-restore -h' for more information.",
                12,
            ),
            ("iptables-nft-restore: line 5 failed: No chain/target/match by that name.", 5),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): \nline 4: RULE_APPEND failed (Invalid argument): rule in chain A\nline 6: RULE_APPEND failed (Invalid argument): rule in chain B",
                4,
            ),
            ("iptables-nft-restore: COMMIT expected at line 40", 40),
        ];
        for (message, line) in messages {
            assert_eq!(rejected_line(message), Some(line), "{message}");
        }
    }

    #[test]
    fn errors_without_a_line_number_have_no_rejected_line() {
        let messages = [
            "",
            "line",
            "iptables-restore v1.8.9 (legacy): can't initialize iptables table `nat': Permission denied (you must be root)",
            "Another app is currently holding the xtables lock; still 4s 0us time ahead to have a chance to grab the lock...",
            "iptables-restore: command line argument expected",
        ];
        for message in messages {
            assert_eq!(rejected_line(message), None, "{message}");
        }
    }
}
