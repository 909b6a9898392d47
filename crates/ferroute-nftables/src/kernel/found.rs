//! Anybody's tables as they are in the kernel.

use std::{collections::BTreeMap, fmt};

use ferroute_core::IpFamily;
use ferroute_netlink::{Consistency, Error};

use super::{
    Counter, ListedChain, ListedRule, MemoryTable, NetlinkError, NetlinkKernel, Reading, netlink::failed_table,
};
use crate::{
    model::{Chain, ChainWithRules, Element, Key, Name, Rule, Set, family_name},
    wire::{
        AnyElements, Listed, elements_request, list_request, parse_any_set, parse_chain, parse_rule, parse_table,
        protocol_family, tables_request,
    },
};

/// Whose packets a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableFamily {
    /// Those of one family.
    Ip(IpFamily),
    /// Those of both.
    Inet,
}

/// A table as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTable {
    /// Whose packets it sees.
    pub family: TableFamily,
    /// Its name, unique within the family.
    pub name: Name,
    /// The kernel's number for it: the later a table was made, the greater.
    pub handle: u64,
    /// What it holds. Of a table for both families this is what packets of one family meet.
    pub table: MemoryTable,
    /// What its elements have counted, by set, for those that count.
    pub counters: BTreeMap<Name, BTreeMap<Key, Counter>>,
    /// Its base chains at hooks that are not on the way of IP packets through the host (`ingress`, `egress`).
    pub elsewhere: Vec<Name>,
    /// Its sets whose keys or data cannot be said here. Rules that use them are opaque.
    pub unknown_sets: Vec<Name>,
}

impl TableFamily {
    /// `NFPROTO_*`.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Ip(family) => protocol_family(family),
            Self::Inet => NFPROTO_INET,
        }
    }

    /// The opposite of [`TableFamily::number`]; `None` for what sees no IP packets on their way.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        let [v4, v6] = IpFamily::BOTH.map(Self::Ip);
        [v4, v6, Self::Inet].into_iter().find(|family| family.number() == number)
    }

    /// Whether tables of this family see packets of that one.
    pub fn sees(self, family: IpFamily) -> bool {
        self == Self::Ip(family) || self == Self::Inet
    }
}

impl From<IpFamily> for TableFamily {
    fn from(family: IpFamily) -> Self {
        Self::Ip(family)
    }
}

impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(family) => f.write_str(family_name(*family)),
            Self::Inet => f.write_str("inet"),
        }
    }
}

impl NetlinkKernel {
    /// Lists the tables that packets of a family meet, each with its handle.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn list_tables(&mut self, family: IpFamily) -> Result<Vec<(TableFamily, Name, u64)>, NetlinkError> {
        let failed = |source| NetlinkError::Read { what: "the list of tables".to_owned(), source };
        let all = self.socket.collect(&mut tables_request(), |message| parse_table(&message)).map_err(failed)?;
        Ok(all.into_iter().filter(|(of, ..)| of.sees(family)).collect())
    }

    /// Reads all tables that packets of a family meet and that `wanted` asks for, in the order in which they were made.
    ///
    /// # Errors
    /// When the kernel does not tell. What others have written in forms that are not known is no error.
    pub fn find_tables(
        &mut self,
        family: IpFamily,
        wanted: &dyn Fn(TableFamily, &str) -> bool,
    ) -> Result<(Vec<FoundTable>, Reading), NetlinkError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let before = super::Kernel::generation(self)?;
            let mut tables = Vec::new();
            for (of, name, handle) in self.list_tables(family)? {
                if wanted(of, name.as_str()) {
                    tables.extend(self.find_table(of, &name, handle, family)?);
                }
            }
            let is_steady = super::Kernel::generation(self)? == before;
            if is_steady || tries == TRIES {
                tables.sort_by_key(|table| table.handle);
                return Ok((tables, if is_steady { Reading::Steady } else { Reading::Interrupted }));
            }
        }
    }

    /// `None` if the table has gone meanwhile.
    fn find_table(
        &mut self,
        of: TableFamily,
        name: &Name,
        handle: u64,
        family: IpFamily,
    ) -> Result<Option<FoundTable>, NetlinkError> {
        match self.read_table(of, name.clone(), handle, family) {
            Ok(table) => Ok(Some(table)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(source) => Err(failed_table(&format_args!("{of} {name}"), source)),
        }
    }

    fn read_table(&mut self, of: TableFamily, name: Name, handle: u64, family: IpFamily) -> Result<FoundTable, Error> {
        let declared = self
            .socket
            .collect(&mut list_request(of, &name, Listed::Sets), |message| parse_any_set(&message).map(Some))?;
        let (mut sets, mut unknown_sets) = (Vec::new(), Vec::new());
        for (name, set) in declared {
            match set {
                Some(set) => sets.push(set),
                None => unknown_sets.push(name),
            }
        }
        let mut found = FoundTable {
            family: of,
            name,
            handle,
            table: MemoryTable::default(),
            counters: BTreeMap::new(),
            elsewhere: Vec::new(),
            unknown_sets,
        };
        let chains = self.read_chains(&mut found, family, &sets)?;
        let mut filled = Vec::with_capacity(sets.len());
        for set in sets {
            let (elements, unread) = self.read_elements(&mut found, &set)?;
            filled.push((set, elements, unread));
        }
        found.table = MemoryTable::found(chains, filled);
        Ok(found)
    }

    fn read_chains(
        &mut self,
        found: &mut FoundTable,
        family: IpFamily,
        sets: &[Set],
    ) -> Result<Vec<ChainWithRules>, Error> {
        let (of, name) = (found.family, &found.name);
        let listed =
            self.socket.collect(&mut list_request(of, name, Listed::Chains), |message| parse_chain(&message, name))?;
        let rules = self
            .socket
            .collect(&mut list_request(of, name, Listed::Rules), |message| parse_rule(&message).map(Some))?;
        let by_name: BTreeMap<&Name, &Set> = sets.iter().map(|set| (&set.name, set)).collect();
        let mut by_chain: BTreeMap<Name, Vec<Rule>> = BTreeMap::new();
        for (chain, rule) in &rules {
            let rule = match rule {
                ListedRule::Typed(rule) => rule.clone(),
                ListedRule::Encoded(rule) => rule.decode(family, &|name| by_name.get(name).copied()),
            };
            by_chain.entry(chain.clone()).or_default().push(rule);
        }
        let chains = listed.into_iter().map(|ListedChain { name, chain, .. }| {
            let rules = by_chain.remove(&name).unwrap_or_default();
            let chain = chain.unwrap_or_else(|| {
                found.elsewhere.push(name.clone());
                Chain::new(name)
            });
            chain.rules(rules)
        });
        Ok(chains.collect())
    }

    fn read_elements(&mut self, found: &mut FoundTable, set: &Set) -> Result<(Vec<Element>, usize), Error> {
        let mut gathered = AnyElements::new(set);
        let mut request = elements_request(found.family, &found.name, &set.name, &[]);
        // What changes meanwhile is noticed by the generation.
        let (Consistency::Consistent | Consistency::Interrupted) =
            self.socket.dump(&mut request, |message| gathered.take(&message))?;
        let gathered = gathered.finish();
        if !gathered.counters.is_empty() {
            found.counters.insert(set.name.clone(), gathered.counters.into_iter().collect());
        }
        Ok((gathered.elements, gathered.unread))
    }
}

impl FoundTable {
    /// What an element has counted; `None` if it does not count, or is not there.
    pub fn counter(&self, set: &Name, key: &Key) -> Option<Counter> {
        self.counters.get(set)?.get(key).copied()
    }
}

/// `NFPROTO_INET`.
const NFPROTO_INET: u8 = 1;
/// How often everything is read before it is taken although something has changed meanwhile.
const TRIES: u32 = 4;
