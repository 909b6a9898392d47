use std::collections::HashSet;

use super::{Consistency, Kernel, Listing, OnElement};
use crate::model::{Key, Name, Set, TableId, Transaction};

/// A kernel whose transactions pass through a callback, which can record or time them.
///
/// The callback replaces [`Kernel::commit`] and has to forward the transaction unless it is to be dropped. Reads go to the
/// kernel directly.
#[derive(Clone, Debug)]
pub struct InterceptedKernel<K, C> {
    kernel: K,
    commit: C,
}

impl<K, C> InterceptedKernel<K, C>
where
    K: Kernel,
    C: FnMut(&mut K, &Transaction) -> Result<(), K::Error> + Send,
{
    /// Wraps a kernel.
    pub fn new(kernel: K, commit: C) -> Self {
        Self { kernel, commit }
    }
}

impl<K, C> AsRef<K> for InterceptedKernel<K, C> {
    fn as_ref(&self) -> &K {
        &self.kernel
    }
}

impl<K, C> Kernel for InterceptedKernel<K, C>
where
    K: Kernel,
    C: FnMut(&mut K, &Transaction) -> Result<(), K::Error> + Send,
{
    type Error = K::Error;
    type Encoded = ();

    fn encode(_transaction: &Transaction) {}

    fn commit_encoded(&mut self, transaction: &Transaction, (): ()) -> Result<(), Self::Error> {
        (self.commit)(&mut self.kernel, transaction)
    }

    fn generation(&mut self) -> Result<u32, Self::Error> {
        self.kernel.generation()
    }

    fn list_table(&mut self, table: &TableId) -> Result<Option<Listing>, Self::Error> {
        self.kernel.list_table(table)
    }

    fn dump_elements(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut OnElement<'_>,
    ) -> Result<Consistency, Self::Error> {
        self.kernel.dump_elements(table, set, each)
    }

    fn get_elements(
        &mut self,
        table: &TableId,
        set: &Set,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut OnElement<'_>,
    ) -> Result<(), Self::Error> {
        self.kernel.get_elements(table, set, keys, each)
    }

    fn changed_elements(&mut self, table: &TableId, sets: &[Set]) -> HashSet<(Name, Key)> {
        self.kernel.changed_elements(table, sets)
    }
}
