use std::collections::{BTreeSet, HashMap, HashSet};

use ferroute_core::{Frontend, IpFamily};

use super::{
    ChainDigest, Jump, RuleSum, SharedChain, chains, fixed::localnet_rule, is_iptables_mode_chain, is_service_chain,
    jumps, udp_frontend,
};
use crate::{ChainName, ParseError, ParseErrorKind, Rule, SaveItem, SaveParser, TableName};

/// The proxy's chains in the kernel, as digests. They are read line by line from `iptables-save` text, so that the size
/// does not depend on the number of rules.
#[derive(Clone, Debug)]
pub struct KernelChains {
    /// All except the shared chains.
    pub(super) chains: HashMap<(TableName, ChainName), ChainDigest>,
    /// The shared chains, by [`SharedChain::index`]; `None` if they do not exist.
    pub(super) shared: [Option<RuleSum>; SharedChain::ALL.len()],
    /// The jumps of [`jumps`] that do not exist.
    pub(super) missing_jumps: Vec<Jump>,
    /// [`localnet_rule`] is in `KUBE-FIREWALL`.
    pub(super) has_localnet_rule: bool,
    /// Service chains that rules of other programs jump to.
    pub(super) referenced: HashSet<ChainName>,
    /// The UDP frontends in the shared chains.
    pub(crate) udp_frontends: BTreeSet<Frontend>,
}

/// A line-by-line reader of [`KernelChains`].
#[derive(Debug)]
pub struct KernelChainsReader {
    parser: SaveParser,
    collector: KernelChainsCollector,
}

/// Collects [`KernelChains`] from chains and rules.
#[derive(Debug)]
pub(crate) struct KernelChainsCollector {
    kernel: KernelChains,
    localnet_rule: Rule,
    /// The chain of the last rules, not yet in `kernel`: rules of one chain are printed together.
    current: Option<((TableName, ChainName), ChainDigest)>,
    /// A jump to the chain of node ports, which must be the last in nat `KUBE-SERVICES`, was added.
    has_node_port_jump: bool,
}

impl KernelChains {
    /// A kernel without chains of the proxy.
    pub fn empty() -> Self {
        Self {
            chains: HashMap::new(),
            shared: [None; SharedChain::ALL.len()],
            missing_jumps: jumps(),
            has_localnet_rule: false,
            referenced: HashSet::new(),
            udp_frontends: BTreeSet::new(),
        }
    }
}

impl KernelChainsReader {
    /// Creates a reader for the text of one IP family.
    pub fn new(family: IpFamily) -> Self {
        Self { parser: SaveParser::new(family), collector: KernelChainsCollector::new(family) }
    }

    /// Reads the next line.
    ///
    /// # Errors
    /// If the line is invalid.
    pub fn line(&mut self, line: &str) -> Result<(), ParseError> {
        let item = ignore_unnameable(self.parser.line(line))?;
        if let Some((table, item)) = self.parser.table().zip(item) {
            self.collector.add(table, item);
        }
        Ok(())
    }

    /// Ends the text.
    ///
    /// # Errors
    /// If the text is truncated.
    pub fn finish(self) -> Result<KernelChains, ParseError> {
        self.parser.finish().map(|()| self.collector.finish())
    }
}

impl KernelChainsCollector {
    /// Creates a collector for one IP family.
    pub(crate) fn new(family: IpFamily) -> Self {
        Self {
            kernel: KernelChains::empty(),
            localnet_rule: localnet_rule(family),
            current: None,
            has_node_port_jump: false,
        }
    }

    /// Adds a chain or rule of a table.
    pub(crate) fn add(&mut self, table: TableName, item: SaveItem) {
        match item {
            SaveItem::Chain(chain, _) => match SharedChain::find(table, chain) {
                Some(shared) => _ = self.shared(shared),
                None if is_iptables_mode_chain(table, chain) => {
                    self.kernel.chains.entry((table, chain)).or_insert(ChainDigest::EMPTY);
                }
                None => {}
            },
            SaveItem::Rule(chains::FIREWALL, rule) if table == TableName::Filter => {
                self.kernel.has_localnet_rule |= rule == self.localnet_rule;
            }
            SaveItem::Rule(chain, rule) => match &mut self.current {
                Some((current, digest)) if *current == (table, chain) => digest.append(&rule),
                _ => match SharedChain::find(table, chain) {
                    Some(shared) => self.add_shared_rule(shared, &rule),
                    None => self.add_rule(table, chain, &rule),
                },
            },
            SaveItem::Table(_) | SaveItem::Commit => {}
        }
    }

    /// Adds a rule of a chain other than the current one.
    fn add_rule(&mut self, table: TableName, chain: ChainName, rule: &Rule) {
        if is_iptables_mode_chain(table, chain) {
            self.store_current();
            let previous = self.kernel.chains.get(&(table, chain));
            let mut digest = previous.copied().unwrap_or(ChainDigest::EMPTY);
            digest.append(rule);
            self.current = Some(((table, chain), digest));
            return;
        }
        let exists = |jump: &Jump| jump.table == table && jump.from == chain && jump.rule == *rule;
        self.kernel.missing_jumps.retain(|jump| !exists(jump));
        let next = rule.next_chain().filter(|to| table == TableName::Nat && is_service_chain(*to));
        self.kernel.referenced.extend(next);
    }

    fn add_shared_rule(&mut self, shared: SharedChain, rule: &Rule) {
        if shared.table() == TableName::Nat {
            self.kernel.udp_frontends.extend(udp_frontend(rule));
        }
        // A Service's external address may be an address of the host as well, and its port another Service's node port.
        let is_ordered = shared == SharedChain::NatServices;
        let is_node_port_jump = is_ordered && rule.next_chain() == Some(chains::NODE_PORTS);
        match is_ordered && self.has_node_port_jump && !is_node_port_jump {
            true => self.shared(shared).add_misplaced(rule),
            false => self.shared(shared).add(rule),
        }
        self.has_node_port_jump |= is_node_port_jump;
    }

    fn shared(&mut self, shared: SharedChain) -> &mut RuleSum {
        self.kernel.shared[shared.index()].get_or_insert(RuleSum::EMPTY)
    }

    /// Returns the chains.
    pub(crate) fn finish(mut self) -> KernelChains {
        self.store_current();
        self.kernel
    }

    fn store_current(&mut self) {
        self.kernel.chains.extend(self.current.take());
    }
}

/// Ignores invalid lines that other programs cause and that cannot affect the proxy's rules: `nft` creates chains in
/// `iptables`' tables with names that `iptables` rejects, names in rules may contain newlines, and `iptables-nft-save`
/// 1.8.2 reports on standard output that a table does not exist yet.
pub(crate) fn ignore_unnameable(item: Result<Option<SaveItem>, ParseError>) -> Result<Option<SaveItem>, ParseError> {
    match item {
        Err(ParseError {
            kind:
                ParseErrorKind::ChainName(_)
                | ParseErrorKind::ChainLine
                | ParseErrorKind::OutsideTable
                | ParseErrorKind::OpenQuote
                | ParseErrorKind::UnknownLine,
            ..
        }) => Ok(None),
        item => item,
    }
}
