use std::{
    ffi::OsString,
    io::{self, Write},
    process::{Command, Output, Stdio},
    thread,
};

/// An error while running a program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    /// The program is not installed.
    #[error("{program} is not installed (apt-get install {package})")]
    Missing {
        /// The program.
        program: &'static str,
        /// Package in Debian and Ubuntu.
        package: &'static str,
    },
    /// The program could not be started, or its output could not be read.
    #[error("cannot run \"{command}\"")]
    Run {
        /// The whole command.
        command: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The program exited with an error.
    #[error("\"{command}\" failed: {output}")]
    Failed {
        /// The command; for a batch, with the failing line.
        command: String,
        /// The output.
        output: String,
    },
}

/// Returns the search path of programs, including the directories of administrators' programs.
pub(crate) fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin");
    path
}

/// Checks that the required program is installed.
pub(crate) fn check_programs() -> Result<(), ProgramError> {
    let (program, package) = ("ip", "iproute2");
    if std::env::split_paths(&search_path()).any(|directory| directory.join(program).is_file()) {
        Ok(())
    } else {
        Err(ProgramError::Missing { program, package })
    }
}

/// Runs `ip` and returns its output.
pub(crate) fn ip(arguments: &[&str]) -> Result<String, ProgramError> {
    run(arguments, "")
}

/// Runs a batch of `ip` commands in a network namespace, up to the first error.
pub(crate) fn ip_batch(namespace: &str, lines: &[String]) -> Result<(), ProgramError> {
    let result = run(&["-n", namespace, "-batch", "-"], &(lines.join("\n") + "\n"));
    result.map(drop).map_err(|error| match error {
        // `ip` prints only the line number: "Command failed -:3".
        ProgramError::Failed { command, output } => {
            let number = output.rsplit_once(":").and_then(|(_, number)| number.trim().parse::<usize>().ok());
            match number.and_then(|number| lines.get(number.checked_sub(1)?)) {
                Some(line) => ProgramError::Failed { command: format!("ip -n {namespace} {line}"), output },
                None => ProgramError::Failed { command, output },
            }
        }
        other => other,
    })
}

fn run(arguments: &[&str], input: &str) -> Result<String, ProgramError> {
    let command = format!("ip {}", arguments.join(" "));
    let output = feed(arguments, input).map_err(|source| ProgramError::Run { command: command.clone(), source })?;
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(ProgramError::Failed { command, output: printed });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn feed(arguments: &[&str], input: &str) -> io::Result<Output> {
    let mut child = Command::new("ip")
        .args(arguments)
        .env("PATH", search_path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdin = child.stdin.take();
    // A separate thread avoids a deadlock when both pipes are full.
    thread::scope(|scope| {
        // If the program does not read its input, its exit status shows the error.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        child.wait_with_output()
    })
}
