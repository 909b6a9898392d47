//! What rules on a packet's way add to sets and lists and delete from them: later rules find it there.

use std::{net::IpAddr, rc::Rc};

use ferroute_iptables::SetSide;
use ferroute_nftables::{
    kernel::MemoryTable,
    model::{Element, Name, Property},
};

use crate::ipset::IpsetEntry;

/// The changes that rules have made on a packet's way, of which later ones apply first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes<'a> {
    /// Elements of sets and maps of nf_tables.
    elements: Vec<ElementChange<'a>>,
    /// Entries of ipsets.
    pub(crate) entries: Vec<EntryChange>,
    /// Addresses in the lists of `-m recent`.
    recent: Vec<(Box<str>, IpAddr, bool)>,
    /// Values of properties that rules have written; `None` if the value is not known.
    written: Vec<(Property, Option<u128>)>,
}

/// A change of an element of nf_tables.
#[derive(Clone, Debug)]
pub(crate) struct ElementChange<'a> {
    pub(crate) table: &'a MemoryTable,
    pub(crate) set: Name,
    /// The fields of the key, as far as they are known; empty if none is.
    pub(crate) key: Vec<Option<u128>>,
    /// The element; `None` if it was deleted.
    pub(crate) element: Option<Rc<Element>>,
    /// What decides whether the element matches besides its key.
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
    /// The entry; `None` if the type of the set is not known.
    pub(crate) entry: Option<IpsetEntry>,
    pub(crate) is_added: bool,
}

/// What a packet's changes say about a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Changed<'c> {
    /// Nothing.
    No,
    /// It was added, with what decides besides whether the element matches.
    Added(&'c Rc<Element>, Option<&'c str>),
    /// It was deleted.
    Deleted,
    /// It may have been added or deleted.
    Perhaps,
}

impl<'a> Changes<'a> {
    pub(crate) fn add_element(&mut self, change: ElementChange<'a>) {
        self.elements.push(change);
    }

    /// Returns what happened to a key of a set, whose fields are given as far as they are known.
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

    /// Adds an address to a list of `-m recent`, or removes it.
    pub(crate) fn set_recent(&mut self, list: &str, address: IpAddr, is_listed: bool) {
        self.recent.push((list.into(), address, is_listed));
    }

    /// Reports whether an address is in a list of `-m recent`; `None` if no rule has changed that.
    pub(crate) fn is_recent(&self, list: &str, address: IpAddr) -> Option<bool> {
        let mut changes = self.recent.iter().rev();
        changes.find(|(name, changed, _)| **name == *list && *changed == address).map(|(.., is_listed)| *is_listed)
    }

    /// Replaces the value of a property, by an unknown one if it is `None`.
    pub(crate) fn write(&mut self, property: Property, value: Option<u128>) {
        self.forget(property);
        self.written.push((property, value));
    }

    /// Forgets that a property was written: the packet itself has it.
    pub(crate) fn forget(&mut self, property: Property) {
        self.written.retain(|(written, _)| *written != property);
    }

    /// Returns the value of a property that a rule has written, `Some(None)` for an unknown one.
    pub(crate) fn written(&self, property: Property) -> Option<Option<u128>> {
        self.written.iter().find(|(written, _)| *written == property).map(|(_, value)| *value)
    }
}
