//! Compact storage of a Service's endpoint slices: large clusters have a million endpoints.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use super::{EndpointView, SlicePort, SliceView, interner::Interner};
use crate::{
    Endpoint, Endpoints, Hints, IpFamily, NamespacedName, ServicePortName, Share, endpoints::Conditions,
    parse::FieldError,
};

/// The slices of a Service, sorted by name, so that the same slices always result in the same endpoints.
///
/// This is a list because most Services have one slice, and a map with one element takes a kilobyte more.
#[derive(Debug, Default)]
pub(super) struct Slices(Vec<Slice>);

#[derive(Debug)]
struct Slice {
    name: NamespacedName,
    /// Shared between slices with the same ports.
    ports: Arc<[SlicePort]>,
    addresses: Addresses,
    /// The hints of each address; empty if no address has hints, which is usual.
    hints: Box<[Option<Arc<Hints>>]>,
    /// The weight of each address; empty if all have the default, which is usual.
    weights: Box<[u16]>,
    zones: Zones,
    /// See [`SliceView::ignored`]; empty for nearly all slices.
    ignored: Box<[FieldError]>,
}

/// The zone of each address.
#[derive(Debug, Default)]
struct Zones {
    names: Box<[Arc<str>]>,
    /// Index of each address's zone name plus one, or 0 without a zone; empty if no address has a zone.
    indices: Box<[u8]>,
}

/// Adjustments of the weights of a service port's endpoints.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Adjustments<'a> {
    /// The endpoints that did not answer.
    pub(super) ejected: Option<&'a BTreeSet<SocketAddr>>,
    /// The zone of the node, and the factor of the weights of endpoints in it.
    pub(super) zone: Option<(&'a str, u16)>,
    /// Shares of the endpoints that have less than their full weight.
    pub(super) shares: Option<&'a BTreeMap<SocketAddr, Share>>,
}

/// Addresses of one family with their conditions.
#[derive(Debug)]
enum Addresses {
    V4(Box<[(Ipv4Addr, Conditions)]>),
    V6(Box<[(Ipv6Addr, Conditions)]>),
}

impl Slices {
    /// Reports whether there are no slices.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a slice, or replaces the slice with this name and returns its family.
    pub(super) fn insert(&mut self, slice: SliceView, ports: &mut Interner<[SlicePort]>) -> Option<IpFamily> {
        let slice = Slice::new(slice, ports);
        match self.position(&slice.name) {
            Ok(index) => Some(std::mem::replace(&mut self.0[index], slice).family()),
            Err(index) => {
                self.0.reserve_exact(1);
                self.0.insert(index, slice);
                None
            }
        }
    }

    /// Removes a slice and returns its family.
    pub(super) fn remove(&mut self, name: &NamespacedName) -> Option<IpFamily> {
        Some(self.0.remove(self.position(name).ok()?).family())
    }

    /// Returns the endpoints of a service port, in the order and without duplicates, as [`ServicePortEntry::endpoints`]
    /// documents, and the number of those beyond `limit`, which are left out.
    ///
    /// [`ServicePortEntry::endpoints`]: crate::ServicePortEntry::endpoints
    pub(super) fn endpoints(
        &self,
        family: IpFamily,
        name: &ServicePortName,
        adjustments: Adjustments<'_>,
        limit: usize,
    ) -> (Endpoints, usize) {
        let mut endpoints = Vec::new();
        for slice in self.0.iter().filter(|slice| slice.family() == family) {
            for port in slice.ports.iter().filter(|port| port.matches(name)) {
                endpoints.extend(slice.endpoints().map(|view| {
                    let mut endpoint = view.at(port.port);
                    if let Some((zone, factor)) = adjustments.zone
                        && view.zone.as_deref() == Some(zone)
                    {
                        endpoint.weight = endpoint.weight.saturating_mul(factor);
                    }
                    endpoint
                }));
            }
        }
        sort_by_text(family, &mut endpoints);
        endpoints.dedup_by_key(|endpoint| endpoint.socket());
        let excess = endpoints.len().saturating_sub(limit);
        if excess > 0 {
            keep_preferred(&mut endpoints, limit);
        }
        if let Some(ejected) = adjustments.ejected {
            endpoints.iter_mut().for_each(|endpoint| endpoint.ejected = ejected.contains(&endpoint.socket()));
        }
        if let Some(shares) = adjustments.shares {
            apply_shares(&mut endpoints, shares);
        }
        (endpoints.into(), excess)
    }

    /// Returns all slices, as slices of `service`.
    pub(super) fn views(&self, service: &NamespacedName) -> impl Iterator<Item = SliceView> {
        self.0.iter().map(|slice| SliceView {
            service: service.clone(),
            name: slice.name.clone(),
            family: slice.family(),
            ports: slice.ports.to_vec(),
            endpoints: slice.endpoints().collect(),
            ignored: slice.ignored.clone(),
        })
    }

    /// Returns the index of the slice with this name, or the index at which to insert it.
    fn position(&self, name: &NamespacedName) -> Result<usize, usize> {
        self.0.binary_search_by(|slice| slice.name.cmp(name))
    }
}

impl Slice {
    fn new(slice: SliceView, shared_ports: &mut Interner<[SlicePort]>) -> Self {
        let SliceView { service: _, name, family, ports, endpoints, ignored } = slice;
        let addresses = Addresses::new(family, &endpoints);
        let weighted = endpoints.iter().any(|endpoint| endpoint.weight != Endpoint::DEFAULT_WEIGHT);
        let weights =
            if weighted { endpoints.iter().map(|endpoint| endpoint.weight).collect() } else { Box::default() };
        let zones = Zones::new(&endpoints);
        let hinted = endpoints.iter().any(|endpoint| endpoint.hints.is_some());
        let hints =
            if hinted { endpoints.into_iter().map(|endpoint| endpoint.hints).collect() } else { Box::default() };
        Self { name, ports: shared_ports.share(&ports), addresses, hints, weights, zones, ignored }
    }

    fn family(&self) -> IpFamily {
        match self.addresses {
            Addresses::V4(_) => IpFamily::V4,
            Addresses::V6(_) => IpFamily::V6,
        }
    }

    fn endpoints(&self) -> impl Iterator<Item = EndpointView> {
        let hints = self.hints.iter().cloned().chain(std::iter::repeat(None));
        let weights = self.weights.iter().copied().chain(std::iter::repeat(Endpoint::DEFAULT_WEIGHT));
        let endpoints = self.addresses.iter().zip(hints).zip(weights).zip(self.zones.iter());
        endpoints.map(|((((address, conditions), hints), weight), zone)| view(address, conditions, hints, weight, zone))
    }
}

impl Zones {
    fn new(endpoints: &[EndpointView]) -> Self {
        let names: BTreeSet<Arc<str>> = endpoints.iter().filter_map(|endpoint| endpoint.zone.clone()).collect();
        if names.is_empty() {
            return Self::default();
        }
        // No cluster has as many zones; endpoints in any further zones count as having none.
        let names: Box<[Arc<str>]> = names.into_iter().take(usize::from(u8::MAX)).collect();
        let index = |endpoint: &EndpointView| {
            let found = endpoint.zone.as_ref().and_then(|zone| names.binary_search(zone).ok());
            found.and_then(|index| u8::try_from(index + 1).ok()).unwrap_or_default()
        };
        Self { indices: endpoints.iter().map(index).collect(), names }
    }

    fn iter(&self) -> impl Iterator<Item = Option<Arc<str>>> {
        let indices = self.indices.iter().copied().chain(std::iter::repeat(0));
        indices.map(|index| self.names.get(usize::from(index).checked_sub(1)?).cloned())
    }
}

/// Multiplies weights by shares, and reduces the results.
fn apply_shares(endpoints: &mut [Endpoint], shares: &BTreeMap<SocketAddr, Share>) {
    let share = |endpoint: &Endpoint| shares.get(&endpoint.socket()).copied().unwrap_or(Share::FULL);
    let mut accepting = endpoints.iter().filter(|endpoint| endpoint.accepts()).map(share);
    let first = accepting.next();
    if accepting.all(|other| Some(other) == first) {
        return;
    }
    let weights: Vec<u32> =
        endpoints.iter().map(|endpoint| u32::from(endpoint.weight) * u32::from(share(endpoint).get())).collect();
    // Other endpoints do not count: an endpoint that gets no connections must not change the numbers of those that do.
    let counted = endpoints.iter().zip(&weights).filter(|(endpoint, _)| endpoint.accepts()).map(|(_, weight)| *weight);
    let divisor = counted.fold(0, gcd).max(1);
    for (endpoint, weight) in endpoints.iter_mut().zip(weights).filter(|(endpoint, _)| endpoint.weight > 0) {
        endpoint.weight = u16::try_from((weight / divisor).max(1)).unwrap_or(u16::MAX);
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Addresses {
    /// Returns compact storage for endpoints, which must have addresses of `family`.
    fn new(family: IpFamily, endpoints: &[EndpointView]) -> Self {
        let all = endpoints.iter().map(|endpoint| (endpoint.address, conditions(endpoint)));
        match family {
            IpFamily::V4 => Self::V4(
                all.filter_map(|(address, conditions)| match address {
                    IpAddr::V4(address) => Some((address, conditions)),
                    IpAddr::V6(_) => None,
                })
                .collect(),
            ),
            IpFamily::V6 => Self::V6(
                all.filter_map(|(address, conditions)| match address {
                    IpAddr::V6(address) => Some((address, conditions)),
                    IpAddr::V4(_) => None,
                })
                .collect(),
            ),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (IpAddr, Conditions)> + '_ {
        let (v4, v6) = match self {
            Self::V4(addresses) => (&addresses[..], &[][..]),
            Self::V6(addresses) => (&[][..], &addresses[..]),
        };
        let v4 = v4.iter().map(|(address, conditions)| (IpAddr::V4(*address), *conditions));
        v4.chain(v6.iter().map(|(address, conditions)| (IpAddr::V6(*address), *conditions)))
    }
}

fn conditions(endpoint: &EndpointView) -> Conditions {
    let EndpointView { address: _, ready, serving, terminating, local, node_unknown, hints: _, weight: _, zone: _ } =
        *endpoint;
    Conditions::new([ready, serving, terminating, local, node_unknown, false])
}

fn view(
    address: IpAddr,
    conditions: Conditions,
    hints: Option<Arc<Hints>>,
    weight: u16,
    zone: Option<Arc<str>>,
) -> EndpointView {
    let [ready, serving, terminating, local, node_unknown, _] = conditions.get();
    EndpointView { address, ready, serving, terminating, local, node_unknown, hints, weight, zone }
}

/// Removes all but `limit` endpoints and keeps their order. Ready endpoints are preferred.
fn keep_preferred(endpoints: &mut Vec<Endpoint>, limit: usize) {
    let mut order: Vec<usize> = (0..endpoints.len()).collect();
    order.sort_by_key(|i| preference(&endpoints[*i]));
    let mut is_kept = vec![false; endpoints.len()];
    order[..limit].iter().for_each(|i| is_kept[*i] = true);
    let mut is_kept = is_kept.into_iter();
    endpoints.retain(|_| is_kept.next() == Some(true));
}

/// Sorts endpoints by their text, and those with the same text by [`preference`]. IPv4 addresses are not formatted for
/// this, because large clusters have a million endpoints.
fn sort_by_text(family: IpFamily, endpoints: &mut [Endpoint]) {
    match family {
        IpFamily::V4 => endpoints.sort_by_cached_key(|endpoint| (ipv4_key(endpoint), preference(endpoint))),
        IpFamily::V6 => endpoints.sort_by_cached_key(|endpoint| {
            let mut text = [0; LONGEST_TEXT];
            write!(&mut text[..], "{endpoint}").expect("no text is longer");
            (text, preference(endpoint))
        }),
    }
}

/// Returns a number that orders IPv4 endpoints like their text. A number in the text is followed by a dot or by the
/// end, both of which sort before digits, or by a colon, which sorts after them.
fn ipv4_key(endpoint: &Endpoint) -> u64 {
    const BEFORE_DOT: [u32; 256] = octet_keys(0);
    const BEFORE_COLON: [u32; 256] = octet_keys(11);
    let IpAddr::V4(address) = endpoint.address else { unreachable!("slices have addresses of their family") };
    let [a, b, c, d] = address.octets().map(usize::from);
    let octets = [BEFORE_DOT[a], BEFORE_DOT[b], BEFORE_DOT[c], BEFORE_COLON[d]];
    let key = octets.into_iter().fold(0, |key, octet| key << 11 | u64::from(octet));
    key << 18 | u64::from(digits_key::<10_000>(endpoint.port, 0))
}

const fn octet_keys(after: u32) -> [u32; 256] {
    let (mut keys, mut octet) = ([0; 256], 0);
    while octet < keys.len() {
        keys[octet] = digits_key::<100>(octet as u16, after);
        octet += 1;
    }
    keys
}

/// Returns the digits of a number, each plus one, as digits of base 12. Each digit that the number lacks compared with
/// `MOST` is `after`.
const fn digits_key<const MOST: u16>(number: u16, after: u32) -> u32 {
    let (mut key, mut missing, mut place) = (0, 0, MOST);
    while place > 0 {
        if number >= place || place == 1 {
            key = key * 12 + 1 + (number / place % 10) as u32;
        } else {
            missing += 1;
        }
        place /= 10;
    }
    while missing > 0 {
        key = key * 12 + after;
        missing -= 1;
    }
    key
}

/// The length of the longest text of an endpoint, `[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535`.
const LONGEST_TEXT: usize = 47;

/// Returns the sort key of endpoints with the same address and port, of which the first is used. A pod that moves
/// between slices is in both for a moment, and a new pod can have the address of one that is still terminating; the new
/// one is then used.
fn preference(endpoint: &Endpoint) -> (bool, bool, bool, bool) {
    (endpoint.terminating, !endpoint.ready, !endpoint.serving, !endpoint.local)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::testing::endpoint;

    /// Generates numbers that are prefixes of each other.
    fn number(most: u16) -> impl Strategy<Value = u16> {
        prop_oneof![0..=most, prop::sample::select(&[0, 1, 2, 10, 11, 19, 100, 101, 110, 199][..])]
    }

    fn address(family: IpFamily) -> BoxedStrategy<IpAddr> {
        let bytes = vec(number(255).prop_map(|number| number as u8), 4);
        match family {
            IpFamily::V4 => bytes.prop_map(|bytes| IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap())).boxed(),
            IpFamily::V6 => {
                prop::array::uniform8(prop_oneof![Just(0), Just(u16::MAX), any::<u16>()]).prop_map(IpAddr::from).boxed()
            }
        }
    }

    proptest! {
        #[test]
        fn endpoints_are_sorted_as_their_texts(
            family in prop::sample::select(&IpFamily::BOTH[..]),
            sockets in vec((address(IpFamily::V4), address(IpFamily::V6), number(u16::MAX)), 0..20),
        ) {
            let of_family = |(v4, v6, port)| SocketAddr::new(if family == IpFamily::V4 { v4 } else { v6 }, port);
            let mut endpoints: Vec<Endpoint> =
                sockets.into_iter().map(|socket| endpoint(&of_family(socket).to_string())).collect();
            sort_by_text(family, &mut endpoints);
            let texts: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
            prop_assert!(texts.is_sorted(), "{texts:?}");
        }
    }
}
