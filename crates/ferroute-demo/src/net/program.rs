use std::{
    ffi::OsString,
    io::{self, Write},
    process::{Command, Output, Stdio},
    thread,
};

/// A program that the demo needs could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    /// It is not installed.
    #[error("{program} is missing: install the package {package} (apt-get install {package})")]
    Missing {
        /// Its name.
        program: &'static str,
        /// The package that it is in, on Debian and Ubuntu.
        package: &'static str,
    },
    /// It could not be started, or its output not be read.
    #[error("cannot run \"{command}\"")]
    Run {
        /// The whole command.
        command: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It said no.
    #[error("\"{command}\" failed: {output}")]
    Failed {
        /// The whole command, with the line of its input at fault where there is one.
        command: String,
        /// What it printed.
        output: String,
    },
}

/// Where programs are looked for. Administrators' programs are not in every user's path.
pub(crate) fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin");
    path
}

/// Says which of the programs that the demo needs is missing.
pub(crate) fn check_programs() -> Result<(), ProgramError> {
    let path = search_path();
    let is_there = |program: &str| std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    match PROGRAMS.into_iter().find(|(program, _)| !is_there(program)) {
        None => Ok(()),
        Some((program, package)) => Err(ProgramError::Missing { program, package }),
    }
}

/// Runs `ip` and returns what it printed.
pub(crate) fn ip(arguments: &[&str]) -> Result<String, ProgramError> {
    run(arguments, "")
}

/// Has `ip` do many things in one network namespace; it stops at the first that fails.
pub(crate) fn ip_batch(namespace: &str, lines: &[String]) -> Result<(), ProgramError> {
    let result = run(&["-n", namespace, "-batch", "-"], &(lines.join("\n") + "\n"));
    result.map(drop).map_err(|error| match error {
        // `ip` tells the number of the line only: «Command failed -:3».
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
    // On a thread of its own, so that neither side waits for the other to read.
    thread::scope(|scope| {
        // A program that ends before it has read everything says why by how it ends.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        child.wait_with_output()
    })
}

/// Programs that the demo and its proxies run, with their packages.
const PROGRAMS: [(&str, &str); 2] = [("ip", "iproute2"), ("iptables", "iptables")];
