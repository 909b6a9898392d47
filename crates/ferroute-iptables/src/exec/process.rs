//! Running programs, behind a trait that tests implement.

use std::{
    fmt,
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

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
    ) -> Result<Exit, ExecError>;

    /// Runs a program with empty standard input; `output` reads its standard output.
    ///
    /// # Errors
    /// If the program cannot be run, or `output` fails; then the program is killed.
    fn read(
        &self,
        invocation: Invocation<'_>,
        output: &mut dyn FnMut(&mut dyn BufRead) -> io::Result<()>,
    ) -> Result<Exit, ExecError>;
}

/// A program and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invocation<'a> {
    /// The program's path.
    pub program: &'a Path,
    /// Its arguments.
    pub arguments: &'a [&'a str],
}

impl fmt::Display for Invocation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.program.display())?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {argument}"))
    }
}

/// The outcome of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its exit status.
    pub status: ExitStatus,
    /// The beginning of its standard error, trimmed.
    pub stderr: String,
    /// Its duration, without the time that the caller took to write its input or read its output.
    pub took: Duration,
}

/// A failure to run a program.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The program could not be started.
    #[error("cannot start {}", .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Communication with the program failed.
    #[error("cannot communicate with {}", .program.display())]
    Io {
        /// The program.
        program: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Runs the programs of this host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostExec;

impl Exec for HostExec {
    fn feed(
        &self,
        invocation: Invocation<'_>,
        input: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Exit, ExecError> {
        run(invocation, Stdio::piped(), Stdio::null(), |child| {
            let mut stdin = BufWriter::with_capacity(PIPE, Timed::new(child.stdin.take().expect("stdin is piped")));
            let written = input(&mut stdin).and_then(|()| stdin.flush());
            let (stdin, _) = stdin.into_parts();
            let waited = stdin.waited;
            drop(stdin);
            match written {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
                _ => Ok(waited),
            }
        })
    }

    fn read(
        &self,
        invocation: Invocation<'_>,
        output: &mut dyn FnMut(&mut dyn BufRead) -> io::Result<()>,
    ) -> Result<Exit, ExecError> {
        run(invocation, Stdio::null(), Stdio::piped(), |child| {
            let mut stdout = BufReader::with_capacity(PIPE, Timed::new(child.stdout.take().expect("stdout is piped")));
            output(&mut stdout)?;
            Ok(stdout.into_inner().waited)
        })
    }
}

/// Runs a program. `communicate` exchanges data with it on this thread and returns the time that it spent waiting.
///
/// The program inherits the network namespace of the calling thread.
fn run(
    invocation: Invocation<'_>,
    stdin: Stdio,
    stdout: Stdio,
    communicate: impl FnOnce(&mut Child) -> io::Result<Duration>,
) -> Result<Exit, ExecError> {
    let io_error = |source| ExecError::Io { program: invocation.program.to_owned(), source };
    let start = Instant::now();
    let mut child = Command::new(invocation.program)
        .args(invocation.arguments)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| ExecError::Start { program: invocation.program.to_owned(), source })?;
    let stderr = child.stderr.take().expect("stderr is piped");
    // On a thread of its own: a program blocks if its standard error is not read.
    let stderr_reader = thread::spawn(move || beginning(stderr));
    let communication_start = Instant::now();
    let communicated = communicate(&mut child);
    let communication_time = communication_start.elapsed();
    if communicated.is_err() {
        // The program may have exited already; it is waited for in any case.
        _ = child.kill();
    }
    let status = child.wait().map_err(io_error)?;
    let stderr = stderr_reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let waited = communicated.map_err(io_error)?;
    Ok(Exit {
        status,
        stderr: String::from_utf8_lossy(&stderr).trim().to_owned(),
        took: start.elapsed().saturating_sub(communication_time.saturating_sub(waited)),
    })
}

/// Reads everything and returns the beginning: `iptables-restore` can print an error for each of 300,000 rules.
fn beginning(mut stderr: impl Read) -> Vec<u8> {
    let mut beginning = Vec::new();
    // A read error only shortens the message; the exit status still shows the failure.
    _ = (&mut stderr).take(MAX_STDERR).read_to_end(&mut beginning);
    _ = io::copy(&mut stderr, &mut io::sink());
    beginning
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

/// A pipe that measures the time spent waiting for it.
struct Timed<P> {
    pipe: P,
    waited: Duration,
}

impl<P> Timed<P> {
    fn new(pipe: P) -> Self {
        Self { pipe, waited: Duration::ZERO }
    }

    fn timed<T>(&mut self, work: impl FnOnce(&mut P) -> io::Result<T>) -> io::Result<T> {
        let start = Instant::now();
        let result = work(&mut self.pipe);
        self.waited += start.elapsed();
        result
    }
}

impl<P: Write> Write for Timed<P> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.timed(|pipe| pipe.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.timed(P::flush)
    }
}

impl<P: Read> Read for Timed<P> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.timed(|pipe| pipe.read(bytes))
    }
}

/// Bytes that are written or read at once: the capacity of a pipe.
const PIPE: usize = 64 * 1024;
/// Bytes of standard error that are returned.
const MAX_STDERR: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> [&str; 2] {
        ["-c", script]
    }

    fn shell<'a>(arguments: &'a [&'a str]) -> Invocation<'a> {
        Invocation { program: Path::new("/bin/sh"), arguments }
    }

    fn feed(script: &str, text: &[u8]) -> Result<Exit, ExecError> {
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
        assert_eq!(exit.stderr.len() as u64, MAX_STDERR);
    }

    #[test]
    fn a_program_is_killed_if_its_input_fails() {
        let result = HostExec.feed(shell(&sh("exec sleep 1000")), &mut |_| Err(io::Error::other("no rules")));
        let error = result.unwrap_err();
        assert!(matches!(&error, ExecError::Io { source, .. } if source.to_string() == "no rules"), "{error:?}");
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
