//! Removes what a proxy has left in iptables' tables.

use std::{
    collections::BTreeSet,
    error::Error,
    fmt,
    io::{self, Write},
    sync::Arc,
};

use ferroute_host::{CounterError, PacketCounters};

use super::{
    programs::{Programs, RunError},
    restore::{RestoreError, Runner, SaveError},
    tools::Tools,
};
use crate::{
    ChainName, NfacctCounters, RestoreWriter, Rule, SaveItem, SaveParser, TableName,
    plan::{OF_IPVS, chains, is_former, is_former_jump, is_of_any_mode, is_ours, without_strangers},
};

/// What to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All chains of all modes, of kube-proxy as well, of now and of earlier times.
    Everything,
    /// Those that iptables mode does not write, for when it has taken over.
    OtherModes,
}

/// A mode that has chains of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainMode {
    /// iptables.
    Iptables,
    /// ipvs.
    Ipvs,
}

/// What was removed, and what came in the way of the rest.
#[derive(Debug, Default)]
pub struct Cleanup {
    /// Chains that are gone.
    pub chains: usize,
    /// Rules in builtin chains by which packets came into them.
    pub jumps: usize,
    /// What came in the way. The rest was cleaned up nevertheless.
    pub errors: Vec<CleanupError>,
}

/// Everything that came in the way of a cleanup. The rest was cleaned up nevertheless.
#[derive(Debug)]
pub struct CleanupErrors(pub Vec<CleanupError>);

impl fmt::Display for CleanupErrors {
    /// One after the other, each with its causes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if n > 0 { "; " } else { "" })?;
            let mut source = error.source();
            while let Some(error) = source {
                write!(f, ": {error}")?;
                source = error.source();
            }
        }
        Ok(())
    }
}

impl Error for CleanupErrors {}

/// Something that came in the way of a cleanup.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// Nobody knows whether there is something to remove.
    #[error("cannot look for chains of other modes")]
    Look(#[from] RunError),
    /// A table cannot be read, so nobody knows what to remove.
    #[error("table {table}")]
    Read {
        /// The table.
        table: TableName,
        /// Why not.
        #[source]
        source: SaveError,
    },
    /// A table's rules and chains cannot be removed.
    #[error("table {table}")]
    Write {
        /// The table.
        table: TableName,
        /// Why not.
        #[source]
        source: RestoreError,
    },
    /// A chain was emptied and stays, because somebody else's rules lead to it.
    #[error("chain {chain} of table {table} is empty but stays: a rule in {from} leads to it")]
    InUse {
        /// The table.
        table: TableName,
        /// Our chain.
        chain: ChainName,
        /// The chain of the others.
        from: ChainName,
    },
}

/// What a table holds that must go.
#[derive(Debug, Default, PartialEq, Eq)]
struct Leftovers {
    /// Our chains.
    chains: BTreeSet<ChainName>,
    /// Rules in builtin chains that lead to ours. Older versions of kube-proxy had others than we have.
    jumps: Vec<(ChainName, Rule)>,
    /// Our chains that rules in chains of others lead to, and the first such chain.
    in_use: Vec<(ChainName, ChainName)>,
}

/// Removes a family's rules and chains, by the given tools. `KUBE-FIREWALL` and its jumps stay, for the kubelet uses them
/// as well; so does the sysctl `route_localnet`, which others may rely on, and which that chain guards.
pub fn clean_up(tools: &Tools, programs: Arc<dyn Programs>, scope: Scope) -> Cleanup {
    cleanup(&Runner { tools: tools.clone(), programs }, scope)
}

/// Removes the packet counters that rules of iptables mode name, and tells which there were. Both families use them, so
/// the rules of both have to be gone.
pub fn remove_counters(counters: &mut dyn PacketCounters) -> (Vec<&'static str>, Vec<CounterError>) {
    let (mut removed, mut errors) = (Vec::new(), Vec::new());
    for name in [NfacctCounters::INVALID_DROPPED, NfacctCounters::LOCALHOST_ACCEPTED] {
        match counters.read(name).and_then(|found| found.map(|_| counters.remove(name)).transpose()) {
            Ok(Some(())) => removed.push(name),
            Ok(None) => {}
            Err(error) => errors.push(error),
        }
    }
    (removed, errors)
}

/// Which modes of a proxy have written rules of a family, as far as a glance at single chains tells.
///
/// # Errors
/// When a tool does not run.
pub fn modes_at_a_glance(tools: &Tools, programs: Arc<dyn Programs>) -> Result<Vec<ChainMode>, RunError> {
    let runner = Runner { tools: tools.clone(), programs };
    let mut modes = Vec::new();
    // The canary is in the smallest of the tables; ipvs mode has none.
    if runner.has_chain(TableName::Mangle, chains::CANARY)? == Some(true) {
        modes.push(ChainMode::Iptables);
    }
    if runner.has_chain(TableName::Nat, OF_IPVS)? == Some(true) {
        modes.push(ChainMode::Ipvs);
    }
    Ok(modes)
}

pub(super) fn cleanup(runner: &Runner, scope: Scope) -> Cleanup {
    let mut cleanup = Cleanup::default();
    if scope == Scope::OtherModes {
        // To read all tables only to find nothing takes long in a large cluster.
        match has_other_modes(runner) {
            Ok(true) => {}
            Ok(false) => return cleanup,
            Err(error) => {
                cleanup.errors.push(error.into());
                return cleanup;
            }
        }
    }
    for table in TableName::OURS {
        match leftovers(runner, table, scope) {
            Err(source) => cleanup.errors.push(CleanupError::Read { table, source }),
            Ok(left) => cleanup.remove(runner, table, left),
        }
    }
    cleanup
}

impl Cleanup {
    fn remove(&mut self, runner: &Runner, table: TableName, left: Leftovers) {
        if left == Leftovers::default() {
            return;
        }
        match runner.restore(&mut |out| write_removal(table, &left, out)) {
            Ok(_) => {
                self.jumps += left.jumps.len();
                self.chains += left.chains.iter().filter(|chain| !left.is_in_use(**chain)).count();
            }
            Err(source) => self.errors.push(CleanupError::Write { table, source }),
        }
        let in_use = left.in_use.into_iter().map(|(chain, from)| CleanupError::InUse { table, chain, from });
        self.errors.extend(in_use);
    }
}

impl Leftovers {
    fn is_in_use(&self, chain: ChainName) -> bool {
        self.in_use.iter().any(|(used, _)| *used == chain)
    }
}

/// A chain that cannot be asked for, because somebody holds the tools' lock, counts as there.
fn has_other_modes(runner: &Runner) -> Result<bool, RunError> {
    for table in [TableName::Filter, TableName::Nat] {
        if runner.has_chain(table, OF_IPVS)? != Some(false) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn leftovers(runner: &Runner, table: TableName, scope: Scope) -> Result<Leftovers, SaveError> {
    let mut left = Leftovers::default();
    let mut parser = SaveParser::new(runner.tools.family);
    let goes = |chain: ChainName| match scope {
        Scope::Everything => is_of_any_mode(table, chain),
        Scope::OtherModes => is_former(table, chain),
    };
    runner.save(table, &mut |line| {
        match without_strangers(parser.line(line))? {
            Some(SaveItem::Chain(chain, _)) if goes(chain) => drop(left.chains.insert(chain)),
            Some(SaveItem::Rule(from, rule)) if !goes(from) => match rule.next_chain() {
                Some(to) if from.is_builtin() && (goes(to) || is_ours(table, to) && is_former_jump(&rule)) => {
                    left.jumps.push((from, rule));
                }
                Some(to) if goes(to) => left.in_use.push((to, from)),
                _ => {}
            },
            _ => {}
        }
        Ok(())
    })?;
    parser.finish().map_err(|source| runner.not_understood(table, source))?;
    left.in_use.sort_unstable();
    left.in_use.dedup_by_key(|(chain, _)| *chain);
    Ok(left)
}

fn write_removal(table: TableName, left: &Leftovers, out: &mut dyn Write) -> io::Result<()> {
    let mut out = RestoreWriter::new(out);
    out.begin(table)?;
    left.jumps.iter().try_for_each(|(from, rule)| out.remove(*from, rule))?;
    left.chains.iter().try_for_each(|chain| out.declare(*chain))?;
    left.chains.iter().filter(|chain| !left.is_in_use(**chain)).try_for_each(|chain| out.delete(*chain))?;
    out.commit()?;
    out.finish().map(drop)
}
