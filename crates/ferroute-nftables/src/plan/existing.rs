use std::{
    collections::{BTreeSet, HashMap, HashSet, hash_map::Entry},
    net::SocketAddr,
};

use ferroute_core::Protocol;

use super::{
    Frontend, List, ListNumber, SetId, frontend_from_key,
    kind::{Class, Kind},
    list::LIST,
    slots::list_of,
};
use crate::model::{ClassId, Data, Element, Key, Value};

/// The lists of endpoints in the kernel's table, whose numbers, order and slots a new planner keeps.
///
/// Stored compactly: the maps can have a million elements.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExistingLists {
    /// The numbers of the service ports that own frontends.
    numbers: HashMap<Frontend, ListNumber>,
    /// The contents of map `lists`.
    classes: HashMap<ClassId, Class>,
    endpoints: HashMap<ListKey, Positions<SocketAddr>>,
    /// Slots of the lists of Services with session affinity, whose endpoints are keyed by slot.
    slots: HashMap<ClassId, Positions<ClassId>>,
    by_slot: HashMap<ListKey, SocketAddr>,
    counts: HashMap<SetId, usize>,
}

/// A list or slot, and the protocol.
type ListKey = (ClassId, Protocol);

/// The contents of a list by position; `None` for a missing element.
pub(super) type Positions<T> = Vec<Option<T>>;

/// An element of a map of endpoints, or of map `slots`.
enum Item {
    Endpoint(ListKey, usize, SocketAddr),
    Slot(ClassId, usize, ClassId),
    EndpointOfSlot(ListKey, SocketAddr),
}

impl ExistingLists {
    /// Inserts an element. Returns it unless it is an endpoint or slot.
    pub(crate) fn insert(&mut self, set: SetId, element: Element) -> Option<Element> {
        let new = match Item::parse(set, &element.key, element.data.as_ref()) {
            None => {
                self.insert_other(set, &element);
                return Some(element);
            }
            Some(Item::Endpoint(list, position, socket)) => {
                put(self.endpoints.entry(list).or_default(), position, socket)
            }
            Some(Item::Slot(list, position, slot)) => put(self.slots.entry(list).or_default(), position, slot),
            Some(Item::EndpointOfSlot(slot, socket)) => match self.by_slot.entry(slot) {
                Entry::Occupied(_) => false,
                Entry::Vacant(entry) => {
                    entry.insert(socket);
                    true
                }
            },
        };
        *self.counts.entry(set).or_default() += usize::from(new);
        None
    }

    fn insert_other(&mut self, set: SetId, element: &Element) {
        let value = element.data.as_ref().and_then(Data::class_id);
        match (set, value, &element.key[..]) {
            (SetId::Services | SetId::NodePorts, Some(request), key) => {
                let number = ListNumber::from_class_id(request).map(|(number, _)| number);
                self.numbers.extend(frontend_from_key(key).zip(number));
            }
            (SetId::Lists, Some(value), [Value::ClassId(request)]) => {
                self.classes.extend(Class::from_class_id(value).map(|class| (*request, class)));
            }
            _ => {}
        }
    }

    /// Returns the number of distinct elements of a map.
    pub(crate) fn count(&self, set: SetId) -> usize {
        self.counts.get(&set).copied().unwrap_or_default()
    }

    /// Removes all elements of a map.
    pub(crate) fn clear(&mut self, set: SetId) {
        self.counts.remove(&set);
        match set {
            SetId::Services => self.numbers.retain(|frontend, _| frontend.address.is_none()),
            SetId::NodePorts => self.numbers.retain(|frontend, _| frontend.address.is_some()),
            SetId::Lists => self.classes.clear(),
            SetId::Endpoints(protocol) => {
                self.endpoints.retain(|(_, other), _| *other != protocol);
                self.by_slot.retain(|(_, other), _| *other != protocol);
            }
            SetId::Slots => self.slots.clear(),
            _ => {}
        }
    }

    /// Inserts the numbers that the proxy wrote for frontends that another program has deleted from the table, so that
    /// the lists stay unchanged.
    pub(crate) fn restore_numbers(&mut self, written: Vec<(Frontend, ListNumber)>) {
        for (frontend, number) in written {
            self.numbers.entry(frontend).or_insert(number);
        }
    }

    /// Returns the UDP frontends.
    pub(crate) fn udp_frontends(&self) -> BTreeSet<Frontend> {
        self.numbers.keys().filter(|frontend| frontend.protocol == Protocol::Udp).copied().collect()
    }

    /// Returns the number of the service port that owns a frontend.
    pub(crate) fn number_at(&self, frontend: Frontend) -> Option<ListNumber> {
        self.numbers.get(&frontend).copied()
    }

    /// Returns the service ports' numbers, each with its protocol.
    pub(crate) fn service_ports(&self) -> HashSet<(ListNumber, Protocol)> {
        self.numbers.iter().map(|(frontend, number)| (*number, frontend.protocol)).collect()
    }

    /// Returns the keys of a service port in map `lists`, `slots` or a map of endpoints. They depend on the inserted
    /// elements of the preceding maps.
    pub(crate) fn keys(&self, set: SetId, (number, protocol): (ListNumber, Protocol)) -> Vec<Key> {
        if matches!(set, SetId::Endpoints(other) if other != protocol) {
            return Vec::new();
        }
        let lists = List::ALL.map(|list| number.list(list));
        if set == SetId::Lists {
            let requests = lists.into_iter().flat_map(|list| Kind::ALL.map(|kind| kind.request(list)));
            return requests.map(|request| [request.into()].into_iter().collect()).collect();
        }
        lists.into_iter().flat_map(|list| self.keys_of_list(set, list)).collect()
    }

    fn keys_of_list(&self, set: SetId, list: ClassId) -> Vec<Key> {
        let classes = Kind::ALL.into_iter().filter_map(|kind| self.classes.get(&kind.request(list)));
        let Some((kind, choice)) = classes
            .filter_map(|class| match class {
                Class::Forward(kind, choice) => Some((*kind, *choice)),
                Class::Reject | Class::Drop => None,
            })
            .next()
        else {
            return Vec::new();
        };
        let indexes = 1..=choice.positions();
        match (set, kind.sticky) {
            (SetId::Endpoints(_), false) | (SetId::Slots, true) => indexes.map(|index| list_key(list, index)).collect(),
            (SetId::Endpoints(_), true) => {
                let slots = self.slots.get(&list).into_iter().flatten();
                slots.flatten().map(|slot| list_key(*slot, 0)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Removes the element with the key of `element` and returns its data.
    pub(crate) fn remove(&mut self, set: SetId, element: &Element) -> Option<Data> {
        match Item::parse(set, &element.key, element.data.as_ref())? {
            Item::Endpoint(list, position, _) => {
                self.endpoints.get_mut(&list)?.get_mut(position)?.take().map(socket_data)
            }
            Item::Slot(list, position, _) => self.slots.get_mut(&list)?.get_mut(position)?.take().map(class_data),
            Item::EndpointOfSlot(slot, _) => self.by_slot.remove(&slot).map(socket_data),
        }
    }

    /// Returns all endpoints and slots that were not removed.
    pub(crate) fn into_elements(self) -> impl Iterator<Item = (SetId, Element)> {
        let element = |key, data| Element { key, data: Some(data), comment: None };
        let endpoints = self.endpoints.into_iter().flat_map(move |((list, protocol), positions)| {
            filled(positions).map(move |(index, socket)| {
                (SetId::Endpoints(protocol), element(list_key(list, index), socket_data(socket)))
            })
        });
        let slots = self.slots.into_iter().flat_map(move |(list, positions)| {
            filled(positions).map(move |(index, slot)| (SetId::Slots, element(list_key(list, index), class_data(slot))))
        });
        let by_slot = self.by_slot.into_iter().map(move |((slot, protocol), socket)| {
            (SetId::Endpoints(protocol), element(list_key(slot, 0), socket_data(socket)))
        });
        endpoints.chain(slots).chain(by_slot)
    }

    /// Returns the number of the service port that owns the first existing frontend.
    pub(super) fn number_of(&self, mut frontends: impl Iterator<Item = Frontend>) -> Option<ListNumber> {
        frontends.find_map(|frontend| self.number_at(frontend))
    }

    /// Returns the endpoints with slots of a list.
    pub(super) fn slots_of(&self, list: ClassId, protocol: Protocol) -> Vec<(SocketAddr, ClassId)> {
        let slots = self.slots.get(&list).into_iter().flatten().flatten();
        slots.filter_map(|slot| Some((*self.by_slot.get(&(*slot, protocol))?, *slot))).collect()
    }

    /// Returns the numbers of all lists.
    pub(super) fn numbers(&self) -> HashSet<ListNumber> {
        let lists = self.classes.keys().chain(self.slots.keys()).chain(self.endpoints.keys().map(|(list, _)| list));
        lists
            .filter_map(|list| ListNumber::from_class_id(*list))
            .map(|(number, _)| number)
            .chain(self.numbers.values().copied())
            .collect()
    }

    /// Returns the endpoints by index of a list.
    pub(super) fn endpoints_of(&self, list: ClassId, protocol: Protocol) -> Positions<SocketAddr> {
        if let Some(positions) = self.endpoints.get(&(list, protocol)) {
            return positions.clone();
        }
        let slots = self.slots.get(&list).into_iter().flatten();
        slots.map(|slot| self.by_slot.get(&((*slot)?, protocol)).copied()).collect()
    }
}

impl Item {
    fn parse(set: SetId, key: &Key, data: Option<&Data>) -> Option<Self> {
        let Some(Data::Values(data)) = data else { return None };
        match (set, &key[..], &data[..]) {
            (
                SetId::Endpoints(protocol),
                [Value::ClassId(id), Value::Integer(index)],
                [Value::Address(address), Value::Port(port)],
            ) => {
                let (list, socket) = ((*id, protocol), SocketAddr::new(*address, *port));
                match position(*index) {
                    Some(position) if *id == id.masked(LIST) => Some(Self::Endpoint(list, position, socket)),
                    None if *index == 0 && *id != list_of(*id) => Some(Self::EndpointOfSlot(list, socket)),
                    _ => None,
                }
            }
            (SetId::Slots, [Value::ClassId(list), Value::Integer(index)], [Value::ClassId(slot)]) => {
                (list_of(*slot) == *list).then_some(Self::Slot(*list, position(*index)?, *slot))
            }
            _ => None,
        }
    }
}

/// Returns the key of a list's item with this index, from 1. The key of an endpoint with a slot consists of the slot and 0.
pub(super) fn list_key(list: ClassId, index: u32) -> Key {
    [list.into(), Value::Integer(index)].into_iter().collect()
}

/// Returns the position of an index; `None` for 0 and for indexes that are too large for a list.
fn position(index: u32) -> Option<usize> {
    let position = usize::try_from(index.checked_sub(1)?).ok()?;
    (position < MAX_POSITIONS).then_some(position)
}

/// Inserts an item. Reports whether the position was free.
fn put<T: Clone>(positions: &mut Positions<T>, position: usize, item: T) -> bool {
    if positions.len() <= position {
        positions.resize(position + 1, None);
    }
    positions[position].replace(item).is_none()
}

/// Returns the items with their indexes.
fn filled<T>(positions: Positions<T>) -> impl Iterator<Item = (u32, T)> {
    (1..).zip(positions).filter_map(|(index, item)| Some((index, item?)))
}

fn socket_data(socket: SocketAddr) -> Data {
    Data::Values([Value::Address(socket.ip()), Value::Port(socket.port())].into())
}

fn class_data(class: ClassId) -> Data {
    Data::Values([Value::ClassId(class)].into_iter().collect())
}

/// [`Capacity::MAX`](super::capacity::Capacity::MAX).
const MAX_POSITIONS: usize = 1 << 16;
