use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ferroute_core::{IpFamily, Protocol};
use ferroute_iptables::{SetMatch, SetSide};

use crate::{
    kernel::KernelState,
    plan::{Entry, IpvsPlan, RealServer, ServerKey, SetKind, SetType},
};

/// Virtual servers, ipsets and addresses of one IP family, planned or read from the kernel.
pub trait IpvsObjects: fmt::Debug {
    /// Returns the real servers of a virtual server with their weights; `None` if there is no such virtual server.
    fn real_servers(&self, key: ServerKey) -> Option<Vec<(RealServer, u32)>>;

    /// Reports whether a set contains an entry.
    fn has_entry(&self, kind: SetKind, entry: Entry) -> bool;

    /// Reports whether the set of source ranges permits this source for a virtual server.
    fn permits_source(&self, key: ServerKey, source: IpAddr) -> bool;

    /// Reports whether the dummy device has an address.
    fn has_address(&self, address: IpAddr) -> bool;
}

impl IpvsObjects for IpvsPlan {
    fn real_servers(&self, key: ServerKey) -> Option<Vec<(RealServer, u32)>> {
        Some(self.servers().get(&key)?.real_servers().iter().map(|(real, weight)| (real, weight.into())).collect())
    }

    fn has_entry(&self, kind: SetKind, entry: Entry) -> bool {
        Self::has_entry(self, kind, entry)
    }

    fn permits_source(&self, key: ServerKey, source: IpAddr) -> bool {
        self.servers().get(&key).is_some_and(|server| server.source_ranges().iter().any(|net| net.contains(&source)))
    }

    fn has_address(&self, address: IpAddr) -> bool {
        Self::has_address(self, address)
    }
}

impl IpvsObjects for KernelState {
    fn real_servers(&self, key: ServerKey) -> Option<Vec<(RealServer, u32)>> {
        Some(self.servers.get(&key)?.real_servers.iter().map(|server| (server.real, server.weight)).collect())
    }

    fn has_entry(&self, kind: SetKind, entry: Entry) -> bool {
        self.entries[kind.index()].contains(&entry)
    }

    fn permits_source(&self, key: ServerKey, source: IpAddr) -> bool {
        let entries = self.entries[SetKind::LoadBalancerSourceCidr.index()].iter();
        let of_networks = entries.filter_map(|entry| match entry {
            Entry::ServiceAndNetwork(of, net) => Some((*of, net, true)),
            Entry::ServiceExceptNetwork(of, net) => Some((*of, net, false)),
            _ => None,
        });
        let matching = of_networks.filter(|(of, net, _)| *of == key && net.contains(&source));
        // The smallest network decides.
        matching.max_by_key(|(_, net, _)| net.prefix_len()).is_some_and(|(.., permits)| permits)
    }

    fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }
}

impl dyn IpvsObjects + '_ {
    /// Reports whether a rule's match on a set matches a packet; `None` if the set is not one of the mode in this IP
    /// family, or if the sides do not fit its type.
    pub fn matches(
        &self,
        wanted: &SetMatch,
        protocol: Protocol,
        source: SocketAddr,
        destination: SocketAddr,
    ) -> Option<bool> {
        let (kind, family) = SetKind::from_name(&wanted.name)?;
        if family != IpFamily::of(destination.ip()) {
            return None;
        }
        let side = |side: &SetSide| match side {
            SetSide::Source => source,
            SetSide::Destination => destination,
        };
        let key = |address: &SetSide, port: &SetSide| ServerKey {
            address: side(address).ip(),
            port: side(port).port(),
            protocol,
        };
        Some(match (kind.set_type(), &*wanted.sides) {
            (SetType::Address, [address]) => self.has_entry(kind, Entry::Address(side(address).ip())),
            (SetType::Port, [port]) => self.has_entry(kind, Entry::Port(side(port).port())),
            (SetType::Service, [address, port]) => self.has_entry(kind, Entry::Service(key(address, port))),
            (SetType::ServiceAndAddress, [address, port, second]) => {
                self.has_entry(kind, Entry::ServiceAndAddress(key(address, port), side(second).ip()))
            }
            (SetType::ServiceAndNetwork, [address, port, second]) => {
                self.permits_source(key(address, port), side(second).ip())
            }
            _ => return None,
        })
    }
}
