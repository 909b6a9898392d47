//! The elements of a frontend.

use std::{cmp::Ordering, net::SocketAddr};

use ferroute_core::{IpFamily, ServicePortName};

use super::{
    SetId, frontend_key,
    kind::{ListId, Selection},
    port_plan::{Action, FrontendPlan, PortPlan},
};
use crate::model::{Change, ClassId, Comment, Element, Transaction, Value};

/// An element and its set.
pub(super) type SetElement = (SetId, Element);

/// A frontend with the service port that owns it.
#[derive(Clone, Copy)]
pub(super) struct FrontendView<'a> {
    pub(super) name: &'a ServicePortName,
    pub(super) port: &'a PortPlan,
    pub(super) plan: &'a FrontendPlan,
}

impl FrontendView<'_> {
    /// Returns the class ids of the frontend in `services` and `local-services`.
    pub(super) fn classes(&self) -> (Option<ClassId>, Option<ClassId>) {
        let Self { port, plan, .. } = self;
        let Action::Forward(selection) = plan.action else { return (None, None) };
        let class = |selection| {
            let kind = port.kind(plan, selection);
            kind.class(port.list(kind.list()).len())
        };
        let has_local = selection == Selection::ExternalLocal && !port.local.is_empty();
        (Some(class(selection)), has_local.then(|| class(Selection::PickLocal)))
    }

    /// Returns the session affinity timeout in seconds, if the frontend forwards traffic and has one.
    pub(super) fn affinity(&self) -> Option<u32> {
        let affinity = self.port.affinity.as_ref().filter(|_| matches!(self.plan.action, Action::Forward(_)));
        affinity.map(|affinity| affinity.seconds)
    }

    /// Returns all elements of the frontend, in the order of sets and keys.
    pub(super) fn elements(&self, family: IpFamily) -> Vec<SetElement> {
        let Self { name, port, plan } = self;
        let key = frontend_key(plan.frontend, family);
        let comment = || Comment::new(&name.to_string());
        let mut elements = Vec::with_capacity(2 + port.cluster.len());
        let (class, local_class) = self.classes();
        elements
            .extend(class.map(|class| (SetId::Services, Element::new(key).values([class.into()]).comment(comment()))));
        elements.extend(local_class.map(|class| (SetId::LocalServices, Element::new(key).values([class.into()]))));
        self.endpoints(key, &mut elements);
        let unserved = match plan.action {
            Action::Reject => Some(SetId::Refused),
            Action::Drop => Some(SetId::Dropped),
            Action::Forward(Selection::ExternalLocal) if port.local.is_empty() => Some(SetId::Dropped),
            Action::Forward(_) => None,
        };
        elements.extend(unserved.map(|set| (set, Element::new(key).comment(comment()))));
        if plan.restricted {
            elements.push((SetId::Restricted, Element::new(key).comment(comment())));
            let [address, protocol, dport] = key;
            let ranges = port.source_ranges.iter().map(|net| Value::Network(*net));
            elements.extend(ranges.map(|range| (SetId::SourceRanges, Element::new([address, protocol, dport, range]))));
        }
        elements.extend(self.affinity().map(|seconds| (SetId::Sticky(seconds), Element::new(key))));
        elements.sort_unstable_by(compare);
        elements
    }

    fn endpoints(&self, [address, protocol, port]: [Value; 3], elements: &mut Vec<SetElement>) {
        let target = |class: ClassId, socket: SocketAddr| {
            let element = Element::new([address, protocol, port, class.into()]);
            (SetId::Endpoints, element.values([socket.ip().into(), Value::Port(socket.port())]))
        };
        for list in ListId::ALL.into_iter().filter(|list| self.plan.uses(*list)) {
            if self.port.affinity.is_none() {
                let sockets = self.port.list(list).iter().enumerate();
                elements.extend(sockets.map(|(i, socket)| target(list.index(i), socket)));
                continue;
            }
            for (i, (socket, slot)) in self.port.slots(list).enumerate() {
                let index = Element::new([address, protocol, port, list.index(i).into()]);
                elements.push((SetId::Slots, index.values([slot.into()])));
                elements.push(target(slot, socket));
            }
        }
    }
}

/// Writes the changes from `old` to `new`, both in the order of sets and keys.
pub(super) fn difference(old: Vec<SetElement>, new: Vec<SetElement>, transaction: &mut Transaction) {
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    let mut additions = Vec::new();
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => compare(old, new),
        };
        let deleted = if order.is_le() { old.next() } else { None };
        let added = if order.is_ge() { new.next() } else { None };
        if deleted == added {
            continue;
        }
        // Deletions come first: nf_tables cannot replace an element, and rejects overlapping ranges.
        transaction.changes.extend(deleted.map(|(set, element)| Change::DeleteElement(set.name(), element)));
        additions.extend(added.map(|(set, element)| Change::AddElement(set.name(), element)));
    }
    transaction.changes.append(&mut additions);
}

fn compare((a_set, a): &SetElement, (b_set, b): &SetElement) -> Ordering {
    (a_set, &a.key).cmp(&(b_set, &b.key))
}
