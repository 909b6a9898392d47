//! What is in this network namespace: the rules that the kernel obeys now, whoever wrote them.
//!
//! ```text
//!   iptables-nft-save ────┐
//!   iptables-legacy-save ─┼──► KernelRules ──► whoever walks a packet through them, compares or explains them
//!   nf_tables (netlink) ──┘
//! ```
//!
//! The values are those of the modes' own crates, so one evaluator serves planned rules and these. Nobody's rules are an
//! error: what the crates do not know is kept as it was written, and the walk that meets it says that it cannot tell.
//! What is *not* here: what the rules mean, and which of them should be there.

mod proxies;

use std::{collections::BTreeMap, path::PathBuf};

use ferroute_core::IpFamily;
use ferroute_iptables::{
    RuleSet, TableName,
    exec::{Backend, SnapshotError, BackendSnapshot, Exec, snapshot_rules},
};
use ferroute_nftables::{
    kernel::{TableSnapshot, NetlinkError, NetlinkKernel, Consistency, TableFamily},
    model::Name,
};
use ferroute_trace::{Ruleset, Traceable};

/// The rules of one IP family that are in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRules {
    /// The family.
    pub family: IpFamily,
    /// `iptables` rules, of at most two backends; the kernel obeys both.
    pub iptables: Vec<BackendSnapshot>,
    /// Tables of nf_tables, without what `iptables` shows, in the order in which they were made.
    pub nftables: Vec<TableSnapshot>,
    /// Whether nothing was changed while the tables of nf_tables were read.
    pub reading: Consistency,
    /// When the tables of `iptables` were made that are of nf_tables, as [`TableSnapshot::handle`] has it.
    handles: BTreeMap<TableName, u64>,
}

/// One table of whichever tool.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// A table of `iptables`, of one of its backends.
    Iptables(&'a RuleSet, TableName),
    /// A table of nftables.
    Nftables(&'a TableSnapshot),
}

impl Traceable for KernelRules {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        for part in self.parts() {
            match part {
                Part::Iptables(rules, table) => ruleset.add_iptables_table(rules, table),
                Part::Nftables(snapshot) => {
                    ruleset.add_nftables_table(format!("{} {}", snapshot.family, snapshot.name), &snapshot.table);
                }
            }
        }
    }
}

/// Why the kernel's rules could not be read. Another try may help.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Those of `iptables`.
    #[error("cannot read the {family} rules of iptables")]
    Iptables {
        /// The family.
        family: IpFamily,
        /// What came in the way.
        #[source]
        source: SnapshotError,
    },
    /// Those of nf_tables.
    #[error("cannot read the {family} tables of nf_tables")]
    Nftables {
        /// The family.
        family: IpFamily,
        /// What came in the way.
        #[source]
        source: NetlinkError,
    },
}

/// Reads the rules of a family that are in the network namespace of the calling thread. `path` are the directories to
/// look for tools in, see [`ferroute_iptables::exec::search_path`].
///
/// # Errors
/// When the kernel or a tool that is here does not tell. Rules of unknown form are no error, nor is a kernel without
/// nf_tables.
pub fn read(family: IpFamily, programs: &dyn Exec, path: &[PathBuf]) -> Result<KernelRules, ReadError> {
    let iptables = snapshot_rules(family, programs, path).map_err(|source| ReadError::Iptables { family, source })?;
    // Without its tools there is no other view of these tables.
    let saved = iptables.iter().find(|found| found.backend == Backend::NfTables).map(|found| &found.saved);
    let is_shown = |table: TableName| {
        saved.is_some_and(|saved| saved.rules.tables.contains_key(&table) && !saved.partial.contains(&table))
    };
    let wanted = |of: TableFamily, name: &str| match (of, TableName::from_word(name)) {
        (TableFamily::Ip(_), Some(table)) => !is_shown(table),
        _ => true,
    };
    let failed = |source| ReadError::Nftables { family, source };
    let mut kernel = match NetlinkKernel::open() {
        Ok(kernel) => kernel,
        Err(NetlinkError::NotSupported) => {
            let (nftables, handles) = (Vec::new(), BTreeMap::new());
            return Ok(KernelRules { family, iptables, nftables, reading: Consistency::Consistent, handles });
        }
        Err(source) => return Err(failed(source)),
    };
    let (mut nftables, reading) = kernel.read_tables(family, &wanted).map_err(failed)?;
    let all = kernel.list_tables(family).map_err(failed)?;
    let of_iptables = |(of, name, handle): (TableFamily, Name, u64)| match of {
        TableFamily::Ip(_) => Some((TableName::from_word(name.as_str())?, handle)),
        TableFamily::Inet => None,
    };
    let handles = all.into_iter().filter_map(of_iptables).collect();
    if let Some(saved) = saved {
        for found in &mut nftables {
            // Of a table that iptables shows in part, there is only the rest.
            if let Some(table) =
                TableName::from_word(found.name.as_str()).and_then(|table| saved.rules.tables.get(&table))
            {
                found.table.unhook(|chain| table.chains.keys().any(|shown| shown.as_str() == chain.as_str()));
            }
        }
    }
    Ok(KernelRules { family, iptables, nftables, reading, handles })
}

impl KernelRules {
    /// All tables, those that were made first in front. Of the legacy backend nobody can tell when it was; it is taken to
    /// have come before all of nf_tables.
    pub fn parts(&self) -> Vec<Part<'_>> {
        let iptables = self.iptables.iter().flat_map(|found| {
            let handle = |table: &TableName| match found.backend {
                Backend::Legacy => None,
                Backend::NfTables => self.handles.get(table).copied(),
            };
            let rules = &found.saved.rules;
            rules.tables.keys().map(move |table| (handle(table), Part::Iptables(rules, *table)))
        });
        let nftables = self.nftables.iter().map(|found| (Some(found.handle), Part::Nftables(found)));
        let mut parts: Vec<(Option<u64>, Part<'_>)> = iptables.chain(nftables).collect();
        parts.sort_by_key(|(handle, _)| *handle);
        parts.into_iter().map(|(_, part)| part).collect()
    }
}
