use std::collections::HashMap;

use ferroute_core::IpFamily;

use super::{ChainDigest, Dispatch, Jump, chains, is_service_chain, jumps};
use crate::{ChainName, ParseError, SaveItem, SaveParser, TableName};

/// What the kernel holds of our rules, as [`ChainDigest`]s. Read line by line from `iptables-save`'s text, so that it
/// stays small however many rules there are.
#[derive(Clone, Debug)]
pub struct InForce {
    pub(super) chains: HashMap<(TableName, ChainName), ChainDigest>,
    /// Those of [`jumps`] that were not seen.
    pub(super) missing_jumps: Vec<Jump>,
}

/// Reads an [`InForce`] from text.
#[derive(Debug)]
pub struct InForceReader {
    parser: SaveParser,
    in_force: InForce,
    /// The chain that the last rules belong to, not in `in_force` yet: rules of one chain come together.
    current: Option<((TableName, ChainName), ChainDigest)>,
}

impl InForce {
    /// Nothing: a kernel that never had rules of ours.
    pub fn nothing() -> Self {
        Self { chains: HashMap::new(), missing_jumps: jumps() }
    }

    /// A table's canary is there.
    pub fn has_canary(&self, table: TableName) -> bool {
        self.chains.contains_key(&(table, chains::CANARY))
    }
}

impl InForceReader {
    /// A reader for one family's text.
    pub fn new(family: IpFamily) -> Self {
        Self { parser: SaveParser::new(family), in_force: InForce::nothing(), current: None }
    }

    /// Takes the next line.
    ///
    /// # Errors
    /// When it makes no sense.
    pub fn line(&mut self, line: &str) -> Result<(), ParseError> {
        let item = self.parser.line(line)?;
        let (Some(item), Some(table)) = (item, self.parser.table()) else { return Ok(()) };
        match item {
            SaveItem::Chain(chain, _) if is_ours(table, chain) => {
                self.in_force.chains.entry((table, chain)).or_insert(ChainDigest::EMPTY);
            }
            SaveItem::Rule(chain, rule) => match &mut self.current {
                Some((current, digest)) if *current == (table, chain) => digest.append(&rule),
                _ if is_ours(table, chain) => {
                    self.put_away();
                    let known = self.in_force.chains.get(&(table, chain));
                    let mut digest = known.copied().unwrap_or(ChainDigest::EMPTY);
                    digest.append(&rule);
                    self.current = Some(((table, chain), digest));
                }
                _ if chain.is_builtin() => self.in_force.missing_jumps.retain(|jump| {
                    let seen = jump.table == table && jump.from == chain && jump.rule == rule;
                    !seen
                }),
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    /// Says that there are no more lines.
    ///
    /// # Errors
    /// When the text was cut off.
    pub fn finish(mut self) -> Result<InForce, ParseError> {
        self.put_away();
        self.parser.finish().map(|()| self.in_force)
    }

    fn put_away(&mut self) {
        self.in_force.chains.extend(self.current.take());
    }
}

/// The chain is one that we write.
pub(crate) fn is_ours(table: TableName, chain: ChainName) -> bool {
    let fixed = match table {
        TableName::Filter => [chains::FORWARD, chains::FIREWALL, chains::CANARY].contains(&chain),
        TableName::Nat => [chains::POSTROUTING, chains::MARK_MASQ, chains::CANARY].contains(&chain),
        TableName::Mangle => chain == chains::CANARY,
        TableName::Raw | TableName::Security => false,
    };
    let shared = || Dispatch::ALL.iter().any(|dispatch| dispatch.table() == table && dispatch.chain() == chain);
    fixed || shared() || (table == TableName::Nat && is_service_chain(chain))
}
