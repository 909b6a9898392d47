//! Version and backend of the iptables programs, and the features that they imply.

use std::{fmt, str::FromStr, time::Duration};

use ferroute_core::Throttle;

/// The kernel interface of the iptables programs. Rules of one backend are invisible to the programs of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// x_tables: a program reads, changes and replaces a whole table while it holds the xtables lock.
    Legacy,
    /// nf_tables: a program translates rules to nf_tables rules, which the kernel applies in atomic transactions.
    NfTables,
}

impl Backend {
    /// The part of program names that selects the backend (`iptables-legacy-save`).
    pub fn infix(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::NfTables => "nft",
        }
    }

    /// Returns the limit of comparisons of the kernel's rules with the written ones. With nf_tables, rules are compared
    /// only after a transaction of another program, so that a change after a quiet time is detected at once.
    pub(super) fn comparisons(self) -> Throttle {
        match self {
            Self::Legacy => Throttle::default(),
            Self::NfTables => Throttle::new(Duration::ZERO),
        }
    }

    /// The other backend.
    pub fn other(self) -> Self {
        match self {
            Self::Legacy => Self::NfTables,
            Self::NfTables => Self::Legacy,
        }
    }
}

impl fmt::Display for Backend {
    /// Formats the backend as `iptables --version` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Legacy => "legacy",
            Self::NfTables => "nf_tables",
        })
    }
}

/// Version and backend of the programs, as `iptables --version` prints them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Major, minor and patch level.
    pub version: [u16; 3],
    /// The backend.
    pub backend: Backend,
}

/// A text that is not the output of `iptables --version`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no version in {0:?} (want \"iptables v1.8.9 (nf_tables)\" or the like)")]
pub struct InvalidRelease(pub String);

impl FromStr for Release {
    type Err = InvalidRelease;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut words = text.split_whitespace();
            let version = words.find_map(|word| numbers(word.strip_prefix('v')?))?;
            // The backend is printed since 1.8.0, the first version with two of them.
            let backend = if words.next() == Some("(nf_tables)") { Backend::NfTables } else { Backend::Legacy };
            Some(Self { version, backend })
        };
        parse().ok_or_else(|| InvalidRelease(text.trim().to_owned()))
    }
}

impl Release {
    /// Reports whether `MASQUERADE` supports `--random-fully`.
    pub fn has_random_fully(&self) -> bool {
        self.version >= [1, 6, 2]
    }

    /// Reports whether every `iptables-restore` of this version supports `-w`. Distributions backported it to some
    /// older versions.
    pub fn has_restore_wait(&self) -> bool {
        self.version >= [1, 6, 2]
    }

    /// Returns the arguments that make `iptables`, and `iptables-restore` if it supports `-w`, wait up to five seconds for the
    /// xtables lock. Without `-W` they poll only once a second; since 1.8.8 they block instead, and `-W` prints a warning.
    pub fn wait_arguments(&self) -> &'static [&'static str] {
        match self.version {
            version if version >= [1, 8, 8] => &["-w", "5"],
            version if version >= [1, 6, 1] => &["-w", "5", "-W", "100000"],
            version if version >= [1, 4, 22] => &["-w", "5"],
            version if version >= [1, 4, 20] => &["-w"],
            _ => &[],
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.version;
        write!(f, "{major}.{minor}.{patch} ({})", self.backend)
    }
}

/// Parses `1.8`, `1.8.9`, `1.4.19.1`; numbers after the patch level are ignored.
fn numbers(text: &str) -> Option<[u16; 3]> {
    let mut numbers = [0; 3];
    let mut parts = text.split('.');
    for (at, number) in numbers.iter_mut().enumerate() {
        match parts.next() {
            Some(part) => *number = part.parse().ok()?,
            None if at >= 2 => {}
            None => return None,
        }
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(text: &str) -> Release {
        text.parse().expect(text)
    }

    #[test]
    fn version_and_backend_are_parsed_from_the_output_of_any_version() {
        assert_eq!(
            release("iptables v1.8.9 (nf_tables)\n"),
            Release { version: [1, 8, 9], backend: Backend::NfTables }
        );
        assert_eq!(release("ip6tables v1.8.7 (legacy)"), Release { version: [1, 8, 7], backend: Backend::Legacy });
        assert_eq!(release("iptables v1.6.1"), Release { version: [1, 6, 1], backend: Backend::Legacy });
        assert_eq!(release("iptables v1.4.19.1"), Release { version: [1, 4, 19], backend: Backend::Legacy });
        assert_eq!(release("iptables-restore v2.0"), Release { version: [2, 0, 0], backend: Backend::Legacy });
    }

    #[test]
    fn other_text_is_rejected() {
        for text in ["", "iptables", "iptables v", "iptables v1", "iptables vX.Y.Z", "sh: iptables: not found"] {
            assert_eq!(text.parse::<Release>(), Err(InvalidRelease(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn features_follow_from_the_version() {
        let old = release("iptables v1.6.1");
        assert!(!old.has_random_fully() && !old.has_restore_wait());
        let newer = release("iptables v1.6.2");
        assert!(newer.has_random_fully() && newer.has_restore_wait());
        assert_eq!(release("iptables v1.8.7 (legacy)").wait_arguments(), ["-w", "5", "-W", "100000"]);
        assert_eq!(release("iptables v1.8.8 (legacy)").wait_arguments(), ["-w", "5"]);
        assert_eq!(release("iptables v1.10.0 (nf_tables)").wait_arguments(), ["-w", "5"]);
        assert_eq!(release("iptables v1.6.0").wait_arguments(), ["-w", "5"]);
        assert_eq!(release("iptables v1.4.21").wait_arguments(), ["-w"]);
        assert_eq!(release("iptables v1.4.19.1").wait_arguments(), [""; 0]);
    }
}
