//! Slots: numbers for the endpoints of service ports with session affinity, which do not change when other endpoints
//! are added or removed.
//!
//! ```text
//!   slot 8a3f:2b     8a3f  the owner: one list of one service port
//!                    2b    the endpoint: twice its number plus one, because `nft` does not parse a zero half
//! ```
//!
//! The affinity map is keyed by owner and client, so a client reaches the same endpoint through all frontends of a
//! service port. Each list has its own owner, because a client that may only reach this node's endpoints must not be
//! sent to another node's.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use ferroute_core::ServicePortName;

use super::{kind::ListId, shared::RefCounts, socket_list::SocketList};
use crate::model::ClassId;

/// The slots of a list, by the position of the endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slots {
    owner: u16,
    numbers: Box<[u16]>,
}

/// The owner numbers in use.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotOwners {
    taken: RefCounts<u16>,
    /// Numbers in the kernel's table, for service ports that were not planned yet.
    reserved: HashSet<u16>,
}

impl Slots {
    /// Assigns slots to a list of endpoints, if possible those in `previous`.
    pub(super) fn new(
        (name, list): (&ServicePortName, ListId),
        endpoints: &SocketList,
        previous: &[(SocketAddr, ClassId)],
        owners: &mut SlotOwners,
    ) -> Self {
        if endpoints.is_empty() {
            return Self::default();
        }
        let owner = owners.claim(previous.first().map(|(_, slot)| slot.major()), name, list);
        let previous: HashMap<SocketAddr, u16> =
            previous.iter().map(|(socket, slot)| (*socket, slot.minor() / 2)).collect();
        let mut taken: HashSet<u16> = HashSet::with_capacity(endpoints.len());
        let mut numbers: Vec<Option<u16>> = endpoints
            .iter()
            .map(|socket| previous.get(&socket).copied().filter(|number| taken.insert(*number)))
            .collect();
        for (number, socket) in numbers.iter_mut().zip(endpoints.iter()) {
            number.get_or_insert_with(|| {
                let mut free = (hash_socket(socket) % u64::from(NUMBERS)) as u16;
                while !taken.insert(free) {
                    free = (free + 1) % NUMBERS;
                }
                free
            });
        }
        Self { owner, numbers: numbers.into_iter().flatten().collect() }
    }

    /// Returns the slots, in the order of the list.
    pub(super) fn iter(&self) -> impl Iterator<Item = ClassId> + '_ {
        self.numbers.iter().map(|number| ClassId::new(self.owner, 2 * number + 1))
    }

    /// Releases the owner number.
    pub(super) fn release(&self, owners: &mut SlotOwners) {
        if !self.numbers.is_empty() {
            // The count is irrelevant: numbers can be shared.
            let _ = owners.taken.release(&self.owner);
        }
    }
}

impl SlotOwners {
    /// Returns an empty state that reserves the owner numbers in the kernel's table.
    pub(super) fn new(reserved: impl Iterator<Item = u16>) -> Self {
        Self { taken: RefCounts::default(), reserved: reserved.collect() }
    }

    /// Ends the reservation of the numbers in the kernel's table.
    pub(super) fn clear_reserved(&mut self) {
        self.reserved = HashSet::new();
    }

    /// Returns the previous number if it is available, else a free one. There are 65,280; when none is free, two lists
    /// share a number, and their clients may lose their affinity when they use both Services.
    fn claim(&mut self, previous: Option<u16>, name: &ServicePortName, list: ListId) -> u16 {
        let previous = previous.filter(|owner| *owner >= FIRST_OWNER && !self.taken.contains(owner));
        let owner = previous.unwrap_or_else(|| {
            let first = (hash_list(name, list) % u64::from(OWNERS)) as u16;
            let candidates =
                (0..OWNERS).map(|i| FIRST_OWNER + ((u32::from(first) + u32::from(i)) % u32::from(OWNERS)) as u16);
            let mut free = candidates.filter(|owner| !self.taken.contains(owner) && !self.reserved.contains(owner));
            free.next().unwrap_or(FIRST_OWNER + first)
        });
        // The count is irrelevant: numbers can be shared.
        let _ = self.taken.acquire(owner);
        owner
    }
}

/// 64-bit FNV-1a: fast, and stable across versions, so that a restart rarely depends on the previous slots.
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

fn hash_list(name: &ServicePortName, list: ListId) -> u64 {
    let list = match list {
        ListId::Cluster => 1,
        ListId::Local => 2,
    };
    hash(&[name.service.as_str().as_bytes(), b":", name.port.as_bytes(), &[name.protocol.number(), list]])
}

const PRIME: u64 = 0x0000_0100_0000_01b3;
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
/// The first owner number; smaller ones are list numbers.
const FIRST_OWNER: u16 = 0x100;
const OWNERS: u16 = u16::MAX - FIRST_OWNER + 1;
/// The maximum number of endpoints in a list with slots.
pub(super) const NUMBERS: u16 = 1 << 15;

#[cfg(test)]
mod tests {
    use ferroute_core::{IpFamily, testing::port_name};

    use super::*;

    fn socket(number: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], number))
    }

    fn list(numbers: impl Iterator<Item = u16>) -> SocketList {
        SocketList::new(IpFamily::V4, numbers.map(socket))
    }

    fn pairs(endpoints: &SocketList, slots: &Slots) -> Vec<(SocketAddr, ClassId)> {
        endpoints.iter().zip(slots.iter()).collect()
    }

    fn slots(name: &str, endpoints: &SocketList, previous: &[(SocketAddr, ClassId)], owners: &mut SlotOwners) -> Slots {
        Slots::new((&port_name(name), ListId::Cluster), endpoints, previous, owners)
    }

    #[test]
    fn endpoints_keep_their_slots_when_others_change() {
        let mut owners = SlotOwners::default();
        let all = list(1..3000);
        let first = slots("shop/web:http", &all, &[], &mut owners);
        let distinct: HashSet<ClassId> = first.iter().collect();
        assert_eq!(distinct.len(), 2999);
        let before = pairs(&all, &first);
        first.release(&mut owners);
        let remaining = list((1..3000).filter(|number| number % 3 == 0).chain(5000..6000));
        let second = slots("shop/web:http", &remaining, &before, &mut owners);
        let before: HashMap<SocketAddr, ClassId> = before.into_iter().collect();
        let now = pairs(&remaining, &second);
        assert!(now.iter().all(|(socket, slot)| before.get(socket).is_none_or(|previous| previous == slot)));
        assert_eq!(now.iter().map(|(_, slot)| slot).collect::<HashSet<_>>().len(), 1999);
    }

    #[test]
    fn slots_have_no_zero_half_and_differ_from_indexes() {
        let mut owners = SlotOwners::default();
        for slot in slots("shop/web:http", &list(1..3000), &[], &mut owners).iter() {
            assert!(
                slot.minor() % 2 == 1 && slot.major() >= FIRST_OWNER && ListId::from_index(slot).is_none(),
                "{slot}"
            );
            assert_eq!(slot.owner(), ClassId::new(slot.major(), 1));
        }
    }

    #[test]
    fn owners_are_unique_and_reserved_for_their_previous_lists() {
        let (endpoints, mut owners) = (list(1..3), SlotOwners::default());
        let owner = |slots: &Slots| slots.owner;
        let web = slots("shop/web:http", &endpoints, &[], &mut owners);
        let local = Slots::new((&port_name("shop/web:http"), ListId::Local), &endpoints, &[], &mut owners);
        assert_ne!(owner(&web), owner(&local));
        // The kernel's table has another list with the number that this one would get.
        let mut owners = SlotOwners::new([owner(&web)].into_iter());
        let other = slots("shop/web:http", &endpoints, &[], &mut owners);
        assert_ne!(owner(&other), owner(&web));
        let previous = slots("shop/cart:http", &endpoints, &pairs(&endpoints, &web), &mut owners);
        assert_eq!(owner(&previous), owner(&web));
        // Of two lists with the same previous number, one gets another.
        assert_ne!(owner(&slots("shop/two:http", &endpoints, &pairs(&endpoints, &web), &mut owners)), owner(&web));
    }

    #[test]
    fn owner_number_is_shared_when_none_is_free() {
        let (endpoints, mut owners) = (list(1..2), SlotOwners::new(FIRST_OWNER..=u16::MAX));
        assert!(slots("shop/web:http", &endpoints, &[], &mut owners).owner >= FIRST_OWNER);
    }
}
