//! What a kernel holds of a table.

use std::collections::HashMap;

use crate::{
    kernel::{Kernel, Listing, Reading},
    model::{Class, Comment, Datum, Element, Key, Name, Set, TableId, Value},
    plan::{Frontend, Order, Planner, SetId},
};

/// A table that is declared as ours is.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) listing: Listing,
    /// Elements of all sets but those of which the order is kept.
    pub(super) elements: HashMap<SetId, Elements>,
    /// The endpoints.
    pub(super) order: Order,
}

/// The elements of a set by their keys.
pub(super) type Elements = HashMap<Key, (Option<Datum>, Option<Comment>)>;

/// What has come of reading a table.
pub(super) enum Outcome {
    /// It can be mended.
    Found(Box<Found>),
    /// Something in there cannot be changed to what it should be; it has to be made anew.
    Incompatible,
    /// Somebody has changed this set again and again meanwhile.
    Unsteady(Name),
}

/// Reads a table that has the given listing.
pub(super) fn read<K: Kernel>(
    kernel: &mut K,
    table: &TableId,
    listing: Listing,
    planner: &Planner,
) -> Result<Outcome, K::Error> {
    if !is_compatible(&listing, planner) {
        return Ok(Outcome::Incompatible);
    }
    let mut found = Found { listing, elements: HashMap::new(), order: Order::new(table.family) };
    let mut sets: Vec<(SetId, Set, Option<usize>)> = found
        .listing
        .sets
        .iter()
        .filter_map(|listed| Some((SetId::of_name(&listed.name)?, listed.set.clone()?, listed.elements)))
        .filter(|(id, ..)| !id.is_learned())
        .collect();
    // Services tell where their slots are, and slots where endpoints are.
    sets.sort_by_key(|(id, ..)| (*id == SetId::Endpoints, *id == SetId::Slots));
    for (id, set, count) in sets {
        let mut reader = Reader { kernel: &mut *kernel, table, id, set: &set, count };
        match reader.read(&mut found)? {
            State::Whole => {}
            State::Strange => return Ok(Outcome::Incompatible),
            State::Unsteady => return Ok(Outcome::Unsteady(set.name)),
        }
    }
    Ok(Outcome::Found(Box::new(found)))
}

struct Reader<'a, K> {
    kernel: &'a mut K,
    table: &'a TableId,
    id: SetId,
    set: &'a Set,
    /// How many elements there are, where the kernel tells.
    count: Option<usize>,
}

#[derive(PartialEq, Eq)]
enum State {
    Whole,
    Strange,
    Unsteady,
}

impl<K: Kernel> Reader<'_, K> {
    fn read(&mut self, found: &mut Found) -> Result<State, K::Error> {
        let has_order = [SetId::Endpoints, SetId::Slots].contains(&self.id);
        if has_order && self.count.is_some_and(|count| count > READ_AT_ONCE) {
            // Elements that no Service leads to are not found in this way.
            let state = self.find(found)?;
            if state == State::Whole {
                return Ok(state);
            }
        }
        for _ in 0..TRIES {
            found.forget(self.id);
            let mut strange = false;
            let reading = self.kernel.read(self.table, self.set, &mut |element| match element {
                Some(element) => found.note(self.id, element),
                None => strange = true,
            })?;
            // Any change of anybody interrupts a reading; it is good nevertheless if no element is missing.
            let whole = match self.count {
                Some(count) => found.count(self.id) == count,
                None => reading == Reading::Steady,
            };
            if strange {
                return Ok(State::Strange);
            }
            if whole {
                return Ok(State::Whole);
            }
        }
        Ok(State::Unsteady)
    }

    /// Asks for the elements that there should be.
    fn find(&mut self, found: &mut Found) -> Result<State, K::Error> {
        let id = self.id;
        let services = [SetId::Services, SetId::LocalServices].into_iter().filter_map(|id| found.elements.get(&id));
        let places: Vec<(Frontend, Class)> = services
            .flatten()
            .filter_map(|(key, (datum, _))| Frontend::from_key(key).zip(class_of(datum.as_ref())))
            .collect();
        let mut strange = false;
        for places in places.chunks(PLACES_AT_ONCE) {
            let mut new = Vec::new();
            let mut keys = places.iter().flat_map(|(frontend, class)| found.order.keys_of(id, *frontend, *class));
            self.kernel.find(self.table, self.set, &mut keys, &mut |element, _| match element {
                Some(element) => new.push(element),
                None => strange = true,
            })?;
            new.into_iter().for_each(|element| found.note(id, element));
        }
        let whole = Some(found.count(id)) == self.count;
        Ok(if strange || !whole { State::Unsteady } else { State::Whole })
    }
}

impl Found {
    fn note(&mut self, set: SetId, element: Element) {
        if let Some(Element { key, datum, comment }) = self.order.note(set, element) {
            self.elements.entry(set).or_default().insert(key, (datum, comment));
        }
    }

    fn count(&self, set: SetId) -> usize {
        self.order.count(set) + self.elements.get(&set).map_or(0, HashMap::len)
    }

    fn forget(&mut self, set: SetId) {
        self.order.forget(set);
        self.elements.remove(&set);
    }
}

/// Whether everything that cannot be changed is as it should be, as far as it is there.
fn is_compatible(listing: &Listing, planner: &Planner) -> bool {
    let context = planner.context();
    let sets = listing.sets.iter().all(|listed| match SetId::of_name(&listed.name) {
        Some(id) => listed.set.as_ref() == Some(&id.declare(context)),
        // Somebody else's; it can go.
        None => true,
    });
    let wanted = planner.chains();
    let chains =
        listing.chains.iter().all(|listed| match wanted.iter().find(|chain| chain.chain.name == listed.name) {
            Some(wanted) => listed.chain.as_ref() == Some(&wanted.chain),
            // One of an earlier number of endpoints, or somebody else's.
            None => listed.chain.as_ref().is_none_or(|chain| chain.base.is_none()),
        });
    sets && chains
}

fn class_of(datum: Option<&Datum>) -> Option<Class> {
    match datum {
        Some(Datum::Fields(fields)) => match fields[..] {
            [Value::Class(class)] => Some(class),
            _ => None,
        },
        _ => None,
    }
}

/// Larger maps are not read but asked for what should be in them: reading takes quadratic time, 0.3 s for 100,000
/// elements and 30 s for a million.
const READ_AT_ONCE: usize = 100_000;
/// Frontends whose endpoints are asked for together.
const PLACES_AT_ONCE: usize = 1_000;
const TRIES: usize = 5;
