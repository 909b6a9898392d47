use std::{
    collections::{HashMap, hash_map::Entry},
    net::SocketAddr,
};

use ferroute_core::IpFamily;

use super::{Frontend, Kind, SetId, frontend_from_key, frontend_key, kind::ListId};
use crate::model::{ClassId, Data, Element, Key, Value};

/// The endpoints and slots in the kernel's table, whose order a new planner keeps.
///
/// Stored compactly: the maps can have a million elements.
#[derive(Clone, Debug)]
pub(crate) struct EndpointOrder {
    family: IpFamily,
    endpoints: HashMap<(Frontend, ListId), Positions<SocketAddr>>,
    /// The same for Services with session affinity, whose endpoints are keyed by slot.
    slots: HashMap<(Frontend, ListId), Positions<ClassId>>,
    by_slot: HashMap<(Frontend, ClassId), SocketAddr>,
    counts: [usize; 2],
}

/// The contents of a list by position; `None` for a missing element.
pub(super) type Positions<T> = Vec<Option<T>>;

/// An element of map `endpoints` or `slots`.
enum Item {
    Endpoint(Frontend, ListId, usize, SocketAddr),
    Slot(Frontend, ListId, usize, ClassId),
    EndpointOfSlot(Frontend, ClassId, SocketAddr),
}

impl EndpointOrder {
    /// Returns an empty order.
    pub(crate) fn new(family: IpFamily) -> Self {
        Self { family, endpoints: HashMap::new(), slots: HashMap::new(), by_slot: HashMap::new(), counts: [0; 2] }
    }

    /// Inserts an element. Returns it if it is not an endpoint or slot.
    pub(crate) fn insert(&mut self, set: SetId, element: Element) -> Option<Element> {
        let new = match Item::parse(set, &element.key, element.data.as_ref()) {
            None => return Some(element),
            Some(Item::Endpoint(frontend, list, position, socket)) => {
                put(self.endpoints.entry((frontend, list)).or_default(), position, socket)
            }
            Some(Item::Slot(frontend, list, position, slot)) => {
                put(self.slots.entry((frontend, list)).or_default(), position, slot)
            }
            Some(Item::EndpointOfSlot(frontend, slot, socket)) => match self.by_slot.entry((frontend, slot)) {
                Entry::Occupied(_) => false,
                Entry::Vacant(entry) => {
                    entry.insert(socket);
                    true
                }
            },
        };
        self.counts[usize::from(set == SetId::Slots)] += usize::from(new);
        None
    }

    /// Returns the number of distinct elements of a map.
    pub(crate) fn count(&self, set: SetId) -> usize {
        match set {
            SetId::Endpoints => self.counts[0],
            SetId::Slots => self.counts[1],
            _ => 0,
        }
    }

    /// Removes all elements of a map.
    pub(crate) fn clear(&mut self, set: SetId) {
        match set {
            SetId::Endpoints => {
                self.endpoints.clear();
                self.by_slot.clear();
                self.counts[0] = 0;
            }
            SetId::Slots => {
                self.slots.clear();
                self.counts[1] = 0;
            }
            _ => {}
        }
    }

    /// Returns the keys of a frontend with this class id in a map. Keys of map `endpoints` depend on the slots that
    /// were inserted.
    pub(crate) fn keys(&self, set: SetId, frontend: Frontend, class: ClassId) -> Vec<Key> {
        let Some((kind, endpoints)) = Kind::from_class_id(class) else { return Vec::new() };
        let list = kind.list();
        let key = |last: ClassId| frontend_key(frontend, self.family).into_iter().chain([last.into()]).collect();
        match (set, kind.sticky) {
            (SetId::Endpoints, false) | (SetId::Slots, true) => (0..endpoints).map(|i| key(list.index(i))).collect(),
            (SetId::Endpoints, true) => {
                let slots = self.slots.get(&(frontend, list)).into_iter().flatten();
                slots.flatten().map(|slot| key(*slot)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Removes the element with the key of `element` and returns its data.
    pub(crate) fn remove(&mut self, set: SetId, element: &Element) -> Option<Data> {
        match Item::parse(set, &element.key, element.data.as_ref())? {
            Item::Endpoint(frontend, list, position, _) => {
                self.endpoints.get_mut(&(frontend, list))?.get_mut(position)?.take().map(socket_data)
            }
            Item::Slot(frontend, list, position, _) => {
                self.slots.get_mut(&(frontend, list))?.get_mut(position)?.take().map(from_class_id)
            }
            Item::EndpointOfSlot(frontend, slot, _) => self.by_slot.remove(&(frontend, slot)).map(socket_data),
        }
    }

    /// Returns all elements that were not removed.
    pub(crate) fn into_elements(self) -> impl Iterator<Item = (SetId, Element)> {
        let element = move |frontend: Frontend, last: ClassId, data| Element {
            key: frontend_key(frontend, self.family).into_iter().chain([last.into()]).collect(),
            data: Some(data),
            comment: None,
        };
        let endpoints = self.endpoints.into_iter().flat_map(move |((frontend, list), positions)| {
            filled(positions)
                .map(move |(i, socket)| (SetId::Endpoints, element(frontend, list.index(i), socket_data(socket))))
        });
        let slots = self.slots.into_iter().flat_map(move |((frontend, list), positions)| {
            filled(positions)
                .map(move |(i, slot)| (SetId::Slots, element(frontend, list.index(i), from_class_id(slot))))
        });
        let by_slot = self
            .by_slot
            .into_iter()
            .map(move |((frontend, slot), socket)| (SetId::Endpoints, element(frontend, slot, socket_data(socket))));
        endpoints.chain(slots).chain(by_slot)
    }

    /// Returns the endpoints with slots of a list, of the first frontend that has the list.
    pub(super) fn slots_of(
        &self,
        frontends: impl Iterator<Item = Frontend>,
        list: ListId,
    ) -> Vec<(SocketAddr, ClassId)> {
        let with_slots = |frontend| Some((frontend, self.slots.get(&(frontend, list))?));
        let Some((frontend, slots)) = frontends.filter_map(with_slots).next() else { return Vec::new() };
        let endpoint = |slot: &ClassId| Some((*self.by_slot.get(&(frontend, *slot))?, *slot));
        slots.iter().flatten().filter_map(endpoint).collect()
    }

    /// Returns the owners of all slots, with duplicates.
    pub(super) fn slot_owners(&self) -> impl Iterator<Item = u16> {
        self.slots.values().flatten().flatten().map(|slot| slot.major())
    }

    /// Returns the endpoints by index of a list, of the first frontend that has the list.
    pub(super) fn endpoints_of(
        &self,
        frontends: impl Iterator<Item = Frontend>,
        list: ListId,
    ) -> Positions<SocketAddr> {
        for frontend in frontends {
            if let Some(positions) = self.endpoints.get(&(frontend, list)) {
                return positions.clone();
            }
            if let Some(slots) = self.slots.get(&(frontend, list)) {
                let target = |slot: &Option<ClassId>| self.by_slot.get(&(frontend, (*slot)?)).copied();
                return slots.iter().map(target).collect();
            }
        }
        Vec::new()
    }
}

impl Item {
    fn parse(set: SetId, key: &Key, data: Option<&Data>) -> Option<Self> {
        let frontend = frontend_from_key(key)?;
        let (Some(Value::ClassId(class)), Some(Data::Values(fields))) = (key.get(3), data) else { return None };
        match (set, ListId::from_index(*class), &fields[..]) {
            (SetId::Endpoints, place, [Value::Address(address), Value::Port(port)]) => {
                let socket = SocketAddr::new(*address, *port);
                Some(match place {
                    Some((list, position)) => Self::Endpoint(frontend, list, position, socket),
                    None => Self::EndpointOfSlot(frontend, *class, socket),
                })
            }
            (SetId::Slots, Some((list, position)), [Value::ClassId(slot)]) => {
                Some(Self::Slot(frontend, list, position, *slot))
            }
            _ => None,
        }
    }
}

/// Inserts an item. Reports whether the position was free.
fn put<T: Clone>(positions: &mut Positions<T>, position: usize, item: T) -> bool {
    if positions.len() <= position {
        positions.resize(position + 1, None);
    }
    positions[position].replace(item).is_none()
}

fn filled<T>(positions: Positions<T>) -> impl Iterator<Item = (usize, T)> {
    positions.into_iter().enumerate().filter_map(|(i, item)| Some((i, item?)))
}

fn socket_data(socket: SocketAddr) -> Data {
    Data::Values([Value::Address(socket.ip()), Value::Port(socket.port())].into())
}

fn from_class_id(class: ClassId) -> Data {
    Data::Values([Value::ClassId(class)].into_iter().collect())
}
