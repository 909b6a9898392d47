//! Removes every trace of iptables mode.

use std::{
    collections::BTreeSet,
    error::Error,
    fmt,
    io::{self, Write},
};

use super::{
    host::Host,
    restore::{RestoreError, Runner, SaveError},
};
use crate::{
    ChainName, NfacctCounters, RestoreWriter, Rule, SaveItem, SaveParser, TableName,
    plan::{chains, is_ours, without_strangers},
};

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

/// Removes the family's rules and chains, and the counters unless rules of the other family use them. `KUBE-FIREWALL` and
/// its jumps stay, for the kubelet uses them as well; so does the sysctl `route_localnet`, which others may rely on, and
/// which that chain guards.
pub(super) fn cleanup(runner: &Runner, host: &mut Host) -> Result<(), CleanupErrors> {
    let mut errors = Vec::new();
    for table in TableName::OURS {
        match leftovers(runner, table) {
            Err(source) => errors.push(CleanupError::Read { table, source }),
            Ok(left) => {
                if left != Leftovers::default()
                    && let Err(source) = runner.restore(&mut |out| remove(table, &left, out))
                {
                    errors.push(CleanupError::Write { table, source });
                }
                errors.extend(left.in_use.into_iter().map(|(chain, from)| CleanupError::InUse { table, chain, from }));
            }
        }
    }
    if let Some(counters) = &mut host.counters {
        for name in [NfacctCounters::INVALID_DROPPED, NfacctCounters::LOCALHOST_ACCEPTED] {
            // The other family's rules may use it still; its cleanup removes it then.
            _ = counters.remove(name).inspect_err(|error| tracing::debug!(%error, "a packet counter stays"));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(CleanupErrors(errors)) }
}

fn leftovers(runner: &Runner, table: TableName) -> Result<Leftovers, SaveError> {
    let mut left = Leftovers::default();
    let mut parser = SaveParser::new(runner.tools.family);
    let goes = |chain: ChainName| chain != chains::FIREWALL && is_ours(table, chain);
    runner.save(table, &mut |line| {
        match without_strangers(parser.line(line))? {
            Some(SaveItem::Chain(chain, _)) if goes(chain) => drop(left.chains.insert(chain)),
            Some(SaveItem::Rule(from, rule)) if !goes(from) => match rule.next_chain() {
                Some(to) if goes(to) && from.is_builtin() => left.jumps.push((from, rule)),
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

fn remove(table: TableName, left: &Leftovers, out: &mut dyn Write) -> io::Result<()> {
    let mut out = RestoreWriter::new(out);
    out.begin(table)?;
    left.jumps.iter().try_for_each(|(from, rule)| out.remove(*from, rule))?;
    left.chains.iter().try_for_each(|chain| out.declare(*chain))?;
    let in_use = |chain: ChainName| left.in_use.iter().any(|(used, _)| *used == chain);
    left.chains.iter().filter(|chain| !in_use(**chain)).try_for_each(|chain| out.delete(*chain))?;
    out.commit()?;
    out.finish().map(drop)
}
