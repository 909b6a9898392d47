//! The elements of service ports and their frontends.

use std::{cmp::Ordering, collections::HashSet, net::SocketAddr};

use ferroute_core::{Protocol, ServicePortName};

use super::{
    List, SetId,
    existing::list_key,
    frontend_key, frontend_map,
    port_plan::{FrontendPlan, PortElements},
};
use crate::model::{Change, ClassId, Comment, Element, Transaction, Value};

/// An element and its set.
pub(super) type SetElement = (SetId, Element);

/// A frontend with the service port that owns it.
#[derive(Clone, Copy)]
pub(super) struct FrontendView<'a> {
    pub(super) name: &'a ServicePortName,
    pub(super) port: &'a PortElements,
    pub(super) plan: &'a FrontendPlan,
}

impl FrontendView<'_> {
    /// Returns the elements of the frontend, in the order of sets.
    pub(super) fn elements(&self) -> Vec<SetElement> {
        let Self { name, port, plan } = self;
        let element = |set, id: ClassId| {
            let comment = Some(Comment::new(&name.to_string()));
            (set, Element { comment, ..Element::with_key(frontend_key(plan.frontend)).values([id.into()]) })
        };
        let mut elements =
            vec![element(frontend_map(plan.frontend), port.request_id(plan.request, port.exposure.limits().is_some()))];
        if plan.restricted {
            let set = if plan.frontend.address.is_some() { SetId::Restricted } else { SetId::RestrictedNodePorts };
            elements.push(element(set, port.number.list(List::Cluster)));
        }
        if plan.may_skip_hooks {
            let set = if plan.frontend.address.is_some() { SetId::FlowServices } else { SetId::FlowNodePorts };
            elements.push((set, Element::with_key(frontend_key(plan.frontend))));
        }
        elements
    }
}

impl PortElements {
    /// Returns the contents of the lists and the lists' timeouts of session affinity, in the order of sets and keys.
    pub(super) fn list_elements(&self, protocol: Protocol) -> Vec<SetElement> {
        let mut elements = Vec::with_capacity(self.list(List::Cluster).len() + self.list(List::Local).len());
        for list in List::ALL.into_iter().filter(|list| self.exposure.uses(*list)) {
            let id = self.number.list(list);
            let target = |key, socket: SocketAddr| {
                let target = [socket.ip().into(), Value::Port(socket.port())];
                (SetId::Endpoints(protocol), Element::with_key(key).values(target))
            };
            let Some(slots) = self.slots(list) else {
                let sockets = (1..).zip(self.list(list).iter());
                elements.extend(sockets.map(|(index, socket)| target(list_key(id, index), socket)));
                continue;
            };
            // Methods other than the random one repeat endpoints.
            let mut seen = HashSet::new();
            for (index, (socket, slot)) in (1..).zip(slots) {
                elements.push((SetId::Slots, Element::with_key(list_key(id, index)).values([slot.into()])));
                if seen.insert(slot) {
                    elements.push(target(list_key(slot, 0), socket));
                }
            }
            let timeout = self.affinity().filter(|_| !self.list(list).is_empty());
            elements.extend(timeout.map(|seconds| (SetId::Sticky(seconds), Element::new([id.into()]))));
        }
        elements.sort_unstable_by(compare);
        elements
    }

    /// Returns the elements of source ranges and limits, in the order of sets and keys. They depend on the Service alone.
    pub(super) fn restriction_elements(&self, name: &ServicePortName) -> Vec<SetElement> {
        let list: Value = self.number.list(List::Cluster).into();
        let ranges = self.exposure.source_ranges().iter();
        let mut elements: Vec<SetElement> = ranges
            .map(|net| (SetId::SourceRanges(net.prefix_len()), Element::new([net.network().into(), list])))
            .collect();
        elements.extend(self.source_range_elements(name));
        elements.extend(self.limit_elements(name));
        elements.sort_unstable_by(compare);
        elements
    }

    /// Returns the elements of map `lists`, in the order of keys.
    pub(super) fn class_elements(&self) -> Vec<SetElement> {
        let element = |request: &super::port_plan::Request| {
            let class = self.class(*request).of_list(self.number.list(request.list));
            (SetId::Lists, Element::new([self.request_id(*request, false).into()]).values([class.into()]))
        };
        let mut elements: Vec<SetElement> = self.exposure.requests.iter().map(element).collect();
        elements.sort_unstable_by(compare);
        elements
    }
}

/// Changes between two sets of elements.
#[derive(Default)]
pub(super) struct Difference {
    /// Added and replaced elements.
    pub(super) additions: Vec<Change>,
    /// Removed elements.
    pub(super) removals: Vec<Change>,
}

impl Difference {
    /// Returns the changes from `old` to `new`, both in the order of sets and keys.
    pub(super) fn new(old: Vec<SetElement>, new: Vec<SetElement>) -> Self {
        if old.is_empty() {
            // The comparison would move each of the million elements of a first sync several times.
            let additions = new.into_iter().map(|(set, element)| Change::AddElement(set.name(), element)).collect();
            return Self { additions, removals: Vec::new() };
        }
        let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
        let mut difference = Self::default();
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return difference,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => compare(old, new),
            };
            let deleted = if order.is_le() { old.next() } else { None };
            let added = if order.is_ge() { new.next() } else { None };
            if deleted == added {
                continue;
            }
            // nf_tables cannot replace an element in one step.
            let changes = if added.is_some() { &mut difference.additions } else { &mut difference.removals };
            changes.extend(deleted.map(|(set, element)| Change::DeleteElement(set.name(), element)));
            changes.extend(added.map(|(set, element)| Change::AddElement(set.name(), element)));
        }
    }

    /// Writes additions and removals.
    pub(super) fn write(mut self, transaction: &mut Transaction) {
        transaction.changes.append(&mut self.additions);
        transaction.changes.append(&mut self.removals);
    }
}

fn compare((a_set, a): &SetElement, (b_set, b): &SetElement) -> Ordering {
    (a_set, &a.key).cmp(&(b_set, &b.key))
}
