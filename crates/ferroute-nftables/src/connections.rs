//! Connections per service port and endpoint, from the counters of elements.
//!
//! ```text
//!   map services:  counter per frontend ──► ConnectionTotals ──► service ports with totals of their own
//!   map endpoints: counter per endpoint ──►        ▲
//!                  (requested for these only)      └── adds the increase since the last reading
//! ```
//!
//! The reader has a socket of its own, so that syncs never wait for it. Its memory and output are bounded: a number of
//! service ports and ten times as many endpoints have totals of their own, and the rest share one. Names come from the
//! elements' comments, so names of more than 128 bytes are truncated.
//!
//! What is *not* here: bytes, because nat rules see only the first packet of a connection; the export of the totals.

mod totals;

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    num::NonZeroUsize,
};

use ferroute_core::{Frontend, IpFamily};

pub use self::totals::ConnectionTotals;
use crate::{
    kernel::{Consistency, Counter, Kernel, NetlinkError, NetlinkKernel},
    model::{ClassId, Data, Element, Key, Set, TableId},
    plan::{EndpointOrder, SetId, TABLE, frontend_from_key, frontend_key},
};

/// Reads the counters of one IP family's elements.
pub struct ConnectionReader<K = NetlinkKernel> {
    kernel: K,
    table: TableId,
    totals: ConnectionTotals,
    warned: bool,
}

impl ConnectionReader {
    /// Opens a reader in the calling thread's network namespace, with totals for up to `max` service ports.
    ///
    /// # Errors
    ///
    /// The netlink sockets could not be opened, or the kernel does not support nf_tables.
    pub fn open(family: IpFamily, max: NonZeroUsize) -> Result<Self, NetlinkError> {
        Ok(Self::with_kernel(NetlinkKernel::open()?, family, max))
    }
}

impl<K: Kernel> ConnectionReader<K> {
    /// Returns a reader on top of any kernel.
    pub fn with_kernel(kernel: K, family: IpFamily, max: NonZeroUsize) -> Self {
        let table = TableId { family, name: TABLE };
        Self { kernel, table, totals: ConnectionTotals::new(max), warned: false }
    }

    /// Reads the counters and returns the totals. They stay unchanged if there is no table, if its elements have no
    /// counters, or if there are so many elements that reading them would take seconds.
    pub fn read(&mut self) -> Result<&ConnectionTotals, K::Error> {
        let Some(sets) = self.counting_sets()? else { return Ok(&self.totals) };
        let mut services = HashMap::new();
        let consistency = self.kernel.dump_elements(&self.table, &sets.services, &mut |element, counter| {
            let Some((element, Counter { packets, .. })) = element.zip(counter) else { return };
            let (frontend, class) = (frontend_from_key(&element.key), class_id(&element));
            if let Some(((frontend, class), name)) = frontend.zip(class).zip(element.comment) {
                services.insert(frontend, (name.as_str().into(), class, packets));
            }
        })?;
        if consistency == Consistency::Interrupted {
            // Missing elements would be taken for removed ones. Two interruptions in a row are rare.
            return Ok(&self.totals);
        }
        self.totals.add_services(services.iter().map(|(frontend, (name, _, packets))| (*frontend, name, *packets)));
        services.retain(|_, (name, ..)| self.totals.has_total(name));
        let classes: Vec<(Frontend, ClassId)> = services.iter().map(|(at, (_, class, _))| (*at, *class)).collect();
        let endpoints = self.endpoints(&sets, &classes)?;
        self.totals.add_endpoints(endpoints.into_iter().filter_map(|(key, (socket, packets))| {
            let (name, ..) = services.get(&frontend_from_key(&key)?)?;
            Some((key, name, socket, packets))
        }));
        Ok(&self.totals)
    }

    /// Returns the counters of the endpoints of these frontends, each once, although several lists can contain an
    /// endpoint.
    fn endpoints(
        &mut self,
        sets: &Sets,
        classes: &[(Frontend, ClassId)],
    ) -> Result<BTreeMap<Key, (SocketAddr, u64)>, K::Error> {
        let mut local = Vec::new();
        let mut keys =
            classes.iter().map(|(frontend, _)| frontend_key(*frontend, self.table.family).into_iter().collect());
        self.kernel.get_elements(&self.table, &sets.local_services, &mut keys, &mut |element, _| {
            local.extend(element.and_then(|element| Some((frontend_from_key(&element.key)?, class_id(&element)?))));
        })?;
        let mut order = EndpointOrder::new(self.table.family);
        let mut counters = BTreeMap::new();
        for (id, set) in [(SetId::Slots, &sets.slots), (SetId::Endpoints, &sets.endpoints)] {
            let mut elements = Vec::new();
            let mut keys = classes.iter().chain(&local).flat_map(|(at, class)| order.keys(id, *at, *class));
            self.kernel.get_elements(&self.table, set, &mut keys, &mut |element, counter| {
                elements.extend(element.map(|element| (element, counter.unwrap_or_default().packets)));
            })?;
            for (element, packets) in elements {
                let socket = element.data.as_ref().and_then(Data::socket_addr);
                counters.extend(socket.map(|socket| (element.key.clone(), (socket, packets))));
                order.insert(id, element);
            }
        }
        Ok(counters)
    }

    fn counting_sets(&mut self) -> Result<Option<Sets>, K::Error> {
        let Some(listing) = self.kernel.list_table(&self.table)? else { return Ok(None) };
        let find = |id: SetId| {
            let listed = listing.sets.iter().find(|listed| listed.name == id.name())?;
            Some((listed.set.clone()?, listed.element_count))
        };
        let ids = [SetId::Services, SetId::LocalServices, SetId::Slots, SetId::Endpoints];
        let [Some((services, count)), Some((local_services, _)), Some((slots, _)), Some((endpoints, _))] =
            ids.map(find)
        else {
            return Ok(None);
        };
        if count.is_some_and(|count| count > MAX_DUMPED_ELEMENTS) {
            if !std::mem::replace(&mut self.warned, true) {
                tracing::warn!(table = %self.table, "too many frontends; connections are not counted");
            }
            return Ok(None);
        }
        Ok(services.counter.then_some(Sets { services, local_services, slots, endpoints }))
    }
}

/// The declarations of the sets with counters, and of those that lead to them.
struct Sets {
    services: Set,
    local_services: Set,
    slots: Set,
    endpoints: Set,
}

fn class_id(element: &Element) -> Option<ClassId> {
    element.data.as_ref()?.class_id()
}

/// A dump takes quadratic time: 0.3 s for this number of elements, during which no sync has to wait.
const MAX_DUMPED_ELEMENTS: usize = 100_000;
