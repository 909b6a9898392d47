use std::fmt;

use ferroute_core::IpFamily;

use super::{Chain, ChainWithRules, Comment, Element, Name, Rule, Set, family_name, join};

/// A table: the family of its packets and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId {
    /// The family.
    pub family: IpFamily,
    /// The name, unique within the family.
    pub name: Name,
}

/// Changes of one table that come into force together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The table.
    pub table: TableId,
    /// The changes, in order.
    pub changes: Vec<Change>,
}

/// One change of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Make the table, if there is none.
    AddTable(Option<Comment>),
    /// Remove the table with everything in it.
    DeleteTable,
    /// Make a chain, if there is none of this name.
    AddChain(Chain),
    /// Remove all rules of a chain.
    FlushChain(Name),
    /// Remove a chain that has no rules and that nothing leads to.
    DeleteChain(Name),
    /// Put a rule behind the others of its chain.
    AddRule(Name, Rule),
    /// Make a set or map, if there is none of this name.
    AddSet(Set),
    /// Remove a set or map that no rule uses.
    DeleteSet(Name, SetWord),
    /// Add an element. There may be one of the same key if it is equal.
    AddElement(Name, Element),
    /// Remove an element.
    DeleteElement(Name, Element),
}

/// The two words for sets that `nft` tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetWord {
    /// `set`.
    Set,
    /// `map`.
    Map,
}

impl Transaction {
    /// A transaction that changes nothing yet.
    pub fn new(table: TableId) -> Self {
        Self { table, changes: Vec::new() }
    }

    /// Adds a change.
    pub fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Makes a chain with all its rules.
    pub fn add_chain(&mut self, chain: ChainWithRules) {
        let ChainWithRules { chain, rules } = chain;
        let name = chain.name.clone();
        self.push(Change::AddChain(chain));
        self.changes.extend(rules.into_iter().map(|rule| Change::AddRule(name.clone(), rule)));
    }

    /// Gives a chain that is there other rules.
    pub fn replace_rules(&mut self, chain: &Name, rules: impl IntoIterator<Item = Rule>) {
        self.push(Change::FlushChain(chain.clone()));
        self.changes.extend(rules.into_iter().map(|rule| Change::AddRule(chain.clone(), rule)));
    }

    /// Number of changes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Nothing changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

impl Change {
    /// The change as a command of `nft`.
    pub fn text(&self, table: &TableId) -> String {
        match self {
            Self::AddTable(None) => format!("add table {table}"),
            Self::AddTable(Some(comment)) => format!("add table {table} {{ {comment} ; }}"),
            Self::DeleteTable => format!("delete table {table}"),
            Self::AddChain(chain) => format!("add chain {table} {}{}", chain.name, block(&chain.properties())),
            Self::FlushChain(name) => format!("flush chain {table} {name}"),
            Self::DeleteChain(name) => format!("delete chain {table} {name}"),
            Self::AddRule(chain, rule) => format!("add rule {table} {chain} {}", rule.text(table.family)),
            Self::AddSet(set) => format!("add {} {table} {}{}", set.keyword(), set.name, block(&set.properties())),
            Self::DeleteSet(name, SetWord::Set) => format!("delete set {table} {name}"),
            Self::DeleteSet(name, SetWord::Map) => format!("delete map {table} {name}"),
            Self::AddElement(set, element) => format!("add element {table} {set} {{ {element} }}"),
            Self::DeleteElement(set, element) => {
                // `nft` wants the datum of a map's element here, too, but no comment.
                let bare = Element { comment: None, ..element.clone() };
                format!("delete element {table} {set} {{ {bare} }}")
            }
        }
    }
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", family_name(self.family), self.name)
    }
}

impl fmt::Display for Transaction {
    /// Input for `nft -f`, one change per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.changes.iter().try_for_each(|change| writeln!(f, "{}", change.text(&self.table)))
    }
}

fn block(properties: &[String]) -> String {
    if properties.is_empty() { String::new() } else { format!(" {{ {} ; }}", join(properties, " ; ")) }
}
