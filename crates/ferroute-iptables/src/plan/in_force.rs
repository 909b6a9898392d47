use std::collections::{HashMap, HashSet};

use ferroute_core::IpFamily;

use super::{ChainDigest, Dispatch, Jump, base::localnet_guard, chains, is_service_chain, jumps};
use crate::{ChainName, ParseError, ParseErrorKind, Rule, SaveItem, SaveParser, TableName};

/// What the kernel holds of our rules, as [`ChainDigest`]s. Read line by line from `iptables-save`'s text, so that it
/// stays small however many rules there are.
#[derive(Clone, Debug)]
pub struct InForce {
    pub(super) chains: HashMap<(TableName, ChainName), ChainDigest>,
    /// Those of [`jumps`] that were not seen.
    pub(super) missing_jumps: Vec<Jump>,
    /// [`localnet_guard`] is in `KUBE-FIREWALL`.
    pub(super) has_guard: bool,
    /// Chains of service ports that rules of others lead to.
    pub(super) used_by_others: HashSet<ChainName>,
}

/// Reads an [`InForce`] from text.
#[derive(Debug)]
pub struct InForceReader {
    parser: SaveParser,
    in_force: InForce,
    guard: Rule,
    /// The chain that the last rules belong to, not in `in_force` yet: rules of one chain come together.
    current: Option<((TableName, ChainName), ChainDigest)>,
}

impl InForce {
    /// Nothing: a kernel that never had rules of ours.
    pub fn nothing() -> Self {
        Self { chains: HashMap::new(), missing_jumps: jumps(), has_guard: false, used_by_others: HashSet::new() }
    }
}

impl InForceReader {
    /// A reader for one family's text.
    pub fn new(family: IpFamily) -> Self {
        Self {
            parser: SaveParser::new(family),
            in_force: InForce::nothing(),
            guard: localnet_guard(family),
            current: None,
        }
    }

    /// Takes the next line.
    ///
    /// # Errors
    /// When it makes no sense.
    pub fn line(&mut self, line: &str) -> Result<(), ParseError> {
        let item = without_strangers(self.parser.line(line))?;
        let (Some(item), Some(table)) = (item, self.parser.table()) else { return Ok(()) };
        match item {
            SaveItem::Chain(chain, _) if is_ours(table, chain) => {
                self.in_force.chains.entry((table, chain)).or_insert(ChainDigest::EMPTY);
            }
            SaveItem::Rule(chains::FIREWALL, rule) if table == TableName::Filter => {
                self.in_force.has_guard |= rule == self.guard;
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
                _ => {
                    let seen = |jump: &Jump| jump.table == table && jump.from == chain && jump.rule == rule;
                    self.in_force.missing_jumps.retain(|jump| !seen(jump));
                    let next = rule.next_chain().filter(|to| table == TableName::Nat && is_service_chain(*to));
                    self.in_force.used_by_others.extend(next);
                }
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

/// Passes over lines that others bring about and that cannot be about our rules: `nft` makes chains in `iptables`' tables
/// with names that `iptables` would not take, and `iptables-nft-save` 1.8.2 says on its standard output that there is no
/// such table yet.
pub(crate) fn without_strangers(item: Result<Option<SaveItem>, ParseError>) -> Result<Option<SaveItem>, ParseError> {
    match item {
        Err(ParseError { why: ParseErrorKind::ChainName(_) | ParseErrorKind::OutsideTable, .. }) => Ok(None),
        item => item,
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
