//! The slices of one Service, as small as they can be kept: a large cluster has a million endpoints.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use super::{Candidate, SlicePort, SliceView};
use crate::{Endpoint, Hints, IpFamily, NamespacedName, ServicePortName};

/// Slices in the order of their own names, so that the same slices always give the same endpoints. A list, because most
/// Services have one slice only, and a map of one takes a kilobyte more.
#[derive(Debug, Default)]
pub(super) struct Slices(Vec<Slice>);

#[derive(Debug)]
struct Slice {
    name: NamespacedName,
    ports: Box<[SlicePort]>,
    addresses: Addresses,
    /// Of each address; nothing at all where none has hints, as is usual.
    hints: Box<[Option<Arc<Hints>>]>,
}

/// Addresses of a family with what is known of each.
#[derive(Debug)]
enum Addresses {
    V4(Box<[(Ipv4Addr, State)]>),
    V6(Box<[(Ipv6Addr, State)]>),
}

/// The four conditions of a [`Candidate`] in one byte.
#[derive(Clone, Copy, Debug)]
struct State(u8);

impl Slices {
    /// There is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a slice, or replaces that of the same name; gives the family of the one that was there.
    pub(super) fn set(&mut self, slice: SliceView) -> Option<IpFamily> {
        match self.position(&slice.name) {
            Ok(known) => Some(std::mem::replace(&mut self.0[known], Slice::new(slice)).family()),
            Err(place) => {
                self.0.reserve_exact(1);
                self.0.insert(place, Slice::new(slice));
                None
            }
        }
    }

    /// Removes a slice; gives its family.
    pub(super) fn remove(&mut self, name: &NamespacedName) -> Option<IpFamily> {
        Some(self.0.remove(self.position(name).ok()?).family())
    }

    /// The endpoints of a service port: each address and port once, sorted by their text.
    pub(super) fn endpoints_of(&self, family: IpFamily, port: &ServicePortName) -> Box<[Endpoint]> {
        let mut endpoints = Vec::new();
        for slice in self.0.iter().filter(|slice| slice.family() == family) {
            for port in slice.ports.iter().filter(|of| of.is_for(port)) {
                endpoints.extend(slice.candidates().map(|candidate| candidate.at(port.port)));
            }
        }
        endpoints.sort_by_cached_key(|endpoint: &Endpoint| (endpoint.to_string(), preference(endpoint)));
        endpoints.dedup_by_key(|endpoint| endpoint.socket());
        endpoints.into_boxed_slice()
    }

    /// All of them, as those of this Service.
    pub(super) fn views(&self, service: &NamespacedName) -> impl Iterator<Item = SliceView> {
        self.0.iter().map(|slice| SliceView {
            service: service.clone(),
            name: slice.name.clone(),
            family: slice.family(),
            ports: slice.ports.to_vec(),
            endpoints: slice.candidates().collect(),
        })
    }

    /// Where the slice of this name is, or would be.
    fn position(&self, name: &NamespacedName) -> Result<usize, usize> {
        self.0.binary_search_by(|known| known.name.cmp(name))
    }
}

impl Slice {
    fn new(slice: SliceView) -> Self {
        let SliceView { service: _, name, family, ports, endpoints } = slice;
        let addresses = Addresses::of(family, &endpoints);
        let hinted = endpoints.iter().any(|candidate| candidate.hints.is_some());
        let hints =
            if hinted { endpoints.into_iter().map(|candidate| candidate.hints).collect() } else { Box::default() };
        Self { name, ports: ports.into(), addresses, hints }
    }

    fn family(&self) -> IpFamily {
        match self.addresses {
            Addresses::V4(_) => IpFamily::V4,
            Addresses::V6(_) => IpFamily::V6,
        }
    }

    /// Its endpoints.
    fn candidates(&self) -> impl Iterator<Item = Candidate> {
        let hints = self.hints.iter().cloned().chain(std::iter::repeat(None));
        self.addresses.iter().zip(hints).map(|((address, state), hints)| state.candidate(address, hints))
    }
}

impl Addresses {
    /// A slice holds addresses of its own family only.
    fn of(family: IpFamily, endpoints: &[Candidate]) -> Self {
        let all = endpoints.iter().map(|candidate| (candidate.address, State::of(candidate)));
        match family {
            IpFamily::V4 => Self::V4(
                all.filter_map(|(address, state)| match address {
                    IpAddr::V4(address) => Some((address, state)),
                    IpAddr::V6(_) => None,
                })
                .collect(),
            ),
            IpFamily::V6 => Self::V6(
                all.filter_map(|(address, state)| match address {
                    IpAddr::V6(address) => Some((address, state)),
                    IpAddr::V4(_) => None,
                })
                .collect(),
            ),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (IpAddr, State)> + '_ {
        let (v4, v6) = match self {
            Self::V4(addresses) => (&addresses[..], &[][..]),
            Self::V6(addresses) => (&[][..], &addresses[..]),
        };
        let v4 = v4.iter().map(|(address, state)| (IpAddr::V4(*address), *state));
        v4.chain(v6.iter().map(|(address, state)| (IpAddr::V6(*address), *state)))
    }
}

impl State {
    fn of(candidate: &Candidate) -> Self {
        let Candidate { address: _, ready, serving, terminating, local, hints: _ } = *candidate;
        let bits = [(ready, READY), (serving, SERVING), (terminating, TERMINATING), (local, LOCAL)];
        Self(bits.into_iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum())
    }

    fn candidate(self, address: IpAddr, hints: Option<Arc<Hints>>) -> Candidate {
        let is = |bit| self.0 & bit != 0;
        let (ready, serving, terminating, local) = (is(READY), is(SERVING), is(TERMINATING), is(LOCAL));
        Candidate { address, ready, serving, terminating, local, hints }
    }
}

/// Which of two endpoints with the same address and port is meant, lowest first. While a pod moves between slices it is
/// in both, and a new pod can have the address of one that still terminates: then the one that lives is right.
fn preference(endpoint: &Endpoint) -> (bool, bool, bool, bool) {
    (endpoint.terminating, !endpoint.ready, !endpoint.serving, !endpoint.local)
}

const READY: u8 = 1;
const SERVING: u8 = 2;
const TERMINATING: u8 = 4;
const LOCAL: u8 = 8;
