use std::ops::Range;

use ferroute_netlink::{Batch, Refusal, flags, nf_tables};

use super::{constants::*, element::put, object::Objects};
use crate::model::{Change, Element, Name, TableId, Transaction};

/// A transaction in the form in which it is sent.
#[derive(Debug)]
pub struct EncodedTransaction {
    /// The messages.
    pub(crate) batch: Batch,
    /// The changes that each message contains. The first and the last message, which begin and end the batch, contain
    /// none.
    messages: Vec<Range<usize>>,
}

/// Encodes a transaction. Consecutive additions or deletions of elements of the same set share messages.
pub(crate) fn encode(transaction: &Transaction) -> EncodedTransaction {
    let changes = &transaction.changes;
    let mut encoded = EncodedTransaction { batch: Batch::new(), messages: Vec::new() };
    nf_tables::begin(&mut encoded.batch, None);
    encoded.messages.push(0..0);
    let (mut done, mut sets) = (0, 0);
    while let Some(change) = changes.get(done) {
        let mut objects = Objects { batch: &mut encoded.batch, id: &transaction.table };
        let first = done;
        done += 1;
        match change {
            Change::AddTable(comment) => objects.add_table(comment.as_ref(), false),
            Change::AddOwnedTable(comment) => objects.add_table(Some(comment), true),
            Change::DeleteTable => objects.delete_table(),
            Change::AddChain(chain) => objects.add_chain(chain),
            Change::FlushChain(name) => objects.flush_chain(name),
            Change::DeleteChain(name) => objects.delete_chain(name),
            Change::AddRule(chain, rule) => objects.add_rule(chain, rule),
            Change::AddSet(set) => {
                sets += 1;
                objects.add_set(set, sets);
            }
            Change::DeleteSet(name, _) => objects.delete_set(name),
            Change::AddFlowtable(flowtable) => objects.add_flowtable(flowtable),
            Change::DeleteDevices(flowtable) => objects.delete_devices(flowtable),
            Change::DeleteFlowtable(name) => objects.delete_flowtable(name),
            Change::AddElement(..) | Change::DeleteElement(..) => {
                done = first + add_elements(&mut objects, &changes[first..]);
            }
        }
        encoded.messages.push(first..done);
    }
    nf_tables::end(&mut encoded.batch);
    encoded.messages.push(0..0);
    encoded
}

impl EncodedTransaction {
    /// Returns the change that the kernel refused, or the first of those in the refused message.
    pub(crate) fn refused<'a>(&self, refusal: &Refusal, transaction: &'a Transaction) -> Option<&'a Change> {
        let changes = &transaction.changes[self.messages.get(refusal.index)?.clone()];
        let first = changes.first()?;
        let (Some(offset), Some(_)) = (refusal.offset, elements_of(first)) else { return Some(first) };
        Some(element_at(&transaction.table, changes, offset as usize).unwrap_or(first))
    }
}

/// Writes the elements of the first changes into one message, as long as they add to, or delete from, the same set and
/// fit. Returns the number of these changes.
fn add_elements(objects: &mut Objects<'_>, changes: &[Change]) -> usize {
    write_elements(objects, changes, |_| {})
}

/// Returns the change whose element is at this offset of the message that [`add_elements`] writes for `changes`.
fn element_at<'a>(table: &TableId, changes: &'a [Change], offset: usize) -> Option<&'a Change> {
    let mut batch = Batch::new();
    let mut ends = Vec::new();
    write_elements(&mut Objects { batch: &mut batch, id: table }, changes, |end| ends.push(end));
    changes.get(ends.partition_point(|end| *end <= offset))
}

/// Calls `on_element` with the offset of the end of each element in the message.
fn write_elements(objects: &mut Objects<'_>, changes: &[Change], mut on_element: impl FnMut(usize)) -> usize {
    let Some((set, adds, _)) = changes.first().and_then(elements_of) else { return 0 };
    let (kind, flags) = if adds { (NFT_MSG_NEWSETELEM, flags::NLM_F_CREATE) } else { (NFT_MSG_DELSETELEM, 0) };
    let mut message = objects.message(kind, flags);
    message.put_str(NFTA_SET_ELEM_LIST_SET, set.as_str());
    let start = message.length();
    let mut list = message.nest(NFTA_SET_ELEM_LIST_ELEMENTS);
    let mut count = 0;
    for (element_set, is_addition, element) in changes.iter().map_while(elements_of) {
        if element_set != set || is_addition != adds || list.remaining() < MAX_ELEMENT_LENGTH {
            break;
        }
        put(&mut list, element, adds);
        on_element(start + list.length());
        count += 1;
    }
    count
}

fn elements_of(change: &Change) -> Option<(&Name, bool, &Element)> {
    match change {
        Change::AddElement(set, element) => Some((set, true, element)),
        Change::DeleteElement(set, element) => Some((set, false, element)),
        _ => None,
    }
}

/// Upper bound of the length of an element in bytes: two keys of 64 bytes, a verdict with a chain name, a comment of
/// 128 bytes.
const MAX_ELEMENT_LENGTH: usize = 640;
