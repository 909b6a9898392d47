//! Repairs what `iptables-save` does not show and `iptables-restore` cannot change, for rules that the programs write.

use ferroute_core::{IpFamily, error_chain};
use ferroute_netlink::{Batch, Error, nf_tables::*, nfnetlink};

use super::{
    KernelSink, NativeRules, ReadError,
    read::{ListedChain, find_chain},
    tables::{BUILTIN_CHAINS, base_chain, nfproto},
};
use crate::{ChainName, TableName, sink::RuleSink};

/// What another program made of a table or chain, and that could not be repaired. The programs cannot write rules to it, or
/// its rules have no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// Packets traverse no chain of the table.
    #[error(
        "table {table} is dormant, so that its rules have no effect, and the flag cannot be cleared: {cause}; run \
         `nft add table {} {table}`", nft_family(*.family)
    )]
    Dormant {
        /// The IP family.
        family: IpFamily,
        /// The table.
        table: TableName,
        /// The cause.
        cause: String,
    },
    /// A chain of the proxy is a base chain, to which no rule can jump, or a builtin chain is not the base chain that
    /// `iptables` would create.
    #[error(
        "another program created chain {chain} of table {table} {} a hook, and it cannot be replaced: {cause}; run `nft \
         'flush chain {} {table} {chain}; delete chain {} {table} {chain}'`",
        if .chain.is_builtin() { "without" } else { "with" }, nft_family(*.family), nft_family(*.family)
    )]
    Chain {
        /// The IP family.
        family: IpFamily,
        /// The table.
        table: TableName,
        /// The chain.
        chain: ChainName,
        /// The cause.
        cause: String,
    },
}

impl Obstacle {
    /// Returns the chain that rules cannot be written to.
    pub(crate) fn chain(&self) -> Option<(TableName, ChainName)> {
        match self {
            Self::Dormant { .. } => None,
            Self::Chain { table, chain, .. } => Some((*table, *chain)),
        }
    }
}

impl NativeRules {
    /// Clears the flag `dormant` of tables, and deletes chains of the proxy (`own`) that are base chains and builtin
    /// chains without their hook that have no rules of other programs: those are created again. Returns what cannot be
    /// repaired.
    ///
    /// # Errors
    /// If the tables and chains cannot be read.
    pub(crate) fn repair(
        &self,
        tables: &[TableName],
        own: &[(TableName, ChainName)],
    ) -> Result<Vec<Obstacle>, ReadError> {
        let family = self.family;
        let mut obstacles = Vec::new();
        for table in tables.iter().copied() {
            let failed = |source| ReadError { table, source };
            let Some(listed) = self.find_table(table).map_err(failed)? else { continue };
            if listed.is_dormant()
                && let Err(cause) = self.wake(table, listed.flags)
            {
                obstacles.push(Obstacle::Dormant { family, table, cause });
            }
            for chain in BUILTIN_CHAINS.into_iter().filter(|chain| base_chain(table, *chain).is_some()) {
                let found = self.with_socket(|socket| find_chain(socket, family, table, chain)).map_err(failed)?;
                let Some(found) = found.filter(|found| found.is_unhooked(table)) else { continue };
                let rules = self.rules_of(table, chain).map_err(failed)?;
                let replaced = if found.is_replaceable(table, &rules) {
                    tracing::warn!(%family, %table, "chain {chain} is not called from its hook; deleting it");
                    self.delete(table, chain).map_err(|error| error_chain(&error))
                } else {
                    Err("it has rules or callers of another program".to_owned())
                };
                obstacles.extend(replaced.err().map(|cause| Obstacle::Chain { family, table, chain, cause }));
            }
        }
        let first = tables.first().copied().unwrap_or(TableName::Filter);
        let chains = self.list_chains(tables).map_err(|source| ReadError { table: first, source })?;
        for (table, ListedChain { name, .. }) in chains.into_iter().filter(|(_, chain)| chain.hook.is_some()) {
            let Some(chain) = name.filter(|name| !name.is_builtin() && own.contains(&(table, *name))) else { continue };
            tracing::warn!(%family, %table, "chain {chain} is called from a hook; deleting it");
            if let Err(error) = self.delete(table, chain) {
                obstacles.push(Obstacle::Chain { family, table, chain, cause: error_chain(&error) });
            }
        }
        Ok(obstacles)
    }

    /// Clears the flag `dormant` of a table.
    fn wake(&self, table: TableName, flags: u32) -> Result<(), String> {
        let mut sink = KernelSink::new(self, None);
        match (sink.begin(table).and_then(|()| sink.wake_table(flags)), sink.into_error()) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(error)) => Err(error_chain(&error)),
            (Err(error), None) => Err(error.to_string()),
        }
    }

    /// Deletes a chain with its rules.
    fn delete(&self, table: TableName, chain: ChainName) -> Result<(), Error> {
        let mut batch = Batch::new();
        begin(&mut batch, None);
        let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, NFT_MSG_DELCHAIN);
        let mut message = batch.message(kind, 0, &nfnetlink::header(nfproto(self.family), 0, 0));
        message.put_str(NFTA_CHAIN_TABLE, table.as_str());
        message.put_str(NFTA_CHAIN_NAME, chain.as_str());
        drop(message);
        end(&mut batch);
        self.with_socket(|socket| socket.send_batch(&mut batch))?.into_result()
    }
}

/// Returns `nft`'s name of an IP family.
fn nft_family(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip6",
    }
}
