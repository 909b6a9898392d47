use std::{
    collections::{HashMap, hash_map::Entry},
    net::SocketAddr,
};

use ferroute_core::IpFamily;

use super::{Frontend, Kind, SetId, kind::List};
use crate::model::{Class, Datum, Element, Key, Value};

/// The endpoints that a kernel has, in their order, which is to be kept by a planner that starts anew.
///
/// It holds the maps of endpoints and of slots as compactly as it can be, for they can have a million elements.
#[derive(Clone, Debug)]
pub struct Order {
    family: IpFamily,
    endpoints: HashMap<(Frontend, List), Places<SocketAddr>>,
    /// The same for Services with affinity, whose endpoints are found by way of slots.
    slots: HashMap<(Frontend, List), Places<Class>>,
    by_slot: HashMap<(Frontend, Class), SocketAddr>,
    counts: [usize; 2],
}

/// What is where in a list; `None` where nothing is.
pub(super) type Places<T> = Vec<Option<T>>;

/// The element of one of the two maps.
enum Item {
    Endpoint(Frontend, List, usize, SocketAddr),
    Slot(Frontend, List, usize, Class),
    EndpointOfSlot(Frontend, Class, SocketAddr),
}

impl Order {
    /// Nothing is known.
    pub fn new(family: IpFamily) -> Self {
        Self { family, endpoints: HashMap::new(), slots: HashMap::new(), by_slot: HashMap::new(), counts: [0; 2] }
    }

    /// Notes an element; gives back one that is no endpoint's.
    pub fn note(&mut self, set: SetId, element: Element) -> Option<Element> {
        let new = match Item::of(set, &element.key, element.datum.as_ref()) {
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

    /// How many different elements of a map were noted.
    pub fn count(&self, set: SetId) -> usize {
        match set {
            SetId::Endpoints => self.counts[0],
            SetId::Slots => self.counts[1],
            _ => 0,
        }
    }

    /// Forgets the elements of a map.
    pub fn forget(&mut self, set: SetId) {
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

    /// Keys under which Services with these classes have their elements. Those of the map of endpoints depend on the
    /// slots that were noted.
    pub fn keys_of(&self, set: SetId, frontend: Frontend, class: Class) -> Vec<Key> {
        let Some((kind, endpoints)) = Kind::of_class(class) else { return Vec::new() };
        let list = kind.list();
        let key = |last: Class| frontend.key(self.family).into_iter().chain([last.into()]).collect();
        match (set, kind.sticky) {
            (SetId::Endpoints, false) | (SetId::Slots, true) => (0..endpoints).map(|i| key(list.index(i))).collect(),
            (SetId::Endpoints, true) => {
                let slots = self.slots.get(&(frontend, list)).into_iter().flatten();
                slots.flatten().map(|slot| key(*slot)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Takes out what an element holds.
    pub fn take(&mut self, set: SetId, element: &Element) -> Option<Datum> {
        match Item::of(set, &element.key, element.datum.as_ref())? {
            Item::Endpoint(frontend, list, position, _) => {
                self.endpoints.get_mut(&(frontend, list))?.get_mut(position)?.take().map(of_socket)
            }
            Item::Slot(frontend, list, position, _) => {
                self.slots.get_mut(&(frontend, list))?.get_mut(position)?.take().map(of_class)
            }
            Item::EndpointOfSlot(frontend, slot, _) => self.by_slot.remove(&(frontend, slot)).map(of_socket),
        }
    }

    /// Everything that was noted and not taken out.
    pub fn into_elements(self) -> impl Iterator<Item = (SetId, Element)> {
        let element = move |frontend: Frontend, last: Class, datum| Element {
            key: frontend.key(self.family).into_iter().chain([last.into()]).collect(),
            datum: Some(datum),
            comment: None,
        };
        let endpoints = self.endpoints.into_iter().flat_map(move |((frontend, list), places)| {
            filled(places)
                .map(move |(i, socket)| (SetId::Endpoints, element(frontend, list.index(i), of_socket(socket))))
        });
        let slots = self.slots.into_iter().flat_map(move |((frontend, list), places)| {
            filled(places).map(move |(i, slot)| (SetId::Slots, element(frontend, list.index(i), of_class(slot))))
        });
        let by_slot = self
            .by_slot
            .into_iter()
            .map(move |((frontend, slot), socket)| (SetId::Endpoints, element(frontend, slot, of_socket(socket))));
        endpoints.chain(slots).chain(by_slot)
    }

    /// The endpoints of a list of any of the frontends, with their slots; nothing where none has it.
    pub(super) fn slots_of(&self, frontends: impl Iterator<Item = Frontend>, list: List) -> Vec<(SocketAddr, Class)> {
        let with_slots = |frontend| Some((frontend, self.slots.get(&(frontend, list))?));
        let Some((frontend, slots)) = frontends.filter_map(with_slots).next() else { return Vec::new() };
        let endpoint = |slot: &Class| Some((*self.by_slot.get(&(frontend, *slot))?, *slot));
        slots.iter().flatten().filter_map(endpoint).collect()
    }

    /// Those whose slots were noted, as often as they were.
    pub(super) fn slot_owners(&self) -> impl Iterator<Item = u16> {
        self.slots.values().flatten().flatten().map(|slot| slot.major())
    }

    /// The endpoints of a list of any of the frontends, by index; nothing where none has it.
    pub(super) fn of_list(&self, frontends: impl Iterator<Item = Frontend>, list: List) -> Places<SocketAddr> {
        for frontend in frontends {
            if let Some(places) = self.endpoints.get(&(frontend, list)) {
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

impl Item {
    fn of(set: SetId, key: &Key, datum: Option<&Datum>) -> Option<Self> {
        let frontend = Frontend::from_key(key)?;
        let (Some(Value::Class(class)), Some(Datum::Fields(fields))) = (key.get(3), datum) else { return None };
        match (set, List::of_index(*class), &fields[..]) {
            (SetId::Endpoints, place, [Value::Address(address), Value::Port(port)]) => {
                let socket = SocketAddr::new(*address, *port);
                Some(match place {
                    Some((list, position)) => Self::Endpoint(frontend, list, position, socket),
                    None => Self::EndpointOfSlot(frontend, *class, socket),
                })
            }
            (SetId::Slots, Some((list, position)), [Value::Class(slot)]) => {
                Some(Self::Slot(frontend, list, position, *slot))
            }
            _ => None,
        }
    }
}

/// Whether the place was free.
fn put<T: Clone>(places: &mut Places<T>, position: usize, item: T) -> bool {
    if places.len() <= position {
        places.resize(position + 1, None);
    }
    places[position].replace(item).is_none()
}

fn filled<T>(places: Places<T>) -> impl Iterator<Item = (usize, T)> {
    places.into_iter().enumerate().filter_map(|(i, item)| Some((i, item?)))
}

fn of_socket(socket: SocketAddr) -> Datum {
    Datum::Fields([Value::Address(socket.ip()), Value::Port(socket.port())].into())
}

fn of_class(class: Class) -> Datum {
    Datum::Fields([Value::Class(class)].into_iter().collect())
}
