mod check;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use self::check::{fit, overlap, set_of};

use super::{
    Consistency, Counter, ErrorKind, Kernel, KernelError, ListedChain, ListedFlowtable, ListedRule, ListedSet, Listing,
    OnElement,
};
use ferroute_core::IpFamily;

use crate::model::{
    ChainWithRules, Change, Comment, Data, Element, Flowtable, Foreign, Key, Name, Operand, Rule, Set, SetData,
    SetKind, Statement, TableId, Transaction, Verdict, family_name, join, key_text, set_text,
};

/// An in-memory implementation of [`Kernel`] that checks references and types as nf_tables does, and fails with the
/// same kinds of errors. It does not check which statements are allowed in which hooks.
#[derive(Clone, Debug, Default)]
pub struct MemoryKernel {
    tables: BTreeMap<TableId, MemoryTable>,
    generation: u32,
}

/// A table in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryTable {
    comment: Option<Comment>,
    chains: BTreeMap<Name, ChainWithRules>,
    /// The names of the base chains in the order of their creation.
    base_chains: Vec<Name>,
    sets: BTreeMap<Name, MemorySet>,
    /// The devices of each flowtable.
    flowtables: BTreeMap<Name, BTreeSet<Box<str>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MemorySet {
    set: Set,
    elements: BTreeMap<Key, Element>,
    /// Properties that only sets read from a kernel have.
    read: ReadElements,
}

/// Properties of elements that the model of planned sets does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadElements {
    /// The number of further elements, which the model cannot represent.
    pub(crate) undecoded: usize,
    /// Conditions, besides the key, under which an element matches, in `nft` syntax: `limit rate 5/second`.
    pub(crate) conditions: BTreeMap<Key, Box<str>>,
    /// Keys in the order of their addition, in a set in which several elements may match a packet: the first one
    /// applies.
    pub(crate) order: Vec<Key>,
}

/// The error of a refused transaction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{change}: {}", match .kind {
    ErrorKind::NotFound => "no such object",
    ErrorKind::Exists => "exists and is different",
    ErrorKind::Busy => "in use",
    ErrorKind::Circumstances => "not possible now",
    ErrorKind::Other => "not possible",
})]
pub struct MemoryError {
    /// The refused change in `nft` syntax, or `transaction` if the chains form a loop.
    pub change: String,
    /// The kind of error.
    pub kind: ErrorKind,
    /// The refused change.
    pub refused: Option<Box<Change>>,
}

impl KernelError for MemoryError {
    fn kind(&self) -> Option<ErrorKind> {
        Some(self.kind)
    }

    fn refused(&self) -> Option<&Change> {
        self.refused.as_deref()
    }
}

impl MemoryKernel {
    /// Returns a kernel without tables.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a table.
    pub fn table(&self, id: &TableId) -> Option<&MemoryTable> {
        self.tables.get(id)
    }

    /// Returns all tables as `nft list ruleset` prints them.
    pub fn dump(&self) -> String {
        self.tables.iter().map(|(id, table)| table.text(id)).collect()
    }
}

impl Kernel for MemoryKernel {
    type Error = MemoryError;
    type Encoded = ();

    fn encode(_transaction: &Transaction) {}

    fn commit_encoded(&mut self, transaction: &Transaction, (): ()) -> Result<(), Self::Error> {
        let id = &transaction.table;
        let mut table = self.tables.get(id).cloned();
        for change in &transaction.changes {
            let refused = || Some(Box::new(change.clone()));
            let error = |kind| MemoryError { change: change.text(id), kind, refused: refused() };
            match (change, &mut table) {
                (Change::AddTable(comment), None) => {
                    table = Some(MemoryTable { comment: comment.clone(), ..MemoryTable::default() });
                }
                (Change::AddOwnedTable(comment), None) => {
                    table = Some(MemoryTable { comment: Some(comment.clone()), ..MemoryTable::default() });
                }
                (Change::AddTable(_) | Change::AddOwnedTable(_), Some(_)) => {}
                (Change::DeleteTable, Some(_)) => table = None,
                (_, None) => return Err(error(ErrorKind::NotFound)),
                (change, Some(table)) => table.change(change).map_err(error)?,
            }
        }
        if table.as_ref().is_some_and(|table| table.has_loop()) {
            return Err(MemoryError { change: "transaction".to_owned(), kind: ErrorKind::Other, refused: None });
        }
        match table {
            Some(table) => _ = self.tables.insert(id.clone(), table),
            None => _ = self.tables.remove(id),
        }
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        Ok(())
    }

    fn generation(&mut self) -> Result<u32, Self::Error> {
        Ok(self.generation)
    }

    fn list_table(&mut self, table: &TableId) -> Result<Option<Listing>, Self::Error> {
        Ok(self.tables.get(table).map(|table| Listing {
            is_changed: false,
            has_stateful_objects: false,
            chains: table
                .chains()
                .map(|ChainWithRules { chain, rules }| ListedChain {
                    name: chain.name.clone(),
                    chain: Some(chain.clone()),
                    rules: rules.iter().cloned().map(ListedRule::Typed).collect(),
                })
                .collect(),
            sets: table
                .sets
                .values()
                .map(|MemorySet { set, elements, .. }| ListedSet {
                    name: set.name.clone(),
                    set: Some(set.clone()),
                    is_map: set.data != SetData::None,
                    element_count: Some(elements.len()),
                })
                .collect(),
            flowtables: table
                .flowtables()
                .map(|flowtable| ListedFlowtable { name: flowtable.name.clone(), flowtable: Some(flowtable) })
                .collect(),
        }))
    }

    fn dump_elements(
        &mut self,
        table: &TableId,
        set: &Set,
        on_element: &mut OnElement<'_>,
    ) -> Result<Consistency, Self::Error> {
        // No packets pass here, so counters are zero.
        let counter = set.counter.then(Counter::default);
        let elements = self.tables.get(table).into_iter().flat_map(|table| table.elements(&set.name));
        elements.for_each(|element| on_element(Some(element.clone()), counter));
        Ok(Consistency::Consistent)
    }

    fn get_elements(
        &mut self,
        table: &TableId,
        set: &Set,
        keys: &mut dyn Iterator<Item = Key>,
        on_element: &mut OnElement<'_>,
    ) -> Result<(), Self::Error> {
        let Some(table) = self.tables.get(table) else { return Ok(()) };
        keys.filter_map(|key| table.find(&set.name, &key)).for_each(|element| on_element(Some(element.clone()), None));
        Ok(())
    }
}

impl MemoryTable {
    /// Returns a table with these chains in the order of their creation, and these sets, each with its elements in the
    /// order of their addition. The table is not checked, because the table comes from a kernel.
    pub(crate) fn from_parts(
        chains: impl IntoIterator<Item = ChainWithRules>,
        sets: impl IntoIterator<Item = (Set, Vec<Element>, ReadElements)>,
    ) -> Self {
        let read_set = |(set, elements, mut read): (Set, Vec<Element>, ReadElements)| {
            // The kernel accepts overlapping elements if neither contains the first or the last key of the other.
            if set.kind == SetKind::Interval && elements.iter().any(|element| element.key.len() > 1) {
                read.order = elements.iter().map(|element| element.key.clone()).collect();
            }
            let elements = elements.into_iter().map(|element| (element.key.clone(), element)).collect();
            (set.name.clone(), MemorySet { set, elements, read })
        };
        let chains: Vec<ChainWithRules> = chains.into_iter().collect();
        let base_chains = chains.iter().filter(|chain| chain.chain.base.is_some());
        Self {
            comment: None,
            base_chains: base_chains.map(|chain| chain.chain.name.clone()).collect(),
            chains: chains.into_iter().map(|chain| (chain.chain.name.clone(), chain)).collect(),
            sets: sets.into_iter().map(read_set).collect(),
            flowtables: BTreeMap::new(),
        }
    }

    /// Removes the elements that rules have added, which depend on earlier packets.
    pub fn clear_dynamic_sets(&mut self) {
        let dynamic = self.sets.values_mut().filter(|set| matches!(set.set.kind, SetKind::Dynamic { .. }));
        dynamic.for_each(|set| set.elements.clear());
    }

    /// Marks empty sets and maps as those whose elements are unknown.
    pub fn forget_elements(&mut self) {
        let is_empty = |set: &&mut MemorySet| {
            set.elements.is_empty() && !set.set.name.is_anonymous() && !matches!(set.set.kind, SetKind::Dynamic { .. })
        };
        self.sets.values_mut().filter(is_empty).for_each(|set| set.read.undecoded += 1);
    }

    /// Returns the number of elements of a set that the model cannot represent.
    pub fn undecoded(&self, set: &Name) -> usize {
        self.sets.get(set).map_or(0, |set| set.read.undecoded)
    }

    /// Returns the condition, besides the key, under which an element of another program's set matches, in `nft`
    /// syntax.
    pub fn condition(&self, set: &Name, key: &Key) -> Option<&str> {
        self.sets.get(set)?.read.conditions.get(key).map(|condition| &**condition)
    }

    /// Returns all chains, sorted by name.
    pub fn chains(&self) -> impl Iterator<Item = &ChainWithRules> {
        self.chains.values()
    }

    /// Returns the base chains in the order of their creation.
    pub fn base_chains(&self) -> impl Iterator<Item = &ChainWithRules> {
        self.base_chains.iter().filter_map(|name| self.chains.get(name))
    }

    /// Returns a chain.
    pub fn chain(&self, name: &Name) -> Option<&ChainWithRules> {
        self.chains.get(name)
    }

    /// Returns all sets and maps, sorted by name.
    pub fn sets(&self) -> impl Iterator<Item = &Set> {
        self.sets.values().map(|set| &set.set)
    }

    /// Returns all flowtables, sorted by name.
    pub fn flowtables(&self) -> impl Iterator<Item = Flowtable> + '_ {
        let flowtables = self.flowtables.iter();
        flowtables.map(|(name, devices)| Flowtable { name: name.clone(), devices: devices.iter().cloned().collect() })
    }

    /// Returns the elements of a set, sorted by key; none if the set does not exist.
    pub fn elements(&self, set: &Name) -> impl Iterator<Item = &Element> {
        self.sets.get(set).into_iter().flat_map(|set| set.elements.values())
    }

    /// Returns the elements of a set. If two elements match the same packet, the one that applies comes first.
    pub fn candidates(&self, set: &Name) -> impl Iterator<Item = &Element> {
        self.sets.get(set).into_iter().flat_map(|set| {
            let (in_order, by_key) = match set.read.order.is_empty() {
                true => (None, Some(set.elements.values())),
                false => (Some(set.read.order.iter().filter_map(|key| set.elements.get(key))), None),
            };
            in_order.into_iter().flatten().chain(by_key.into_iter().flatten())
        })
    }

    /// Returns the element of a set that matches a packet's key.
    pub fn find(&self, set: &Name, key: &Key) -> Option<&Element> {
        let set = self.sets.get(set)?;
        let found = match set.set.kind {
            SetKind::Exact | SetKind::Dynamic { .. } => set.elements.get(key),
            SetKind::Interval => self.candidates(&set.set.name).find(|element| {
                !element.key.is_empty() && element.key.iter().zip(key).all(|(field, value)| field.contains(*value))
            }),
        };
        found.or_else(|| self.catch_all(&set.set.name))
    }

    /// Returns the element of a set without ranges whose key consists of these numbers; the outer `None` stands for sets that
    /// have to be searched.
    pub fn find_exact(&self, set: &Name, numbers: &[u128]) -> Option<Option<&Element>> {
        let MemorySet { set, elements, read } = self.sets.get(set)?;
        if set.kind == SetKind::Interval || !read.order.is_empty() {
            return None;
        }
        // All keys have the same types.
        let types = elements.keys().find(|key| key.len() == numbers.len())?;
        let key: Option<Key> = types.iter().zip(numbers).map(|(value, number)| value.with_number(*number)).collect();
        key.map(|key| elements.get(&key))
    }

    /// Returns the element of a set that matches all keys without another element.
    pub fn catch_all(&self, set: &Name) -> Option<&Element> {
        self.sets.get(set)?.elements.get(&Key::new())
    }

    /// Returns a rule in `nft` syntax, with the elements of anonymous sets.
    pub fn rule_text(&self, rule: &Rule, family: IpFamily) -> String {
        rule.text_with(family, &|name| self.anonymous(name)).to_string()
    }

    /// Returns a construct in `nft` syntax, with the elements of anonymous sets.
    pub fn foreign_text(&self, foreign: &Foreign, family: IpFamily) -> String {
        foreign.text(family, &|name| self.anonymous(name))
    }

    /// Returns a lookup in a map in `nft` syntax, with the elements of an anonymous map.
    pub fn lookup_text(&self, key: &[Operand], map: &Name, family: IpFamily) -> String {
        let data = self.sets.get(map).and_then(|set| set.elements.values().next()).map(|element| &element.data);
        let word = if matches!(data, Some(Some(Data::Verdict(_)))) { "vmap" } else { "map" };
        format!("{} {word} {}", key_text(key, family), set_text(map, key, family, &|name| self.anonymous(name)))
    }

    /// Returns the elements of an anonymous set, which `nft` creates for a list in a rule; `None` for other sets.
    fn anonymous(&self, name: &Name) -> Option<Vec<Element>> {
        let set = self.sets.get(name)?;
        (name.is_anonymous() && set.read.undecoded == 0).then(|| set.elements.values().cloned().collect())
    }

    /// Returns all chains, sorted by name.
    pub fn chains_mut(&mut self) -> impl Iterator<Item = &mut ChainWithRules> {
        self.chains.values_mut()
    }

    /// Returns the declaration of a set.
    pub fn set(&self, name: &Name) -> Option<&Set> {
        self.sets.get(name).map(|set| &set.set)
    }

    /// Returns the table as `nft list table` prints it.
    pub fn text(&self, id: &TableId) -> String {
        TableText { id, table: self }.to_string()
    }

    fn change(&mut self, change: &Change) -> Result<(), ErrorKind> {
        match change {
            Change::AddTable(_) | Change::AddOwnedTable(_) | Change::DeleteTable => Err(ErrorKind::Other),
            Change::AddChain(chain) => match self.chains.get(&chain.name) {
                Some(old) if old.chain != *chain => Err(ErrorKind::Exists),
                Some(_) => Ok(()),
                None => {
                    self.base_chains.extend(chain.base.map(|_| chain.name.clone()));
                    self.chains.insert(chain.name.clone(), chain.clone().rules([]));
                    Ok(())
                }
            },
            Change::FlushChain(name) => {
                self.chains.get_mut(name).ok_or(ErrorKind::NotFound)?.rules.clear();
                Ok(())
            }
            Change::DeleteChain(name) => {
                self.chains.remove(name).ok_or(ErrorKind::NotFound)?;
                self.base_chains.retain(|chain| chain != name);
                if self.is_referenced(name) { Err(ErrorKind::Busy) } else { Ok(()) }
            }
            Change::AddRule(chain, rule) => {
                rule.statements.iter().try_for_each(|statement| self.check(statement))?;
                self.chains.get_mut(chain).ok_or(ErrorKind::NotFound)?.rules.push(rule.clone());
                Ok(())
            }
            Change::AddSet(set) => match self.sets.get(&set.name) {
                Some(old) if old.set != *set => Err(ErrorKind::Exists),
                Some(_) => Ok(()),
                None => {
                    self.sets.insert(
                        set.name.clone(),
                        MemorySet { set: set.clone(), elements: BTreeMap::new(), read: ReadElements::default() },
                    );
                    Ok(())
                }
            },
            Change::DeleteSet(name, _) => {
                self.sets.remove(name).ok_or(ErrorKind::NotFound)?;
                let used = self.statements().filter_map(set_of).any(|set| set == name);
                if used { Err(ErrorKind::Busy) } else { Ok(()) }
            }
            Change::AddFlowtable(Flowtable { name, devices }) => {
                self.flowtables.entry(name.clone()).or_default().extend(devices.iter().cloned());
                Ok(())
            }
            Change::DeleteDevices(Flowtable { name, devices }) => {
                let existing = self.flowtables.get_mut(name).ok_or(ErrorKind::NotFound)?;
                let are_removed = devices.iter().all(|device| existing.remove(device));
                if are_removed { Ok(()) } else { Err(ErrorKind::NotFound) }
            }
            Change::DeleteFlowtable(name) => {
                self.flowtables.remove(name).ok_or(ErrorKind::NotFound)?;
                let is_used = self.statements().any(|used| matches!(used, Statement::FlowAdd(to) if to == name));
                if is_used { Err(ErrorKind::Busy) } else { Ok(()) }
            }
            Change::AddElement(set, element) => self.add_element(set, element),
            Change::DeleteElement(set, element) => {
                let set = self.sets.get_mut(set).ok_or(ErrorKind::NotFound)?;
                set.elements.remove(&element.key).map(drop).ok_or(ErrorKind::NotFound)
            }
        }
    }

    fn add_element(&mut self, set: &Name, element: &Element) -> Result<(), ErrorKind> {
        if let Some(Data::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain))) = &element.data
            && !self.chains.contains_key(chain)
        {
            return Err(ErrorKind::NotFound);
        }
        let MemorySet { set, elements, .. } = self.sets.get_mut(set).ok_or(ErrorKind::NotFound)?;
        let data_fits = match (&set.data, &element.data) {
            (SetData::None, None) | (SetData::Verdict, Some(Data::Verdict(_))) => true,
            (SetData::Values(types), Some(Data::Values(values))) => fit(values, types, false),
            _ => false,
        };
        if !data_fits || !fit(&element.key, &set.key, set.kind == SetKind::Interval) {
            return Err(ErrorKind::Other);
        }
        if set.kind == SetKind::Interval && elements.keys().any(|key| *key != element.key && overlap(key, &element.key))
        {
            return Err(ErrorKind::Exists);
        }
        match elements.get(&element.key) {
            Some(old) if old.data != element.data => Err(ErrorKind::Exists),
            Some(_) => Ok(()),
            None => {
                elements.insert(element.key.clone(), element.clone());
                Ok(())
            }
        }
    }
}

/// Prints a table as `nft list table` does.
struct TableText<'a> {
    id: &'a TableId,
    table: &'a MemoryTable,
}

impl fmt::Display for TableText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TableId { family, name } = self.id;
        writeln!(f, "table {} {name} {{", family_name(*family))?;
        if let Some(comment) = &self.table.comment {
            writeln!(f, "\t{comment}\n")?;
        }
        for MemorySet { set, elements, .. } in self.table.sets.values() {
            writeln!(f, "\t{} {} {{", set.keyword(), set.name)?;
            set.properties().iter().try_for_each(|property| writeln!(f, "\t\t{property}"))?;
            if !elements.is_empty() {
                let elements: Vec<&Element> = elements.values().collect();
                writeln!(f, "\t\telements = {{ {} }}", join(&elements, ",\n\t\t\t     "))?;
            }
            writeln!(f, "\t}}\n")?;
        }
        for flowtable in self.table.flowtables() {
            writeln!(f, "\tflowtable {} {{", flowtable.name)?;
            flowtable.properties().iter().try_for_each(|property| writeln!(f, "\t\t{property}"))?;
            writeln!(f, "\t}}\n")?;
        }
        for ChainWithRules { chain, rules } in self.table.chains.values() {
            writeln!(f, "\tchain {} {{", chain.name)?;
            chain.properties().iter().try_for_each(|property| writeln!(f, "\t\t{property};"))?;
            rules.iter().try_for_each(|rule| writeln!(f, "\t\t{}", rule.text(*family)))?;
            writeln!(f, "\t}}\n")?;
        }
        writeln!(f, "}}")
    }
}
