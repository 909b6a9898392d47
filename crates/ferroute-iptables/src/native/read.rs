//! Reading chains and rules.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map::Entry},
    ops::ControlFlow,
    sync::{Mutex, PoisonError, atomic::Ordering},
};

use ferroute_core::{Heartbeat, IpFamily, map_parts};
use ferroute_netlink::{Consistency, Error, Malformed, Message, Protocol, Request, Socket, nf_tables::*, nfnetlink};

use super::{
    NativeRules, ReadError,
    decode::{self, KernelRule, NumberedSets},
    sets,
    tables::{BUILTIN_CHAINS, base_chain, dump_request, request},
};
use crate::{
    ChainHead, ChainName, Counters, Policy, Rule, SaveItem, TableName,
    plan::{is_service_chain, jumps},
};

impl NativeRules {
    /// Reads tables and calls `add` with chains, and with the rules of each chain together. Chains that `iptables` cannot name
    /// are left out. `expected` are chains that probably exist: large tables are read faster if they are known. A builtin
    /// chain that packets do not traverse and that can be repaired is read as if it had no rules, see
    /// [`NativeRules::idle_chain`].
    ///
    /// The rules of one chain are consistent, even if other programs change rules at the same time; those of two chains
    /// need not be.
    ///
    /// # Errors
    /// If the kernel refuses, or if other programs change rules continuously.
    pub(crate) fn read(
        &self,
        tables: &[TableName],
        expected: Vec<(TableName, ChainName)>,
        add: &mut AddItem<'_>,
    ) -> Result<(), ReadError> {
        let Some(first) = tables.first() else { return Ok(()) };
        let failed = |source| ReadError { table: *first, source };
        let (mut sizes, dormant) = self.sizes(tables).map_err(failed)?;
        self.hooked_chains().clear();
        let listed = if sizes.values().all(|size| *size <= LISTED_AT_ONCE) {
            self.list_chains(tables).map_err(failed)?
        } else {
            let mut chains = expected;
            chains.extend(self.other_chains().iter());
            chains.retain(|(table, _)| tables.contains(table));
            chains.sort_unstable();
            chains.dedup();
            let missing = self.add_expected(&chains, &dormant, add)?;
            self.sockets().truncate(1);
            // Because of a transaction of another program, chains may be missing from the first numbers. That
            // transaction may also fail.
            for (table, size) in self.sizes(tables).map_err(failed)?.0 {
                let known = sizes.entry(table).or_default();
                *known = size.max(*known);
            }
            let is_read =
                |chain: &(TableName, ChainName)| chains.binary_search(chain).is_ok() && !missing.contains(chain);
            for (table, _) in chains.iter().filter(|chain| is_read(chain)) {
                sizes.entry(*table).and_modify(|size| *size = size.saturating_sub(1));
            }
            let listed = self.list_other_chains(&sizes, is_read).map_err(failed)?;
            let mut others = self.other_chains();
            others.retain(|chain| !missing.contains(chain));
            others.extend(listed.iter().filter_map(|(table, chain)| Some((*table, chain.name?))));
            listed
        };
        for (table, chain) in listed {
            Heartbeat::beat_thread();
            if let Some(name) = chain.name.filter(|_| !self.must_replace(table, &chain)) {
                let mut rules = self.rules_of(table, name).map_err(|source| ReadError { table, source })?;
                if name.is_builtin() && (dormant.contains(&table) || chain.is_replaceable(table, &rules)) {
                    rules.clear();
                }
                add_chain(add, table, name, (chain.head, rules));
            }
        }
        Ok(())
    }

    /// Reads some chains like [`NativeRules::read`].
    ///
    /// # Errors
    /// If the kernel refuses, or if other programs change rules continuously.
    pub(crate) fn read_chains(
        &self,
        chains: &[(TableName, ChainName)],
        add: &mut AddItem<'_>,
    ) -> Result<(), ReadError> {
        self.add_expected(chains, &BTreeSet::new(), add).map(drop)
    }

    /// Returns a builtin chain that packets do not traverse although it exists, and that can be repaired: its table is dormant, or
    /// it is not called from the hook from which `iptables` has it called, and has no rules of other programs. Another
    /// program made it so; `iptables` shows its rules as usual.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn idle_chain(&self, tables: &[TableName]) -> Result<Option<(TableName, ChainName)>, ReadError> {
        for table in tables {
            let failed = |source| ReadError { table: *table, source };
            let is_dormant = !self.sizes(&[*table]).map_err(failed)?.1.is_empty();
            for name in BUILTIN_CHAINS {
                let chain = self.with_socket(|socket| find_chain(socket, self.family, *table, name)).map_err(failed)?;
                let Some(chain) = chain else { continue };
                if is_dormant
                    || chain.is_unhooked(*table)
                        && chain.is_replaceable(*table, &self.rules_of(*table, name).map_err(failed)?)
                {
                    return Ok(Some((*table, name)));
                }
            }
        }
        Ok(None)
    }

    /// Calls `add` with chains and their rules, read on several processors. Returns the chains that do not exist.
    fn add_expected(
        &self,
        chains: &[(TableName, ChainName)],
        dormant: &BTreeSet<TableName>,
        add: &mut AddItem<'_>,
    ) -> Result<BTreeSet<(TableName, ChainName)>, ReadError> {
        let add = Mutex::new(add);
        let read = |part: &[(TableName, ChainName)]| {
            let mut missing = BTreeSet::new();
            for chains in part.chunks(READ_AT_ONCE) {
                Heartbeat::beat_thread();
                let mut found = Vec::new();
                for (table, chain) in chains {
                    let is_dormant = dormant.contains(table);
                    match self
                        .read_chain(*table, *chain, is_dormant)
                        .map_err(|source| ReadError { table: *table, source })?
                    {
                        Some(contents) => found.push((*table, *chain, contents)),
                        None => drop(missing.insert((*table, *chain))),
                    }
                }
                let mut add = add.lock().unwrap_or_else(PoisonError::into_inner);
                found.into_iter().for_each(|(table, chain, contents)| add_chain(&mut **add, table, chain, contents));
            }
            Ok(missing)
        };
        let parts: Vec<BTreeSet<_>> =
            map_parts(chains, 1, MAX_READERS, read).into_iter().collect::<Result<_, ReadError>>()?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// Reports whether a chain has the name of one of the proxy's and is called from a hook. Remembers it.
    fn must_replace(&self, table: TableName, chain: &ListedChain) -> bool {
        let own = chain.name.filter(|name| chain.hook.is_some() && name.as_str().starts_with("KUBE-"));
        own.is_some_and(|name| {
            tracing::warn!(family = %self.family, %table, "chain {name} is called from a hook; replacing it");
            self.hooked_chains().insert((table, name));
            true
        })
    }

    /// Returns a chain and its rules, without those of a builtin chain to repair; `None` if it does not exist.
    fn read_chain(
        &self,
        table: TableName,
        chain: ChainName,
        is_dormant: bool,
    ) -> Result<Option<(ChainHead, Vec<ListedRule>)>, Error> {
        let mut rules = self.rules_of(table, chain)?;
        // Only base chains have a policy and counters. There are too many chains of Services to look for hooks each time.
        let skips_hooks = !self.looks_for_hooks.load(Ordering::Relaxed);
        if skips_hooks && !rules.is_empty() && is_service_chain(chain) {
            return Ok(Some((ChainHead::default(), rules)));
        }
        let listed = self.with_socket(|socket| find_chain(socket, self.family, table, chain))?;
        let listed = listed.filter(|listed| !self.must_replace(table, listed));
        let is_idle = |listed: &ListedChain| is_dormant || listed.is_replaceable(table, &rules);
        if chain.is_builtin() && listed.as_ref().is_some_and(is_idle) {
            rules.clear();
        }
        Ok(listed.map(|listed| (listed.head, rules)))
    }

    /// Reports whether a chain exists.
    ///
    /// # Errors
    /// If the kernel refuses for another reason.
    pub(crate) fn has_chain(&self, table: TableName, chain: ChainName) -> Result<bool, ReadError> {
        self.with_socket(|socket| find_chain(socket, self.family, table, chain))
            .map(|chain| chain.is_some())
            .map_err(|source| ReadError { table, source })
    }

    /// Returns the number of rules of a chain and of jumps to it; `None` if it does not exist. The kernel counts them.
    pub(crate) fn chain_uses(&self, table: TableName, chain: ChainName) -> Result<Option<u32>, ReadError> {
        self.with_socket(|socket| find_chain(socket, self.family, table, chain))
            .map(|chain| chain.map(|chain| chain.uses))
            .map_err(|source| ReadError { table, source })
    }

    /// Returns the rules of a chain; none if it does not exist.
    pub(super) fn rules_of(&self, table: TableName, chain: ChainName) -> Result<Vec<ListedRule>, Error> {
        let mut request = self.rules_request(table, chain);
        let listed = self.collect(&mut request, |message| {
            let decoded = self.decode_rule(message, table, chain)?;
            Ok(decoded.map(|KernelRule { rule, counters, is_foreign, sets, .. }| {
                (ListedRule { rule, counters, is_foreign }, sets)
            }))
        })?;
        // The socket is busy during the dump.
        let mut names: BTreeMap<u16, Option<Box<str>>> = BTreeMap::new();
        for (_, number) in listed.iter().flat_map(|(_, sets)| sets) {
            if let Entry::Vacant(entry) = names.entry(*number) {
                entry.insert(self.with_socket(|socket| sets::name_of(socket, *number))?);
            }
        }
        let named = |(mut listed, sets): (ListedRule, NumberedSets)| {
            decode::name_sets(&mut listed.rule, &sets, |number| names.get(&number)?.as_deref());
            listed
        };
        Ok(listed.into_iter().map(named).collect())
    }

    /// Returns the handles of rules in a chain, or the first rule that it lacks.
    ///
    /// Reads only up to the last of these rules, and does not need a consistent dump: a handle never identifies another
    /// rule.
    pub(super) fn handles_of<'a>(
        &self,
        table: TableName,
        chain: ChainName,
        rules: &'a [Rule],
    ) -> Result<Result<BTreeSet<u64>, &'a Rule>, Error> {
        let mut request = self.rules_request(table, chain);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut handles = BTreeSet::new();
            // Service ports with the same name and different protocols can have equal rules.
            let mut missing: HashMap<&Rule, usize> = HashMap::new();
            rules.iter().for_each(|rule| *missing.entry(rule).or_default() += 1);
            let result = Socket::open(Protocol::Netfilter)?.dump_until(&mut request, |message| {
                if let Some(KernelRule { handle, mut rule, sets, .. }) = self.decode_rule(&message, table, chain)? {
                    for (position, number) in sets {
                        let name = self.with_socket(|socket| sets::name_of(socket, number))?;
                        decode::name_sets(&mut rule, &[(position, number)], |_| name.as_deref());
                    }
                    if let Some(number) = missing.get_mut(&rule).filter(|number| **number > 0)
                        && handles.insert(handle)
                    {
                        *number -= 1;
                    }
                }
                let is_complete = handles.len() == rules.len();
                Ok::<_, Error>(if is_complete { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            });
            let consistency = match result {
                Err(error) if error.is_not_found() => Consistency::Consistent,
                result => result?,
            };
            match (rules.iter().find(|rule| missing[rule] > 0), consistency) {
                (None, _) => return Ok(Ok(handles)),
                (Some(rule), Consistency::Consistent) => return Ok(Err(rule)),
                (Some(_), Consistency::Interrupted) if attempts == MAX_ATTEMPTS => {
                    return Err(Error::Interrupted { kind: request.kind(), attempts });
                }
                (Some(_), Consistency::Interrupted) => {}
            }
        }
    }

    fn rules_request(&self, table: TableName, chain: ChainName) -> Request {
        let mut request = request(self.family, NFT_MSG_GETRULE, table);
        request.attributes().put_str(NFTA_RULE_CHAIN, chain.as_str());
        request
    }

    /// Decodes a rule; `None` if it belongs to another chain.
    fn decode_rule<'a>(
        &self,
        message: &Message<'a>,
        table: TableName,
        chain: ChainName,
    ) -> Result<Option<KernelRule<'a>>, Malformed> {
        let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
        let rule = decode::rule(self.family, attributes)?;
        Ok(Some(rule).filter(|rule| rule.table == table.as_str() && rule.chain == chain.as_str()))
    }

    /// Returns the numbers of chains and sets of tables that exist, and the tables that are dormant.
    fn sizes(&self, tables: &[TableName]) -> Result<(BTreeMap<TableName, u32>, BTreeSet<TableName>), Error> {
        let listed =
            self.collect(&mut dump_request(self.family, NFT_MSG_GETTABLE), |message| table(message, tables))?;
        let dormant = listed.iter().filter(|table| table.is_dormant()).map(|table| table.name).collect();
        Ok((listed.into_iter().map(|table| (table.name, table.uses)).collect(), dormant))
    }

    /// Returns a table; `None` if it does not exist.
    pub(super) fn find_table(&self, name: TableName) -> Result<Option<ListedTable>, Error> {
        let listed =
            self.collect(&mut dump_request(self.family, NFT_MSG_GETTABLE), |message| table(message, &[name]))?;
        Ok(listed.into_iter().next())
    }

    /// Returns the chains of tables, in the order in which they were created.
    pub(super) fn list_chains(&self, tables: &[TableName]) -> Result<Vec<(TableName, ListedChain)>, Error> {
        self.collect(&mut dump_request(self.family, NFT_MSG_GETCHAIN), |message| {
            Ok(chain(message)?.filter(|(table, _)| tables.contains(table)))
        })
    }

    /// Returns the chains of the tables in `sizes` without those that were read before. `sizes` are their numbers.
    ///
    /// A dump contains the chains of all tables, and takes quadratic time: for every 32 KiB that it returns, the kernel
    /// walks all the chains that it has returned before. The dump therefore ends when all chains have been found.
    fn list_other_chains(
        &self,
        sizes: &BTreeMap<TableName, u32>,
        is_read: impl Fn(&(TableName, ChainName)) -> bool,
    ) -> Result<Vec<(TableName, ListedChain)>, Error> {
        let number = sizes.values().fold(0, |sum: u32, size| sum.saturating_add(*size));
        let mut attempts = 0;
        loop {
            let (mut left, mut found) = (number, Vec::new());
            if left == 0 {
                return Ok(found);
            }
            attempts += 1;
            let mut request = dump_request(self.family, NFT_MSG_GETCHAIN);
            let result = Socket::open(Protocol::Netfilter)?.dump_until(&mut request, |message| {
                let listed = chain(&message)?.filter(|(table, _)| sizes.contains_key(table));
                let is_other =
                    |(table, chain): &(_, ListedChain)| !chain.name.is_some_and(|name| is_read(&(*table, name)));
                if let Some(other) = listed.filter(is_other) {
                    found.push(other);
                    left -= 1;
                }
                Ok::<_, Error>(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            match result {
                Consistency::Consistent => return Ok(found),
                Consistency::Interrupted if attempts == MAX_ATTEMPTS => {
                    return Err(Error::Interrupted { kind: request.kind(), attempts });
                }
                Consistency::Interrupted => {}
            }
        }
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

/// Callback for the chains and rules that are read.
pub(crate) type AddItem<'a> = dyn FnMut(TableName, SaveItem) + Send + 'a;

fn add_chain(add: &mut AddItem<'_>, table: TableName, chain: ChainName, (head, rules): (ChainHead, Vec<ListedRule>)) {
    add(table, SaveItem::Chain(chain, head));
    rules.into_iter().for_each(|ListedRule { rule, .. }| add(table, SaveItem::Rule(chain, rule)));
}

/// A rule of a chain.
pub(super) struct ListedRule {
    pub(super) rule: Rule,
    pub(super) counters: Counters,
    /// Whether it has an expression that `iptables-nft` does not write.
    pub(super) is_foreign: bool,
}

/// A table.
pub(super) struct ListedTable {
    pub(super) name: TableName,
    /// `NFT_TABLE_F_*`.
    pub(super) flags: u32,
    /// The number of its chains and sets.
    uses: u32,
}

impl ListedTable {
    /// Packets traverse none of its chains.
    pub(super) fn is_dormant(&self) -> bool {
        self.flags & NFT_TABLE_F_DORMANT != 0
    }
}

/// A chain of a table.
pub(super) struct ListedChain {
    /// Name; `None` if `iptables` cannot name the chain.
    pub(super) name: Option<ChainName>,
    pub(super) head: ChainHead,
    /// Hook (`NF_INET_*`) and priority of a base chain; `None` for other chains.
    pub(super) hook: Option<(u32, i32)>,
    /// The number of its rules and of the jumps to it.
    pub(super) uses: u32,
}

impl ListedChain {
    /// Reports whether this is a builtin chain of `iptables` that the kernel does not call from its hook. The priority is
    /// another program's decision: rules apply with any.
    pub(super) fn is_unhooked(&self, table: TableName) -> bool {
        let base = self.name.and_then(|name| base_chain(table, name));
        base.is_some_and(|base| self.hook.is_none_or(|(hook, _)| hook != base.hook))
    }

    /// Reports whether this is such a chain and can be replaced, because it has neither rules nor callers of other programs.
    pub(super) fn is_replaceable(&self, table: TableName, rules: &[ListedRule]) -> bool {
        let is_jump = |listed: &ListedRule, from| {
            jumps().iter().any(|jump| (jump.table, jump.from) == (table, from) && jump.rule == listed.rule)
        };
        let is_used = usize::try_from(self.uses).is_ok_and(|uses| uses > rules.len());
        self.is_unhooked(table)
            && !is_used
            && self.name.is_some_and(|name| rules.iter().all(|listed| is_jump(listed, name)))
    }
}

/// Returns a chain; `None` if it does not exist.
pub(super) fn find_chain(
    socket: &mut Socket,
    family: IpFamily,
    table: TableName,
    name: ChainName,
) -> Result<Option<ListedChain>, Error> {
    let mut request = request(family, NFT_MSG_GETCHAIN, table);
    request.attributes().put_str(NFTA_CHAIN_NAME, name.as_str());
    match socket.get(&mut request, |message| chain(&message).map_err(Error::from)) {
        Ok(listed) => Ok(listed.flatten().map(|(_, chain)| chain)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Decodes a table; `None` if it is not one of `tables`.
pub(super) fn table(message: &Message<'_>, tables: &[TableName]) -> Result<Option<ListedTable>, Malformed> {
    let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    let (mut name, mut flags, mut uses) = (None, 0, 0);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_TABLE_NAME => name = attribute.text().and_then(TableName::from_word),
            NFTA_TABLE_FLAGS => flags = attribute.u32_be()?,
            NFTA_TABLE_USE => uses = attribute.u32_be()?,
            _ => {}
        }
    }
    Ok(name.filter(|name| tables.contains(name)).map(|name| ListedTable { name, flags, uses }))
}

/// Decodes a chain and the name of its table; `None` if the table is not one of `iptables`.
pub(super) fn chain(message: &Message<'_>) -> Result<Option<(TableName, ListedChain)>, Malformed> {
    let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    let mut found = ListedChain { name: None, head: ChainHead::default(), hook: None, uses: 0 };
    let mut table = None;
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_CHAIN_TABLE => table = attribute.text().and_then(TableName::from_word),
            NFTA_CHAIN_NAME => found.name = attribute.text().and_then(|name| ChainName::new(name).ok()),
            NFTA_CHAIN_HOOK => {
                let (mut number, mut priority) = (0, 0);
                for attribute in attribute.nested() {
                    let attribute = attribute?;
                    match attribute.kind {
                        NFTA_HOOK_HOOKNUM => number = attribute.u32_be()?,
                        NFTA_HOOK_PRIORITY => priority = attribute.u32_be()?.cast_signed(),
                        _ => {}
                    }
                }
                found.hook = Some((number, priority));
            }
            NFTA_CHAIN_USE => found.uses = attribute.u32_be()?,
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
    Ok(table.map(|table| (table, found)))
}

/// The number of chains that are listed in a few milliseconds.
const LISTED_AT_ONCE: u32 = 5000;
/// The number of chains that are decoded before they are passed on, with a lock.
const READ_AT_ONCE: usize = 64;
/// The number of processors that read. More are not needed for a second's work.
const MAX_READERS: usize = 4;
/// Maximum number of repeated dumps because of other programs' changes. A dump takes a millisecond, except for dumps of
/// the chains of a large cluster, and of the few chains with rules of all Services.
const MAX_ATTEMPTS: usize = 20;
