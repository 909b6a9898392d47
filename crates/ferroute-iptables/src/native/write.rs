//! Writing rules in transactions.

use std::{collections::BTreeMap, io, mem};

use ferroute_core::Heartbeat;
use ferroute_netlink::{Batch, Error, Messages, Refusal, Writer, flags, nf_tables::*, nfnetlink};

use super::{
    NativeRules, decode, encode,
    read::find_chain,
    sets::{self, SetNumbers},
    tables::{BaseChain, base_chain, nfproto, put_base_chain},
};
use crate::{ChainName, Rule, TableName, sink::RuleSink, text::Line};

/// A failure to write rules by netlink. Transactions before it are applied.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The kernel refused a transaction because of one of its changes.
    #[error("kernel refused {change:?}")]
    Refused {
        /// The refused change, as in the input of `iptables-restore`.
        change: String,
        /// The chain that the refused change deletes, if it does.
        deleted: Option<ChainName>,
        /// The kernel's error.
        #[source]
        source: Error,
    },
    /// A transaction could not be sent, or the kernel did not acknowledge it.
    #[error("cannot commit a transaction in table {table}")]
    Commit {
        /// The table, or the last one of several.
        table: TableName,
        /// The cause.
        #[source]
        source: Error,
    },
    /// A rule has a match or target that only the iptables programs can write.
    #[error("cannot write {rule:?} without the iptables programs")]
    Unsupported {
        /// The rule, as in the input of `iptables-restore`.
        rule: String,
    },
    /// The ipset of a rule cannot be found.
    #[error("cannot find ipset {name}")]
    FindSet {
        /// The name of the set.
        name: String,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The ipset of a rule does not exist.
    #[error("cannot write {rule:?}: ipset {name} does not exist")]
    NoSet {
        /// The name of the set.
        name: String,
        /// The rule, as in the input of `iptables-restore`.
        rule: String,
    },
    /// The rule to be deleted does not exist.
    #[error("cannot delete {rule:?}, which does not exist")]
    NoRule {
        /// The rule, as in the input of `iptables-restore`.
        rule: String,
    },
}

/// Sends each transaction, which can change several tables, to the kernel when it ends.
///
/// Objects that a transaction depends on (base chains, and the handles of rules to be deleted) are read while it is
/// composed. If another program changes them in the meantime, the kernel refuses the transaction.
pub(crate) struct KernelSink<'a> {
    rules: &'a NativeRules,
    /// The generation that the next transaction requires; `None` for any.
    generation: Option<u32>,
    batch: Batch,
    /// Whether `batch` has the beginning of a transaction.
    has_begun: bool,
    /// The number of committed transactions.
    transactions: u32,
    /// The current table, or the last one.
    table: TableName,
    /// The base chains of the table that exist, or that this transaction creates, with rules that need no insertion: those of
    /// a table that was dormant.
    base_chains: BTreeMap<ChainName, Vec<Rule>>,
    /// The numbers of the sets in this transaction's rules.
    sets: SetNumbers,
    /// Base chains that this transaction replaces, see [`NativeRules::hooked_chains`].
    replaced: Vec<(TableName, ChainName)>,
    /// Whether nothing may be committed, also no repair of a table.
    is_trial: bool,
    error: Option<WriteError>,
}

impl<'a> KernelSink<'a> {
    /// Creates a sink for a transaction that is only [tried out](KernelSink::try_out).
    pub(super) fn for_trial(rules: &'a NativeRules) -> Self {
        Self { is_trial: true, ..Self::new(rules, None) }
    }

    /// Creates a sink. With a generation, the kernel refuses the transactions if another program has committed a
    /// transaction since then, or does so between them.
    pub(crate) fn new(rules: &'a NativeRules, generation: Option<u32>) -> Self {
        Self {
            rules,
            generation,
            batch: Batch::new(),
            has_begun: false,
            transactions: 0,
            table: TableName::Filter,
            base_chains: BTreeMap::new(),
            sets: SetNumbers::default(),
            replaced: Vec::new(),
            is_trial: false,
            error: None,
        }
    }

    /// Returns the error that a method reported.
    pub(crate) fn into_error(self) -> Option<WriteError> {
        self.error
    }

    /// Sends the transaction without its end, so that the kernel checks it but does not commit it.
    pub(super) fn try_out(&mut self) -> io::Result<()> {
        self.send()
    }

    fn send(&mut self) -> io::Result<()> {
        Heartbeat::beat_thread();
        let batch = &mut self.batch;
        let sent = self.rules.with_socket(|socket| socket.send_batch(batch));
        let refusals = match sent {
            Ok(refusals) => refusals,
            Err(source) => return self.fail(WriteError::Commit { table: self.table, source }),
        };
        // One mistake can cause many errors; the first error is closest to it.
        let first = refusals.as_slice().first().cloned();
        let Err(source) = refusals.into_result() else { return Ok(()) };
        let change = first.filter(|refusal| !refusal.is_circumstantial());
        self.fail(match change.and_then(|refusal| self.refused_change(&refusal)) {
            Some((change, deleted)) => WriteError::Refused { change, deleted, source },
            None => WriteError::Commit { table: self.table, source },
        })
    }

    fn fail(&mut self, error: WriteError) -> io::Result<()> {
        self.error.get_or_insert(error);
        Err(io::Error::other("rules cannot be written by netlink"))
    }

    fn message(&mut self, command: u8, flags: u16) -> Writer<'_> {
        let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, command);
        let header = nfnetlink::header(nfproto(self.rules.family), 0, 0);
        let mut message = self.batch.message(kind, flags, &header);
        // The table's name is attribute 1 of all kinds of objects.
        message.put_str(NFTA_TABLE_NAME, self.table.as_str());
        message
    }

    fn rule(&mut self, chain: ChainName, rule: &Rule, flags: u16) -> io::Result<()> {
        if chain.is_builtin() && self.ensure_base_chain(chain)?.contains(rule) {
            return Ok(());
        }
        self.find_sets(chain, rule)?;
        let family = self.rules.family;
        let sets = mem::take(&mut self.sets);
        let mut message = self.message(NFT_MSG_NEWRULE, flags);
        message.put_str(NFTA_RULE_CHAIN, chain.as_str());
        let put = encode::put_rule(&mut message, family, rule, &sets);
        drop(message);
        self.sets = sets;
        match put {
            Ok(()) => Ok(()),
            Err(encode::Unsupported) => self.fail(WriteError::Unsupported { rule: Line(chain, rule).to_string() }),
        }
    }

    /// Looks up the numbers of a rule's sets.
    fn find_sets(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()> {
        for name in sets::names_in(rule) {
            if self.sets.number(name).is_some() {
                continue;
            }
            match self.rules.with_socket(|socket| sets::number_of(socket, name)) {
                Ok(Some(number)) => self.sets.insert(name, number),
                Ok(None) => {
                    let rule = Line(chain, rule).to_string();
                    return self.fail(WriteError::NoSet { name: name.to_owned(), rule });
                }
                Err(source) => return self.fail(WriteError::FindSet { name: name.to_owned(), source }),
            }
        }
        Ok(())
    }

    /// Ensures that a base chain exists and that packets traverse it, if possible. Returns those of its rules that the
    /// reader does not see because the table was dormant, see [`NativeRules::idle_chain`].
    ///
    /// The priority of an existing chain may differ, and must then not be specified.
    fn ensure_base_chain(&mut self, chain: ChainName) -> io::Result<&[Rule]> {
        let Some(base) = base_chain(self.table, chain) else { return Ok(&[]) };
        if !self.base_chains.contains_key(&chain) {
            let unseen = self.prepare_base_chain(chain, base)?;
            self.base_chains.insert(chain, unseen);
        }
        Ok(&self.base_chains[&chain])
    }

    fn prepare_base_chain(&mut self, chain: ChainName, base: BaseChain) -> io::Result<Vec<Rule>> {
        let (family, table) = (self.rules.family, self.table);
        let commit_error = |source| WriteError::Commit { table, source };
        let found = self.rules.with_socket(|socket| find_chain(socket, family, table, chain)).map_err(commit_error);
        let (found, dormant) = match (found, self.rules.find_table(table).map_err(commit_error)) {
            (Ok(found), Ok(listed)) => (found, listed.filter(|listed| listed.is_dormant())),
            (Err(error), _) | (_, Err(error)) => return self.fail(error).map(|()| Vec::new()),
        };
        let Some(found) = found else {
            self.put_chain(chain, base);
            return Ok(Vec::new());
        };
        if self.is_trial {
            return Ok(Vec::new());
        }
        if let Some(dormant) = &dormant {
            self.wake_table(dormant.flags)?;
        } else if !found.is_unhooked(table) {
            return Ok(Vec::new());
        }
        let rules = match self.rules.rules_of(table, chain) {
            Ok(rules) => rules,
            Err(source) => return self.fail(commit_error(source)).map(|()| Vec::new()),
        };
        if found.is_replaceable(table, &rules) {
            // The kernel does not change the hook of a chain. The jumps are written like missing ones.
            tracing::warn!(%family, %table, "chain {chain} is not called from its hook; replacing it");
            self.message(NFT_MSG_DELCHAIN, 0).put_str(NFTA_CHAIN_NAME, chain.as_str());
            self.put_chain(chain, base);
            return Ok(Vec::new());
        }
        if found.is_unhooked(table) {
            tracing::error!(
                %family,
                %table,
                "chain {chain} is not called from its hook, so that its rules have no effect, and it has rules or callers of \
                 another program; delete it: it is created again as iptables does"
            );
        }
        let unseen = rules.into_iter().filter(|_| dormant.is_some());
        Ok(unseen.map(|listed| listed.rule).collect())
    }

    fn put_chain(&mut self, chain: ChainName, base: BaseChain) {
        let mut message = self.message(NFT_MSG_NEWCHAIN, flags::NLM_F_CREATE);
        message.put_str(NFTA_CHAIN_NAME, chain.as_str());
        put_base_chain(&mut message, base);
    }

    /// Clears the flag `dormant` of the table, in a transaction of its own: the kernel does not accept all changes of a table
    /// together with this one.
    pub(super) fn wake_table(&mut self, flags: u32) -> io::Result<()> {
        let (family, table) = (self.rules.family, self.table);
        tracing::warn!(%family, %table, "the table is dormant, so that its rules have no effect; clearing the flag");
        let mut batch = Batch::new();
        begin(&mut batch, self.generation);
        let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWTABLE);
        let mut message = batch.message(kind, 0, &nfnetlink::header(nfproto(family), 0, 0));
        message.put_str(NFTA_TABLE_NAME, table.as_str());
        message.put_u32_be(NFTA_TABLE_FLAGS, flags & !NFT_TABLE_F_DORMANT);
        drop(message);
        end(&mut batch);
        let sent = self.rules.with_socket(|socket| socket.send_batch(&mut batch));
        if let Err(source) = sent.and_then(|refusals| refusals.into_result()) {
            return self.fail(WriteError::Commit { table, source });
        }
        self.transactions += 1;
        Ok(())
    }

    /// Describes the change in the message that the kernel refused, as in the input of `iptables-restore`, with the
    /// chain that it deletes.
    fn refused_change(&self, refusal: &Refusal) -> Option<(String, Option<ChainName>)> {
        let message = Messages::new(self.batch.as_bytes().ok()?).nth(refusal.index)?.ok()?;
        let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>().ok()?;
        let [_, command] = message.kind.to_be_bytes();
        let attribute = |kind| attributes.clone().flatten().find(|attribute| attribute.kind == kind);
        let name = |kind| attribute(kind)?.text();
        let mut deleted = None;
        let change = match command {
            NFT_MSG_NEWRULE => {
                let mut decoded = decode::rule(self.rules.family, attributes.clone()).ok()?;
                decode::name_sets(&mut decoded.rule, &decoded.sets, |number| self.sets.name(number));
                let is_appended = message.flags & flags::NLM_F_APPEND != 0;
                format!("{} {} {}", if is_appended { "-A" } else { "-I" }, decoded.chain, decoded.rule)
            }
            NFT_MSG_NEWCHAIN => format!(":{} - [0:0]", name(NFTA_CHAIN_NAME)?),
            NFT_MSG_DELCHAIN => {
                let chain = name(NFTA_CHAIN_NAME)?;
                deleted = ChainName::new(chain).ok();
                format!("-X {chain}")
            }
            NFT_MSG_DELRULE => {
                let chain = name(NFTA_RULE_CHAIN)?;
                match attribute(NFTA_RULE_HANDLE).and_then(|handle| handle.u64_be().ok()) {
                    Some(handle) => format!("-D {chain} (handle {handle})"),
                    None => format!("-F {chain}"),
                }
            }
            NFT_MSG_NEWTABLE => format!("*{}", name(NFTA_TABLE_NAME)?),
            _ => return None,
        };
        Some((change, deleted))
    }
}

impl RuleSink for KernelSink<'_> {
    fn begin(&mut self, table: TableName) -> io::Result<()> {
        if !mem::replace(&mut self.has_begun, true) {
            self.batch.clear();
            self.sets.clear();
            begin(&mut self.batch, self.generation);
        }
        self.base_chains.clear();
        self.table = table;
        self.message(NFT_MSG_NEWTABLE, flags::NLM_F_CREATE);
        Ok(())
    }

    fn declare(&mut self, chain: ChainName) -> io::Result<()> {
        if self.rules.hooked_chains().contains(&(self.table, chain)) {
            self.replaced.push((self.table, chain));
            self.message(NFT_MSG_DELRULE, 0).put_str(NFTA_RULE_CHAIN, chain.as_str());
            self.message(NFT_MSG_DELCHAIN, 0).put_str(NFTA_CHAIN_NAME, chain.as_str());
        }
        self.message(NFT_MSG_NEWCHAIN, flags::NLM_F_CREATE).put_str(NFTA_CHAIN_NAME, chain.as_str());
        self.message(NFT_MSG_DELRULE, 0).put_str(NFTA_RULE_CHAIN, chain.as_str());
        Ok(())
    }

    fn append(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()> {
        self.rule(chain, rule, flags::NLM_F_CREATE | flags::NLM_F_APPEND)
    }

    fn insert(&mut self, chain: ChainName, rule: &Rule) -> io::Result<()> {
        self.rule(chain, rule, flags::NLM_F_CREATE)
    }

    fn remove(&mut self, chain: ChainName, rules: &[Rule]) -> io::Result<()> {
        let handles = match self.rules.handles_of(self.table, chain, rules) {
            Ok(Ok(handles)) => handles,
            Ok(Err(rule)) => return self.fail(WriteError::NoRule { rule: Line(chain, rule).to_string() }),
            Err(source) => return self.fail(WriteError::Commit { table: self.table, source }),
        };
        for handle in handles {
            let mut message = self.message(NFT_MSG_DELRULE, 0);
            message.put_str(NFTA_RULE_CHAIN, chain.as_str());
            message.put_u64_be(NFTA_RULE_HANDLE, handle);
        }
        Ok(())
    }

    fn delete(&mut self, chain: ChainName) -> io::Result<()> {
        self.message(NFT_MSG_DELCHAIN, 0).put_str(NFTA_CHAIN_NAME, chain.as_str());
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn commit(&mut self) -> io::Result<()> {
        if !mem::replace(&mut self.has_begun, false) {
            return Ok(());
        }
        end(&mut self.batch);
        self.send()?;
        let mut hooked = self.rules.hooked_chains();
        self.replaced.drain(..).for_each(|chain| _ = hooked.remove(&chain));
        drop(hooked);
        self.transactions += 1;
        // Each transaction increments the generation.
        self.generation = self.generation.map(|generation| generation.wrapping_add(1));
        Ok(())
    }

    fn transactions(&self) -> u32 {
        self.transactions
    }
}
