//! Changes that the rules on a packet's path make to sets and lists, so that later rules find the new contents.

use std::{net::IpAddr, rc::Rc};

use ferroute_iptables::SetSide;
use ferroute_nftables::{
    kernel::MemoryTable,
    model::{Element, Name, Property},
};

use crate::ipset::IpsetEntry;

/// Changes that rules have made on a packet's path; later changes take precedence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes<'a> {
    /// Elements of sets and maps of nf_tables.
    elements: Vec<ElementChange<'a>>,
    /// Entries of ipsets.
    pub(crate) entries: Vec<EntryChange>,
    /// Addresses in the lists of `-m recent`.
    recent: Vec<(Box<str>, IpAddr, Recency)>,
    /// Labels of the connection that `-m connlabel` has set.
    pub(crate) labels: Vec<Box<str>>,
    /// Values of properties that rules have written; `None` if the value is unknown.
    written: Vec<(Property, Option<u128>)>,
}

/// A change of an element of nf_tables.
#[derive(Clone, Debug)]
pub(crate) struct ElementChange<'a> {
    pub(crate) table: &'a MemoryTable,
    pub(crate) set: Name,
    /// Fields of the key, as far as known; empty if none is known.
    pub(crate) key: Vec<Option<u128>>,
    /// The element; `None` if it was deleted.
    pub(crate) element: Option<Rc<Element>>,
    /// Condition under which the element matches besides its key.
    pub(crate) condition: Option<String>,
}

/// A change of an entry of an ipset.
#[derive(Clone, Debug)]
pub(crate) struct EntryChange {
    pub(crate) set: Box<str>,
    /// The sides of the packet that the entry is made of.
    pub(crate) sides: Box<[SetSide]>,
    /// The addresses and ports of the packet.
    pub(crate) ends: (std::net::SocketAddr, std::net::SocketAddr),
    /// Entry; `None` if the type of the set is unknown.
    pub(crate) entry: Option<IpsetEntry>,
    pub(crate) is_added: bool,
}

/// What rules have done with an address in a list of `-m recent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recency {
    /// A rule has removed it, so that the list has only what rules have added since.
    pub(crate) was_removed: bool,
    /// Number of times that it was added since.
    pub(crate) added: u32,
}

/// Effect of a packet's changes on a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Changed<'c> {
    /// No effect.
    No,
    /// Added, with the condition under which the element matches.
    Added(&'c Rc<Element>, Option<&'c str>),
    /// Deleted.
    Deleted,
    /// Possibly added or deleted.
    Perhaps,
}

impl<'a> Changes<'a> {
    pub(crate) fn add_element(&mut self, change: ElementChange<'a>) {
        self.elements.push(change);
    }

    /// Returns the effect of the changes on a key of a set, whose fields are given as far as known.
    pub(crate) fn element(&self, table: &MemoryTable, set: &Name, key: &[Option<u128>]) -> Changed<'_> {
        for change in self.elements.iter().rev() {
            if !std::ptr::eq(change.table, table) || change.set != *set {
                continue;
            }
            let mut pairs = change.key.iter().zip(key);
            if pairs.clone().any(|pair| matches!(pair, (Some(changed), Some(wanted)) if changed != wanted)) {
                continue;
            }
            if change.key.is_empty() || !pairs.all(|(changed, wanted)| changed.is_some() && wanted.is_some()) {
                return Changed::Perhaps;
            }
            return match &change.element {
                Some(element) => Changed::Added(element, change.condition.as_deref()),
                None => Changed::Deleted,
            };
        }
        Changed::No
    }

    /// Adds an address to a list of `-m recent` once more, or removes it.
    pub(crate) fn set_recent(&mut self, list: &str, address: IpAddr, is_listed: bool) {
        let recency = match (is_listed, self.recency(list, address)) {
            (false, _) => Recency { was_removed: true, added: 0 },
            (true, Some(recency)) => Recency { added: recency.added + 1, ..recency },
            (true, None) => Recency { was_removed: false, added: 1 },
        };
        self.recent.push((list.into(), address, recency));
    }

    /// Returns what rules have done with an address in a list of `-m recent`; `None` if nothing.
    pub(crate) fn recency(&self, list: &str, address: IpAddr) -> Option<Recency> {
        let mut changes = self.recent.iter().rev();
        changes.find(|(name, changed, _)| **name == *list && *changed == address).map(|(.., recency)| *recency)
    }

    /// Replaces the value of a property; `None` for an unknown value.
    pub(crate) fn write(&mut self, property: Property, value: Option<u128>) {
        self.forget(property);
        self.written.push((property, value));
    }

    /// Discards the written value of a property, which the packet itself has.
    pub(crate) fn forget(&mut self, property: Property) {
        self.written.retain(|(written, _)| *written != property);
    }

    /// Returns the value of a property that a rule has written; `Some(None)` if it is unknown.
    pub(crate) fn written(&self, property: Property) -> Option<Option<u128>> {
        self.written.iter().find(|(written, _)| *written == property).map(|(_, value)| *value)
    }
}
