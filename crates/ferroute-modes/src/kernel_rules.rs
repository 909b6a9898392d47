//! Reads all rules of a network namespace, of any program.
//!
//! ```text
//!   nf_tables (netlink) --.
//!                          +--> KernelRules --> trace, diff, explain, doctor, top
//!   iptables-legacy-save -'
//! ```
//!
//! Tables of nf_tables with the names of `iptables` are read as its rules, whether its programs are installed or not.
//! If other programs have added rules that `iptables` cannot express, the tables are also in [`KernelRules::nftables`],
//! and traces use that copy. Rules that may exist but could not be read are in [`KernelRules::unread`].
//!
//! The rules have the types of the modes' crates, so one evaluator serves planned rules and these. Unsupported rules are not
//! an error: they are kept as text, and a trace that reaches one reports that its effect is unknown.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
};

use ferroute_core::{IpFamily, error_chain};
use ferroute_iptables::{
    Match, RuleSet, TableName, Target,
    exec::{Backend, BackendSnapshot, Exec, RulesSnapshot, snapshot_rules},
    native,
    plan::chains,
};
use ferroute_ipvs::kernel::{KernelError, read_state};
use ferroute_nftables::{
    TableOwner,
    kernel::{Consistency, Kernel, ListedTable, NetlinkError, NetlinkKernel, TableFamily, TableSnapshot},
    model::{Opaque, Outcome, Rule, Statement},
};
use ferroute_trace::{Ipsets, Ruleset, Traceable};
use ferroute_userspace::{WorkerError, running_workers};

use crate::{KernelIpvs, KernelUserspace, ipsets};

/// The rules of one IP family in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRules {
    /// The IP family.
    pub family: IpFamily,
    /// iptables rules, of up to two backends; both apply to every packet.
    pub iptables: Vec<BackendSnapshot>,
    /// nf_tables tables in the order of their creation, without those that `iptables` contains completely.
    pub nftables: Vec<TableSnapshot>,
    /// Reasons why rules that may exist could not be read, one line each.
    pub unread: Vec<String>,
    /// Whether the rules of nf_tables were read without a concurrent modification.
    pub reading: Consistency,
    /// Ipsets of all programs, if iptables rules refer to any.
    pub ipsets: Ipsets,
    /// Tables of nf_tables with the flag `dormant`: packets pass none of their chains, and their rules are not read.
    pub dormant: Vec<ListedTable>,
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
        ruleset.add_ipsets(&self.ipsets);
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
        source: native::ReadError,
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
/// iptables programs, which only the legacy backend requires; see [`ferroute_iptables::exec::search_path`].
///
/// # Errors
/// If the kernel returns an error. Neither unsupported rules nor a kernel without nf_tables are an error, nor are rules of
/// the legacy backend that cannot be read: see [`KernelRules::unread`].
pub fn read(family: IpFamily, exec: &dyn Exec, path: &[PathBuf]) -> Result<KernelRules, ReadError> {
    let kernel = match NetlinkKernel::open() {
        Ok(kernel) => Some(kernel),
        Err(NetlinkError::NotSupported) => None,
        Err(source) => return Err(ReadError::Nftables { family, source }),
    };
    read_with(kernel, family, exec, path)
}

/// Like [`read`], without [`KernelRules::nftables`], which can have a million elements.
///
/// # Errors
/// See [`read`].
pub fn read_without_nftables(family: IpFamily, exec: &dyn Exec, path: &[PathBuf]) -> Result<KernelRules, ReadError> {
    read_with(None, family, exec, path)
}

fn read_with(
    mut kernel: Option<NetlinkKernel>,
    family: IpFamily,
    exec: &dyn Exec,
    path: &[PathBuf],
) -> Result<KernelRules, ReadError> {
    let failed = |source| ReadError::Nftables { family, source };
    let mut attempts = 0;
    loop {
        attempts += 1;
        let mut generation = || kernel.as_mut().map(Kernel::generation).transpose().map_err(failed);
        let before = generation()?;
        let RulesSnapshot { backends: iptables, unread } =
            snapshot_rules(family, exec, path).map_err(|source| ReadError::Iptables { family, source })?;
        let (nftables, listed, reading) = match &mut kernel {
            Some(kernel) => read_nftables(kernel, family, &iptables).map_err(failed)?,
            None => (Vec::new(), Vec::new(), Consistency::Consistent),
        };
        let mut generation = || kernel.as_mut().map(Kernel::generation).transpose().map_err(failed);
        let is_consistent = generation()? == before && reading == Consistency::Consistent;
        if !is_consistent && attempts < MAX_ATTEMPTS {
            continue;
        }
        let reading = if is_consistent { Consistency::Consistent } else { Consistency::Interrupted };
        let ipvs = read_state(family).map_err(|source| ReadError::Ipvs { family, source })?.map(|objects| KernelIpvs {
            objects,
            rules: iptables.iter().map(|snapshot| snapshot.saved.rules.clone()).collect(),
        });
        let userspace = read_userspace(family, &iptables).map_err(|source| ReadError::Userspace { family, source })?;
        let ipsets = read_ipsets(&iptables);
        let handles = listed.iter().filter_map(|table| Some((iptables_name(table)?, table.handle))).collect();
        let dormant = listed.into_iter().filter(|table| table.is_dormant).collect();
        return Ok(KernelRules {
            family,
            iptables,
            nftables,
            unread,
            reading,
            ipsets,
            dormant,
            ipvs,
            userspace,
            handles,
        });
    }
}

type NftablesRead = (Vec<TableSnapshot>, Vec<ListedTable>, Consistency);

/// Reads the tables that are not among these of `iptables`, and lists all tables.
fn read_nftables(
    kernel: &mut NetlinkKernel,
    family: IpFamily,
    iptables: &[BackendSnapshot],
) -> Result<NftablesRead, NetlinkError> {
    let saved = iptables.iter().find(|snapshot| snapshot.backend == Backend::NfTables).map(|snapshot| &snapshot.saved);
    let is_saved = |table: TableName| saved.is_none_or(|saved| !saved.partial.contains(&table));
    let is_wanted = |table_family: TableFamily, name: &str| match (table_family, TableName::from_word(name)) {
        (TableFamily::Ip(_), Some(table)) => !is_saved(table),
        _ => true,
    };
    let (mut nftables, reading) = kernel.read_tables(family, &is_wanted)?;
    let mut reader = native::CompatReader::new(family);
    for rule in nftables.iter_mut().flat_map(|snapshot| snapshot.table.chains_mut()).flat_map(|chain| &mut chain.rules)
    {
        name_extensions(rule, &mut reader);
    }
    Ok((nftables, kernel.list_tables(family)?, reading))
}

/// Returns the name of a table that `iptables` uses.
fn iptables_name(table: &ListedTable) -> Option<TableName> {
    match table.family {
        TableFamily::Ip(_) => TableName::from_word(table.name.as_str()),
        TableFamily::Inet => None,
    }
}

/// Sets the text of the modules and targets of `iptables` in a rule.
fn name_extensions(rule: &mut Rule, reader: &mut native::CompatReader) {
    for statement in &mut rule.statements {
        let Statement::Opaque(Opaque { expressions, text, outcome }) = statement else { continue };
        if *outcome != Outcome::Iptables {
            continue;
        }
        let Some(expression) = expressions.last() else { continue };
        match reader.text(&expression.name, &expression.data) {
            Some(decoded) => *text = decoded,
            None => {
                "xt ".clone_into(text);
                text.push_str(&expression.name);
                *outcome = if expression.name == "match" { Outcome::Condition } else { Outcome::Anything };
            }
        }
    }
}

/// Returns all ipsets if rules match any of them or set the marks of their entries. Otherwise, and if they cannot be
/// read, returns none. Without the sets, a trace follows both results of a match.
fn read_ipsets(iptables: &[BackendSnapshot]) -> Ipsets {
    let chains = iptables.iter().flat_map(|snapshot| snapshot.saved.rules.tables.values());
    let mut rules = chains.flat_map(|table| table.chains.values()).flat_map(|chain| &chain.rules);
    let is_reader = |rule: &ferroute_iptables::Rule| {
        let maps = matches!(&rule.target, Some(Target::Other(text)) if text.contains(" --map-set "));
        maps || rule.matches.iter().any(|extension| matches!(extension, Match::Set(_)))
    };
    if !rules.any(is_reader) {
        return Ipsets::default();
    }
    ipsets::read().unwrap_or_else(|error| {
        tracing::warn!(error = error_chain(&error), "cannot read ipsets");
        Ipsets::default()
    })
}

/// Returns the listeners of running workers, if there are rules of userspace mode.
fn read_userspace(family: IpFamily, iptables: &[BackendSnapshot]) -> Result<Option<KernelUserspace>, WorkerError> {
    let is_present =
        |snapshot: &BackendSnapshot| snapshot.saved.rules.chain(TableName::Nat, chains::PORTALS_HOST).is_some();
    if !iptables.iter().any(is_present) {
        return Ok(None);
    }
    let mut listeners = HashMap::new();
    for mut worker in running_workers()? {
        // A worker that has just ended has no listeners.
        if let Ok(open) = worker.listeners() {
            for listener in open.into_iter().filter(|listener| listener.family() == family) {
                listeners.entry((listener.protocol(), listener.port)).or_insert(listener);
            }
        }
    }
    let rules = iptables.iter().map(|snapshot| snapshot.saved.rules.clone()).collect();
    Ok(Some(KernelUserspace { listeners, rules }))
}

impl KernelRules {
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

    /// Returns the dormant tables that are Ferroute's or those of `iptables`, as `nft` names them: `ip nat`.
    pub fn dormant_tables(&self) -> impl Iterator<Item = String> {
        let own = TableOwner::Ferroute.table(self.family);
        let is_own = move |table: &ListedTable| table.family == own.family.into() && table.name == own.name;
        let of_proxy = self.dormant.iter().filter(move |table| iptables_name(table).is_some() || is_own(table));
        of_proxy.map(|table| format!("{} {}", table.family, table.name))
    }

    /// Returns all tables in the order of their creation. The order of tables of the legacy backend is unknown; they
    /// are assumed to be older than those of nf_tables.
    fn tables(&self) -> impl Iterator<Item = Table<'_>> {
        let iptables = self.iptables.iter().flat_map(|snapshot| {
            let handle = |table: &TableName| match snapshot.backend {
                Backend::Legacy => None,
                Backend::NfTables => self.handles.get(table).copied(),
            };
            let saved = &snapshot.saved;
            // The other tables are in `nftables`, which can express all of their rules.
            let complete = saved.rules.tables.keys().filter(|table| !saved.partial.contains(table));
            complete.map(move |table| (handle(table), Table::Iptables(&saved.rules, *table)))
        });
        let nftables = self.nftables.iter().map(|snapshot| (Some(snapshot.handle), Table::Nftables(snapshot)));
        let mut tables: Vec<(Option<u64>, Table<'_>)> = iptables.chain(nftables).collect();
        tables.sort_by_key(|(handle, _)| *handle);
        tables.into_iter().map(|(_, table)| table)
    }
}

/// Maximum number of repeated reads because other programs modified rules in the meantime.
const MAX_ATTEMPTS: u32 = 4;
