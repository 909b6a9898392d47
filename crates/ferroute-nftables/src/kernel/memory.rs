mod check;
mod text;

use std::collections::BTreeMap;

use self::{
    check::{fit, overlap, set_of},
    text::TableText,
};

use super::{Counter, Kernel, KernelError, ListedChain, ListedRule, ListedSet, Listing, Objection, Reading};
use crate::model::{
    ChainWithRules, Change, Comment, Datum, Element, Holds, Key, Name, Set, SetKind, TableId, Transaction, Verdict,
};

/// A kernel that keeps tables in memory: it checks references and types as nf_tables does, and refuses with the same
/// kinds of errors. What it does not check is whether rules can be reached from a hook where they may not stand.
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
    sets: BTreeMap<Name, MemorySet>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MemorySet {
    set: Set,
    elements: BTreeMap<Key, Element>,
    /// Further elements, which cannot be said here; only in what was read from a kernel.
    unread: usize,
}

/// Why a transaction was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{change}: {}", match .objection {
    Objection::NotFound => "no such object",
    Objection::Exists => "exists and is different",
    Objection::Busy => "in use",
    Objection::Other => "not possible",
})]
pub struct MemoryError {
    /// The change at fault, as `nft` writes it; «all together» if chains lead in circles.
    pub change: String,
    /// What is wrong with it.
    pub objection: Objection,
}

impl KernelError for MemoryError {
    fn objection(&self) -> Option<Objection> {
        Some(self.objection)
    }
}

impl MemoryKernel {
    /// A kernel without tables.
    pub fn new() -> Self {
        Self::default()
    }

    /// A table.
    pub fn table(&self, id: &TableId) -> Option<&MemoryTable> {
        self.tables.get(id)
    }

    /// Everything, as `nft list ruleset` prints it.
    pub fn dump(&self) -> String {
        self.tables.iter().map(|(id, table)| table.text(id)).collect()
    }
}

impl Kernel for MemoryKernel {
    type Error = MemoryError;

    fn commit(&mut self, transaction: &Transaction) -> Result<(), Self::Error> {
        let id = &transaction.table;
        let mut table = self.tables.get(id).cloned();
        for change in &transaction.changes {
            let refused = |objection| MemoryError { change: change.text(id), objection };
            match (change, &mut table) {
                (Change::AddTable(comment), None) => {
                    table = Some(MemoryTable { comment: comment.clone(), ..MemoryTable::default() });
                }
                (Change::AddTable(_), Some(_)) => {}
                (Change::DeleteTable, Some(_)) => table = None,
                (_, None) => return Err(refused(Objection::NotFound)),
                (change, Some(table)) => table.change(change).map_err(refused)?,
            }
        }
        if table.as_ref().is_some_and(|table| !table.can_be_walked()) {
            return Err(MemoryError { change: "all together".to_owned(), objection: Objection::Other });
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

    fn listing(&mut self, table: &TableId) -> Result<Option<Listing>, Self::Error> {
        Ok(self.tables.get(table).map(|table| Listing {
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
                    is_map: set.holds != Holds::Nothing,
                    elements: Some(elements.len()),
                })
                .collect(),
        }))
    }

    fn read(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut dyn FnMut(Option<Element>),
    ) -> Result<Reading, Self::Error> {
        let elements = self.tables.get(table).into_iter().flat_map(|table| table.elements(&set.name));
        elements.for_each(|element| each(Some(element.clone())));
        Ok(Reading::Steady)
    }

    fn counts(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut dyn FnMut(Element, Counter),
    ) -> Result<Reading, Self::Error> {
        let elements = self.tables.get(table).into_iter().flat_map(|table| table.elements(&set.name));
        // No packets pass here.
        elements.filter(|_| set.counter).for_each(|element| each(element.clone(), Counter::default()));
        Ok(Reading::Steady)
    }

    fn find(
        &mut self,
        table: &TableId,
        set: &Set,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Option<Element>, Option<Counter>),
    ) -> Result<(), Self::Error> {
        let Some(table) = self.tables.get(table) else { return Ok(()) };
        keys.filter_map(|key| table.find(&set.name, &key)).for_each(|element| each(Some(element.clone()), None));
        Ok(())
    }
}

impl MemoryTable {
    /// A table of these chains and sets, each with its elements and the number of those that are not among them. Nothing
    /// is checked: a kernel has done so.
    pub(crate) fn found(
        chains: impl IntoIterator<Item = ChainWithRules>,
        sets: impl IntoIterator<Item = (Set, Vec<Element>, usize)>,
    ) -> Self {
        let by_key = |elements: Vec<Element>| elements.into_iter().map(|element| (element.key.clone(), element));
        Self {
            comment: None,
            chains: chains.into_iter().map(|chain| (chain.chain.name.clone(), chain)).collect(),
            sets: sets
                .into_iter()
                .map(|(set, elements, unread)| {
                    (set.name.clone(), MemorySet { set, elements: by_key(elements).collect(), unread })
                })
                .collect(),
        }
    }

    /// Lets the kernel no longer enter these chains by itself: somebody else knows them.
    pub fn disconnect(&mut self, known: impl Fn(&Name) -> bool) {
        self.chains.values_mut().filter(|chain| known(&chain.chain.name)).for_each(|chain| chain.chain.base = None);
    }

    /// Forgets what rules have learned: elements that come and go with packets, whatever the rules are.
    pub fn forget_learned(&mut self) {
        let learned = self.sets.values_mut().filter(|set| matches!(set.set.kind, SetKind::Learned { .. }));
        learned.for_each(|set| set.elements.clear());
    }

    /// How many elements a set has that are not known here, because others have made them in forms that cannot be said.
    pub fn unread(&self, set: &Name) -> usize {
        self.sets.get(set).map_or(0, |set| set.unread)
    }

    /// All chains, sorted by name.
    pub fn chains(&self) -> impl Iterator<Item = &ChainWithRules> {
        self.chains.values()
    }

    /// A chain.
    pub fn chain(&self, name: &Name) -> Option<&ChainWithRules> {
        self.chains.get(name)
    }

    /// All sets and maps, sorted by name.
    pub fn sets(&self) -> impl Iterator<Item = &Set> {
        self.sets.values().map(|set| &set.set)
    }

    /// The elements of a set, sorted by key; none if there is no such set.
    pub fn elements(&self, set: &Name) -> impl Iterator<Item = &Element> {
        self.sets.get(set).into_iter().flat_map(|set| set.elements.values())
    }

    /// The element of a set that a packet's key finds.
    pub fn find(&self, set: &Name, key: &Key) -> Option<&Element> {
        let set = self.sets.get(set)?;
        match set.set.kind {
            SetKind::Exact | SetKind::Learned { .. } => set.elements.get(key),
            SetKind::Interval => set
                .elements
                .values()
                .find(|element| element.key.iter().zip(key).all(|(field, value)| field.contains(*value))),
        }
    }

    /// As `nft list table` prints it.
    pub fn text(&self, id: &TableId) -> String {
        TableText { id, table: self }.to_string()
    }

    fn change(&mut self, change: &Change) -> Result<(), Objection> {
        match change {
            Change::AddTable(_) | Change::DeleteTable => Err(Objection::Other),
            Change::AddChain(chain) => match self.chains.get(&chain.name) {
                Some(old) if old.chain != *chain => Err(Objection::Exists),
                Some(_) => Ok(()),
                None => {
                    self.chains.insert(chain.name.clone(), chain.clone().rules([]));
                    Ok(())
                }
            },
            Change::FlushChain(name) => {
                self.chains.get_mut(name).ok_or(Objection::NotFound)?.rules.clear();
                Ok(())
            }
            Change::DeleteChain(name) => {
                self.chains.remove(name).ok_or(Objection::NotFound)?;
                if self.leads_to(name) { Err(Objection::Busy) } else { Ok(()) }
            }
            Change::AddRule(chain, rule) => {
                rule.statements.iter().try_for_each(|statement| self.check(statement))?;
                self.chains.get_mut(chain).ok_or(Objection::NotFound)?.rules.push(rule.clone());
                Ok(())
            }
            Change::AddSet(set) => match self.sets.get(&set.name) {
                Some(old) if old.set != *set => Err(Objection::Exists),
                Some(_) => Ok(()),
                None => {
                    self.sets
                        .insert(set.name.clone(), MemorySet { set: set.clone(), elements: BTreeMap::new(), unread: 0 });
                    Ok(())
                }
            },
            Change::DeleteSet(name, _) => {
                self.sets.remove(name).ok_or(Objection::NotFound)?;
                let used = self.statements().filter_map(set_of).any(|set| set == name);
                if used { Err(Objection::Busy) } else { Ok(()) }
            }
            Change::AddElement(set, element) => self.add_element(set, element),
            Change::DeleteElement(set, element) => {
                let set = self.sets.get_mut(set).ok_or(Objection::NotFound)?;
                set.elements.remove(&element.key).map(drop).ok_or(Objection::NotFound)
            }
        }
    }

    fn add_element(&mut self, set: &Name, element: &Element) -> Result<(), Objection> {
        if let Some(Datum::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain))) = &element.datum
            && !self.chains.contains_key(chain)
        {
            return Err(Objection::NotFound);
        }
        let MemorySet { set, elements, .. } = self.sets.get_mut(set).ok_or(Objection::NotFound)?;
        let datum_fits = match (&set.holds, &element.datum) {
            (Holds::Nothing, None) | (Holds::Verdicts, Some(Datum::Verdict(_))) => true,
            (Holds::Values(types), Some(Datum::Fields(fields))) => fit(fields, types, false),
            _ => false,
        };
        if !datum_fits || !fit(&element.key, &set.key, set.kind == SetKind::Interval) {
            return Err(Objection::Other);
        }
        if set.kind == SetKind::Interval && elements.keys().any(|key| *key != element.key && overlap(key, &element.key))
        {
            return Err(Objection::Exists);
        }
        match elements.get(&element.key) {
            Some(old) if old.datum != element.datum => Err(Objection::Exists),
            Some(_) => Ok(()),
            None => {
                elements.insert(element.key.clone(), element.clone());
                Ok(())
            }
        }
    }
}
