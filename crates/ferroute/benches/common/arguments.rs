use std::{fmt, process::Command};

use super::cluster::Size;

/// A proxy mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Iptables,
    Nftables,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        })
    }
}

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) mode: Mode,
    pub(crate) size: Size,
}

/// A parsed command line.
#[derive(Debug)]
pub(crate) enum Invocation {
    /// Measure these cases, each in a separate process.
    Table(Vec<Case>),
    /// Measure one case in this process, for the process that prints the table.
    Row(Case),
}

/// Parses the command line: modes and sizes (`nftables 1000x10 10000x10`). By default, all modes are measured, with the
/// sizes in `defaults`. Arguments that Cargo adds, and those in `other`, are ignored.
pub(crate) fn parse_arguments(defaults: fn(Mode) -> Vec<Size>, other: &[&str]) -> Invocation {
    let (mut modes, mut sizes, mut is_row) = (Vec::new(), Vec::new(), false);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "iptables" => modes.push(Mode::Iptables),
            "nftables" => modes.push(Mode::Nftables),
            ROW => is_row = true,
            "--bench" => {}
            argument if other.contains(&argument) => {}
            argument => sizes.push(argument.parse().unwrap_or_else(|error| panic!("{error}"))),
        }
    }
    if let (true, &[mode], &[size]) = (is_row, &modes[..], &sizes[..]) {
        return Invocation::Row(Case { mode, size });
    }
    if modes.is_empty() {
        modes = vec![Mode::Iptables, Mode::Nftables];
    }
    let cases = modes.into_iter().flat_map(|mode| {
        let sizes = if sizes.is_empty() { defaults(mode) } else { sizes.clone() };
        sizes.into_iter().map(move |size| Case { mode, size })
    });
    Invocation::Table(cases.collect())
}

/// Measures a case in a new process, so that its memory is that of a new proxy. The process prints the row.
pub(crate) fn measure_in_process(case: Case, other: &[&str]) {
    let mode = case.mode.to_string();
    let size = format!("{}x{}", case.size.services, case.size.endpoints);
    let other = std::env::args().filter(|argument| other.contains(&argument.as_str()));
    let status = Command::new(std::env::current_exe().unwrap()).args([ROW, &mode, &size]).args(other).status().unwrap();
    assert!(status.success(), "{mode} {size}: {status}");
}

const ROW: &str = "--line";
