//! Reading chains and rules.

use std::collections::{BTreeMap, btree_map::Entry};

use ferroute_core::{Heartbeat, IpFamily};
use ferroute_netlink::{Consistency, Error, Malformed, Message, Request, Socket, nf_tables::*, nfnetlink};

use super::{
    NativeRules, ReadError,
    decode::{self, KernelRule},
    sets,
    tables::request,
};
use crate::{ChainHead, ChainName, Counters, Policy, Rule, SaveItem, TableName};

impl NativeRules {
    /// Reads tables and calls `add` with the chains of each, then with its rules chain by chain. Chains that `iptables` cannot
    /// name are left out.
    ///
    /// Rules of one chain are those of a single moment, even if other programs change rules meanwhile; those of two chains
    /// need not be.
    ///
    /// # Errors
    /// If the kernel refuses, or other programs change rules all the time.
    pub(crate) fn read(&self, tables: &[TableName], add: &mut dyn FnMut(TableName, SaveItem)) -> Result<(), ReadError> {
        for table in tables {
            self.read_table(*table, &mut |item| add(*table, item))
                .map_err(|source| ReadError { table: *table, source })?;
        }
        Ok(())
    }

    /// Dumps chain by chain: in a dump of the whole table, the kernel goes through all rules that it has returned before for
    /// every 32 KiB that it returns.
    fn read_table(&self, table: TableName, add: &mut dyn FnMut(SaveItem)) -> Result<(), Error> {
        let chains = self.chains_of(table)?;
        let named = || chains.iter().filter_map(|ListedChain { name, head, .. }| Some(((*name)?, *head)));
        for (name, head) in named() {
            add(SaveItem::Chain(name, head));
        }
        for (name, _) in named() {
            Heartbeat::beat_thread();
            for ListedRule { rule, .. } in self.rules_of(table, name)? {
                add(SaveItem::Rule(name, rule));
            }
        }
        Ok(())
    }

    /// Reports whether a chain exists.
    ///
    /// # Errors
    /// If the kernel refuses for another reason.
    pub(crate) fn has_chain(&self, table: TableName, chain: ChainName) -> Result<bool, ReadError> {
        self.with_socket(|socket| has_chain(socket, self.family, table, chain))
            .map_err(|source| ReadError { table, source })
    }

    /// Returns the rules of a chain; none if it does not exist.
    pub(super) fn rules_of(&self, table: TableName, chain: ChainName) -> Result<Vec<ListedRule>, Error> {
        let mut request = request(self.family, NFT_MSG_GETRULE, table);
        request.attributes().put_str(NFTA_RULE_CHAIN, chain.as_str());
        let listed = self.collect(&mut request, |message| {
            let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
            let KernelRule { table: of, chain: listed, handle, rule, counters, is_foreign, sets: of_rule } =
                decode::rule(self.family, attributes)?;
            let is_wanted = of == table.as_str() && listed == chain.as_str();
            Ok(is_wanted.then_some((ListedRule { handle, rule, counters, is_foreign }, of_rule)))
        })?;
        // The socket is busy during the dump.
        let mut names: BTreeMap<u16, Option<Box<str>>> = BTreeMap::new();
        for (_, number) in listed.iter().flat_map(|(_, sets)| sets) {
            if let Entry::Vacant(entry) = names.entry(*number) {
                entry.insert(self.with_socket(|socket| sets::name_of(socket, *number))?);
            }
        }
        let named = |(mut listed, sets): (ListedRule, Vec<(usize, u16)>)| {
            decode::name_sets(&mut listed.rule, &sets, |number| names.get(&number)?.as_deref());
            listed
        };
        Ok(listed.into_iter().map(named).collect())
    }

    /// Returns the chains of a table; none if it does not exist.
    pub(super) fn chains_of(&self, table: TableName) -> Result<Vec<ListedChain>, Error> {
        self.collect(&mut request(self.family, NFT_MSG_GETCHAIN, table), |message| chain(message, table))
    }

    /// Returns the objects of a dump; none if the table or chain does not exist.
    fn collect<T>(
        &self,
        request: &mut Request,
        parse: impl Fn(&Message<'_>) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut objects = Vec::new();
            let result = self.with_socket(|socket| {
                socket.dump(request, |message| {
                    objects.extend(parse(&message)?);
                    Ok::<_, Error>(())
                })
            });
            match result {
                Ok(Consistency::Consistent) => return Ok(objects),
                Ok(Consistency::Interrupted) if attempts == MAX_ATTEMPTS => {
                    return Err(Error::Interrupted { kind: request.kind(), attempts });
                }
                Ok(Consistency::Interrupted) => {}
                Err(error) if error.is_not_found() => return Ok(Vec::new()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// A rule of a chain.
pub(super) struct ListedRule {
    /// The number by which the kernel identifies it.
    pub(super) handle: u64,
    pub(super) rule: Rule,
    pub(super) counters: Counters,
    /// It has an expression that `iptables-nft` does not write.
    pub(super) is_foreign: bool,
}

/// A chain of a table.
pub(super) struct ListedChain {
    /// `None` if `iptables` cannot name it.
    pub(super) name: Option<ChainName>,
    pub(super) head: ChainHead,
    /// The kernel calls it.
    pub(super) is_base: bool,
}

/// Reports whether a chain exists.
pub(super) fn has_chain(
    socket: &mut Socket,
    family: IpFamily,
    table: TableName,
    chain: ChainName,
) -> Result<bool, Error> {
    let mut request = request(family, NFT_MSG_GETCHAIN, table);
    request.attributes().put_str(NFTA_CHAIN_NAME, chain.as_str());
    match socket.request_ack(&mut request) {
        Ok(()) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Decodes a chain; `None` if it is of another table.
fn chain(message: &Message<'_>, table: TableName) -> Result<Option<ListedChain>, Malformed> {
    let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    let mut found = ListedChain { name: None, head: ChainHead::default(), is_base: false };
    let mut is_of_table = false;
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_CHAIN_TABLE => is_of_table = attribute.str()? == table.as_str(),
            NFTA_CHAIN_NAME => found.name = ChainName::new(attribute.str()?).ok(),
            NFTA_CHAIN_HOOK => found.is_base = true,
            NFTA_CHAIN_POLICY => {
                let is_drop = attribute.u32_be()? == NF_DROP.cast_unsigned();
                found.head.policy = Some(if is_drop { Policy::Drop } else { Policy::Accept });
            }
            NFTA_CHAIN_COUNTERS => {
                for counter in attribute.nested() {
                    let counter = counter?;
                    let Counters { packets, bytes } = &mut found.head.counters;
                    match counter.kind {
                        NFTA_COUNTER_PACKETS => *packets = counter.u64_be()?,
                        NFTA_COUNTER_BYTES => *bytes = counter.u64_be()?,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Ok(is_of_table.then_some(found))
}

/// How often a dump is repeated because of other programs' changes. A dump takes a millisecond, except for that of the chains of a
/// large cluster and of the few chains with rules of all Services.
const MAX_ATTEMPTS: usize = 20;
