//! Child programs: each has a deadline, and none outlives the proxy.
//!
//! ```text
//!   caller --> Program --> stdin  |
//!                      <-- stdout | of the child, in a process group of its own
//!                      <-- stderr |
//! ```
//!
//! The streams are served on the calling thread by `poll`, so that no thread has to be started (which can fail on a
//! full machine) and no stream can block another. A child that is inactive for too long is killed with all processes
//! that it has started; the caller then gets an error and may retry.
//!
//! # Deadline
//!
//! The deadline limits idleness, not the total duration: it starts again whenever the child accepts input, writes
//! output, closes a stream, or has used the CPU. `iptables-nft-save` of 3,000 Services with 10 endpoints computes for
//! 12 s before it writes its first byte, and for more than proportionally longer with more Services, so that no fixed
//! duration of silence is suitable. A child that only computes is killed after [`BUSY_FACTOR`] times the patience. The
//! patience is [`PATIENCE`]; the environment variable [`PATIENCE_VARIABLE`] replaces it, in seconds.

mod registry;

use std::{
    fmt, io,
    io::{Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use ferroute_core::Heartbeat;
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

pub use self::registry::kill_programs;
use crate::process::cpu_time;

/// A program and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invocation<'a> {
    /// The program's path.
    pub program: &'a Path,
    /// Arguments.
    pub arguments: &'a [&'a str],
}

impl Invocation<'_> {
    /// Returns the command that runs the program.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.args(self.arguments);
        command
    }
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
    /// Exit status.
    pub status: ExitStatus,
    /// The beginning of its standard error, trimmed.
    pub stderr: String,
    /// Duration, without the time that the caller took to write the input or read the output.
    pub took: Duration,
}

/// A failure to run a program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program could not be started, for example because no further process is permitted.
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
    /// The program made no progress and was killed. Worth a retry.
    #[error(
        "killed {} because it {doing} for {:.1} s without progress, {:.1} s after its start",
        .program.display(), .silent.as_secs_f32(), .ran.as_secs_f32()
    )]
    Hung {
        /// The program.
        program: PathBuf,
        /// The operation that made no progress.
        doing: &'static str,
        /// Time without progress.
        silent: Duration,
        /// The time since its start.
        ran: Duration,
    },
}

/// The stream that the caller exchanges with a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The caller writes the standard input; the standard output is discarded.
    Input,
    /// The caller reads the standard output; the standard input is empty.
    Output,
}

/// A running program. Its [`Write`] and [`Read`] fail once the deadline has passed; it is killed on drop.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    child: registry::Registered,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// The beginning of the standard error.
    errors: Vec<u8>,
    /// The time before and after the start.
    started: Instant,
    ready: Instant,
    last_progress: Instant,
    /// Last time at which the program was known to have used the CPU, and its CPU time then.
    last_active: Instant,
    cpu_time: Duration,
    /// Time that the caller was blocked by the program.
    waited: Duration,
    patience: Duration,
    /// Error, if the program has been killed because of its deadline.
    hung: Option<ProgramError>,
}

impl Program {
    /// Starts a program, which inherits the network namespace of the calling thread. The streams of `command` are replaced.
    ///
    /// # Errors
    /// If the program cannot be started, or this process is about to exit.
    pub fn start(command: Command, stream: Stream) -> Result<Self, ProgramError> {
        Self::start_with(command, stream, patience())
    }

    /// Like [`Program::start`], with a patience other than [`patience`].
    ///
    /// # Errors
    /// If the program cannot be started, or this process is about to exit.
    pub fn start_with(mut command: Command, stream: Stream, patience: Duration) -> Result<Self, ProgramError> {
        let path = PathBuf::from(command.get_program());
        let (stdin, stdout) = match stream {
            Stream::Input => (Stdio::piped(), Stdio::null()),
            Stream::Output => (Stdio::null(), Stdio::piped()),
        };
        // A separate process group, so that its children can be killed with it.
        command.stdin(stdin).stdout(stdout).stderr(Stdio::piped()).process_group(0);
        let started = Instant::now();
        let start_error = |source| ProgramError::Start { program: path.clone(), source };
        let mut child = registry::spawn(&mut command).map_err(start_error)?;
        let Child { stdin, stdout, stderr, .. } = child.get_mut();
        let (stdin, stdout, stderr) = (stdin.take(), stdout.take(), stderr.take());
        let pipes =
            [stdin.as_ref().map(AsFd::as_fd), stdout.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd)];
        // These are this process's ends of the pipes; the child's block as usual.
        pipes.into_iter().flatten().try_for_each(set_nonblocking).map_err(start_error)?;
        Ok(Self {
            path,
            child,
            stdin,
            stdout,
            stderr,
            errors: Vec::new(),
            started,
            ready: Instant::now(),
            last_progress: started,
            last_active: started,
            cpu_time: Duration::ZERO,
            waited: Duration::ZERO,
            patience,
            hung: None,
        })
    }

    /// Closes the streams and waits until the program has exited. `communicated` is the outcome of writing its input or
    /// reading its output.
    ///
    /// A program that closes its standard input early is not an error; its exit status shows whether it failed.
    ///
    /// # Errors
    /// If `communicated` is an error, or the deadline has passed; then the program is killed.
    pub fn finish(mut self, communicated: io::Result<()>) -> Result<Exit, ProgramError> {
        let communication_time = self.ready.elapsed().saturating_sub(self.waited);
        drop(self.stdin.take());
        drop(self.stdout.take());
        match communicated {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                self.child.kill();
                return Err(self.hung.take().unwrap_or_else(|| self.io_error(error)));
            }
            _ => {}
        }
        let status = self.wait()?;
        Ok(Exit {
            status,
            stderr: String::from_utf8_lossy(&self.errors).trim().to_owned(),
            took: self.started.elapsed().saturating_sub(communication_time),
        })
    }

    /// Waits for the exit. A child of the program may hold the standard error open, so its end is not awaited.
    fn wait(&mut self) -> Result<ExitStatus, ProgramError> {
        let (mut pause, mut yields) = (FIRST_PAUSE, YIELDS);
        loop {
            if let Some(status) = self.child.try_wait().map_err(|source| self.io_error(source))? {
                self.drain_errors();
                return Ok(status);
            }
            if self.stderr.is_some() {
                // The end of the standard error usually is the end of the program.
                self.poll(None, "did not exit", LONGEST_PAUSE).map_err(|source| self.deadline_error(source))?;
            } else {
                self.check_deadline("did not exit").map_err(|source| self.deadline_error(source))?;
                // It is usually about to exit, and a sleep would take longer.
                if yields > 0 {
                    yields -= 1;
                    std::thread::yield_now();
                } else {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    fn io_error(&self, source: io::Error) -> ProgramError {
        ProgramError::Io { program: self.path.clone(), source }
    }

    fn deadline_error(&mut self, source: io::Error) -> ProgramError {
        self.hung.take().unwrap_or_else(|| self.io_error(source))
    }

    /// Waits until `stream` is ready or `at_most` has passed, and reads the standard error in the meantime.
    fn poll(&mut self, stream: Option<PollFlags>, doing: &'static str, at_most: Duration) -> io::Result<bool> {
        let remaining = self.check_deadline(doing)?;
        let mut fds = Vec::with_capacity(2);
        let caller = match stream {
            Some(PollFlags::POLLOUT) => self.stdin.as_ref().map(AsFd::as_fd),
            Some(_) => self.stdout.as_ref().map(AsFd::as_fd),
            None => None,
        };
        let has_caller = caller.is_some();
        fds.extend(caller.map(|fd| PollFd::new(fd, stream.unwrap_or(PollFlags::empty()))));
        fds.extend(self.stderr.as_ref().map(|stderr| PollFd::new(stderr.as_fd(), PollFlags::POLLIN)));
        // Rounded up, so that a wait for less than a millisecond is not a busy loop.
        let wait = remaining.min(at_most) + Duration::from_millis(1);
        match poll(&mut fds, PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)) {
            Err(nix::errno::Errno::EINTR) => return Ok(false),
            result => result?,
        };
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        if ready.get(usize::from(has_caller)) == Some(&true) {
            self.drain_errors();
        }
        Ok(has_caller && ready[0])
    }

    /// Returns the time until the next check. After the deadline, the program is killed.
    fn check_deadline(&mut self, doing: &'static str) -> io::Result<Duration> {
        if self.hung.is_some() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let now = Instant::now();
        let interval = self.patience / CPU_CHECKS;
        let (silent, idle) = (now - self.last_progress, now - self.last_progress.max(self.last_active));
        if idle < interval {
            return Ok(interval - idle);
        }
        let cpu_time = cpu_time(self.child.get_mut().id()).unwrap_or_default();
        let computes = cpu_time.saturating_sub(self.cpu_time) > interval / LEAST_CPU_SHARE;
        if computes {
            (self.last_active, self.cpu_time) = (now, cpu_time);
            Heartbeat::beat_thread();
        }
        if (computes || idle < self.patience) && silent < self.patience * BUSY_FACTOR {
            return Ok(interval);
        }
        self.child.kill();
        let (program, ran) = (self.path.clone(), self.started.elapsed());
        self.hung = Some(ProgramError::Hung { program, doing, silent, ran });
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Reads the available standard error and keeps the beginning: `iptables-restore` can print an error for each of
    /// 300,000 rules.
    fn drain_errors(&mut self) {
        let mut buffer = [0; 4096];
        while let Some(stderr) = &mut self.stderr {
            match stderr.read(&mut buffer) {
                Ok(0) => self.stderr = None,
                Ok(count) => {
                    let room = MAX_STDERR.saturating_sub(self.errors.len());
                    self.errors.extend(&buffer[..count.min(room)]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // A read error only shortens the message; the exit status still shows the failure.
                Err(_) => self.stderr = None,
            }
            self.last_progress = Instant::now();
        }
    }

    /// Calls `attempt` until it does not have to wait, and measures the time.
    fn blocking(
        &mut self,
        flags: PollFlags,
        doing: &'static str,
        mut attempt: impl FnMut(&mut Self) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let start = Instant::now();
        let result = loop {
            match attempt(self) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => break result,
            }
            if let Err(error) = self.poll(Some(flags), doing, Duration::MAX) {
                break Err(error);
            }
        };
        let now = Instant::now();
        self.waited += now - start;
        if result.is_ok() {
            self.last_progress = now;
            Heartbeat::beat_thread();
        }
        result
    }
}

impl Write for Program {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.blocking(PollFlags::POLLOUT, "did not read its input", |program| match &mut program.stdin {
            Some(stdin) => stdin.write(bytes),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Program {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.blocking(PollFlags::POLLIN, "wrote no output", |program| match &mut program.stdout {
            Some(stdout) => stdout.read(bytes),
            None => Ok(0),
        })
    }
}

fn set_nonblocking(pipe: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(pipe, FcntlArg::F_GETFL)?);
    fcntl(pipe, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Returns the maximum idle time of a program: [`PATIENCE`], or the value of [`PATIENCE_VARIABLE`] if it is a positive
/// number.
pub fn patience() -> Duration {
    static CONFIGURED: OnceLock<Duration> = OnceLock::new();
    *CONFIGURED.get_or_init(|| {
        let seconds = std::env::var(PATIENCE_VARIABLE).ok().and_then(|text| text.parse().ok());
        let duration = seconds.and_then(|seconds| Duration::try_from_secs_f32(seconds).ok());
        duration.filter(|duration| !duration.is_zero()).unwrap_or(PATIENCE)
    })
}

/// Maximum idle time of a program. Waiting for the xtables lock, which other programs may hold, takes five seconds at
/// most.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Factor of the patience for a program that computes without communicating.
pub const BUSY_FACTOR: u32 = 20;

/// Number of checks of the CPU usage while the program is silent, until the patience has passed.
const CPU_CHECKS: u32 = 6;

/// A program counts as computing if it uses more than this fraction (one divided by the value) of a CPU. The fraction
/// is low, because other programs may compute as well.
const LEAST_CPU_SHARE: u32 = 100;

/// The environment variable that replaces [`PATIENCE`], in seconds.
pub const PATIENCE_VARIABLE: &str = "FERROUTE_PROGRAM_TIMEOUT";

/// Bytes of standard error that are returned.
const MAX_STDERR: usize = 4096;
/// The number of checks for the exit of a program without a pause, some tens of microseconds.
const YIELDS: u32 = 50;
/// Pauses between checks for the exit of a program that has closed its standard error.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests;
