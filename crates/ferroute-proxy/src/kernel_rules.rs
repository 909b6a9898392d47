//! Reads all rules of a network namespace, of any program.
//!
//! ```text
//!   iptables-nft-save ----.
//!   iptables-legacy-save --+--> KernelRules --> trace, diff, explain, doctor
//!   nf_tables (netlink) --'
//! ```
//!
//! Without `iptables-nft-save`, tables that only `iptables` has written are read by netlink as its rules.
//!
//! The rules have the types of the modes' crates, so one evaluator serves planned rules and these. Unsupported rules are not
//! an error: they are kept as text, and a trace that reaches one reports that its effect is unknown.

use std::{collections::BTreeMap, path::PathBuf};

use ferroute_core::IpFamily;
use ferroute_iptables::{
    RuleSet, TableName,
    exec::{Backend, BackendSnapshot, Exec, SnapshotError, snapshot_rules},
    plan::chains,
};
use ferroute_ipvs::kernel::{KernelError, read_state};
use ferroute_nftables::{
    TableOwner,
    kernel::{Consistency, NetlinkError, NetlinkKernel, TableFamily, TableSnapshot},
    model::Name,
};
use ferroute_trace::{Ruleset, Traceable};
use ferroute_userspace::{WorkerError, running_workers};

use crate::modes::{KernelIpvs, KernelUserspace};

/// The rules of one IP family in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRules {
    /// The IP family.
    pub family: IpFamily,
    /// iptables rules, of up to two backends; both apply to every packet.
    pub iptables: Vec<BackendSnapshot>,
    /// nf_tables tables in the order of their creation, without rules that `iptables` contains.
    pub nftables: Vec<TableSnapshot>,
    /// Whether the nf_tables tables were read without a concurrent modification.
    pub reading: Consistency,
    /// The objects of ipvs mode; `None` without its dummy device.
    pub ipvs: Option<KernelIpvs>,
    /// The listeners of userspace mode; `None` without its rules.
    pub userspace: Option<KernelUserspace>,
    /// The handles of iptables tables in nf_tables, which order them by creation as [`TableSnapshot::handle`] does.
    handles: BTreeMap<TableName, u64>,
}

/// A table of iptables or nftables.
#[derive(Clone, Copy, Debug)]
enum Table<'a> {
    /// An iptables table in one backend.
    Iptables(&'a RuleSet, TableName),
    /// An nftables table.
    Nftables(&'a TableSnapshot),
}

impl Traceable for KernelRules {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        if let Some(objects) = &self.ipvs {
            ruleset.add_ipvs(&objects.objects);
        }
        if let Some(objects) = &self.userspace {
            ruleset.add_userspace(objects);
        }
        for table in self.tables() {
            match table {
                Table::Iptables(rules, table) => ruleset.add_iptables_table(rules, table),
                Table::Nftables(snapshot) => {
                    ruleset.add_nftables_table(format!("{} {}", snapshot.family, snapshot.name), &snapshot.table);
                }
            }
        }
    }
}

/// A failure to read the kernel's rules. A retry may succeed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The iptables rules could not be read.
    #[error("cannot read the {family} rules of iptables")]
    Iptables {
        /// The IP family.
        family: IpFamily,
        /// The cause.
        #[source]
        source: SnapshotError,
    },
    /// The objects of ipvs mode could not be read.
    #[error("cannot read the {family} objects of ipvs")]
    Ipvs {
        /// The IP family.
        family: IpFamily,
        /// The cause.
        #[source]
        source: KernelError,
    },
    /// The listeners of userspace mode could not be listed.
    #[error("cannot list the {family} listeners of userspace mode")]
    Userspace {
        /// The IP family.
        family: IpFamily,
        /// The cause.
        #[source]
        source: WorkerError,
    },
    /// The nf_tables tables could not be read.
    #[error("cannot read the {family} tables of nf_tables")]
    Nftables {
        /// The IP family.
        family: IpFamily,
        /// The cause.
        #[source]
        source: NetlinkError,
    },
}

/// Reads the rules of an IP family in the network namespace of the calling thread. `path` are the directories of the
/// iptables programs, see [`ferroute_iptables::exec::search_path`].
///
/// # Errors
/// If the kernel or an installed program returns an error. Neither unsupported rules nor a kernel without nf_tables are an
/// error.
pub fn read(family: IpFamily, exec: &dyn Exec, path: &[PathBuf]) -> Result<KernelRules, ReadError> {
    let iptables = snapshot_rules(family, exec, path).map_err(|source| ReadError::Iptables { family, source })?;
    let saved = iptables.iter().find(|snapshot| snapshot.backend == Backend::NfTables).map(|snapshot| &snapshot.saved);
    let is_saved = |table: TableName| {
        saved.is_some_and(|saved| saved.rules.tables.contains_key(&table) && !saved.partial.contains(&table))
    };
    // Tables of iptables are read by netlink if its programs are missing or cannot show them completely.
    let is_wanted = |table_family: TableFamily, name: &str| match (table_family, TableName::from_word(name)) {
        (TableFamily::Ip(_), Some(table)) => !is_saved(table),
        _ => true,
    };
    let ipvs = read_state(family).map_err(|source| ReadError::Ipvs { family, source })?.map(|objects| KernelIpvs {
        objects,
        rules: iptables.iter().map(|snapshot| snapshot.saved.rules.clone()).collect(),
    });
    let userspace = read_userspace(family, &iptables).map_err(|source| ReadError::Userspace { family, source })?;
    let failed = |source| ReadError::Nftables { family, source };
    let mut kernel = match NetlinkKernel::open() {
        Ok(kernel) => kernel,
        Err(NetlinkError::NotSupported) => {
            let (nftables, handles) = (Vec::new(), BTreeMap::new());
            let reading = Consistency::Consistent;
            return Ok(KernelRules { family, iptables, nftables, reading, ipvs, userspace, handles });
        }
        Err(source) => return Err(failed(source)),
    };
    let (mut nftables, reading) = kernel.read_tables(family, &is_wanted).map_err(failed)?;
    let tables = kernel.list_tables(family).map_err(failed)?;
    let iptables_handle = |(table_family, name, handle): (TableFamily, Name, u64)| match table_family {
        TableFamily::Ip(_) => Some((TableName::from_word(name.as_str())?, handle)),
        TableFamily::Inet => None,
    };
    let handles = tables.into_iter().filter_map(iptables_handle).collect();
    if let Some(saved) = saved {
        for snapshot in &mut nftables {
            // Base chains that iptables-save shows are part of `iptables` already.
            let partial = TableName::from_word(snapshot.name.as_str()).and_then(|table| saved.rules.tables.get(&table));
            if let Some(partial) = partial {
                snapshot.table.unhook(|chain| partial.chains.keys().any(|saved| saved.as_str() == chain.as_str()));
            }
        }
    }
    Ok(KernelRules { family, iptables, nftables, reading, ipvs, userspace, handles })
}

/// Returns the listeners of running workers, if there are rules of userspace mode.
fn read_userspace(family: IpFamily, iptables: &[BackendSnapshot]) -> Result<Option<KernelUserspace>, WorkerError> {
    let is_present =
        |snapshot: &BackendSnapshot| snapshot.saved.rules.chain(TableName::Nat, chains::PORTALS_HOST).is_some();
    if !iptables.iter().any(is_present) {
        return Ok(None);
    }
    let mut listeners = Vec::new();
    for mut worker in running_workers()? {
        // One that has just ended has none.
        if let Ok(open) = worker.listeners() {
            listeners.extend(open.into_iter().filter(|listener| listener.family() == family));
        }
    }
    let rules = iptables.iter().map(|snapshot| snapshot.saved.rules.clone()).collect();
    Ok(Some(KernelUserspace { listeners, rules }))
}

impl KernelRules {
    /// Describes the tables of iptables that could not be read completely.
    pub fn unread_iptables_tables(&self) -> Vec<String> {
        let unread = self.iptables.iter().flat_map(|snapshot| &snapshot.saved.partial);
        unread.map(|table| format!("iptables-save cannot show all of table {table}")).collect()
    }

    /// Returns the table of Ferroute's nftables mode.
    pub fn ferroute_table(&self) -> Option<&TableSnapshot> {
        self.table(TableOwner::Ferroute)
    }

    /// Returns the table of kube-proxy's nftables mode.
    pub fn kube_proxy_table(&self) -> Option<&TableSnapshot> {
        self.table(TableOwner::KubeProxy)
    }

    fn table(&self, owner: TableOwner) -> Option<&TableSnapshot> {
        let (family, id) = (TableFamily::Ip(self.family), owner.table(self.family));
        self.nftables.iter().find(|table| table.family == family && table.name == id.name)
    }

    /// Returns all tables in the order of their creation. For tables of the legacy backend it is unknown; they are assumed
    /// to be older than those of nf_tables.
    fn tables(&self) -> impl Iterator<Item = Table<'_>> {
        let iptables = self.iptables.iter().flat_map(|snapshot| {
            let handle = |table: &TableName| match snapshot.backend {
                Backend::Legacy => None,
                Backend::NfTables => self.handles.get(table).copied(),
            };
            let rules = &snapshot.saved.rules;
            rules.tables.keys().map(move |table| (handle(table), Table::Iptables(rules, *table)))
        });
        let nftables = self.nftables.iter().map(|snapshot| (Some(snapshot.handle), Table::Nftables(snapshot)));
        let mut tables: Vec<(Option<u64>, Table<'_>)> = iptables.chain(nftables).collect();
        tables.sort_by_key(|(handle, _)| *handle);
        tables.into_iter().map(|(_, table)| table)
    }
}
