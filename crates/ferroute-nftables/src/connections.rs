//! Connections per service port and endpoint, from the counters of elements.
//!
//! ```text
//!   map services:  counter per frontend ──► ConnectionTotals ──► service ports with totals of their own
//!   map endpoints: counter per endpoint ──►        ▲
//!                  (requested for these only)      └── adds the increase since the last reading
//! ```
//!
//! The reader has a separate socket, so that syncs never wait for it. Its memory and output are bounded: a limited
//! number of service ports and ten times as many endpoints have separate totals, and the rest share one total; lists
//! with thousands of positions are not read. Names come from the elements' comments, so names of more than 128 bytes
//! are truncated.
//!
//! Bytes are not counted, because nat rules see only the first packet of a connection. The totals are exported
//! elsewhere.

mod refusals;
mod totals;

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroUsize,
};

use ferroute_core::{IpFamily, Protocol};

pub use self::{refusals::RefusalReader, totals::ConnectionTotals};
use crate::{
    kernel::{Consistency, Counter, Kernel, NetlinkError, NetlinkKernel},
    model::{Data, Key, Set, TableId, Value},
    plan::{ExistingLists, ListNumber, SetId, TABLE, frontend_from_key},
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

    /// Reads the counters and returns the totals, which are 0 for elements without counters. They stay unchanged if there
    /// is no table, or if there are so many elements that reading them would take seconds.
    pub fn read(&mut self) -> Result<&ConnectionTotals, K::Error> {
        let Some(sets) = self.sets()? else { return Ok(&self.totals) };
        let mut services = HashMap::new();
        let mut lists = ExistingLists::default();
        for (id, set) in [(SetId::Services, &sets.services), (SetId::NodePorts, &sets.node_ports)] {
            let consistency = self.kernel.dump_elements(&self.table, set, &mut |element, counter| {
                let Some(element) = element else { return };
                let Counter { packets, .. } = counter.unwrap_or_default();
                let frontend = frontend_from_key(&element.key);
                let name = element.comment.as_ref().map(|comment| Box::from(comment.as_str()));
                lists.insert(id, element);
                let number = frontend.and_then(|frontend| lists.number_at(frontend));
                if let Some(((frontend, number), name)) = frontend.zip(number).zip(name) {
                    services.insert(frontend, (name, number, packets));
                }
            })?;
            if consistency == Consistency::Interrupted {
                // Missing elements would be mistaken for removed ones. Two interruptions in a row are rare.
                return Ok(&self.totals);
            }
        }
        self.totals.add_services(services.iter().map(|(frontend, (name, _, packets))| (*frontend, name, *packets)));
        services.retain(|_, (name, ..)| self.totals.has_total(name));
        let names: HashMap<ListNumber, (&Box<str>, Protocol)> =
            services.iter().map(|(frontend, (name, number, _))| (*number, (name, frontend.protocol))).collect();
        let ports: Vec<(ListNumber, Protocol)> =
            names.iter().map(|(number, (_, protocol))| (*number, *protocol)).collect();
        let mut counters = BTreeMap::new();
        for (id, set) in &sets.lists {
            let mut elements = Vec::new();
            let keys = |port| Some(lists.keys(*id, port)).filter(|keys| keys.len() <= MAX_COUNTED_POSITIONS);
            let mut keys = ports.iter().filter_map(|port| keys(*port)).flatten();
            self.kernel.get_elements(&self.table, set, &mut keys, &mut |element, counter| {
                elements.extend(element.map(|element| (element, counter.unwrap_or_default().packets)));
            })?;
            for (element, packets) in elements {
                let socket = element.data.as_ref().and_then(Data::socket_addr);
                counters.extend(socket.map(|socket| (element.key.clone(), (socket, packets))));
                lists.insert(*id, element);
            }
        }
        self.totals.add_endpoints(counters.into_iter().filter_map(|(key, (socket, packets)): (Key, _)| {
            let Some(Value::ClassId(list)) = key.first() else { return None };
            let (name, _) = names.get(&ListNumber::from_class_id(*list)?.0)?;
            Some((key, *name, socket, packets))
        }));
        Ok(&self.totals)
    }

    fn sets(&mut self) -> Result<Option<Sets>, K::Error> {
        let Some(listing) = self.kernel.list_table(&self.table)? else { return Ok(None) };
        let find = |id: SetId| {
            let listed = listing.sets.iter().find(|listed| listed.name == id.name())?;
            Some((listed.set.clone()?, listed.element_count))
        };
        let (Some((services, count)), Some((node_ports, _))) = (find(SetId::Services), find(SetId::NodePorts)) else {
            return Ok(None);
        };
        let endpoints = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(SetId::Endpoints);
        let ids = [SetId::Lists, SetId::Slots].into_iter().chain(endpoints);
        let Some(lists) = ids.map(|id| Some((id, find(id)?.0))).collect() else { return Ok(None) };
        if count.is_some_and(|count| count > MAX_DUMPED_ELEMENTS) {
            if !std::mem::replace(&mut self.warned, true) {
                tracing::warn!(table = %self.table, "too many frontends; connections are not counted");
            }
            return Ok(None);
        }
        Ok(Some(Sets { services, node_ports, lists }))
    }
}

/// Declarations of the sets that may have counters, and of the sets that lead to them.
struct Sets {
    services: Set,
    node_ports: Set,
    /// Lists, slots and endpoints, in this order.
    lists: Vec<(SetId, Set)>,
}

/// Maximum number of positions in the lists of a service port whose endpoints are counted: the table of a service port
/// that uses hashes has up to 65,536, and all of them would be read every few seconds.
const MAX_COUNTED_POSITIONS: usize = 8_192;

/// Maximum number of dumped elements. A dump takes quadratic time: 0.3 s for this number of elements; syncs do not wait
/// for it.
const MAX_DUMPED_ELEMENTS: usize = 100_000;
