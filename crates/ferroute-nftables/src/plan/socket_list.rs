use std::{
    collections::HashMap,
    net::{SocketAddr, SocketAddrV4, SocketAddrV6},
};

use ferroute_core::IpFamily;

/// An ordered list of the addresses and ports of endpoints of one IP family. Compact, because a large cluster has a
/// million endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum SocketList {
    #[default]
    Empty,
    V4(Box<[SocketAddrV4]>),
    V6(Box<[SocketAddrV6]>),
}

impl SocketList {
    pub(super) fn new(family: IpFamily, sockets: impl Iterator<Item = SocketAddr>) -> Self {
        let mut sockets = sockets.peekable();
        if sockets.peek().is_none() {
            return Self::Empty;
        }
        // All endpoints of a table have its IP family.
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
            Self::Empty => 0,
            Self::V4(sockets) => sockets.len(),
            Self::V6(sockets) => sockets.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        let (v4, v6) = match self {
            Self::Empty => (&[][..], &[][..]),
            Self::V4(sockets) => (&sockets[..], &[][..]),
            Self::V6(sockets) => (&[][..], &sockets[..]),
        };
        v4.iter().copied().map(SocketAddr::V4).chain(v6.iter().copied().map(SocketAddr::V6))
    }
}

/// Arranges `desired` in an order that differs from `old` in as few positions as possible: endpoints in both keep their
/// position, and new endpoints, then those from the end of the list, take the positions of removed ones. `None` in
/// `old` is a free position. An endpoint may occur several times.
pub(super) fn arrange(old: &[Option<SocketAddr>], desired: &[SocketAddr]) -> Vec<SocketAddr> {
    if old.is_empty() {
        return desired.to_vec();
    }
    let mut missing: HashMap<SocketAddr, usize> = HashMap::with_capacity(desired.len());
    desired.iter().for_each(|socket| *missing.entry(*socket).or_default() += 1);
    let mut take = |socket: &SocketAddr| match missing.get_mut(socket) {
        Some(count @ 1..) => {
            *count -= 1;
            true
        }
        _ => false,
    };
    let mut positions: Vec<Option<SocketAddr>> = old.iter().copied().take(desired.len()).collect();
    positions.resize(desired.len(), None);
    for position in &mut positions {
        // The kernel's table may contain an endpoint more often.
        *position = position.filter(&mut take);
    }
    let mut rest = desired.iter().copied().filter(take);
    positions.into_iter().filter_map(|position| position.or_else(|| rest.next())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(ports: &[u16]) -> Vec<SocketAddr> {
        ports.iter().map(|port| SocketAddr::from(([10, 0, 0, 1], *port))).collect()
    }

    fn arranged(old: &[u16], desired: &[u16]) -> Vec<u16> {
        let old: Vec<Option<SocketAddr>> = sockets(old).into_iter().map(Some).collect();
        arrange(&old, &sockets(desired)).iter().map(SocketAddr::port).collect()
    }

    #[test]
    fn last_endpoint_replaces_a_removed_one() {
        assert_eq!(arranged(&[1, 2, 3, 4], &[2, 3, 4]), [4, 2, 3]);
        assert_eq!(arranged(&[1, 2, 3, 4], &[1, 2, 3]), [1, 2, 3]);
    }

    #[test]
    fn new_endpoint_takes_a_free_position_or_the_end() {
        assert_eq!(arranged(&[3, 1], &[1, 2, 3]), [3, 1, 2]);
        assert_eq!(arranged(&[1, 2, 3], &[1, 3, 4]), [1, 4, 3]);
        assert_eq!(arranged(&[], &[1, 2]), [1, 2]);
    }

    #[test]
    fn endpoints_are_repeated_as_often_as_desired() {
        assert_eq!(arranged(&[1, 1, 2], &[1, 2, 3]), [1, 3, 2]);
        assert_eq!(arranged(&[1, 2, 3], &[1, 1, 1, 2]), [1, 2, 1, 1]);
        assert_eq!(arranged(&[1, 2, 1, 1], &[1, 1, 2, 2]), [1, 2, 1, 2]);
    }
}
