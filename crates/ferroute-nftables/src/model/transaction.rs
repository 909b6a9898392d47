use std::fmt;

use ferroute_core::IpFamily;

use super::{Chain, ChainWithRules, Comment, Element, Flowtable, Name, Rule, Set, family_name, join};

/// The family and name of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId {
    /// The IP family.
    pub family: IpFamily,
    /// The name, unique within the family.
    pub name: Name,
}

/// Changes of one table that the kernel applies all together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The table.
    pub table: TableId,
    /// The changes, in order.
    pub changes: Vec<Change>,
}

/// A command of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates the table unless it exists.
    AddTable(Option<Comment>),
    /// Creates a table that only the socket that sends the transaction may change. The kernel deletes it when the
    /// socket is closed. Linux 5.12.
    AddOwnedTable(Comment),
    /// Deletes the table with its contents.
    DeleteTable,
    /// Creates a chain unless it exists.
    AddChain(Chain),
    /// Deletes all rules of a chain.
    FlushChain(Name),
    /// Deletes a chain. It must have no rules and must not be referenced.
    DeleteChain(Name),
    /// Appends a rule to a chain.
    AddRule(Name, Rule),
    /// Creates a set or map unless it exists.
    AddSet(Set),
    /// Deletes a set or map. It must not be referenced.
    DeleteSet(Name, SetOrMap),
    /// Creates a flowtable, or adds devices to an existing one.
    AddFlowtable(Flowtable),
    /// Removes these devices from a flowtable.
    DeleteDevices(Flowtable),
    /// Deletes a flowtable. It must not be referenced.
    DeleteFlowtable(Name),
    /// Adds an element. An existing element with the same key must have the same data.
    AddElement(Name, Element),
    /// Deletes an element.
    DeleteElement(Name, Element),
}

/// The keyword for a set in `nft` syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetOrMap {
    /// `set`.
    Set,
    /// `map`.
    Map,
}

impl Transaction {
    /// Returns an empty transaction.
    pub fn new(table: TableId) -> Self {
        Self { table, changes: Vec::new() }
    }

    /// Appends a change.
    pub fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Creates a chain with its rules.
    pub fn add_chain(&mut self, chain: ChainWithRules) {
        let ChainWithRules { chain, rules } = chain;
        let name = chain.name.clone();
        self.push(Change::AddChain(chain));
        self.changes.extend(rules.into_iter().map(|rule| Change::AddRule(name.clone(), rule)));
    }

    /// Replaces the rules of an existing chain.
    pub fn replace_rules(&mut self, chain: &Name, rules: impl IntoIterator<Item = Rule>) {
        self.push(Change::FlushChain(chain.clone()));
        self.changes.extend(rules.into_iter().map(|rule| Change::AddRule(chain.clone(), rule)));
    }

    /// Deletes an existing chain with its rules.
    pub fn delete_chain(&mut self, chain: Name) {
        self.push(Change::FlushChain(chain.clone()));
        self.push(Change::DeleteChain(chain));
    }

    /// Returns the number of changes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Reports whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

impl Change {
    /// Returns the change as an `nft` command.
    pub fn text(&self, table: &TableId) -> String {
        match self {
            Self::AddTable(None) => format!("add table {table}"),
            Self::AddTable(Some(comment)) => format!("add table {table} {{ {comment} ; }}"),
            Self::AddOwnedTable(comment) => format!("add table {table} {{ flags owner ; {comment} ; }}"),
            Self::DeleteTable => format!("delete table {table}"),
            Self::AddChain(chain) => format!("add chain {table} {}{}", chain.name, block(&chain.properties())),
            Self::FlushChain(name) => format!("flush chain {table} {name}"),
            Self::DeleteChain(name) => format!("delete chain {table} {name}"),
            Self::AddRule(chain, rule) => format!("add rule {table} {chain} {}", rule.text(table.family)),
            Self::AddSet(set) => format!("add {} {table} {}{}", set.keyword(), set.name, block(&set.properties())),
            Self::DeleteSet(name, SetOrMap::Set) => format!("delete set {table} {name}"),
            Self::DeleteSet(name, SetOrMap::Map) => format!("delete map {table} {name}"),
            Self::AddFlowtable(flowtable) => {
                format!("add flowtable {table} {}{}", flowtable.name, block(&flowtable.properties()))
            }
            Self::DeleteDevices(flowtable) => {
                let devices: Vec<String> = flowtable.device_property().into_iter().collect();
                format!("delete flowtable {table} {}{}", flowtable.name, block(&devices))
            }
            Self::DeleteFlowtable(name) => format!("delete flowtable {table} {name}"),
            Self::AddElement(set, element) => format!("add element {table} {set} {{ {element} }}"),
            Self::DeleteElement(set, element) => {
                // `nft` requires the data of a map's element here, but accepts no comment.
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
    /// Prints input for `nft -f`, one change per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.changes.iter().try_for_each(|change| writeln!(f, "{}", change.text(&self.table)))
    }
}

fn block(properties: &[String]) -> String {
    if properties.is_empty() { String::new() } else { format!(" {{ {} ; }}", join(properties, " ; ")) }
}
