use std::{
    collections::HashSet,
    net::{SocketAddr, SocketAddrV4, SocketAddrV6},
};

use ferroute_core::IpFamily;

/// Addresses and ports of endpoints in an order, of one family. Kept small: a large cluster has a million of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Backends {
    V4(Box<[SocketAddrV4]>),
    V6(Box<[SocketAddrV6]>),
}

impl Backends {
    pub(super) fn new(family: IpFamily, sockets: impl Iterator<Item = SocketAddr>) -> Self {
        // A table holds endpoints of its own family only.
        match family {
            IpFamily::V4 => Self::V4(
                sockets
                    .filter_map(|socket| match socket {
                        SocketAddr::V4(socket) => Some(socket),
                        SocketAddr::V6(_) => None,
                    })
                    .collect(),
            ),
            IpFamily::V6 => Self::V6(
                sockets
                    .filter_map(|socket| match socket {
                        SocketAddr::V6(socket) => Some(socket),
                        SocketAddr::V4(_) => None,
                    })
                    .collect(),
            ),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::V4(sockets) => sockets.len(),
            Self::V6(sockets) => sockets.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        let (v4, v6) = match self {
            Self::V4(sockets) => (&sockets[..], &[][..]),
            Self::V6(sockets) => (&[][..], &sockets[..]),
        };
        v4.iter().copied().map(SocketAddr::V4).chain(v6.iter().copied().map(SocketAddr::V6))
    }
}

/// Puts `wanted` into an order that differs from `old` in as few positions as possible: what stays keeps its place, and
/// the places of those that go are taken by those that come, then by those at the end. `None` in `old` is a free place.
pub(super) fn arrange(old: &[Option<SocketAddr>], wanted: &[SocketAddr]) -> Vec<SocketAddr> {
    if old.is_empty() {
        return wanted.to_vec();
    }
    let set: HashSet<SocketAddr> = wanted.iter().copied().collect();
    let mut kept: HashSet<SocketAddr> = HashSet::with_capacity(wanted.len());
    let mut places: Vec<Option<SocketAddr>> = old.iter().copied().take(wanted.len()).collect();
    places.resize(wanted.len(), None);
    for place in &mut places {
        // An order that was read from the kernel can name an endpoint twice.
        *place = place.filter(|socket| set.contains(socket) && kept.insert(*socket));
    }
    let mut others = wanted.iter().copied().filter(|socket| !kept.contains(socket));
    places.into_iter().map(|place| place.or_else(|| others.next()).expect("bug: as many places as endpoints")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(ports: &[u16]) -> Vec<SocketAddr> {
        ports.iter().map(|port| SocketAddr::from(([10, 0, 0, 1], *port))).collect()
    }

    fn arranged(old: &[u16], wanted: &[u16]) -> Vec<u16> {
        let old: Vec<Option<SocketAddr>> = sockets(old).into_iter().map(Some).collect();
        arrange(&old, &sockets(wanted)).iter().map(SocketAddr::port).collect()
    }

    #[test]
    fn the_last_takes_the_place_of_one_that_goes() {
        assert_eq!(arranged(&[1, 2, 3, 4], &[2, 3, 4]), [4, 2, 3]);
        assert_eq!(arranged(&[1, 2, 3, 4], &[1, 2, 3]), [1, 2, 3]);
    }

    #[test]
    fn one_that_comes_goes_to_the_end_or_to_a_free_place() {
        assert_eq!(arranged(&[3, 1], &[1, 2, 3]), [3, 1, 2]);
        assert_eq!(arranged(&[1, 2, 3], &[1, 3, 4]), [1, 4, 3]);
        assert_eq!(arranged(&[], &[1, 2]), [1, 2]);
    }

    #[test]
    fn an_order_with_an_endpoint_twice_is_mended() {
        assert_eq!(arranged(&[1, 1, 2], &[1, 2, 3]), [1, 3, 2]);
    }
}
