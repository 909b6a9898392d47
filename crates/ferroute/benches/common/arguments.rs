use std::{fmt, process::Command};

use super::cluster::Size;

/// A mode of the proxy.
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

/// One line of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) mode: Mode,
    pub(crate) size: Size,
}

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Asked {
    /// All these cases, each in a process of its own.
    Table(Vec<Case>),
    /// One case, for the process that prints the table.
    Line(Case),
}

/// Reads the words of the command line: modes and sizes (`nftables 1000x10 10000x10`). Without a mode all of them are
/// meant, without a size those of `defaults`. Words that Cargo adds and `own` words of the bench are passed over.
pub(crate) fn asked(defaults: fn(Mode) -> Vec<Size>, own: &[&str]) -> Asked {
    let (mut modes, mut sizes, mut one) = (Vec::new(), Vec::new(), false);
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "iptables" => modes.push(Mode::Iptables),
            "nftables" => modes.push(Mode::Nftables),
            LINE => one = true,
            "--bench" => {}
            word if own.contains(&word) => {}
            word => sizes.push(word.parse().unwrap_or_else(|error| panic!("{error}"))),
        }
    }
    if let (true, &[mode], &[size]) = (one, &modes[..], &sizes[..]) {
        return Asked::Line(Case { mode, size });
    }
    if modes.is_empty() {
        modes = vec![Mode::Iptables, Mode::Nftables];
    }
    let cases = modes.into_iter().flat_map(|mode| {
        let sizes = if sizes.is_empty() { defaults(mode) } else { sizes.clone() };
        sizes.into_iter().map(move |size| Case { mode, size })
    });
    Asked::Table(cases.collect())
}

/// Measures a case in a process of its own, so that it finds memory as a proxy that has just been started does. Prints
/// the line itself.
pub(crate) fn measure_apart(case: Case, own: &[&str]) {
    let mode = case.mode.to_string();
    let size = format!("{}x{}", case.size.services, case.size.endpoints);
    let own = std::env::args().filter(|word| own.contains(&word.as_str()));
    let status = Command::new(std::env::current_exe().unwrap()).args([LINE, &mode, &size]).args(own).status().unwrap();
    assert!(status.success(), "{mode} {size}: {status}");
}

const LINE: &str = "--line";
