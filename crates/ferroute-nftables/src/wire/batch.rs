use std::ops::Range;

use ferroute_netlink::{Batch, Refusal, flags, nfnetlink};

use super::{
    constants::{element, message},
    element::put,
    object::Objects,
};
use crate::model::{Change, Element, Name, TableId, Transaction};

/// A transaction as it is sent.
pub(crate) struct EncodedTransaction {
    /// Its messages.
    pub(crate) batch: Batch,
    /// The changes that each message stands for. The first and the last one, which frame the transaction, have none.
    messages: Vec<Range<usize>>,
}

/// Encodes a transaction. Elements that follow each other and are of the same set share messages.
pub(crate) fn encode(transaction: &Transaction) -> EncodedTransaction {
    let changes = &transaction.changes;
    let mut encoded = EncodedTransaction { batch: Batch::new(), messages: Vec::new() };
    encoded.frame(nfnetlink::BATCH_BEGIN);
    let (mut done, mut sets) = (0, 0);
    while let Some(change) = changes.get(done) {
        let mut objects = Objects { batch: &mut encoded.batch, id: &transaction.table };
        let first = done;
        done += 1;
        match change {
            Change::AddTable(comment) => objects.add_table(comment.as_ref()),
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
            Change::AddElement(..) | Change::DeleteElement(..) => {
                done = first + add_elements(&mut objects, &changes[first..]);
            }
        }
        encoded.messages.push(first..done);
    }
    encoded.frame(nfnetlink::BATCH_END);
    encoded
}

impl EncodedTransaction {
    /// The change that the kernel refused, or the first of those that it may have been.
    pub(crate) fn refused<'a>(&self, refusal: &Refusal, transaction: &'a Transaction) -> Option<&'a Change> {
        let changes = &transaction.changes[self.messages.get(refusal.index)?.clone()];
        let first = changes.first()?;
        let (Some(offset), Some(_)) = (refusal.offset, elements_of(first)) else { return Some(first) };
        Some(element_at(&transaction.table, changes, offset as usize).unwrap_or(first))
    }

    fn frame(&mut self, kind: u16) {
        let header = nfnetlink::header(0, 0, nfnetlink::NFTABLES.into());
        // The kernel answers the last change, which it reaches only when nothing before was refused. It does not answer
        // the frame itself before Linux 6.10.
        if kind == nfnetlink::BATCH_END {
            self.batch.answer_last();
        }
        self.batch.message(kind, 0, &header);
        self.messages.push(0..0);
    }
}

/// Writes the elements in front of `changes` that are added to, or removed from, the same set, as many as fit into one
/// message; returns how many.
fn add_elements(objects: &mut Objects<'_>, changes: &[Change]) -> usize {
    write_elements(objects, changes, |_| {})
}

/// The change whose element stands at an offset of the message that [`add_elements`] makes of `changes`.
fn element_at<'a>(table: &TableId, changes: &'a [Change], offset: usize) -> Option<&'a Change> {
    let mut batch = Batch::new();
    let mut ends = Vec::new();
    write_elements(&mut Objects { batch: &mut batch, id: table }, changes, |end| ends.push(end));
    changes.get(ends.partition_point(|end| *end <= offset))
}

/// `each` is told where in the message an element ends.
fn write_elements(objects: &mut Objects<'_>, changes: &[Change], mut each: impl FnMut(usize)) -> usize {
    let Some((set, adds, _)) = changes.first().and_then(elements_of) else { return 0 };
    let (kind, flags) = if adds { (message::NEW_SET_ELEMENT, flags::CREATE) } else { (message::DEL_SET_ELEMENT, 0) };
    let mut message = objects.message(kind, flags);
    message.put_str(element::SET, set.as_str());
    let start = message.length();
    let mut list = message.nest(element::ELEMENTS);
    let mut count = 0;
    for (of, same, element) in changes.iter().map_while(elements_of) {
        if of != set || same != adds || list.room() < LONGEST_ELEMENT {
            break;
        }
        put(&mut list, element, adds);
        each(start + list.length());
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

/// More bytes than any element takes: two keys of 64 bytes, a verdict with a chain's name, a comment of 128 bytes.
const LONGEST_ELEMENT: usize = 640;
