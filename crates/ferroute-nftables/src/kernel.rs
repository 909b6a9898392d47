//! Access to nf_tables: the kernel itself through netlink, or an in-memory implementation with the same checks.

mod intercepted;
mod memory;
mod netlink;
mod snapshot;

use std::collections::HashSet;

use ferroute_core::IpFamily;
pub use ferroute_netlink::Consistency;

pub use intercepted::InterceptedKernel;
pub(crate) use memory::ReadElements;
pub use memory::{MemoryError, MemoryKernel, MemoryTable};
pub use netlink::{NetlinkError, NetlinkKernel};
pub use snapshot::{ListedTable, TableFamily, TableSnapshot};

use crate::model::{Chain, Change, Element, Flowtable, Key, Name, Rule, Set, TableId, Transaction};
pub use crate::wire::{EncodedRule, EncodedTransaction};

/// An nf_tables implementation.
pub trait Kernel: Send {
    /// The error of a failed call.
    type Error: KernelError;
    /// A transaction in the form in which it is sent.
    type Encoded: Send;

    /// Encodes a transaction for [`Kernel::commit_encoded`]: a tenth to a fifth of the time that a commit takes, in which
    /// the kernel may be busy with another transaction.
    fn encode(transaction: &Transaction) -> Self::Encoded;

    /// Applies all changes of a transaction, which was encoded before, or, on an error, none of them.
    fn commit_encoded(&mut self, transaction: &Transaction, encoded: Self::Encoded) -> Result<(), Self::Error>;

    /// Encodes a transaction, and applies all changes or, on an error, none of them.
    fn commit(&mut self, transaction: &Transaction) -> Result<(), Self::Error> {
        self.commit_encoded(transaction, Self::encode(transaction))
    }

    /// Returns the generation of the ruleset. Each committed transaction, of any program and for any table, increments
    /// it by one; `u32::MAX` is followed by 1.
    fn generation(&mut self) -> Result<u32, Self::Error>;

    /// Lists the chains, rules, sets and flowtables of a table, without elements; `None` if the table does not exist.
    fn list_table(&mut self, table: &TableId) -> Result<Option<Listing>, Self::Error>;

    /// Dumps the elements of a set, in no particular order. `set` is the set's declaration.
    ///
    /// The kernel may need quadratic time.
    fn dump_elements(
        &mut self,
        table: &TableId,
        set: &Set,
        on_element: &mut OnElement<'_>,
    ) -> Result<Consistency, Self::Error>;

    /// Gets the elements of a set with these keys. Keys that the set does not contain are skipped.
    fn get_elements(
        &mut self,
        table: &TableId,
        set: &Set,
        keys: &mut dyn Iterator<Item = Key>,
        on_element: &mut OnElement<'_>,
    ) -> Result<(), Self::Error>;

    /// Returns the sets and keys of elements that other programs added or deleted since the last call. Others may have been
    /// changed as well. `sets` are the declarations of the table's sets.
    fn changed_elements(&mut self, _table: &TableId, _sets: &[Set]) -> HashSet<(Name, Key)> {
        HashSet::new()
    }
}

/// A callback for elements that were read, each with its counter if it has one; `None` in place of an element that the
/// model cannot represent.
pub type OnElement<'a> = dyn FnMut(Option<Element>, Option<Counter>) + 'a;

/// The counter of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Packets that matched the element.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

/// An error of a [`Kernel`].
pub trait KernelError: std::error::Error + Send + Sync + 'static {
    /// Returns the reason why the kernel refused the request; `None` if the kernel did not reply.
    fn kind(&self) -> Option<ErrorKind>;

    /// Returns the change at fault, if the kernel identified it.
    fn refused(&self) -> Option<&Change>;
}

/// Reason why the kernel refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// `ENOENT`: an object to change or to refer to does not exist.
    NotFound,
    /// `EEXIST`: the object exists and differs.
    Exists,
    /// `EBUSY`: an object to delete is in use.
    Busy,
    /// The contents of the request are not at fault: memory, rights, interruptions.
    Circumstances,
    /// Any other error.
    Other,
}

impl ErrorKind {
    /// Reports whether the contents of the request are at fault.
    pub fn is_about_contents(self) -> bool {
        self != Self::Circumstances
    }
}

/// The contents of a table, without elements.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The table has another comment than this proxy's, or flags, which it never sets: the kernel ignores the table, or it
    /// has or had an owner.
    pub is_changed: bool,
    /// The table has named counters, quotas or other stateful objects, which this proxy never creates.
    pub has_stateful_objects: bool,
    /// The chains.
    pub chains: Vec<ListedChain>,
    /// The sets and maps.
    pub sets: Vec<ListedSet>,
    /// The flowtables.
    pub flowtables: Vec<ListedFlowtable>,
}

/// A chain as the kernel lists it.
#[derive(Clone, Debug)]
pub struct ListedChain {
    /// The name.
    pub name: Name,
    /// The declaration; `None` if the model cannot represent it.
    pub chain: Option<Chain>,
    /// The rules, in order.
    pub rules: Vec<ListedRule>,
}

/// A rule as the kernel lists it.
#[derive(Clone, Debug)]
pub enum ListedRule {
    /// The rule as it was committed, from [`MemoryKernel`].
    Typed(Rule),
    /// The kernel's expressions.
    Encoded(EncodedRule),
}

/// A flowtable as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFlowtable {
    /// The name.
    pub name: Name,
    /// The flowtable with its devices; `None` if the model cannot represent it.
    pub flowtable: Option<Flowtable>,
}

/// A set or map as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSet {
    /// The name.
    pub name: Name,
    /// The declaration; `None` if the model cannot represent it.
    pub set: Option<Set>,
    /// Whether it is a map.
    pub is_map: bool,
    /// The number of elements, if the kernel reports it (Linux 6.16 and later).
    pub element_count: Option<usize>,
}

impl ListedRule {
    /// Reports whether this is the given rule, in a table of this family.
    pub fn matches(&self, rule: &Rule, family: IpFamily) -> bool {
        match self {
            Self::Typed(listed) => listed == rule,
            Self::Encoded(listed) => listed.matches(rule, family),
        }
    }
}
