//! Totals of the elements' counters. A counter starts at zero when its element is added. An element is replaced when
//! its endpoint moves within the list and when the number of endpoints changes, but totals never decrease.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    net::SocketAddr,
    num::NonZeroUsize,
};

use ferroute_core::Frontend;

use crate::model::Key;

/// Connections by service port and endpoint.
///
/// The number of separate totals is bounded. A service port or endpoint with a separate total keeps it until it is
/// removed. The busiest of the others then gets a separate total, which starts at zero. All others are counted in a
/// common total.
#[derive(Clone, Debug)]
pub struct ConnectionTotals {
    frontends: Counters<Frontend>,
    services: Series<Box<str>>,
    elements: Counters<(Key, SocketAddr)>,
    endpoints: Series<(Box<str>, SocketAddr)>,
}

/// The last counter values of elements.
#[derive(Clone, Debug)]
pub(super) struct Counters<E> {
    last: HashMap<E, u64>,
}

/// A bounded number of totals, and a common one for the rest.
#[derive(Clone, Debug)]
pub(super) struct Series<K> {
    max: usize,
    separate: BTreeMap<K, u64>,
    rest: u64,
}

impl ConnectionTotals {
    /// Returns totals that are zero, with separate ones for up to `max` service ports and ten times as many endpoints.
    pub fn new(max: NonZeroUsize) -> Self {
        let max = max.get();
        Self {
            frontends: Counters::default(),
            services: Series::new(max),
            elements: Counters::default(),
            endpoints: Series::new(max.saturating_mul(ENDPOINTS_PER_SERVICE)),
        }
    }

    /// Returns the connections of service ports with separate totals. Names are as in comments.
    pub fn services(&self) -> impl Iterator<Item = (&str, u64)> {
        self.services.separate.iter().map(|(name, total)| (&**name, *total))
    }

    /// Returns the connections of all other service ports.
    pub fn other_services(&self) -> u64 {
        self.services.rest
    }

    /// Returns the connections of endpoints with separate totals, of service ports with separate totals.
    pub fn endpoints(&self) -> impl Iterator<Item = (&str, SocketAddr, u64)> {
        self.endpoints.separate.iter().map(|((name, socket), total)| (&**name, *socket, *total))
    }

    /// Returns the connections of the other endpoints of these service ports.
    pub fn other_endpoints(&self) -> u64 {
        self.endpoints.rest
    }

    /// Reports whether a service port has a separate total.
    pub(super) fn has_total(&self, name: &str) -> bool {
        self.services.separate.contains_key(name)
    }

    /// Adds counters of frontends, each with the name of its service port.
    pub(super) fn add_services<'a>(&mut self, counted: impl Iterator<Item = (Frontend, &'a Box<str>, u64)>) {
        let counted = counted.map(|(frontend, name, count)| (frontend, name.clone(), count));
        let increases = self.frontends.read(counted);
        self.services.add(increases);
    }

    /// Adds counters of endpoints' elements.
    pub(super) fn add_endpoints<'a>(&mut self, counted: impl Iterator<Item = (Key, &'a Box<str>, SocketAddr, u64)>) {
        let counted = counted.map(|(key, name, socket, count)| ((key, socket), (name.clone(), socket), count));
        let increases = self.elements.read(counted);
        self.endpoints.add(increases);
    }
}

impl<E> Default for Counters<E> {
    fn default() -> Self {
        Self { last: HashMap::new() }
    }
}

impl<E: Eq + Hash> Counters<E> {
    /// Returns the increase of all counters since the last call, summed up by key.
    pub(super) fn read<K: Ord>(&mut self, counted: impl Iterator<Item = (E, K, u64)>) -> BTreeMap<K, u64> {
        let (mut now, mut new) = (HashMap::new(), BTreeMap::new());
        for (element, key, count) in counted {
            let before = self.last.get(&element).copied().unwrap_or_default();
            // A smaller value belongs to a new element.
            *new.entry(key).or_default() += count.checked_sub(before).unwrap_or(count);
            now.insert(element, count);
        }
        self.last = now;
        new
    }
}

impl<K: Ord + Clone> Series<K> {
    pub(super) fn new(max: usize) -> Self {
        Self { max, separate: BTreeMap::new(), rest: 0 }
    }

    /// Returns the separate totals.
    pub(super) fn separate(&self) -> impl Iterator<Item = (&K, u64)> {
        self.separate.iter().map(|(key, total)| (key, *total))
    }

    /// Returns the common total.
    pub(super) fn rest(&self) -> u64 {
        self.rest
    }

    /// Adds the increases of all existing keys. Missing keys were removed.
    pub(super) fn add(&mut self, new: BTreeMap<K, u64>) {
        self.separate.retain(|key, _| new.contains_key(key));
        let free = self.max.saturating_sub(self.separate.len());
        if free > 0 {
            let mut waiting: Vec<(&K, u64)> = new
                .iter()
                .filter(|(key, _)| !self.separate.contains_key(*key))
                .map(|(key, count)| (key, *count))
                .collect();
            // A stable sort: ties go to the first by name.
            waiting.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            self.separate.extend(waiting.into_iter().take(free).map(|(key, _)| (key.clone(), 0)));
        }
        for (key, count) in new {
            match self.separate.get_mut(&key) {
                Some(total) => *total += count,
                None => self.rest += count,
            }
        }
    }
}

/// Ratio of the numbers of separate totals. Most Services have fewer endpoints.
const ENDPOINTS_PER_SERVICE: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use ferroute_core::Protocol;

    fn totals(max: usize) -> ConnectionTotals {
        ConnectionTotals::new(NonZeroUsize::new(max).unwrap())
    }

    /// Adds counters of frontends, given by port and the name of the service port.
    fn add(totals: &mut ConnectionTotals, counted: &[(u16, &str, u64)]) -> Vec<(String, u64)> {
        let names: Vec<Box<str>> = counted.iter().map(|(_, name, _)| (*name).into()).collect();
        let frontend = |port| Frontend { address: None, protocol: Protocol::Tcp, port };
        totals.add_services(counted.iter().zip(&names).map(|((port, _, count), name)| (frontend(*port), name, *count)));
        totals.services().map(|(name, total)| (name.to_owned(), total)).collect()
    }

    fn separate(separate: &[(&str, u64)]) -> Vec<(String, u64)> {
        separate.iter().map(|(name, total)| ((*name).to_owned(), *total)).collect()
    }

    #[test]
    fn totals_sum_up_frontends_and_never_decrease() {
        let mut totals = totals(10);
        assert_eq!(add(&mut totals, &[(1, "a", 5), (2, "a", 7), (3, "b", 0)]), separate(&[("a", 12), ("b", 0)]));
        assert_eq!(add(&mut totals, &[(1, "a", 6), (2, "a", 7), (3, "b", 1)]), separate(&[("a", 13), ("b", 1)]));
        // An element was replaced by another one, whose counter starts at zero.
        assert_eq!(add(&mut totals, &[(1, "a", 2), (2, "a", 8), (3, "b", 1)]), separate(&[("a", 16), ("b", 1)]));
        assert_eq!(totals.other_services(), 0);
    }

    #[test]
    fn busiest_service_ports_get_totals_of_their_own_and_keep_them() {
        let mut totals = totals(2);
        assert_eq!(add(&mut totals, &[(1, "a", 1), (2, "b", 3), (3, "c", 2)]), separate(&[("b", 3), ("c", 2)]));
        assert_eq!(totals.other_services(), 1);
        assert_eq!(add(&mut totals, &[(1, "a", 100), (2, "b", 3), (3, "c", 2)]), separate(&[("b", 3), ("c", 2)]));
        assert_eq!(totals.other_services(), 100);
        assert_eq!(add(&mut totals, &[(1, "a", 101), (3, "c", 2)]), separate(&[("a", 1), ("c", 2)]));
        assert_eq!(totals.other_services(), 100, "earlier connections stay in the common total");
        assert!(totals.has_total("a") && !totals.has_total("b"));
    }

    #[test]
    fn endpoint_totals_are_bounded_and_survive_moves_within_the_list() {
        let mut totals = totals(1);
        let socket = |number: u16| SocketAddr::from(([10, 0, 0, 1], number));
        let name: Box<str> = "a".into();
        let key = |place: u16| Key::from_iter([crate::model::Value::Port(place)]);
        let mut add = |counted: &[(u16, u16, u64)]| {
            totals.add_endpoints(counted.iter().map(|(at, to, count)| (key(*at), &name, socket(*to), *count)));
            let separate: Vec<(u16, u64)> = totals.endpoints().map(|(_, to, total)| (to.port(), total)).collect();
            (separate, totals.other_endpoints())
        };
        assert_eq!(add(&[(1, 100, 4), (2, 200, 6)]), (vec![(100, 4), (200, 6)], 0));
        assert_eq!(add(&[(1, 200, 1)]), (vec![(200, 7)], 0));
        let many: Vec<(u16, u16, u64)> = (1..=12).map(|number| (number, 200 + number - 1, 1)).collect();
        let (separate, rest) = add(&many);
        assert_eq!((separate.len(), rest), (10, 2));
        assert_eq!(separate[0], (200, 7));
    }
}
