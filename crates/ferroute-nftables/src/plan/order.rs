use std::{collections::HashMap, net::SocketAddr};

use super::{Frontend, SetId, kind::List};
use crate::model::{Class, Datum, Element, Value};

/// The order of endpoints as the kernel has it, to be kept by a planner that starts anew.
#[derive(Clone, Debug, Default)]
pub struct Order {
    lists: HashMap<(Frontend, List), Places<SocketAddr>>,
    /// The same for Services with affinity, whose endpoints are found by way of slots.
    slots: HashMap<(Frontend, List), Places<Class>>,
    by_slot: HashMap<(Frontend, Class), SocketAddr>,
}

/// What is where in a list; `None` where nothing is.
pub(super) type Places<T> = Vec<Option<T>>;

impl Order {
    /// Notes an element of the maps of endpoints and of slots; others say nothing about order.
    pub fn note(&mut self, set: SetId, element: &Element) {
        let Some(frontend) = Frontend::from_key(&element.key) else { return };
        let (Some(Value::Class(class)), Some(Datum::Fields(fields))) = (element.key.get(3), &element.datum) else {
            return;
        };
        match (set, List::of_index(*class), &fields[..]) {
            (SetId::Endpoints, Some((list, position)), [Value::Address(address), Value::Port(port)]) => {
                put(self.lists.entry((frontend, list)).or_default(), position, SocketAddr::new(*address, *port));
            }
            (SetId::Endpoints, None, [Value::Address(address), Value::Port(port)]) => {
                self.by_slot.insert((frontend, *class), SocketAddr::new(*address, *port));
            }
            (SetId::Slots, Some((list, position)), [Value::Class(slot)]) => {
                put(self.slots.entry((frontend, list)).or_default(), position, *slot);
            }
            _ => {}
        }
    }

    /// The endpoints of a list of any of the frontends, by index; `None` where it has none.
    pub(super) fn of_list(&self, frontends: impl Iterator<Item = Frontend>, list: List) -> Places<SocketAddr> {
        for frontend in frontends {
            if let Some(places) = self.lists.get(&(frontend, list)) {
                return places.clone();
            }
            if let Some(slots) = self.slots.get(&(frontend, list)) {
                let target = |slot: &Option<Class>| self.by_slot.get(&(frontend, (*slot)?)).copied();
                return slots.iter().map(target).collect();
            }
        }
        Vec::new()
    }
}

fn put<T: Clone>(places: &mut Places<T>, position: usize, item: T) {
    if places.len() <= position {
        places.resize(position + 1, None);
    }
    places[position] = Some(item);
}
