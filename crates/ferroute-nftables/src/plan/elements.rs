//! What a frontend has in the sets and maps.

use std::{cmp::Ordering, net::SocketAddr};

use ferroute_core::{IpFamily, ServicePortName};

use super::{
    SetId,
    kind::{List, Way},
    record::{Answer, Plan, Record},
};
use crate::model::{Change, Class, Comment, Element, Transaction, Value};

/// An element and the set that it is in.
pub(super) type Placed = (SetId, Element);

/// A frontend as its owner wants it.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) name: &'a ServicePortName,
    pub(super) record: &'a Record,
    pub(super) plan: &'a Plan,
}

impl View<'_> {
    /// What is to be done for the frontend, in general and for outside traffic that stays on this node.
    pub(super) fn classes(&self) -> (Option<Class>, Option<Class>) {
        let Self { record, plan, .. } = self;
        let Answer::Serve(way) = plan.answer else { return (None, None) };
        let class = |way| {
            let kind = record.kind(plan, way);
            kind.class(record.list(kind.list()).len())
        };
        let stays = way == Way::ExternalLocal && !record.local.is_empty();
        (Some(class(way)), stays.then(|| class(Way::PickLocal)))
    }

    /// The affinity of its clients in seconds, if they can have one.
    pub(super) fn affinity(&self) -> Option<u32> {
        let affinity = self.record.affinity.as_ref().filter(|_| matches!(self.plan.answer, Answer::Serve(_)));
        affinity.map(|affinity| affinity.seconds)
    }

    /// Everything that it has, in the order of sets and keys.
    pub(super) fn elements(&self, family: IpFamily) -> Vec<Placed> {
        let Self { name, record, plan } = self;
        let key = plan.frontend.key(family);
        let comment = || Comment::new(&name.to_string());
        let mut elements = Vec::with_capacity(2 + record.cluster.len());
        let (class, local_class) = self.classes();
        elements
            .extend(class.map(|class| (SetId::Services, Element::new(key).fields([class.into()]).comment(comment()))));
        elements.extend(local_class.map(|class| (SetId::LocalServices, Element::new(key).fields([class.into()]))));
        self.endpoints(key, &mut elements);
        let silent = match plan.answer {
            Answer::Refuse => Some(SetId::Refused),
            Answer::Drop => Some(SetId::Dropped),
            Answer::Serve(Way::ExternalLocal) if record.local.is_empty() => Some(SetId::Dropped),
            Answer::Serve(_) => None,
        };
        elements.extend(silent.map(|set| (set, Element::new(key).comment(comment()))));
        if plan.restricted {
            elements.push((SetId::Restricted, Element::new(key).comment(comment())));
            let [address, protocol, port] = key;
            let ranges = record.sources.iter().map(|net| Value::Network(*net));
            elements.extend(ranges.map(|range| (SetId::SourceRanges, Element::new([address, protocol, port, range]))));
        }
        elements.extend(self.affinity().map(|seconds| (SetId::Sticky(seconds), Element::new(key))));
        elements.sort_unstable_by(compare);
        elements
    }

    fn endpoints(&self, [address, protocol, port]: [Value; 3], elements: &mut Vec<Placed>) {
        let target = |class: Class, socket: SocketAddr| {
            let element = Element::new([address, protocol, port, class.into()]);
            (SetId::Endpoints, element.fields([socket.ip().into(), Value::Port(socket.port())]))
        };
        for list in List::ALL.into_iter().filter(|list| self.plan.uses(*list)) {
            if self.record.affinity.is_none() {
                let sockets = self.record.list(list).iter().enumerate();
                elements.extend(sockets.map(|(i, socket)| target(list.index(i), socket)));
                continue;
            }
            for (i, (socket, slot)) in self.record.slots(list).enumerate() {
                let index = Element::new([address, protocol, port, list.index(i).into()]);
                elements.push((SetId::Slots, index.fields([slot.into()])));
                elements.push(target(slot, socket));
            }
        }
    }
}

/// Makes `new` out of `old`, both in the order of sets and keys.
pub(super) fn difference(old: Vec<Placed>, new: Vec<Placed>, transaction: &mut Transaction) {
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    let mut additions = Vec::new();
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => compare(old, new),
        };
        let gone = if order.is_le() { old.next() } else { None };
        let come = if order.is_ge() { new.next() } else { None };
        if gone == come {
            continue;
        }
        // Removals come first: the kernel has no replacement, and takes no range that overlaps another.
        transaction.changes.extend(gone.map(|(set, element)| Change::DeleteElement(set.name(), element)));
        additions.extend(come.map(|(set, element)| Change::AddElement(set.name(), element)));
    }
    transaction.changes.append(&mut additions);
}

fn compare((a_set, a): &Placed, (b_set, b): &Placed) -> Ordering {
    (a_set, &a.key).cmp(&(b_set, &b.key))
}
