//! The one seam through which programs are run, so that tests can play the programs.

use std::{
    fmt,
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Runs programs to their end.
pub trait Programs: Send + Sync {
    /// Runs a program that reads what `input` writes. What it prints to its standard output is thrown away.
    ///
    /// A program that stops reading before the end is no error here; its exit status tells why it did.
    ///
    /// # Errors
    /// When it cannot be run, or `input` fails on its own account; then the program is killed.
    fn feed(&self, call: Call<'_>, input: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<Exit, RunError>;

    /// Runs a program with empty standard input; `output` reads what it prints.
    ///
    /// # Errors
    /// When it cannot be run, or `output` fails; then the program is killed.
    fn read(
        &self,
        call: Call<'_>,
        output: &mut dyn FnMut(&mut dyn BufRead) -> io::Result<()>,
    ) -> Result<Exit, RunError>;
}

/// A program and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// Where the program is.
    pub program: &'a Path,
    /// Its arguments.
    pub arguments: &'a [&'a str],
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.program.display())?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {argument}"))
    }
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its status.
    pub status: ExitStatus,
    /// The beginning of what it said on its standard error, without white space at the ends.
    pub stderr: String,
    /// How long it took, without the time that the caller's side of the conversation took.
    pub took: Duration,
}

/// Why a program's end was not seen.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It could not be started.
    #[error("cannot start {}", .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Talking to it failed.
    #[error("cannot talk to {}", .program.display())]
    Talk {
        /// The program.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// The programs of this host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostPrograms;

impl Programs for HostPrograms {
    fn feed(&self, call: Call<'_>, input: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<Exit, RunError> {
        run(call, Stdio::piped(), Stdio::null(), |child| {
            let mut stdin = BufWriter::with_capacity(PIPE, Waiting::new(child.stdin.take().expect("stdin is piped")));
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
        call: Call<'_>,
        output: &mut dyn FnMut(&mut dyn BufRead) -> io::Result<()>,
    ) -> Result<Exit, RunError> {
        run(call, Stdio::null(), Stdio::piped(), |child| {
            let mut stdout =
                BufReader::with_capacity(PIPE, Waiting::new(child.stdout.take().expect("stdout is piped")));
            output(&mut stdout)?;
            Ok(stdout.into_inner().waited)
        })
    }
}

/// Runs a program; `talk` speaks with it on this thread and tells how much of the time it spent waiting.
///
/// The program is started on the calling thread, whose network namespace it gets.
fn run(
    call: Call<'_>,
    stdin: Stdio,
    stdout: Stdio,
    talk: impl FnOnce(&mut Child) -> io::Result<Duration>,
) -> Result<Exit, RunError> {
    let talk_error = |source| RunError::Talk { program: call.program.to_owned(), source };
    let start = Instant::now();
    let mut child = Command::new(call.program)
        .args(call.arguments)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| RunError::Start { program: call.program.to_owned(), source })?;
    let stderr = child.stderr.take().expect("stderr is piped");
    // On a thread of its own: a program whose complaints nobody reads would block, and we with it.
    let complaints = thread::spawn(move || beginning(stderr));
    let talk_start = Instant::now();
    let talked = talk(&mut child);
    let talk_time = talk_start.elapsed();
    if talked.is_err() {
        // It may have ended already; it is waited for in any case.
        _ = child.kill();
    }
    let status = child.wait().map_err(talk_error)?;
    let stderr = complaints.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let waited = talked.map_err(talk_error)?;
    Ok(Exit {
        status,
        stderr: String::from_utf8_lossy(&stderr).trim().to_owned(),
        took: start.elapsed().saturating_sub(talk_time.saturating_sub(waited)),
    })
}

/// Reads everything and keeps the beginning: `iptables-restore` can complain of each of 300,000 rules.
fn beginning(mut stderr: impl Read) -> Vec<u8> {
    let mut kept = Vec::new();
    // What cannot be read cannot be told; the exit status still says that something went wrong.
    _ = (&mut stderr).take(LONGEST_COMPLAINT).read_to_end(&mut kept);
    _ = io::copy(&mut stderr, &mut io::sink());
    kept
}

/// A pipe that knows how long it was waited for.
struct Waiting<P> {
    pipe: P,
    waited: Duration,
}

impl<P> Waiting<P> {
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

impl<P: Write> Write for Waiting<P> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.timed(|pipe| pipe.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.timed(P::flush)
    }
}

impl<P: Read> Read for Waiting<P> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.timed(|pipe| pipe.read(bytes))
    }
}

/// Bytes that are written or read at once: what a pipe holds.
const PIPE: usize = 64 * 1024;
/// Bytes of standard error that are kept.
const LONGEST_COMPLAINT: u64 = 4096;

#[cfg(test)]
mod tests;
