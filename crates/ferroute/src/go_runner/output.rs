//! Output of the program: passed to it directly if it goes to one place, otherwise copied by a thread.

use std::{
    io::{self, PipeReader, Read, Write},
    os::fd::AsFd,
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use anyhow::Context;

use super::{arguments::Options, log_file::LogFile, report};

/// The copy of the program's output that this process makes, if any.
#[derive(Debug)]
pub(super) struct Output(Option<Receiver<()>>);

impl Output {
    /// Sets the outputs of `command`.
    ///
    /// # Errors
    ///
    /// The log file cannot be opened, or a pipe or thread cannot be created.
    pub(super) fn of(options: &Options, command: &mut Command) -> anyhow::Result<Self> {
        let mut both = |stdout: Stdio, stderr: Stdio| {
            command.stdout(stdout);
            if options.redirect_stderr {
                command.stderr(stderr);
            }
        };
        let Some(path) = &options.log_file else {
            let stdout = io::stdout().as_fd().try_clone_to_owned().context("cannot duplicate standard output")?;
            both(Stdio::inherit(), stdout.into());
            return Ok(Self(None));
        };
        let mut file = LogFile::open(path, options.rotation)
            .with_context(|| format!("cannot open the log file {}", path.display()))?;
        if !options.also_stdout && options.rotation.size == 0 {
            let file = file.into_file();
            both(file.try_clone().context("cannot duplicate a file descriptor")?.into(), file.into());
            return Ok(Self(None));
        }
        let (reader, writer) = io::pipe().context("cannot make a pipe")?;
        both(writer.try_clone().context("cannot duplicate a file descriptor")?.into(), writer.into());
        let (path, also_stdout) = (path.clone(), options.also_stdout);
        // Its sender is dropped at the end.
        let (ended, end) = mpsc::channel();
        thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || {
                let _ended = ended;
                let mut stdout = io::stdout();
                let mut targets: Vec<(&mut dyn Write, &Path)> = vec![(&mut file, &path)];
                if also_stdout {
                    targets.insert(0, (&mut stdout, Path::new("standard output")));
                }
                copy(reader, &mut targets);
            })
            .context("cannot start the thread that copies the output")?;
        Ok(Self(Some(end)))
    }

    /// Waits until all output of the program has been copied. Processes that it has left behind may continue to write.
    pub(super) fn finish(self) {
        if let Self(Some(end)) = self {
            let _ = end.recv_timeout(LAST_OUTPUT);
        }
    }
}

/// Copies all output to all targets. A failing target, such as a file on a full disk, is reported once until it works
/// again, and does not affect other targets or the program.
fn copy(mut reader: PipeReader, targets: &mut [(&mut dyn Write, &Path)]) {
    let mut failing = vec![false; targets.len()];
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = match reader.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                report(&format!("cannot read the output of the program: {error}"));
                return;
            }
        };
        for ((target, name), is_failing) in targets.iter_mut().zip(&mut failing) {
            let written = target.write_all(&buffer[..length]).and_then(|()| target.flush());
            match written {
                Ok(()) => *is_failing = false,
                Err(error) if !std::mem::replace(is_failing, true) => {
                    report(&format!("cannot write to {}, continuing without: {error}", name.display()));
                }
                Err(_) => {}
            }
        }
    }
}

/// Maximum time to wait for the last output.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// The capacity of a pipe.
const BUFFER: usize = 64 << 10;
