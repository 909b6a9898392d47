//! The command line: flags in the syntax of Go, then the program and its arguments.

use std::{ffi::OsString, path::PathBuf};

use anyhow::{Context, bail};

/// The command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) options: Options,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
}

/// The flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// The file to append standard output to, instead of this process' own.
    pub(super) log_file: Option<PathBuf>,
    /// Whether to write to standard output as well.
    pub(super) also_stdout: bool,
    /// Whether standard error goes where standard output goes.
    pub(super) redirect_stderr: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { log_file: None, also_stdout: false, redirect_stderr: true }
    }
}

impl Arguments {
    /// Parses the arguments after the name of this program.
    ///
    /// # Errors
    ///
    /// A flag is unknown or lacks its value, or there is no program to start.
    pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> anyhow::Result<Self> {
        let mut words = words.into_iter();
        let mut options = Options::default();
        let program = loop {
            let word = words.next().context("no program to start: go-runner [FLAGS] PROGRAM [ARGUMENTS]")?;
            // Flags that cannot be read as text are no flags of this program.
            let Some(flag) = word.to_str().and_then(flag) else { break word };
            match flag {
                ("", None) => break words.next().context("no program to start after --")?,
                ("log-file", value) => {
                    let value = value.map(OsString::from).or_else(|| words.next());
                    let path = value.context("the flag --log-file needs a value")?;
                    options.log_file = (!path.is_empty()).then(|| path.into());
                }
                ("also-stdout", value) => options.also_stdout = boolean("also-stdout", value)?,
                ("redirect-stderr", value) => options.redirect_stderr = boolean("redirect-stderr", value)?,
                (name, _) => {
                    bail!("unknown flag --{name}: go-runner has --log-file, --also-stdout and --redirect-stderr")
                }
            }
        };
        Ok(Self { options, program: program.into(), arguments: words.collect() })
    }
}

/// Splits a flag, with one dash or two, into its name and value; `None` if the word is not a flag.
fn flag(word: &str) -> Option<(&str, Option<&str>)> {
    let flag = word.strip_prefix("--").or_else(|| word.strip_prefix('-').filter(|rest| !rest.is_empty()))?;
    Some(flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value))))
}

/// Parses a boolean in the spellings of Go; without a value, it is true.
fn boolean(name: &str, value: Option<&str>) -> anyhow::Result<bool> {
    match value {
        None | Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
        Some(value) => bail!("invalid value {value:?} of the flag --{name}: it is true or false"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> anyhow::Result<Arguments> {
        Arguments::parse(line.split_whitespace().map(OsString::from))
    }

    fn arguments(log_file: Option<&str>, also_stdout: bool, redirect_stderr: bool, command: &[&str]) -> Arguments {
        let options = Options { log_file: log_file.map(PathBuf::from), also_stdout, redirect_stderr };
        let (program, arguments) = command.split_first().unwrap();
        Arguments { options, program: program.into(), arguments: arguments.iter().map(OsString::from).collect() }
    }

    #[test]
    fn flags_end_where_the_program_begins() {
        let command = ["/usr/local/bin/kube-proxy", "--v=2", "--log-file=x"];
        for (line, expected) in [
            ("--log-file=/var/log/a.log --also-stdout", arguments(Some("/var/log/a.log"), true, true, &command)),
            ("-log-file /a -also-stdout=false", arguments(Some("/a"), false, true, &command)),
            ("--redirect-stderr=F", arguments(None, false, false, &command)),
            ("--log-file=", arguments(None, false, true, &command)),
            ("--also-stdout --", arguments(None, true, true, &command)),
            ("", arguments(None, false, true, &command)),
        ] {
            assert_eq!(parse(&format!("{line} {}", command.join(" "))).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn unknown_flags_and_missing_values_are_errors() {
        for line in ["", "--log-file", "--also-stdout", "--also-stdout=maybe x", "--v=2 x", "--"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
