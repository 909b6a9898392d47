//! Numbers for endpoints that stay the same while other endpoints come and go.

use std::{collections::HashSet, net::SocketAddr};

use crate::model::Class;

/// Gives each endpoint a slot: a number made from its address and port. Two endpoints with the same number is rare; then
/// the later one takes the next that is free.
pub(super) fn slots(sockets: impl Iterator<Item = SocketAddr>) -> Vec<(SocketAddr, Class)> {
    // Sorted, so that the slots do not depend on the order of the endpoints.
    let mut sockets: Vec<SocketAddr> = sockets.collect();
    sockets.sort_unstable();
    sockets.dedup();
    let mut taken = HashSet::with_capacity(sockets.len());
    sockets
        .into_iter()
        .map(|socket| {
            let mut number = hash(socket) % SLOTS;
            while !taken.insert(number) {
                number = (number + 1) % SLOTS;
            }
            (socket, slot(number))
        })
        .collect()
}

/// Numbers below [`SLOTS`] as classes that are no index of a list and that `nft` can read again, for which it wants no
/// half to be zero.
fn slot(number: u64) -> Class {
    let (major, minor) = (number / MINORS, number % MINORS);
    let half = |number: u64| u16::try_from(number).expect("bug: the halves of a slot have 16 bits");
    Class::new(half(FIRST_MAJOR + major), half(1 + minor))
}

/// FNV-1a with 64 bits: quick, and the same in each version of this program, for the kernel remembers slots over
/// restarts.
fn hash(socket: SocketAddr) -> u64 {
    let fold =
        |bytes: &[u8], hash: u64| bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    let hash = match socket {
        SocketAddr::V4(socket) => fold(&socket.ip().octets(), OFFSET),
        SocketAddr::V6(socket) => fold(&socket.ip().octets(), OFFSET),
    };
    fold(&socket.port().to_be_bytes(), hash)
}

const PRIME: u64 = 0x0000_0100_0000_01b3;
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
/// Slots start where no index of a list can be.
const FIRST_MAJOR: u64 = 0x100;
const MINORS: u64 = 0xffff;
/// How many slots there are.
const SLOTS: u64 = (0x1_0000 - FIRST_MAJOR) * MINORS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_depends_on_its_endpoint_alone() {
        let socket = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let many = slots((1..2000).map(socket));
        assert_eq!(slots((1..2000).rev().map(socket)), many);
        assert!(many.contains(&slots(std::iter::once(socket(77)))[0]));
        let distinct: HashSet<Class> = many.iter().map(|(_, slot)| *slot).collect();
        assert_eq!(distinct.len(), many.len());
    }

    #[test]
    fn no_half_of_a_slot_is_zero_and_no_slot_is_an_index() {
        assert_eq!(slot(0), Class::new(0x100, 1));
        assert_eq!(slot(SLOTS - 1), Class::new(0xffff, 0xffff));
    }
}
