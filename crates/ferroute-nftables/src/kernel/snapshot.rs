//! Reading whole tables of any program.

use std::{cell::OnceCell, collections::BTreeMap, fmt};

use ferroute_core::IpFamily;
use ferroute_host::{HostDevices, KernelDevices};
use ferroute_netlink::Error;

use super::{
    Consistency, Counter, ListedChain, ListedRule, MemoryTable, NetlinkError, NetlinkKernel, ReadElements,
    netlink::failed_table,
};
use crate::{
    model::{
        Chain, ChainWithRules, DataType, Element, FibResult, Foreign, IfName, Key, Name, Opaque, Outcome, Property,
        Rule, Set, Statement, Value, family_name,
    },
    plan::TABLE,
    wire::{
        AnyElements, Listed, elements_request, list_request, nfproto, parse_any_set, parse_chain, parse_handle,
        parse_rule, parse_table, tables_request,
    },
};

/// The family of a table that sees IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableFamily {
    /// `ip` or `ip6`.
    Ip(IpFamily),
    /// `inet`: both IP families.
    Inet,
}

/// A table in the kernel's list of tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTable {
    /// The family.
    pub family: TableFamily,
    /// The name, unique within the family.
    pub name: Name,
    /// The kernel's handle. Handles increase in order of creation.
    pub handle: u64,
    /// Whether its flag `dormant` keeps packets from its chains.
    pub is_dormant: bool,
}

/// A table as it was read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSnapshot {
    /// The family.
    pub family: TableFamily,
    /// The name, unique within the family.
    pub name: Name,
    /// The kernel's handle. Handles increase in order of creation.
    pub handle: u64,
    /// The contents. Rules of an `inet` table are decoded as packets of one IP family see them.
    pub table: MemoryTable,
    /// The counters of elements, by set and key.
    pub counters: BTreeMap<Name, BTreeMap<Key, Counter>>,
    /// Base chains that are younger than a rule of the table, so that they may also be younger than later tables.
    pub late_base_chains: Vec<Name>,
    /// Base chains of hooks that IP packets do not pass in the host (`ingress`, `egress`).
    pub unsupported_base_chains: Vec<Name>,
    /// The sets with keys or data that the model cannot represent. Rules that refer to them are opaque.
    pub undecoded_sets: Vec<Name>,
}

impl TableFamily {
    /// Returns the family number (`NFPROTO_*`).
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Ip(family) => nfproto(family),
            Self::Inet => libc::NFPROTO_INET as u8,
        }
    }

    /// Returns the family with this number; `None` for families that do not see IP packets in the IP hooks.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        let [v4, v6] = IpFamily::BOTH.map(Self::Ip);
        [v4, v6, Self::Inet].into_iter().find(|family| family.number() == number)
    }

    /// Reports whether tables of this family see packets of an IP family.
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
    /// Lists the tables that packets of an IP family pass, and those that are dormant.
    ///
    /// # Errors
    ///
    /// The tables could not be read.
    pub fn list_tables(&mut self, family: IpFamily) -> Result<Vec<ListedTable>, NetlinkError> {
        let failed = |source| NetlinkError::Read { object: "the list of tables".to_owned(), source };
        let all = self.socket.collect(&mut tables_request(), |message| parse_table(&message)).map_err(failed)?;
        Ok(all.into_iter().filter(|table| table.family.sees(family)).collect())
    }

    /// Reads all tables that packets of an IP family pass and that `filter` accepts, in order of creation.
    ///
    /// # Errors
    ///
    /// The tables could not be read. Forms that the model cannot represent are not an error.
    pub fn read_tables(
        &mut self,
        family: IpFamily,
        filter: &dyn Fn(TableFamily, &str) -> bool,
    ) -> Result<(Vec<TableSnapshot>, Consistency), NetlinkError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let before = super::Kernel::generation(self)?;
            let mut tables = Vec::new();
            for ListedTable { family: table, name, handle, is_dormant } in self.list_tables(family)? {
                if !is_dormant && filter(table, name.as_str()) {
                    tables.extend(self.read_existing_table(table, &name, handle, family)?);
                }
            }
            let is_consistent = super::Kernel::generation(self)? == before;
            if is_consistent || attempts == MAX_ATTEMPTS {
                tables.sort_by_key(|table| table.handle);
                return Ok((tables, if is_consistent { Consistency::Consistent } else { Consistency::Interrupted }));
            }
        }
    }

    /// Reads a table; `None` if it was deleted in the meantime.
    fn read_existing_table(
        &mut self,
        table: TableFamily,
        name: &Name,
        handle: u64,
        family: IpFamily,
    ) -> Result<Option<TableSnapshot>, NetlinkError> {
        match self.read_table(table, name.clone(), handle, family) {
            Ok(table) => Ok(Some(table)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(source) => Err(failed_table(&format_args!("{table} {name}"), source)),
        }
    }

    fn read_table(
        &mut self,
        table: TableFamily,
        name: Name,
        handle: u64,
        family: IpFamily,
    ) -> Result<TableSnapshot, Error> {
        let declared = self
            .socket
            .collect(&mut list_request(table, &name, Listed::Sets), |message| parse_any_set(&message).map(Some))?;
        let (mut sets, mut undecoded_sets) = (Vec::new(), Vec::new());
        for (name, set) in declared {
            match set {
                Some(set) => sets.push(set),
                None => undecoded_sets.push(name),
            }
        }
        let mut snapshot = TableSnapshot {
            family: table,
            name,
            handle,
            table: MemoryTable::default(),
            counters: BTreeMap::new(),
            late_base_chains: Vec::new(),
            unsupported_base_chains: Vec::new(),
            undecoded_sets,
        };
        let chains = self.read_chains(&mut snapshot, family, &sets)?;
        let mut contents = Vec::with_capacity(sets.len());
        for set in sets {
            let (elements, mut read) = self.read_elements(&mut snapshot, &set)?;
            let set = if snapshot.name == TABLE {
                // A limit that all elements have is a property of the set.
                read.conditions.clear();
                set
            } else {
                Set { limit: None, ..set }
            };
            contents.push((set, elements, read));
        }
        snapshot.table = MemoryTable::from_parts(chains, contents);
        Ok(snapshot)
    }

    fn read_chains(
        &mut self,
        snapshot: &mut TableSnapshot,
        family: IpFamily,
        sets: &[Set],
    ) -> Result<Vec<ChainWithRules>, Error> {
        let (table, name) = (snapshot.family, &snapshot.name);
        let listed = self.socket.collect(&mut list_request(table, name, Listed::Chains), |message| {
            let handle = parse_handle(&message, Listed::Chains)?;
            parse_chain(&message, name).map(|chain| chain.zip(Some(handle)))
        })?;
        let mut first_rule = u64::MAX;
        let rules = self.socket.collect(&mut list_request(table, name, Listed::Rules), |message| {
            first_rule = first_rule.min(parse_handle(&message, Listed::Rules)?);
            parse_rule(&message).map(Some)
        })?;
        let late =
            listed.iter().filter(|(_, handle)| *handle > first_rule).filter_map(|(chain, _)| chain.chain.as_ref());
        let late_base_chains = late.filter(|chain| chain.base.is_some()).map(|chain| chain.name.clone()).collect();
        let by_name: BTreeMap<&Name, &Set> = sets.iter().map(|set| (&set.name, set)).collect();
        let mut by_chain: BTreeMap<Name, Vec<Rule>> = BTreeMap::new();
        let names = InterfaceNames::default();
        for (chain, rule) in &rules {
            let rule = match rule {
                ListedRule::Typed(rule) => rule.clone(),
                ListedRule::Encoded(rule) => {
                    let mut rule = rule.decode(family, &|name| by_name.get(name).copied());
                    name_interfaces(&mut rule, &names);
                    rule
                }
            };
            by_chain.entry(chain.clone()).or_default().push(rule);
        }
        let chains = listed.into_iter().map(|(ListedChain { name, chain, .. }, _)| {
            let rules = by_chain.remove(&name).unwrap_or_default();
            let chain = chain.unwrap_or_else(|| {
                snapshot.unsupported_base_chains.push(name.clone());
                Chain::new(name)
            });
            chain.rules(rules)
        });
        let chains = chains.collect();
        snapshot.late_base_chains = late_base_chains;
        Ok(chains)
    }

    fn read_elements(
        &mut self,
        snapshot: &mut TableSnapshot,
        set: &Set,
    ) -> Result<(Vec<Element>, ReadElements), Error> {
        let mut decoder = AnyElements::new(set);
        let mut request = elements_request(snapshot.family, &snapshot.name, &set.name, &[]);
        // The caller detects changes during the dump by the generation.
        let (Consistency::Consistent | Consistency::Interrupted) =
            self.socket.dump(&mut request, |message| decoder.decode(&message))?;
        let mut decoded = decoder.finish();
        if set.key.contains(&DataType::IfIndex) {
            let names = InterfaceNames::default();
            for (value, _) in decoded.elements.iter_mut().flat_map(|element| element.key.iter_mut().zip(&set.key)) {
                if let Value::IfName(name) = value {
                    *name = names.named(*name);
                }
            }
        }
        if !decoded.counters.is_empty() {
            snapshot.counters.insert(set.name.clone(), decoded.counters.into_iter().collect());
        }
        Ok((decoded.elements, decoded.read))
    }
}

impl TableSnapshot {
    /// Returns the counter of an element; `None` if the element has none or does not exist.
    pub fn counter(&self, set: &Name, key: &Key) -> Option<Counter> {
        self.counters.get(set)?.get(key).copied()
    }
}

/// Replaces the indexes of interfaces that a rule compares by their names.
fn name_interfaces(rule: &mut Rule, names: &InterfaceNames) {
    for statement in &mut rule.statements {
        let Statement::Opaque(Opaque { outcome: Outcome::Foreign(foreign), .. }) = statement else { continue };
        if let Foreign::Compare { operand, value, .. } = foreign
            && matches!(
                operand.property,
                Property::Interface { .. } | Property::Fib { result: FibResult::Interface, .. }
            )
        {
            *value = Value::IfName(names.named(IfName::from_bytes(value.to_be_bytes()))).number();
        }
    }
}

/// The names of interfaces by index, which are read once they are needed.
#[derive(Default)]
struct InterfaceNames(OnceCell<BTreeMap<u32, Box<str>>>);

impl InterfaceNames {
    /// Returns the name of the interface with this index in digits, and other names unchanged.
    fn named(&self, digits: IfName) -> IfName {
        let index = str::from_utf8(digits.text()).ok().and_then(|digits| digits.parse::<u32>().ok());
        let name = index.and_then(|index| self.all().get(&index));
        name.map_or(digits, |name| IfName::new(name))
    }

    fn all(&self) -> &BTreeMap<u32, Box<str>> {
        self.0.get_or_init(|| {
            let devices = KernelDevices::open().and_then(|mut kernel| kernel.list()).unwrap_or_default();
            devices.into_iter().map(|device| (device.index, device.name)).collect()
        })
    }
}

/// The number of attempts after which a snapshot is returned although the ruleset changed while it was read.
const MAX_ATTEMPTS: u32 = 4;
