//! The rules of all programs, in both backends.

use std::path::PathBuf;

use ferroute_core::{IpFamily, error_chain};

use super::{legacy, process::Exec, version::Backend};
use crate::{
    Policy, RuleSet, SavedRules, TableName,
    native::{NativeRules, ReadError},
};

/// The rules of one IP family, of all programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesSnapshot {
    /// The backends with rules.
    pub backends: Vec<BackendSnapshot>,
    /// Reasons why rules that may exist could not be read, one line each.
    pub unread: Vec<String>,
}

/// The rules of one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSnapshot {
    /// The backend. The kernel applies the rules of both.
    pub backend: Backend,
    /// The rules.
    pub saved: SavedRules,
}

/// Reads all rules of an IP family: those of nf_tables by netlink, including additions of other programs to the same
/// tables, and those of the legacy backend with its programs in the directories of `path`. Backends without rules are
/// left out.
///
/// # Errors
/// If the kernel refuses. If only the legacy backend cannot be read, the snapshot contains the reason.
pub fn snapshot_rules(family: IpFamily, exec: &dyn Exec, path: &[PathBuf]) -> Result<RulesSnapshot, ReadError> {
    let mut snapshot = RulesSnapshot::default();
    let mut add = |backend, saved: SavedRules| {
        if affects_packets(&saved) {
            snapshot.backends.push(BackendSnapshot { backend, saved });
        }
    };
    let rules = NativeRules::open_existing(family).map_err(|source| ReadError { table: TableName::Filter, source })?;
    if let Some(rules) = rules {
        add(Backend::NfTables, rules.snapshot()?);
    }
    match legacy::snapshot(family, None, exec, path) {
        Ok(saved) => saved.into_iter().for_each(|saved| add(Backend::Legacy, saved)),
        Err(error) => snapshot.unread.push(error_chain(&error)),
    }
    Ok(snapshot)
}

/// Reports whether there is more than empty builtin chains with policy ACCEPT.
fn affects_packets(SavedRules { rules, unread, partial, .. }: &SavedRules) -> bool {
    let RuleSet { tables, .. } = rules;
    let mut chains = tables.values().flat_map(|table| table.chains.iter());
    let has_effect = chains.any(|(name, chain)| {
        let policy = chain.head.and_then(|head| head.policy);
        !name.is_builtin() || !chain.rules.is_empty() || policy == Some(Policy::Drop)
    });
    has_effect || !unread.is_empty() || !partial.is_empty()
}
