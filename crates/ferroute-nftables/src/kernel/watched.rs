use super::{Counter, Kernel, Listing, Reading};
use crate::model::{Element, Key, Set, TableId, Transaction};

/// A kernel with somebody between it and who changes it: to write down transactions, say, or to take the time.
///
/// `commit` is called in the kernel's place and has to pass the transaction on, unless it is not to be carried out.
/// Everything else goes to the kernel at once.
#[derive(Clone, Debug)]
pub struct Watched<K, C> {
    kernel: K,
    commit: C,
}

impl<K, C> Watched<K, C>
where
    K: Kernel,
    C: FnMut(&mut K, &Transaction) -> Result<(), K::Error> + Send,
{
    /// Puts `commit` between.
    pub fn new(kernel: K, commit: C) -> Self {
        Self { kernel, commit }
    }
}

impl<K, C> Kernel for Watched<K, C>
where
    K: Kernel,
    C: FnMut(&mut K, &Transaction) -> Result<(), K::Error> + Send,
{
    type Error = K::Error;

    fn commit(&mut self, transaction: &Transaction) -> Result<(), Self::Error> {
        (self.commit)(&mut self.kernel, transaction)
    }

    fn generation(&mut self) -> Result<u32, Self::Error> {
        self.kernel.generation()
    }

    fn listing(&mut self, table: &TableId) -> Result<Option<Listing>, Self::Error> {
        self.kernel.listing(table)
    }

    fn read(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut dyn FnMut(Option<Element>),
    ) -> Result<Reading, Self::Error> {
        self.kernel.read(table, set, each)
    }

    fn counts(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut dyn FnMut(Element, Counter),
    ) -> Result<Reading, Self::Error> {
        self.kernel.counts(table, set, each)
    }

    fn find(
        &mut self,
        table: &TableId,
        set: &Set,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Option<Element>, Option<Counter>),
    ) -> Result<(), Self::Error> {
        self.kernel.find(table, set, keys, each)
    }
}
