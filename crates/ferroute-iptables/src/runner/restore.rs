//! Runs `iptables-save` and `iptables-restore` for one family.

use std::{
    fmt,
    io::{self, Write},
    path::PathBuf,
    process::ExitStatus,
    sync::Arc,
    time::Duration,
};

use super::{
    fault::line_at_fault,
    lock::{LockError, LockPlace, XtablesLock},
    programs::{Call, Programs, RunError},
    tools::{Locking, Tools},
};
use crate::{ChainName, ParseError, TableName};

/// Why rules could not be written.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The tools' lock was not had.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The program did not run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The program did not take a line of its input, or the kernel did not take what that says. Where the line is
    /// `COMMIT`, the kernel refused something of the table and did not say what.
    #[error("{} refuses line {line} of its input, {text:?}: {complaint}", .program.display())]
    Line {
        /// The program.
        program: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The line.
        text: String,
        /// What the program said.
        complaint: String,
    },
    /// The program failed and did not blame a line.
    #[error("{} failed with {status}: {complaint}", .program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// Its status.
        status: ExitStatus,
        /// What it said.
        complaint: String,
    },
}

/// Why rules could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The program did not run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The program failed.
    #[error("{} -t {table} failed with {status}: {complaint}", .program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// The table that it was asked for.
        table: TableName,
        /// Its status.
        status: ExitStatus,
        /// What it said.
        complaint: String,
    },
    /// What the program printed makes no sense.
    #[error("cannot understand what {} -t {table} prints", .program.display())]
    Parse {
        /// The program.
        program: PathBuf,
        /// The table that it was asked for.
        table: TableName,
        /// What is wrong.
        #[source]
        source: ParseError,
    },
    /// What the program printed ends before the table does.
    #[error("{} -t {table} has not printed all rules", .program.display())]
    CutOff {
        /// The program.
        program: PathBuf,
        /// The table that it was asked for.
        table: TableName,
    },
}

impl RestoreError {
    /// The text of the line at fault.
    pub(super) fn line(&self) -> Option<&str> {
        match self {
            Self::Line { text, .. } => Some(text),
            _ => None,
        }
    }
}

/// One family's tools, ready to run.
#[derive(Clone)]
pub(super) struct Runner {
    pub(super) tools: Tools,
    pub(super) programs: Arc<dyn Programs>,
}

impl Runner {
    /// Feeds `iptables-restore` with what `write` writes, and tells how long it took. When it fails, `write` is called
    /// once more to find the line at fault, and must write the same as before.
    ///
    /// # Errors
    /// When not all was taken. Tables before the one at fault are in force then.
    pub(super) fn restore(
        &self,
        write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Duration, RestoreError> {
        let (_lock, wait) = match self.tools.locking {
            Locking::Restore(arguments) => (None, arguments),
            Locking::Ours => (Some(XtablesLock::acquire(LockPlace::of_tools(), PATIENCE)?), &[][..]),
        };
        let arguments = [wait, &["--noflush", "--counters"]].concat();
        let call = Call { program: &self.tools.restore, arguments: &arguments };
        let exit = self.programs.feed(call, &mut |stdin| write(stdin))?;
        if exit.status.success() {
            if !exit.stderr.is_empty() {
                tracing::debug!(program = %call.program.display(), said = exit.stderr);
            }
            return Ok(exit.took);
        }
        let program = self.tools.restore.clone();
        let complaint = on_one_line(&exit.stderr);
        let blamed = line_at_fault(&exit.stderr).and_then(|line| Some((line, nth_line(line, write)?)));
        Err(match blamed {
            Some((line, text)) => RestoreError::Line { program, line, text, complaint },
            None => RestoreError::Failed { program, status: exit.status, complaint },
        })
    }

    /// Gives each line of `iptables-save`'s text for a table to `take`, and tells how long the program took.
    ///
    /// # Errors
    /// When it does not end well, or with the first of `take`'s errors.
    pub(super) fn save(
        &self,
        table: TableName,
        take: &mut dyn FnMut(&str) -> Result<(), ParseError>,
    ) -> Result<Duration, SaveError> {
        let arguments = ["-t", table.as_str()];
        let call = Call { program: &self.tools.save, arguments: &arguments };
        let mut taken = Ok(());
        let mut is_open = false;
        let exit = self.programs.read(call, &mut |stdout| {
            let mut line = Vec::new();
            loop {
                line.clear();
                if stdout.read_until(b'\n', &mut line)? == 0 {
                    return Ok(());
                }
                is_open = (is_open || line.starts_with(b"*")) && line.trim_ascii_end() != b"COMMIT";
                // The rest is read over, so that the program can end.
                if taken.is_ok() {
                    // Foreign comments can hold any bytes.
                    taken = take(&String::from_utf8_lossy(&line));
                }
            }
        })?;
        let program = || self.tools.save.clone();
        if !exit.status.success() {
            let complaint = on_one_line(&exit.stderr);
            return Err(SaveError::Failed { program: program(), table, status: exit.status, complaint });
        }
        if is_open {
            return Err(SaveError::CutOff { program: program(), table });
        }
        taken.map(|()| exit.took).map_err(|source| self.not_understood(table, source))
    }

    /// What `iptables-save` has printed for a table makes no sense.
    pub(super) fn not_understood(&self, table: TableName, source: ParseError) -> SaveError {
        SaveError::Parse { program: self.tools.save.clone(), table, source }
    }

    /// Whether a chain is there; `None` if that cannot be told, because somebody holds the tools' lock.
    ///
    /// # Errors
    /// When the program does not run.
    pub(super) fn has_chain(&self, table: TableName, chain: ChainName) -> Result<Option<bool>, RunError> {
        let arguments = ["-t", table.as_str(), "-S", chain.as_str()];
        let call = Call { program: &self.tools.iptables, arguments: &arguments };
        let exit = self.programs.read(call, &mut |stdout| io::copy(stdout, &mut io::sink()).map(|_| ()))?;
        Ok((exit.status.code() != Some(RESOURCE_PROBLEM)).then(|| exit.status.success()))
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("tools", &self.tools).finish_non_exhaustive()
    }
}

/// The `wanted`th line, from 1, of what `write` writes.
fn nth_line(wanted: usize, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Option<String> {
    let mut finder = LineFinder { before: wanted.checked_sub(1)?, line: Vec::new(), complete: false };
    write(&mut finder).ok()?;
    let line = String::from_utf8_lossy(&finder.line).into_owned();
    (finder.complete || !line.is_empty()).then_some(line)
}

/// Keeps one line of what is written to it.
struct LineFinder {
    /// Lines that come before it and are not yet written.
    before: usize,
    line: Vec<u8>,
    /// Its end has come.
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

/// Complaints have several lines; a log's messages have one.
fn on_one_line(complaint: &str) -> String {
    let lines: Vec<&str> = complaint.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

/// How long to wait for the lock that we take ourselves: as long as the tools do for us.
const PATIENCE: Duration = Duration::from_secs(5);
/// The tools' exit status when they could not do what they were told, above all when another program has the lock.
const RESOURCE_PROBLEM: i32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_however_it_is_cut_into_writes() {
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
    fn complaints_are_told_on_one_line() {
        assert_eq!(
            on_one_line("\nx v1 (nf_tables): \nline 5: CHAIN_DEL failed\n"),
            "x v1 (nf_tables):; line 5: CHAIN_DEL failed"
        );
    }
}
