//! Numbers for the endpoints of Services with affinity, which stay the same while other endpoints come and go.
//!
//! ```text
//!   slot 8a3f:2b     8a3f  the owner: one list of one service port, of no other one at that time
//!                    2b    the endpoint, twice its number and one: half of it may not be zero, for `nft` to read it
//! ```
//!
//! Clients are remembered by owner, so whichever frontend of a service port a client comes to, it finds the endpoint that
//! it has had. The lists of a service port have owners of their own, because a client that may only be sent to this
//! node's endpoints must not find one of another node.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use ferroute_core::ServicePortName;

use super::{backends::Backends, counts::Counts, kind::List};
use crate::model::Class;

/// The slots of a list, by the positions of its endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slots {
    owner: u16,
    numbers: Box<[u16]>,
}

/// Who has slots.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotOwners {
    taken: Counts<u16>,
    /// Seen in the kernel; kept for those who have them there.
    reserved: HashSet<u16>,
}

impl Slots {
    /// Gives slots to a list of endpoints. `known` are the slots that they have, or had when somebody last saw them.
    pub(super) fn new(
        (name, list): (&ServicePortName, List),
        endpoints: &Backends,
        known: &[(SocketAddr, Class)],
        owners: &mut SlotOwners,
    ) -> Self {
        if endpoints.is_empty() {
            return Self::default();
        }
        let owner = owners.claim(known.first().map(|(_, slot)| slot.major()), name, list);
        let known: HashMap<SocketAddr, u16> = known.iter().map(|(socket, slot)| (*socket, slot.minor() / 2)).collect();
        let mut taken: HashSet<u16> = HashSet::with_capacity(endpoints.len());
        let mut numbers: Vec<Option<u16>> =
            endpoints.iter().map(|socket| known.get(&socket).copied().filter(|number| taken.insert(*number))).collect();
        for (number, socket) in numbers.iter_mut().zip(endpoints.iter()) {
            number.get_or_insert_with(|| {
                let mut free = (hash_of(socket) % u64::from(NUMBERS)) as u16;
                while !taken.insert(free) {
                    free = (free + 1) % NUMBERS;
                }
                free
            });
        }
        Self { owner, numbers: numbers.into_iter().flatten().collect() }
    }

    /// The slots, in the order of the list.
    pub(super) fn iter(&self) -> impl Iterator<Item = Class> + '_ {
        self.numbers.iter().map(|number| Class::new(self.owner, 2 * number + 1))
    }

    /// Others may have the owner's number.
    pub(super) fn release(&self, owners: &mut SlotOwners) {
        if !self.numbers.is_empty() {
            // It does not matter whether it was the last.
            let _ = owners.taken.release(&self.owner);
        }
    }
}

impl SlotOwners {
    /// Nobody has slots yet; these owners were seen in a kernel.
    pub(super) fn new(seen: impl Iterator<Item = u16>) -> Self {
        Self { taken: Counts::default(), reserved: seen.collect() }
    }

    /// Nobody who was seen comes any more.
    pub(super) fn forget_seen(&mut self) {
        self.reserved = HashSet::new();
    }

    /// The number that it has had, if it can still have it, else one that nobody has. There are 65,280; who finds none
    /// shares one, and its clients may be forgotten when they use the other Service.
    fn claim(&mut self, former: Option<u16>, name: &ServicePortName, list: List) -> u16 {
        let former = former.filter(|owner| *owner >= FIRST_OWNER && !self.taken.contains(owner));
        let owner = former.unwrap_or_else(|| {
            let first = (hash_of_name(name, list) % u64::from(OWNERS)) as u16;
            let all = (0..OWNERS).map(|i| FIRST_OWNER + ((u32::from(first) + u32::from(i)) % u32::from(OWNERS)) as u16);
            let mut free = all.filter(|owner| !self.taken.contains(owner) && !self.reserved.contains(owner));
            free.next().unwrap_or(FIRST_OWNER + first)
        });
        // It does not matter whether it is the first.
        let _ = self.taken.acquire(owner);
        owner
    }
}

/// FNV-1a with 64 bits: quick, and the same in each version of this program, so that it seldom matters what is known.
fn hash(parts: &[&[u8]]) -> u64 {
    parts.iter().copied().flatten().fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

fn hash_of(socket: SocketAddr) -> u64 {
    let port = socket.port().to_be_bytes();
    match socket {
        SocketAddr::V4(socket) => hash(&[&socket.ip().octets(), &port]),
        SocketAddr::V6(socket) => hash(&[&socket.ip().octets(), &port]),
    }
}

fn hash_of_name(name: &ServicePortName, list: List) -> u64 {
    let list = match list {
        List::Cluster => 1,
        List::Local => 2,
    };
    hash(&[name.service.as_str().as_bytes(), b":", name.port.as_bytes(), &[name.protocol.number(), list]])
}

const PRIME: u64 = 0x0000_0100_0000_01b3;
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
/// Owners start where no index of a list can be.
const FIRST_OWNER: u16 = 0x100;
const OWNERS: u16 = u16::MAX - FIRST_OWNER + 1;
/// Endpoints that a list with slots can have.
pub(super) const NUMBERS: u16 = 1 << 15;

#[cfg(test)]
mod tests {
    use ferroute_core::{IpFamily, testing::port_name};

    use super::*;

    fn socket(number: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], number))
    }

    fn list(numbers: impl Iterator<Item = u16>) -> Backends {
        Backends::new(IpFamily::V4, numbers.map(socket))
    }

    fn known(endpoints: &Backends, slots: &Slots) -> Vec<(SocketAddr, Class)> {
        endpoints.iter().zip(slots.iter()).collect()
    }

    fn slots(name: &str, endpoints: &Backends, known: &[(SocketAddr, Class)], owners: &mut SlotOwners) -> Slots {
        Slots::new((&port_name(name), List::Cluster), endpoints, known, owners)
    }

    #[test]
    fn an_endpoint_keeps_its_slot_while_others_come_and_go() {
        let mut owners = SlotOwners::default();
        let all = list(1..3000);
        let first = slots("shop/web:http", &all, &[], &mut owners);
        let distinct: HashSet<Class> = first.iter().collect();
        assert_eq!(distinct.len(), 2999);
        let before = known(&all, &first);
        first.release(&mut owners);
        let others = list((1..3000).filter(|number| number % 3 == 0).chain(5000..6000));
        let second = slots("shop/web:http", &others, &before, &mut owners);
        let before: HashMap<SocketAddr, Class> = before.into_iter().collect();
        let now = known(&others, &second);
        assert!(now.iter().all(|(socket, slot)| before.get(socket).is_none_or(|former| former == slot)));
        assert_eq!(now.iter().map(|(_, slot)| slot).collect::<HashSet<_>>().len(), 1999);
    }

    #[test]
    fn no_half_of_a_slot_is_zero_and_no_slot_is_an_index() {
        let mut owners = SlotOwners::default();
        for slot in slots("shop/web:http", &list(1..3000), &[], &mut owners).iter() {
            assert!(slot.minor() % 2 == 1 && slot.major() >= FIRST_OWNER && List::of_index(slot).is_none(), "{slot}");
            assert_eq!(slot.owner(), Class::new(slot.major(), 1));
        }
    }

    #[test]
    fn owners_differ_and_are_kept_for_those_who_were_seen_with_them() {
        let (endpoints, mut owners) = (list(1..3), SlotOwners::default());
        let owner = |slots: &Slots| slots.owner;
        let web = slots("shop/web:http", &endpoints, &[], &mut owners);
        let local = Slots::new((&port_name("shop/web:http"), List::Local), &endpoints, &[], &mut owners);
        assert_ne!(owner(&web), owner(&local));
        // Somebody else was seen with the number that this one would get.
        let mut owners = SlotOwners::new([owner(&web)].into_iter());
        let other = slots("shop/web:http", &endpoints, &[], &mut owners);
        assert_ne!(owner(&other), owner(&web));
        let seen = slots("shop/cart:http", &endpoints, &known(&endpoints, &web), &mut owners);
        assert_eq!(owner(&seen), owner(&web));
        // Two who were seen with the same number cannot both have it.
        assert_ne!(owner(&slots("shop/two:http", &endpoints, &known(&endpoints, &web), &mut owners)), owner(&web));
    }

    #[test]
    fn who_finds_no_number_shares_one() {
        let (endpoints, mut owners) = (list(1..2), SlotOwners::new(FIRST_OWNER..=u16::MAX));
        assert!(slots("shop/web:http", &endpoints, &[], &mut owners).owner >= FIRST_OWNER);
    }
}
