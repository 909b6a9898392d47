//! Slots: numbers for the endpoints of service ports with session affinity, which do not change when other endpoints
//! are added or removed.
//!
//! ```text
//!   slot 2b1:8003    2b    the endpoint, 12 bits
//!                    1:8003 the list, 20 bits
//! ```
//!
//! The affinity map is keyed by list and client, so a client reaches the same endpoint through all frontends of a
//! service port. Each list has its own slots, because a client that may only reach this node's endpoints must not be
//! sent to another node's.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use ferroute_core::ModeTraits;

use super::{
    list::{CLASS_SHIFT, LIST},
    socket_list::SocketList,
};
use crate::model::ClassId;

/// The slots of a list, by the position of the endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slots {
    numbers: Box<[u16]>,
}

impl Slots {
    /// Assigns slots to a list of at most [`MAX_SLOTS`] different endpoints; endpoints in `previous` keep their slots
    /// if possible.
    pub(super) fn new(endpoints: &SocketList, previous: &[(SocketAddr, ClassId)]) -> Self {
        let mut numbers: HashMap<SocketAddr, u16> = HashMap::with_capacity(previous.len());
        let mut taken: HashSet<u16> = HashSet::with_capacity(previous.len());
        let listed: HashSet<SocketAddr> = endpoints.iter().collect();
        for (socket, slot) in previous.iter().filter(|(socket, _)| listed.contains(socket)) {
            let number = (slot.0 >> CLASS_SHIFT) as u16;
            if number > 0 && !numbers.contains_key(socket) && taken.insert(number) {
                numbers.insert(*socket, number);
            }
        }
        let of_socket = |socket| {
            *numbers.entry(socket).or_insert_with(|| {
                let mut free = (hash_socket(socket) % u64::from(MAX_SLOTS)) as u16;
                while !taken.insert(free + 1) {
                    free = (free + 1) % MAX_SLOTS;
                }
                free + 1
            })
        };
        Self { numbers: endpoints.iter().map(of_socket).collect() }
    }

    /// Returns the slots in a list with this class id, in the order of the list.
    pub(super) fn iter(&self, list: ClassId) -> impl Iterator<Item = ClassId> + '_ {
        self.numbers.iter().map(move |number| ClassId(u32::from(*number) << CLASS_SHIFT | list.0))
    }
}

/// Returns the list of a slot.
pub(super) fn list_of(slot: ClassId) -> ClassId {
    slot.masked(LIST)
}

/// 64-bit FNV-1a: fast, and stable across versions, so that slots after a restart rarely depend on the previous ones.
fn hash(parts: &[&[u8]]) -> u64 {
    parts.iter().copied().flatten().fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

fn hash_socket(socket: SocketAddr) -> u64 {
    let port = socket.port().to_be_bytes();
    match socket {
        SocketAddr::V4(socket) => hash(&[&socket.ip().octets(), &port]),
        SocketAddr::V6(socket) => hash(&[&socket.ip().octets(), &port]),
    }
}

const PRIME: u64 = 0x0000_0100_0000_01b3;
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
/// The maximum number of endpoints in a list with slots: a slot has 12 bits and is not zero.
pub(super) const MAX_SLOTS: u16 = 0xfff;

const _: () = assert!(ModeTraits::NFTABLES.endpoint_limits.sticky <= MAX_SLOTS as usize);

#[cfg(test)]
mod tests {
    use ferroute_core::IpFamily;

    use super::*;

    const LIST_ID: ClassId = ClassId::new(1, 5);

    fn socket(number: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], number))
    }

    fn list(numbers: impl Iterator<Item = u16>) -> SocketList {
        SocketList::new(IpFamily::V4, numbers.map(socket))
    }

    fn pairs(endpoints: &SocketList, slots: &Slots) -> Vec<(SocketAddr, ClassId)> {
        endpoints.iter().zip(slots.iter(LIST_ID)).collect()
    }

    #[test]
    fn endpoints_keep_their_slots_when_others_change() {
        let all = list(1..3000);
        let first = Slots::new(&all, &[]);
        assert_eq!(first.iter(LIST_ID).collect::<HashSet<_>>().len(), 2999);
        let before = pairs(&all, &first);
        let remaining = list((1..3000).filter(|number| number % 3 == 0).chain(5000..6000));
        let second = Slots::new(&remaining, &before);
        let before: HashMap<SocketAddr, ClassId> = before.into_iter().collect();
        let now = pairs(&remaining, &second);
        assert!(now.iter().all(|(socket, slot)| before.get(socket).is_none_or(|previous| previous == slot)));
        assert_eq!(now.iter().map(|(_, slot)| slot).collect::<HashSet<_>>().len(), 1999);
    }

    #[test]
    fn slots_contain_their_list_and_differ_from_it() {
        let all = list(1..MAX_SLOTS + 1);
        for slot in Slots::new(&all, &[]).iter(LIST_ID) {
            assert!(list_of(slot) == LIST_ID && slot != LIST_ID, "{slot}");
        }
    }
}
