//! Running programs, behind a trait that tests implement.

use std::io::{self, BufRead, BufReader, BufWriter, Write};

pub use ferroute_host::program::{Exit, Invocation, ProgramError};
use ferroute_host::program::{Program, Stream};

/// Runs programs to completion.
pub trait Exec: Send + Sync {
    /// Runs a program with the standard input that `input` writes. Its standard output is discarded.
    ///
    /// A program that closes its standard input early is not an error; its exit status shows whether it failed.
    ///
    /// # Errors
    /// If the program cannot be run, or `input` fails for another reason; then the program is killed.
    fn feed(
        &self,
        invocation: Invocation<'_>,
        input: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Exit, ProgramError>;

    /// Runs a program with empty standard input; `output` reads its standard output.
    ///
    /// # Errors
    /// If the program cannot be run, or `output` fails; then the program is killed.
    fn read(
        &self,
        invocation: Invocation<'_>,
        output: &mut dyn FnMut(&mut dyn BufRead) -> io::Result<()>,
    ) -> Result<Exit, ProgramError>;
}

/// Runs the programs of this host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostExec;

impl Exec for HostExec {
    fn feed(
        &self,
        invocation: Invocation<'_>,
        input: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Exit, ProgramError> {
        let mut program = Program::start(invocation.command(), Stream::Input)?;
        let mut stdin = BufWriter::with_capacity(PIPE, &mut program);
        let written = input(&mut stdin).and_then(|()| stdin.flush());
        // After an error, the remaining input is not written.
        drop(stdin.into_parts());
        program.finish(written)
    }

    fn read(
        &self,
        invocation: Invocation<'_>,
        output: &mut dyn FnMut(&mut dyn BufRead) -> io::Result<()>,
    ) -> Result<Exit, ProgramError> {
        let mut program = Program::start(invocation.command(), Stream::Output)?;
        let read = output(&mut BufReader::with_capacity(PIPE, &mut program));
        program.finish(read)
    }
}

/// Calls `each` with every line of a program's output, including the newline.
pub(super) fn for_each_line(output: &mut dyn BufRead, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if output.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        each(&line);
    }
}

/// Bytes that are written or read at once: the capacity of a pipe.
const PIPE: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn sh(script: &str) -> [&str; 2] {
        ["-c", script]
    }

    fn shell<'a>(arguments: &'a [&'a str]) -> Invocation<'a> {
        Invocation { program: Path::new("/bin/sh"), arguments }
    }

    fn feed(script: &str, text: &[u8]) -> Result<Exit, ProgramError> {
        HostExec.feed(shell(&sh(script)), &mut |stdin| stdin.write_all(text))
    }

    #[test]
    fn a_program_receives_its_input_and_returns_status_and_standard_error() {
        let exit = feed("cat >&2; exit 3", b"one\ntwo\n").unwrap();
        assert_eq!((exit.status.code(), exit.stderr.as_str()), (Some(3), "one\ntwo"));
    }

    #[test]
    fn a_program_that_closes_its_input_early_returns_its_status() {
        let exit = feed("echo enough >&2; exit 1", &vec![b'x'; 1 << 20]).unwrap();
        assert_eq!((exit.status.code(), exit.stderr.as_str()), (Some(1), "enough"));
    }

    #[test]
    fn long_standard_error_is_read_to_its_end_and_truncated() {
        let exit = feed("yes error | head -c 1000000 >&2; cat >/dev/null", &vec![b'x'; 1 << 20]).unwrap();
        assert!(exit.status.success());
        assert_eq!(exit.stderr.len(), 4096);
    }

    #[test]
    fn a_program_is_killed_if_its_input_fails() {
        let result = HostExec.feed(shell(&sh("exec sleep 1000")), &mut |_| Err(io::Error::other("no rules")));
        let error = result.unwrap_err();
        assert!(matches!(&error, ProgramError::Io { source, .. } if source.to_string() == "no rules"), "{error:?}");
    }

    #[test]
    fn standard_output_can_be_read_line_by_line() {
        let mut lines = Vec::new();
        let exit = HostExec.read(shell(&sh("echo one; echo two; exit 4")), &mut |stdout| {
            for line in stdout.lines() {
                lines.push(line?);
            }
            Ok(())
        });
        assert_eq!(exit.unwrap().status.code(), Some(4));
        assert_eq!(lines, ["one", "two"]);
    }

    #[test]
    fn the_error_names_a_missing_program() {
        let invocation = Invocation { program: Path::new("/nonexistent/iptables"), arguments: &["--version"] };
        let error = HostExec.read(invocation, &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "cannot start /nonexistent/iptables");
        assert_eq!(invocation.to_string(), "/nonexistent/iptables --version");
    }
}
