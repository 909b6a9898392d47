//! The command line: flags in the syntax of Go, then the program and its arguments.

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, bail};
use ferroute_config::{GoDuration, Quantity};

use super::log_file::Rotation;

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
    /// File to append standard output to, instead of this process's standard output.
    pub(super) log_file: Option<PathBuf>,
    /// Whether to write to standard output as well.
    pub(super) also_stdout: bool,
    /// Whether standard error goes where standard output goes.
    pub(super) redirect_stderr: bool,
    pub(super) rotation: Rotation,
}

impl Default for Options {
    fn default() -> Self {
        Self { log_file: None, also_stdout: false, redirect_stderr: true, rotation: Rotation::default() }
    }
}

impl Arguments {
    /// Parses the arguments after the name of this program.
    ///
    /// # Errors
    ///
    /// A flag is unknown or its value is missing, or there is no program to start.
    pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> anyhow::Result<Self> {
        let mut words = words.into_iter();
        let mut options = Options::default();
        let program = loop {
            let word = words.next().context("no program to start: go-runner [FLAGS] PROGRAM [ARGUMENTS]")?;
            // Flags that cannot be read as text are no flags of this program.
            let Some(flag) = word.to_str().and_then(flag) else { break word };
            match flag {
                ("", None) => break words.next().context("no program to start after --")?,
                ("also-stdout", value) => options.also_stdout = boolean("also-stdout", value)?,
                ("redirect-stderr", value) => options.redirect_stderr = boolean("redirect-stderr", value)?,
                (name, value) => {
                    let mut value = || {
                        let value = value.map(OsString::from).or_else(|| words.next());
                        value.with_context(|| format!("the flag --{name} needs a value"))
                    };
                    match name {
                        "log-file" => options.log_file = Some(value()?).filter(|path| !path.is_empty()).map(Into::into),
                        "log-file-size" => options.rotation.size = size(&value()?)?,
                        "log-file-age" => options.rotation.age = duration(name, &value()?)?,
                        // There is no buffer.
                        "flush-interval" => drop(duration(name, &value()?)?),
                        name => bail!("unknown flag --{name}: go-runner has {FLAGS}"),
                    }
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

const FLAGS: &str =
    "--log-file, --log-file-size, --log-file-age, --also-stdout, --redirect-stderr and --flush-interval";

/// Parses a number of bytes.
fn size(value: &OsStr) -> anyhow::Result<u64> {
    let text = value.to_string_lossy();
    let size = text.parse::<Quantity>().ok().and_then(|size| size.bytes());
    size.with_context(|| {
        format!("invalid value {text:?} of the flag --log-file-size: it is a number of bytes, such as 10Mi")
    })
}

/// Parses a time in Go's spelling.
fn duration(name: &str, value: &OsStr) -> anyhow::Result<Duration> {
    let text = value.to_string_lossy();
    let duration = text.parse::<GoDuration>().ok().and_then(GoDuration::to_std);
    duration.with_context(|| format!("invalid value {text:?} of the flag --{name}: it is a time, such as 24h"))
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
        let options =
            Options { log_file: log_file.map(PathBuf::from), also_stdout, redirect_stderr, ..Options::default() };
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
    fn log_files_have_a_size_and_an_age() {
        for (line, size, seconds) in [
            ("--log-file-size=10Mi --log-file-age=24h", 10 << 20, 86400),
            ("-log-file-size 5k -log-file-age 1h30m -flush-interval 5s", 5000, 5400),
            ("--log-file-size=0 --log-file-age=0", 0, 0),
            ("--log-file-size=1024 --flush-interval=0", 1024, 0),
        ] {
            let rotation = Rotation { size, age: Duration::from_secs(seconds) };
            assert_eq!(parse(&format!("{line} program")).unwrap().options.rotation, rotation, "{line}");
        }
    }

    #[test]
    fn unknown_flags_and_missing_values_are_errors() {
        for line in [
            "",
            "--log-file",
            "--also-stdout",
            "--also-stdout=maybe x",
            "--v=2 x",
            "--",
            "--log-file-size=-1 x",
            "--log-file-size=many x",
            "--log-file-age=-1h x",
            "--log-file-age=2 x",
            "--flush-interval x",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
