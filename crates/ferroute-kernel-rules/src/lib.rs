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

use std::path::PathBuf;

use ferroute_core::IpFamily;
use ferroute_iptables::{
    TableName,
    runner::{Backend, FindError, FoundRules, Programs, find_rules},
};
use ferroute_nftables::kernel::{FoundTable, NetlinkError, NetlinkKernel, Reading, TableFamily};

pub use proxies::ServiceProxy;

/// The rules of one IP family that are in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRules {
    /// The family.
    pub family: IpFamily,
    /// `iptables` rules, of at most two backends; the kernel obeys both.
    pub iptables: Vec<FoundRules>,
    /// Tables of nf_tables, without what `iptables` shows, in the order in which they were made.
    pub nftables: Vec<FoundTable>,
    /// Whether nothing was changed while the tables of nf_tables were read.
    pub reading: Reading,
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
        source: FindError,
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
/// look for tools in, see [`ferroute_iptables::runner::search_path`].
///
/// # Errors
/// When the kernel or a tool that is here does not tell. Rules of unknown form are no error, nor is a kernel without
/// nf_tables.
pub fn read(family: IpFamily, programs: &dyn Programs, path: &[PathBuf]) -> Result<KernelRules, ReadError> {
    let iptables = find_rules(family, programs, path).map_err(|source| ReadError::Iptables { family, source })?;
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
    let (mut nftables, reading) = match NetlinkKernel::open() {
        Ok(mut kernel) => kernel.find_tables(family, &wanted).map_err(failed)?,
        Err(NetlinkError::NotSupported) => (Vec::new(), Reading::Steady),
        Err(source) => return Err(failed(source)),
    };
    if let Some(saved) = saved {
        for found in &mut nftables {
            // Of a table that iptables shows in part, there is only the rest.
            if let Some(table) =
                TableName::from_word(found.name.as_str()).and_then(|table| saved.rules.tables.get(&table))
            {
                found.table.disconnect(|chain| table.chains.keys().any(|shown| shown.as_str() == chain.as_str()));
            }
        }
    }
    Ok(KernelRules { family, iptables, nftables, reading })
}
