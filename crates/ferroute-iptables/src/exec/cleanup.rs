//! Removal of a proxy's chains and rules from iptables' tables.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use ferroute_core::{Frontend, NfacctCounters};
use ferroute_host::{CounterError, PacketCounters};

use super::{
    access::{Attempts, RuleAccess},
    executor::{RestoreError, SaveError},
};
use crate::{
    ChainName, Rule, SaveItem, TableName,
    plan::{
        IPVS_NODE_PORT, chains, is_foreign_jump, is_ipvs_mode_chain, is_leftover_chain, is_proxy_chain,
        is_userspace_mode_chain, udp_frontend,
    },
    sink::RuleSink,
};

/// The chains to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanupScope {
    /// The chains of all modes, including those of kube-proxy and of its earlier versions.
    Everything,
    /// The chains that this mode does not write, for use while it is active.
    Beside(ChainMode),
}

/// A proxy mode that writes iptables chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainMode {
    /// iptables.
    Iptables,
    /// ipvs.
    Ipvs,
    /// userspace.
    Userspace,
}

/// The outcome of a cleanup.
#[derive(Debug, Default)]
pub struct CleanupReport {
    /// Number of deleted chains.
    pub chains: usize,
    /// Number of deleted jumps into them from builtin chains.
    pub jumps: usize,
    /// The UDP frontends in the deleted chains.
    pub udp_frontends: BTreeSet<Frontend>,
    /// Failures. Other chains were removed nevertheless.
    pub errors: Vec<CleanupError>,
}

/// A failure of a part of a cleanup.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// The check for chains of other modes failed.
    #[error("cannot check for chains of other modes")]
    Check(#[from] SaveError),
    /// A table cannot be read, so it is not cleaned up.
    #[error("cannot clean up table {table}")]
    Read {
        /// The table.
        table: TableName,
        /// The cause.
        #[source]
        source: SaveError,
    },
    /// The chains and rules in a table cannot be deleted.
    #[error("cannot clean up table {table}")]
    Write {
        /// The table.
        table: TableName,
        /// The cause.
        #[source]
        source: RestoreError,
    },
    /// A chain was flushed but not deleted, because a rule of another program jumps to it.
    #[error("cannot delete chain {chain} of table {table}, which was flushed: a rule in {from} jumps to it")]
    InUse {
        /// The table.
        table: TableName,
        /// The chain.
        chain: ChainName,
        /// The chain with the rule of another program.
        from: ChainName,
    },
    /// A chain was flushed but not deleted, because the kernel reports it as in use: by a map, or by a rule or chain that
    /// `iptables` cannot express.
    #[error(
        "cannot delete chain {chain} of table {table}, which was flushed: a rule or map of another program refers to it"
    )]
    Busy {
        /// The table.
        table: TableName,
        /// The chain.
        chain: ChainName,
    },
}

/// The chains and rules of a table that must be removed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Leftovers {
    /// The chains.
    chains: BTreeSet<ChainName>,
    /// Rules in builtin chains that jump to these chains. Earlier versions of kube-proxy had other jumps.
    jumps: BTreeMap<ChainName, Vec<Rule>>,
    /// Chains that rules of other programs jump to, with the first chain that has such a rule.
    in_use: Vec<(ChainName, ChainName)>,
    /// The UDP frontends in the chains.
    udp_frontends: BTreeSet<Frontend>,
    /// Chains that the kernel has refused to delete, because other objects refer to them.
    busy: BTreeSet<ChainName>,
}

/// Removes the rules and chains of one IP family.
///
/// `KUBE-FIREWALL` and its jumps stay, because the kubelet uses them as well. The sysctl `route_localnet` stays as
/// well, because other programs may rely on it, and that chain protects it.
pub fn clean_up(access: &RuleAccess, scope: CleanupScope) -> CleanupReport {
    let mut report = CleanupReport::default();
    if let CleanupScope::Beside(active) = scope {
        // Reading all tables takes long in a large cluster and is usually in vain.
        match has_other_modes(access, active) {
            Ok(true) => {}
            Ok(false) => return report,
            Err(error) => {
                report.errors.push(error.into());
                return report;
            }
        }
    }
    TableName::PROXY.into_iter().for_each(|table| report.clean_up_table(access, table, scope));
    report
}

/// Deletes the nfacct counters of iptables mode and returns the names of those that existed. The rules of both families
/// use them and must be deleted first.
pub fn remove_counters(counters: &mut dyn PacketCounters) -> (Vec<&'static str>, Vec<CounterError>) {
    let (mut removed, mut errors) = (Vec::new(), Vec::new());
    for name in [NfacctCounters::INVALID_DROPPED, NfacctCounters::LOCALHOST_ACCEPTED] {
        match counters.read(name).and_then(|counter| counter.map(|_| counters.remove(name)).transpose()) {
            Ok(Some(())) => removed.push(name),
            Ok(None) => {}
            Err(error) => errors.push(error),
        }
    }
    (removed, errors)
}

/// Detects the modes that wrote rules of one IP family by checking for single chains, without reading whole tables.
///
/// # Errors
/// If chains cannot be looked up.
pub fn detect_modes(access: &RuleAccess) -> Result<Vec<ChainMode>, SaveError> {
    let mut modes = Vec::new();
    // Mangle is the smallest table with a canary chain; ipvs mode has none.
    if access.has_chain(TableName::Mangle, chains::CANARY)? == Some(true) {
        modes.push(ChainMode::Iptables);
    }
    if access.has_chain(TableName::Nat, IPVS_NODE_PORT)? == Some(true) {
        modes.push(ChainMode::Ipvs);
    }
    if access.has_chain(TableName::Nat, chains::PORTALS_HOST)? == Some(true) {
        modes.push(ChainMode::Userspace);
    }
    Ok(modes)
}

impl CleanupReport {
    fn clean_up_table(&mut self, access: &RuleAccess, table: TableName, scope: CleanupScope) {
        let mut attempts = Attempts::new();
        let mut busy = BTreeSet::new();
        loop {
            let generation = attempts.begin(access);
            let mut leftovers = match leftovers(access, table, scope) {
                Ok(leftovers) if leftovers == Leftovers::default() => return,
                Ok(leftovers) => leftovers,
                Err(source) => return self.errors.push(CleanupError::Read { table, source }),
            };
            leftovers.busy.clone_from(&busy);
            match access.write(generation, &mut |out| write_removal(table, &leftovers, out)) {
                Ok(_) => {
                    self.udp_frontends.extend(&leftovers.udp_frontends);
                    self.jumps += leftovers.jumps.values().map(Vec::len).sum::<usize>();
                    self.chains += leftovers.chains.iter().filter(|chain| !leftovers.is_in_use(**chain)).count();
                }
                Err(error) if attempts.must_repeat(&error) => continue,
                // The other chains can be deleted.
                Err(error) if error.busy_chain().is_some_and(|chain| busy.insert(chain)) => {
                    attempts = Attempts::new();
                    continue;
                }
                Err(source) => self.errors.push(CleanupError::Write { table, source }),
            }
            let in_use = leftovers.in_use.into_iter().map(|(chain, from)| CleanupError::InUse { table, chain, from });
            let busy = leftovers.busy.into_iter().map(|chain| CleanupError::Busy { table, chain });
            return self.errors.extend(in_use.chain(busy));
        }
    }
}

impl Leftovers {
    fn is_in_use(&self, chain: ChainName) -> bool {
        self.busy.contains(&chain) || self.in_use.iter().any(|(used, _)| *used == chain)
    }
}

/// Reports whether another mode than `active` has chains. A chain counts as existing if the check fails because another
/// program holds the xtables lock.
fn has_other_modes(access: &RuleAccess, active: ChainMode) -> Result<bool, SaveError> {
    // The canary may be missing if another program flushed a table.
    let iptables = [(TableName::Mangle, chains::CANARY), (TableName::Nat, chains::NODE_PORTS)];
    let ipvs = [(TableName::Filter, IPVS_NODE_PORT), (TableName::Nat, IPVS_NODE_PORT)];
    let userspace = [(TableName::Filter, chains::NODEPORT_NON_LOCAL), (TableName::Nat, chains::PORTALS_HOST)];
    let others = match active {
        ChainMode::Iptables => [ipvs, userspace],
        ChainMode::Ipvs => [iptables, userspace],
        ChainMode::Userspace => [iptables, ipvs],
    };
    let others = others.into_iter().flatten();
    for (table, chain) in others {
        if access.has_chain(table, chain)? != Some(false) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn leftovers(access: &RuleAccess, table: TableName, scope: CleanupScope) -> Result<Leftovers, SaveError> {
    let is_leftover = |chain: ChainName| match scope {
        CleanupScope::Everything => is_proxy_chain(table, chain),
        CleanupScope::Beside(ChainMode::Iptables) => is_leftover_chain(table, chain),
        CleanupScope::Beside(ChainMode::Ipvs) => is_proxy_chain(table, chain) && !is_ipvs_mode_chain(table, chain),
        CleanupScope::Beside(ChainMode::Userspace) => {
            is_proxy_chain(table, chain) && !is_userspace_mode_chain(table, chain)
        }
    };
    // Jumps of other modes into chains that the active mode also has.
    let is_other_jump = |to: ChainName, rule: &Rule| match scope {
        CleanupScope::Everything => false,
        CleanupScope::Beside(active) => is_foreign_jump(active, to, rule),
    };
    let mut leftovers = Leftovers::default();
    access.read(&[table], Vec::new(), &mut |_, item| match item {
        SaveItem::Chain(chain, _) if is_leftover(chain) => drop(leftovers.chains.insert(chain)),
        SaveItem::Rule(from, rule) if !is_leftover(from) => match rule.next_chain() {
            Some(to) if from.is_builtin() && (is_leftover(to) || is_other_jump(to, &rule)) => {
                leftovers.jumps.entry(from).or_default().push(rule);
            }
            Some(to) if is_leftover(to) => leftovers.in_use.push((to, from)),
            _ => {}
        },
        SaveItem::Rule(_, rule) if table == TableName::Nat => leftovers.udp_frontends.extend(udp_frontend(&rule)),
        _ => {}
    })?;
    leftovers.in_use.sort_unstable();
    leftovers.in_use.dedup_by_key(|(chain, _)| *chain);
    Ok(leftovers)
}

fn write_removal(table: TableName, leftovers: &Leftovers, out: &mut dyn RuleSink) -> io::Result<()> {
    let Leftovers { chains, jumps, .. } = leftovers;
    out.begin(table)?;
    jumps.iter().try_for_each(|(from, rules)| out.remove(*from, rules))?;
    chains.iter().try_for_each(|chain| out.declare(*chain))?;
    chains.iter().filter(|chain| !leftovers.is_in_use(**chain)).try_for_each(|chain| out.delete(*chain))?;
    out.end()?;
    out.commit()
}
