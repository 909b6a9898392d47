//! Adds up what elements count. An element counts from zero when it is added, and is replaced by another one when its
//! endpoint takes another place in the list, or when the number of endpoints changes; totals never become smaller.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    net::SocketAddr,
    num::NonZeroUsize,
};

use crate::{model::Key, plan::Frontend};

/// Connections by service port and endpoint.
///
/// Who is told apart stays so for as long as it is there, so that its number only grows; a place that becomes free goes
/// to the busiest of the others, and counts from then on. So `others` holds what was never anybody's own.
#[derive(Clone, Debug)]
pub struct ConnectionTotals {
    frontends: Meter<Frontend>,
    services: Series<Box<str>>,
    elements: Meter<(Key, SocketAddr)>,
    endpoints: Series<(Box<str>, SocketAddr)>,
}

/// What elements have counted so far.
#[derive(Clone, Debug)]
struct Meter<E> {
    last: HashMap<E, u64>,
}

/// A bounded number of totals.
#[derive(Clone, Debug)]
struct Series<K> {
    most: usize,
    told: BTreeMap<K, u64>,
    others: u64,
}

impl ConnectionTotals {
    /// Nothing was counted yet; so many service ports, and ten times as many endpoints, are to be told apart.
    pub fn new(most: NonZeroUsize) -> Self {
        let most = most.get();
        Self {
            frontends: Meter { last: HashMap::new() },
            services: Series::new(most),
            elements: Meter { last: HashMap::new() },
            endpoints: Series::new(most.saturating_mul(ENDPOINTS_PER_SERVICE)),
        }
    }

    /// Connections to service ports, by their names as in comments.
    pub fn services(&self) -> impl Iterator<Item = (&str, u64)> {
        self.services.told.iter().map(|(name, total)| (&**name, *total))
    }

    /// Connections to all other service ports.
    pub fn other_services(&self) -> u64 {
        self.services.others
    }

    /// Connections to endpoints of the service ports that are told apart.
    pub fn endpoints(&self) -> impl Iterator<Item = (&str, SocketAddr, u64)> {
        self.endpoints.told.iter().map(|((name, socket), total)| (&**name, *socket, *total))
    }

    /// Connections to their other endpoints.
    pub fn other_endpoints(&self) -> u64 {
        self.endpoints.others
    }

    /// Whether a service port is told apart.
    pub(super) fn tells(&self, name: &str) -> bool {
        self.services.told.contains_key(name)
    }

    /// Adds what the frontends have counted, each with the name of its service port.
    pub(super) fn add_services<'a>(&mut self, counted: impl Iterator<Item = (Frontend, &'a Box<str>, u64)>) {
        let counted = counted.map(|(frontend, name, count)| (frontend, name.clone(), count));
        let new = self.frontends.read(counted);
        self.services.add(new);
    }

    /// The same for elements of endpoints.
    pub(super) fn add_endpoints<'a>(&mut self, counted: impl Iterator<Item = (Key, &'a Box<str>, SocketAddr, u64)>) {
        let counted = counted.map(|(key, name, socket, count)| ((key, socket), (name.clone(), socket), count));
        let new = self.elements.read(counted);
        self.endpoints.add(new);
    }
}

impl<E: Eq + Hash> Meter<E> {
    /// What each element has counted since the last reading, summed up by whom it counts for.
    fn read<K: Ord>(&mut self, counted: impl Iterator<Item = (E, K, u64)>) -> BTreeMap<K, u64> {
        let (mut now, mut new) = (HashMap::new(), BTreeMap::new());
        for (element, of, count) in counted {
            let before = self.last.get(&element).copied().unwrap_or_default();
            // One that has counted less than before is another one.
            *new.entry(of).or_default() += count.checked_sub(before).unwrap_or(count);
            now.insert(element, count);
        }
        self.last = now;
        new
    }
}

impl<K: Ord + Clone> Series<K> {
    fn new(most: usize) -> Self {
        Self { most, told: BTreeMap::new(), others: 0 }
    }

    /// Adds what was counted for all that there are; who is not among them is gone.
    fn add(&mut self, new: BTreeMap<K, u64>) {
        self.told.retain(|key, _| new.contains_key(key));
        let free = self.most.saturating_sub(self.told.len());
        if free > 0 {
            let mut waiting: Vec<(&K, u64)> =
                new.iter().filter(|(key, _)| !self.told.contains_key(*key)).map(|(key, count)| (key, *count)).collect();
            // Stable, so that of equally busy ones the first by name comes first.
            waiting.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            self.told.extend(waiting.into_iter().take(free).map(|(key, _)| (key.clone(), 0)));
        }
        for (key, count) in new {
            match self.told.get_mut(&key) {
                Some(total) => *total += count,
                None => self.others += count,
            }
        }
    }
}

/// Most Services have fewer.
const ENDPOINTS_PER_SERVICE: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use ferroute_core::Protocol;

    fn totals(most: usize) -> ConnectionTotals {
        ConnectionTotals::new(NonZeroUsize::new(most).unwrap())
    }

    /// Adds what frontends have counted, by their ports and the names of their service ports.
    fn add(totals: &mut ConnectionTotals, counted: &[(u16, &str, u64)]) -> Vec<(String, u64)> {
        let names: Vec<Box<str>> = counted.iter().map(|(_, name, _)| (*name).into()).collect();
        let frontend = |port| Frontend { address: None, protocol: Protocol::Tcp, port };
        totals.add_services(counted.iter().zip(&names).map(|((port, _, count), name)| (frontend(*port), name, *count)));
        totals.services().map(|(name, total)| (name.to_owned(), total)).collect()
    }

    fn told(told: &[(&str, u64)]) -> Vec<(String, u64)> {
        told.iter().map(|(name, total)| ((*name).to_owned(), *total)).collect()
    }

    #[test]
    fn frontends_of_a_service_port_are_added_up_and_totals_only_grow() {
        let mut totals = totals(10);
        assert_eq!(add(&mut totals, &[(1, "a", 5), (2, "a", 7), (3, "b", 0)]), told(&[("a", 12), ("b", 0)]));
        assert_eq!(add(&mut totals, &[(1, "a", 6), (2, "a", 7), (3, "b", 1)]), told(&[("a", 13), ("b", 1)]));
        // One element was replaced by another one, which counts anew.
        assert_eq!(add(&mut totals, &[(1, "a", 2), (2, "a", 8), (3, "b", 1)]), told(&[("a", 16), ("b", 1)]));
        assert_eq!(totals.other_services(), 0);
    }

    #[test]
    fn the_busiest_are_told_apart_and_stay_so_while_they_are_there() {
        let mut totals = totals(2);
        assert_eq!(add(&mut totals, &[(1, "a", 1), (2, "b", 3), (3, "c", 2)]), told(&[("b", 3), ("c", 2)]));
        assert_eq!(totals.other_services(), 1);
        assert_eq!(add(&mut totals, &[(1, "a", 100), (2, "b", 3), (3, "c", 2)]), told(&[("b", 3), ("c", 2)]));
        assert_eq!(totals.other_services(), 100);
        assert_eq!(add(&mut totals, &[(1, "a", 101), (3, "c", 2)]), told(&[("a", 1), ("c", 2)]));
        assert_eq!(totals.other_services(), 100, "what was counted before stays where it was");
        assert!(totals.tells("a") && !totals.tells("b"));
    }

    #[test]
    fn endpoints_are_bounded_too_and_an_endpoint_that_moves_in_its_list_goes_on() {
        let mut totals = totals(1);
        let socket = |number: u16| SocketAddr::from(([10, 0, 0, 1], number));
        let name: Box<str> = "a".into();
        let key = |place: u16| Key::from_iter([crate::model::Value::Port(place)]);
        let mut add = |counted: &[(u16, u16, u64)]| {
            totals.add_endpoints(counted.iter().map(|(at, to, count)| (key(*at), &name, socket(*to), *count)));
            let told: Vec<(u16, u64)> = totals.endpoints().map(|(_, to, total)| (to.port(), total)).collect();
            (told, totals.other_endpoints())
        };
        assert_eq!(add(&[(1, 100, 4), (2, 200, 6)]), (vec![(100, 4), (200, 6)], 0));
        assert_eq!(add(&[(1, 200, 1)]), (vec![(200, 7)], 0));
        let many: Vec<(u16, u16, u64)> = (1..=12).map(|number| (number, 200 + number - 1, 1)).collect();
        let (told, others) = add(&many);
        assert_eq!((told.len(), others), (10, 2));
        assert_eq!(told[0], (200, 7));
    }
}
