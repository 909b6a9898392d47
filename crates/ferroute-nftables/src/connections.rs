//! How many connections there were, by service port and endpoint, from what elements have counted.
//!
//! ```text
//!   map services:  element per frontend, counts ──► ConnectionTotals ──► the service ports that are told apart
//!   map endpoints: element per endpoint, counts ──►        ▲
//!                  (asked for of those only)               └── adds up what is new since the last reading
//! ```
//!
//! It reads the kernel through a socket of its own, beside whoever writes rules, so that no change has to wait for it.
//! What it keeps and what it tells is bounded: so many service ports and ten times as many endpoints are told apart,
//! everything else is one number. Names come from the elements' comments, so those of more than 128 bytes are cut.
//!
//! What is *not* here: bytes, as rules see only the first packet of a connection; how the numbers are exported.

mod totals;

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    num::NonZeroUsize,
};

use ferroute_core::IpFamily;

pub use self::totals::ConnectionTotals;
use crate::{
    kernel::{Counter, Kernel, NetlinkError, NetlinkKernel, Reading},
    model::{Class, Datum, Element, Key, Set, TableId, Value},
    plan::{Frontend, Order, SetId, TABLE},
};

/// Reads what a family's elements count, again and again.
pub struct ConnectionReader<K = NetlinkKernel> {
    kernel: K,
    table: TableId,
    totals: ConnectionTotals,
    complained: bool,
}

impl ConnectionReader {
    /// Reads in the calling thread's network namespace; so many service ports are told apart.
    pub fn open(family: IpFamily, most: NonZeroUsize) -> Result<Self, NetlinkError> {
        Ok(Self::with_kernel(NetlinkKernel::open()?, family, most))
    }
}

impl<K: Kernel> ConnectionReader<K> {
    /// Reads in any kernel.
    pub fn with_kernel(kernel: K, family: IpFamily, most: NonZeroUsize) -> Self {
        let table = TableId { family, name: TABLE };
        Self { kernel, table, totals: ConnectionTotals::new(most), complained: false }
    }

    /// Reads what was counted and gives the totals. They stay as they are where there is nothing to read: no table yet,
    /// one whose elements do not count, or one with so many that reading would take seconds.
    pub fn read(&mut self) -> Result<&ConnectionTotals, K::Error> {
        let Some(sets) = self.counting_sets()? else { return Ok(&self.totals) };
        let mut services = HashMap::new();
        let reading = self.kernel.counts(&self.table, &sets.services, &mut |element, Counter { packets, .. }| {
            let (frontend, class) = (Frontend::from_key(&element.key), class_of(&element));
            if let Some(((frontend, class), name)) = frontend.zip(class).zip(element.comment) {
                services.insert(frontend, (name.as_str().into(), class, packets));
            }
        })?;
        if reading == Reading::Interrupted {
            // Some may lack, and what lacks would be taken for gone. Rules seldom change twice in a row.
            return Ok(&self.totals);
        }
        self.totals.add_services(services.iter().map(|(frontend, (name, _, packets))| (*frontend, name, *packets)));
        services.retain(|_, (name, ..)| self.totals.tells(name));
        let classes: Vec<(Frontend, Class)> = services.iter().map(|(at, (_, class, _))| (*at, *class)).collect();
        let endpoints = self.endpoints(&sets, &classes)?;
        self.totals.add_endpoints(endpoints.into_iter().filter_map(|(key, (socket, packets))| {
            let (name, ..) = services.get(&Frontend::from_key(&key)?)?;
            Some((key, name, socket, packets))
        }));
        Ok(&self.totals)
    }

    /// The elements of the endpoints of these frontends, each once, though several lists may lead to it.
    fn endpoints(
        &mut self,
        sets: &Sets,
        classes: &[(Frontend, Class)],
    ) -> Result<BTreeMap<Key, (SocketAddr, u64)>, K::Error> {
        let mut local = Vec::new();
        let mut keys = classes.iter().map(|(frontend, _)| frontend.key(self.table.family).into_iter().collect());
        self.kernel.find(&self.table, &sets.local_services, &mut keys, &mut |element, _| {
            local.extend(element.and_then(|element| Some((Frontend::from_key(&element.key)?, class_of(&element)?))));
        })?;
        let mut order = Order::new(self.table.family);
        let mut found = BTreeMap::new();
        for (id, set) in [(SetId::Slots, &sets.slots), (SetId::Endpoints, &sets.endpoints)] {
            let mut new = Vec::new();
            let mut keys = classes.iter().chain(&local).flat_map(|(at, class)| order.keys_of(id, *at, *class));
            self.kernel.find(&self.table, set, &mut keys, &mut |element, counter| {
                new.extend(element.map(|element| (element, counter.unwrap_or_default().packets)));
            })?;
            for (element, packets) in new {
                found.extend(target_of(&element).map(|socket| (element.key.clone(), (socket, packets))));
                order.note(id, element);
            }
        }
        Ok(found)
    }

    fn counting_sets(&mut self) -> Result<Option<Sets>, K::Error> {
        let Some(listing) = self.kernel.listing(&self.table)? else { return Ok(None) };
        let find = |id: SetId| {
            let listed = listing.sets.iter().find(|listed| listed.name == id.name())?;
            Some((listed.set.clone()?, listed.elements))
        };
        let ids = [SetId::Services, SetId::LocalServices, SetId::Slots, SetId::Endpoints];
        let [Some((services, count)), Some((local_services, _)), Some((slots, _)), Some((endpoints, _))] =
            ids.map(find)
        else {
            return Ok(None);
        };
        if count.is_some_and(|count| count > READ_AT_ONCE) {
            if !std::mem::replace(&mut self.complained, true) {
                tracing::warn!(table = %self.table, "connections are not counted: there are too many frontends");
            }
            return Ok(None);
        }
        Ok(services.counter.then_some(Sets { services, local_services, slots, endpoints }))
    }
}

/// How the sets are declared that tell of connections.
struct Sets {
    services: Set,
    local_services: Set,
    slots: Set,
    endpoints: Set,
}

fn class_of(element: &Element) -> Option<Class> {
    match element.datum.as_ref()? {
        Datum::Fields(fields) => match fields[..] {
            [Value::Class(class)] => Some(class),
            _ => None,
        },
        Datum::Verdict(_) => None,
    }
}

fn target_of(element: &Element) -> Option<SocketAddr> {
    match element.datum.as_ref()? {
        Datum::Fields(fields) => match fields[..] {
            [Value::Address(address), Value::Port(port)] => Some(SocketAddr::new(address, port)),
            _ => None,
        },
        Datum::Verdict(_) => None,
    }
}

/// Reading all elements of a map takes quadratic time: 0.3 s for so many, in which nothing has to wait.
const READ_AT_ONCE: usize = 100_000;
