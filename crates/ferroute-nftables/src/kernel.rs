//! Where tables live: the kernel, or a stand-in that keeps them in memory and takes and refuses the same.

mod found;
mod memory;
mod netlink;
mod watched;

use ferroute_core::IpFamily;

pub use found::{FoundTable, TableFamily};
pub use memory::{MemoryError, MemoryKernel, MemoryTable};
pub use netlink::{NetlinkError, NetlinkKernel};
pub use watched::Watched;

use crate::model::{Chain, Element, Key, Name, Rule, Set, TableId, Transaction};
pub use crate::wire::EncodedRule;

/// Something that holds tables.
pub trait Kernel: Send {
    /// Why it could not do what it was asked to.
    type Error: KernelError;

    /// Carries out all changes or, on an error, none.
    fn commit(&mut self, transaction: &Transaction) -> Result<(), Self::Error>;

    /// A number that each committed transaction, of anybody and for any table, makes greater by one; it starts anew
    /// behind `u32::MAX`.
    fn generation(&mut self) -> Result<u32, Self::Error>;

    /// The chains and sets of a table, without elements; `None` if there is no such table.
    fn listing(&mut self, table: &TableId) -> Result<Option<Listing>, Self::Error>;

    /// Calls `each` with all elements of a set that is declared like this, in no particular order; with `None` for those
    /// that cannot be said here.
    ///
    /// The time that it takes may be quadratic.
    fn read(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut dyn FnMut(Option<Element>),
    ) -> Result<Reading, Self::Error>;

    /// Calls `each` with all elements of a set that count, and what they have counted since they were added.
    fn counts(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut dyn FnMut(Element, Counter),
    ) -> Result<Reading, Self::Error>;

    /// Calls `each` with those elements of a set that have these keys, and what they have counted if they count.
    fn find(
        &mut self,
        table: &TableId,
        set: &Set,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Option<Element>, Option<Counter>),
    ) -> Result<(), Self::Error>;
}

/// What an element has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Packets that have found it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Whether elements were read at a single moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "elements may lack, or be told twice, if something was changed meanwhile"]
pub enum Reading {
    /// They were.
    Steady,
    /// Something was changed meanwhile, of this or of any other table.
    Interrupted,
}

/// What [`Kernel`] says when it does not do something.
pub trait KernelError: std::error::Error + Send + Sync + 'static {
    /// What it objects to, if it objects to something in particular.
    fn objection(&self) -> Option<Objection>;
}

/// The kinds of reasons why a transaction is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objection {
    /// Something that is to be changed or used is not there.
    NotFound,
    /// Something is there already and is different.
    Exists,
    /// Something that is to be removed is in use.
    Busy,
    /// Anything else.
    Other,
}

/// What a table consists of, apart from elements.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// All chains.
    pub chains: Vec<ListedChain>,
    /// All sets and maps.
    pub sets: Vec<ListedSet>,
}

/// A chain as it is in the kernel.
#[derive(Clone, Debug)]
pub struct ListedChain {
    /// Its name.
    pub name: Name,
    /// How it is declared; `None` if not in a way that can be said here.
    pub chain: Option<Chain>,
    /// Its rules, in order.
    pub rules: Vec<ListedRule>,
}

/// A rule as it is in the kernel.
#[derive(Clone, Debug)]
pub enum ListedRule {
    /// As it was given.
    Typed(Rule),
    /// As the kernel lists it.
    Encoded(EncodedRule),
}

/// A set or map as it is in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSet {
    /// Its name.
    pub name: Name,
    /// How it is declared; `None` if not in a way that can be said here.
    pub set: Option<Set>,
    /// It is a map.
    pub is_map: bool,
    /// How many elements it has, where the kernel tells.
    pub elements: Option<usize>,
}

impl ListedRule {
    /// Whether this is the same rule in a table of this family.
    pub fn is(&self, rule: &Rule, family: IpFamily) -> bool {
        match self {
            Self::Typed(listed) => listed == rule,
            Self::Encoded(listed) => listed.is(rule, family),
        }
    }
}
