//! What is in this network namespace: the rules that the kernel obeys now, whoever wrote them.
//!
//! ```text
//!   iptables-nft-save ────┐
//!   iptables-legacy-save ─┴──► KernelRules ──► whoever walks a packet through them, compares or explains them
//! ```
//!
//! The values are those of the modes' own crates, so one evaluator serves planned rules and these. Nobody's rules are an
//! error: what the crates do not know is kept as it was written, and the walk that meets it says that it cannot tell.
//! What is *not* here: what the rules mean, and which of them should be there.

mod proxies;

use std::path::PathBuf;

use ferroute_core::IpFamily;
use ferroute_iptables::runner::{FindError, FoundRules, Programs, find_rules};

pub use proxies::ServiceProxy;

/// The rules of one IP family that are in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRules {
    /// The family.
    pub family: IpFamily,
    /// `iptables` rules, of at most two backends; the kernel obeys both.
    pub iptables: Vec<FoundRules>,
}

/// Why the kernel's rules could not be read. Another try may help.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the {family} rules in the kernel")]
pub struct ReadError {
    /// The family.
    pub family: IpFamily,
    /// What came in the way.
    #[source]
    pub source: FindError,
}

/// Reads the rules of a family that are in the network namespace of the calling thread. `path` are the directories to
/// look for tools in, see [`ferroute_iptables::runner::search_path`].
///
/// # Errors
/// When the kernel or a tool that is here does not tell. Rules of unknown form are no error.
pub fn read(family: IpFamily, programs: &dyn Programs, path: &[PathBuf]) -> Result<KernelRules, ReadError> {
    let iptables = find_rules(family, programs, path).map_err(|source| ReadError { family, source })?;
    Ok(KernelRules { family, iptables })
}
