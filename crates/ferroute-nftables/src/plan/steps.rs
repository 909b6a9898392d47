use crate::model::{TableId, Transaction};

/// The changes of a transaction, and those that are committed before and after it.
///
/// The kernel evaluates a packet with the rules of the time when it came to the hook, and finds the elements of the time when
/// it looks up each. If they were in one transaction, an element could lead a packet to a chain that has no rules for it yet,
/// and the packet would find nothing where an earlier element has led it.
pub(crate) struct Steps {
    /// Adds chains, sets and rules that elements lead to.
    pub(crate) before: Transaction,
    /// Changes elements.
    pub(crate) changes: Transaction,
    /// Deletes what no element leads to any more.
    pub(crate) after: Transaction,
}

impl Steps {
    /// Returns steps without changes.
    pub(crate) fn new(table: TableId) -> Self {
        let empty = Transaction::new(table);
        Self { before: empty.clone(), changes: empty.clone(), after: empty }
    }

    /// Returns the number of changes.
    pub(crate) fn len(&self) -> usize {
        self.before.len() + self.changes.len() + self.after.len()
    }

    /// Returns all changes as one transaction, for a table that no packet has seen.
    pub(crate) fn merged(self) -> Transaction {
        let Self { mut before, changes, after } = self;
        before.changes.extend(changes.changes.into_iter().chain(after.changes));
        before
    }

    /// Removes all changes.
    pub(crate) fn clear(&mut self) {
        for step in [&mut self.before, &mut self.changes, &mut self.after] {
            step.changes.clear();
        }
    }
}
