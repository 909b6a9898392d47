//! Compact storage of a service port's endpoints: a large cluster has a million.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::Endpoint;

/// The endpoints of a service port. Without hints and weights, which is usual, an IPv4 endpoint takes 8 bytes, and an IPv6 endpoint 20.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Endpoints(Stored);

/// Equal endpoints are always stored the same way.
#[derive(Clone, PartialEq, Eq)]
enum Stored {
    V4(Box<[Plain<Ipv4Addr>]>),
    V6(Box<[Plain<Ipv6Addr>]>),
    /// Endpoints of which some have hints or weights.
    Other(Box<[Endpoint]>),
}

/// An endpoint without hints and with the default weight.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Plain<A> {
    address: A,
    port: u16,
    conditions: Conditions,
}

/// The conditions of an endpoint as a bit set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conditions(u8);

impl Endpoints {
    /// Returns the number of endpoints.
    pub fn len(&self) -> usize {
        match &self.0 {
            Stored::V4(endpoints) => endpoints.len(),
            Stored::V6(endpoints) => endpoints.len(),
            Stored::Other(endpoints) => endpoints.len(),
        }
    }

    /// Reports whether there are no endpoints.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns an endpoint by its position.
    pub fn get(&self, i: usize) -> Option<Endpoint> {
        match &self.0 {
            Stored::V4(endpoints) => endpoints.get(i).map(|endpoint| endpoint.to_endpoint()),
            Stored::V6(endpoints) => endpoints.get(i).map(|endpoint| endpoint.to_endpoint()),
            Stored::Other(endpoints) => endpoints.get(i).cloned(),
        }
    }

    /// Returns all endpoints in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Endpoint> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }
}

impl Default for Stored {
    fn default() -> Self {
        Self::V4(Box::default())
    }
}

impl From<Vec<Endpoint>> for Endpoints {
    fn from(endpoints: Vec<Endpoint>) -> Self {
        let v4 = |endpoint: &Endpoint| match endpoint.address {
            IpAddr::V4(address) => Plain::new(address, endpoint),
            IpAddr::V6(_) => None,
        };
        let v6 = |endpoint: &Endpoint| match endpoint.address {
            IpAddr::V6(address) => Plain::new(address, endpoint),
            IpAddr::V4(_) => None,
        };
        if let Some(all) = endpoints.iter().map(v4).collect() {
            return Self(Stored::V4(all));
        }
        Self(match endpoints.iter().map(v6).collect() {
            Some(all) => Stored::V6(all),
            None => Stored::Other(endpoints.into()),
        })
    }
}

impl<const N: usize> From<[Endpoint; N]> for Endpoints {
    fn from(endpoints: [Endpoint; N]) -> Self {
        Vec::from(endpoints).into()
    }
}

impl FromIterator<Endpoint> for Endpoints {
    fn from_iter<I: IntoIterator<Item = Endpoint>>(endpoints: I) -> Self {
        endpoints.into_iter().collect::<Vec<Endpoint>>().into()
    }
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<A: Copy + Into<IpAddr>> Plain<A> {
    /// Returns `None` for an endpoint with hints or a weight other than the default.
    fn new(address: A, endpoint: &Endpoint) -> Option<Self> {
        let Endpoint { address: _, port, ready, serving, terminating, local, node_unknown, ref hints, weight, ejected } =
            *endpoint;
        let conditions = Conditions::new([ready, serving, terminating, local, node_unknown, ejected]);
        let is_plain = hints.is_none() && weight == Endpoint::DEFAULT_WEIGHT;
        is_plain.then_some(Self { address, port, conditions })
    }

    fn to_endpoint(self) -> Endpoint {
        let [ready, serving, terminating, local, node_unknown, ejected] = self.conditions.get();
        Endpoint {
            address: self.address.into(),
            port: self.port,
            ready,
            serving,
            terminating,
            local,
            node_unknown,
            hints: None,
            weight: Endpoint::DEFAULT_WEIGHT,
            ejected,
        }
    }
}

impl Conditions {
    /// Returns the set of these conditions: ready, serving, terminating, local, node unknown, ejected.
    pub(crate) fn new(conditions: [bool; 6]) -> Self {
        Self(conditions.iter().rev().fold(0, |bits, is_set| bits << 1 | u8::from(*is_set)))
    }

    /// Returns the conditions, as [`Conditions::new`] takes them.
    pub(crate) fn get(self) -> [bool; 6] {
        [0, 1, 2, 3, 4, 5].map(|bit| self.0 >> bit & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Hints, testing::endpoint};

    #[test]
    fn endpoints_are_returned_as_they_were_stored() {
        let v4 = || vec![endpoint("10.244.0.2:80"), endpoint("10.244.0.1:81")];
        let v6 = || vec![endpoint("[fd00::2]:80")];
        let hinted = Endpoint { hints: Some(Arc::new(Hints::default())), ..endpoint("10.244.0.2:80") };
        let weighted = Endpoint { weight: 7, ..endpoint("10.244.0.4:80") };
        let others = vec![endpoint("10.244.0.3:80"), hinted, weighted];
        for expected in [v4(), v6(), [v4(), v6()].concat(), others, vec![]] {
            let stored: Endpoints = expected.iter().cloned().collect();
            assert_eq!(stored.iter().collect::<Vec<_>>(), expected);
            assert_eq!((stored.len(), stored.is_empty()), (expected.len(), expected.is_empty()));
            assert_eq!(stored.get(expected.len()), None);
            assert_eq!(stored, expected.into());
        }
    }

    #[test]
    fn all_conditions_are_kept() {
        for bits in 0_u8..64 {
            let conditions = [1, 2, 4, 8, 16, 32].map(|bit| bits & bit != 0);
            assert_eq!(Conditions::new(conditions).get(), conditions);
            let [ready, serving, terminating, local, node_unknown, ejected] = conditions;
            let expected =
                Endpoint { ready, serving, terminating, local, node_unknown, ejected, ..endpoint("10.244.0.2:80") };
            assert_eq!(Endpoints::from([expected.clone()]).get(0), Some(expected));
        }
    }
}
