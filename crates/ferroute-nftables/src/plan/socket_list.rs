use std::{
    collections::HashSet,
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
/// `old` is a free position. Returns `None` if an endpoint is in `desired` twice.
pub(super) fn arrange(old: &[Option<SocketAddr>], desired: &[SocketAddr]) -> Option<Vec<SocketAddr>> {
    if old.is_empty() {
        // They are sorted.
        let has_repeated = desired.windows(2).any(|pair| pair[0] == pair[1]);
        return (!has_repeated).then(|| desired.to_vec());
    }
    let set: HashSet<SocketAddr> = desired.iter().copied().collect();
    let mut kept: HashSet<SocketAddr> = HashSet::with_capacity(desired.len());
    let mut positions: Vec<Option<SocketAddr>> = old.iter().copied().take(desired.len()).collect();
    positions.resize(desired.len(), None);
    for position in &mut positions {
        // The kernel's table may contain an endpoint twice.
        *position = position.filter(|socket| set.contains(socket) && kept.insert(*socket));
    }
    let mut rest = desired.iter().copied().filter(|socket| !kept.contains(socket));
    positions.into_iter().map(|position| position.or_else(|| rest.next())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(ports: &[u16]) -> Vec<SocketAddr> {
        ports.iter().map(|port| SocketAddr::from(([10, 0, 0, 1], *port))).collect()
    }

    fn arranged(old: &[u16], desired: &[u16]) -> Vec<u16> {
        let old: Vec<Option<SocketAddr>> = sockets(old).into_iter().map(Some).collect();
        arrange(&old, &sockets(desired)).unwrap().iter().map(SocketAddr::port).collect()
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
    fn duplicate_endpoints_are_removed() {
        assert_eq!(arranged(&[1, 1, 2], &[1, 2, 3]), [1, 3, 2]);
    }

    #[test]
    fn repeated_endpoint_cannot_be_arranged() {
        assert_eq!(arrange(&[Some(sockets(&[1])[0])], &sockets(&[1, 2, 1])), None);
        assert_eq!(arrange(&[], &sockets(&[1, 1, 2])), None);
    }
}
