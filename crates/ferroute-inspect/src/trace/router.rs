//! Routing of this machine's kernel, which traces query for each packet.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use ferroute_core::{IpFamily, error_chain};
use ferroute_host::{
    Bridge, HostInterface, InterfaceAddress, KernelRoutes, RouteError, RouteQuery, RouteReply, SERVICE_DEVICE, Sysctls,
    bridge_nf_call, bridges,
};
use ferroute_trace::{AddressKind, RouteDecision, RoutedPacket, Router};
use ipnet::IpNet;

use super::routes::other_interface;

/// The routes of this machine's kernel in the network namespace of the thread that opened it.
///
/// Interfaces, their addresses and the types of addresses are read once. Routes are looked up by the kernel, which knows
/// policy rules, VRFs, multipath routes, metrics and filters.
#[derive(Debug)]
pub(super) struct KernelRouter {
    interfaces: Vec<HostInterface>,
    /// Networks whose addresses are local or broadcast addresses, with their type and the index of the interface.
    own: Vec<(IpNet, AddressKind, Option<u32>)>,
    /// Bridges without a port in hairpin mode.
    one_way: Vec<String>,
    sysctls: Sysctls,
    lookups: Mutex<Lookups>,
    /// Whether any packet has a realm; `None` if it is unknown.
    realms: OnceLock<Option<bool>>,
    /// Whether the host uses IPsec; `None` if it is unknown.
    ipsec: OnceLock<Option<bool>>,
}

#[derive(Debug)]
struct Lookups {
    kernel: KernelRoutes,
    /// Cache of decisions: thousands of endpoints share a few routes, but each has a separate query.
    known: HashMap<RouteQuery, RouteDecision>,
    /// The interfaces of all paths.
    paths: HashMap<RouteQuery, Vec<u32>>,
}

impl KernelRouter {
    /// Reads interfaces and addresses.
    pub(super) fn open() -> Result<Self, RouteError> {
        let mut kernel = KernelRoutes::open()?;
        let interfaces = kernel.interfaces()?;
        let service_device = index(&interfaces, SERVICE_DEVICE);
        let own = kernel.list()?.into_iter().filter(|route| route.table == u32::from(libc::RT_TABLE_LOCAL));
        let own = own.filter_map(|route| {
            let kind = match route.kind {
                libc::RTN_LOCAL if route.interface.is_some() && route.interface == service_device => return None,
                libc::RTN_LOCAL => AddressKind::Local,
                libc::RTN_BROADCAST => AddressKind::Broadcast,
                _ => return None,
            };
            Some((IpNet::new(route.destination, route.prefix_len).ok()?, kind, route.interface))
        });
        let own = own.collect();
        let lookups = Mutex::new(Lookups { kernel, known: HashMap::new(), paths: HashMap::new() });
        // Without them the trace is as good as from a dump.
        let bridges = bridges().unwrap_or_default().into_iter();
        let one_way = bridges.filter(is_one_way).map(|bridge| bridge.name).collect();
        let (realms, ipsec) = (OnceLock::new(), OnceLock::new());
        Ok(Self { interfaces, own, one_way, sysctls: Sysctls::from_kernel(), lookups, realms, ipsec })
    }

    /// Returns the addresses of all interfaces in their order, except for those of ipvs mode's dummy device.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let interfaces = self.interfaces.iter().filter(|interface| interface.name != SERVICE_DEVICE);
        interfaces.flat_map(|interface| &interface.addresses).map(|address| address.address).collect()
    }

    fn index(&self, name: &str) -> Option<u32> {
        index(&self.interfaces, name)
    }

    fn interface(&self, index: u32) -> Option<&HostInterface> {
        self.interfaces.iter().find(|interface| interface.index == index)
    }

    fn look_up(&self, query: RouteQuery) -> RouteDecision {
        let mut lookups = self.lookups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(decision) = lookups.known.get(&query) {
            return decision.clone();
        }
        let reply = lookups.kernel.lookup(&query);
        drop(lookups);
        let decision = match reply {
            Ok(RouteReply::Found(route)) if is_for_host(route.kind) => RouteDecision::Local { source: route.source },
            Ok(RouteReply::Found(route)) => RouteDecision::Unicast {
                interface: self.interface(route.interface).map_or("", |interface| &interface.name).into(),
                gateway: route.gateway,
                source: route.source,
            },
            Ok(RouteReply::Refused(errno)) => self.refusal(errno, &query),
            Err(error) => RouteDecision::Unknown(error_chain(&error)),
        };
        let mut lookups = self.lookups.lock().unwrap_or_else(PoisonError::into_inner);
        lookups.known.insert(query, decision.clone());
        decision
    }

    /// Returns the decision behind an error of the kernel.
    fn refusal(&self, errno: i32, query: &RouteQuery) -> RouteDecision {
        match errno {
            libc::EHOSTUNREACH if query.input.is_some_and(|input| !self.forwards(input)) => {
                // Without forwarding, the kernel does not route packets of other hosts. Hosts are assumed to forward.
                self.look_up(RouteQuery { input: None, source: None, ..query.clone() })
            }
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EAGAIN => RouteDecision::Unreachable,
            libc::EACCES => RouteDecision::Prohibited,
            libc::EINVAL | libc::EXDEV => match self.reverse_path_filter(query) {
                Some(reason) => RouteDecision::Dropped(reason.into()),
                None => RouteDecision::Dropped("blackhole route".into()),
            },
            _ => {
                let error = std::io::Error::from_raw_os_error(errno);
                RouteDecision::Unknown(format!("route to {}: {error}", query.destination))
            }
        }
    }

    /// Reports whether the kernel forwards IPv4 packets that arrive on an interface.
    fn forwards(&self, input: u32) -> bool {
        self.setting(input, "forwarding") == Some(1)
    }

    /// Returns the value of an IPv4 sysctl of an interface.
    fn setting(&self, index: u32, name: &str) -> Option<u32> {
        self.read_setting(&self.interface(index)?.name, name)
    }

    fn read_setting(&self, interface: &str, name: &str) -> Option<u32> {
        // The name of an interface may contain any character but a slash.
        self.sysctls.read(&format!("net/ipv4/conf/{interface}/{name}")).ok()?.parse().ok()
    }

    /// Describes why the reverse-path filter drops a received packet; `None` if it does not.
    fn reverse_path_filter(&self, query: &RouteQuery) -> Option<String> {
        let (source, input) = (query.source?, query.input?);
        let filter = self.setting(input, "rp_filter")?.max(self.read_setting("all", "rp_filter")?);
        let mark = if self.setting(input, "src_valid_mark")? != 0 { query.mark } else { 0 };
        let back = RouteQuery { destination: source, source: None, input: None, output: None, mark, transport: None };
        let input = &self.interface(input)?.name;
        match (filter, self.look_up(back)) {
            (1, RouteDecision::Unicast { interface, .. }) if &*interface != input => {
                Some(format!("reverse path filter (rp_filter) of {input}: the route to {source} uses {interface}"))
            }
            (1 | 2, RouteDecision::Unreachable | RouteDecision::Dropped(_) | RouteDecision::Prohibited) => {
                Some(format!("reverse path filter (rp_filter) of {input}: there is no route to {source}"))
            }
            (_, RouteDecision::Local { .. }) => Some(format!("martian source: {source} is an address of this host")),
            _ => None,
        }
    }
}

impl Router for KernelRouter {
    fn route(&self, packet: &RoutedPacket<'_>) -> RouteDecision {
        let input = packet.input.and_then(|name| self.index(name));
        // The kernel validates the source of packets of the host, but not of received ones.
        let source = packet.source.filter(|_| input.is_some() || packet.input.is_none());
        let RoutedPacket { destination, mark, transport, .. } = *packet;
        self.look_up(RouteQuery { destination, source, input, output: None, mark, transport })
    }

    fn route_for_rules(&self, packet: &RoutedPacket<'_>) -> RouteDecision {
        let plain = RouteQuery { mark: packet.mark, ..query_to(packet.destination) };
        let answered = |query: RouteQuery| (self.look_up(query.clone()), query);
        let mut answers = self.with_source(packet, &plain).into_iter().map(answered);
        // A packet may be dropped only because the kernel validates its source.
        let valid = answers.find(|(decision, _)| !matches!(decision, RouteDecision::Dropped(_)));
        let (decision, query) = valid.unwrap_or_else(|| answered(plain));
        let RouteDecision::Unicast { .. } = decision else { return decision };
        let mut lookups = self.lookups.lock().unwrap_or_else(PoisonError::into_inner);
        let Lookups { kernel, paths, .. } = &mut *lookups;
        let paths = paths.entry(query).or_insert_with_key(|query| kernel.paths(query).unwrap_or_default());
        match paths.as_slice() {
            // Kernels before 4.13 return the route of the packet.
            [] | [_] => decision,
            paths => RouteDecision::Paths(paths.iter().map(|path| (1, self.unicast(*path))).collect()),
        }
    }

    fn address_type(&self, address: IpAddr) -> Option<AddressKind> {
        if let Some((_, kind, _)) = self.own_route(address) {
            return Some(*kind);
        }
        if address.is_multicast() {
            return Some(AddressKind::Multicast);
        }
        match address {
            IpAddr::V4(address) if address.is_broadcast() || address.octets()[0] == 0 => Some(AddressKind::Broadcast),
            IpAddr::V4(_) => Some(AddressKind::Unicast),
            // For IPv6 the kernel looks up the route.
            IpAddr::V6(_) => AddressKind::of_route(&self.look_up(query_to(address))),
        }
    }

    fn address_type_on(&self, address: IpAddr, interface: &str) -> Option<AddressKind> {
        let (_, kind, index) = self.own_route(address)?;
        let has_interface = |other: &HostInterface| other.addresses.iter().any(|own| own.address == address);
        let is_on = match address {
            IpAddr::V4(_) => *index == self.index(interface),
            IpAddr::V6(_) => self.interfaces.iter().any(|other| other.name == interface && has_interface(other)),
        };
        if is_on { Some(*kind) } else { other_interface(address) }
    }

    /// Returns the source address of masquerading. Follows `inet_select_addr` for IPv4, and queries the kernel for
    /// IPv6.
    fn masquerade_source(&self, destination: IpAddr, interface: &str, gateway: Option<IpAddr>) -> Option<IpAddr> {
        let output = self.interfaces.iter().find(|other| other.name == interface)?;
        if IpFamily::of(destination) == IpFamily::V6 {
            let query = RouteQuery { output: Some(output.index), ..query_to(destination) };
            return match self.look_up(query) {
                RouteDecision::Unicast { source, .. } => source,
                _ => None,
            };
        }
        let next_hop = gateway.filter(IpAddr::is_ipv4).unwrap_or(destination);
        let own: Vec<&InterfaceAddress> = output.addresses.iter().filter(|address| is_candidate(address)).collect();
        let same_network = own.iter().find(|address| network(address).is_some_and(|net| net.contains(&next_hop)));
        let vrf = self.vrf_of(output);
        let others = || {
            let others = self
                .interfaces
                .iter()
                .filter(|other| self.vrf_of(other).map(|vrf| vrf.index) == vrf.map(|vrf| vrf.index));
            vrf.into_iter().chain(others).flat_map(|other| &other.addresses).find(|address| is_candidate(address))
        };
        same_network.or(own.first()).copied().or_else(others).map(|address| address.address)
    }

    fn address_of(&self, interface: &str, family: IpFamily) -> Option<IpAddr> {
        let interface = self.interfaces.iter().find(|other| other.name == interface)?;
        interface.addresses.iter().map(|own| own.address).find(|address| IpFamily::of(*address) == family)
    }

    fn vrf(&self, interface: &str) -> Option<Arc<str>> {
        let interface = self.interfaces.iter().find(|other| other.name == interface)?;
        Some(self.vrf_of(interface)?.name.as_str().into())
    }

    fn group(&self, interface: &str) -> Option<u32> {
        Some(self.interfaces.iter().find(|other| other.name == interface)?.group)
    }

    fn has_realms(&self) -> Option<bool> {
        *self.realms.get_or_init(|| {
            let mut lookups = self.lookups.lock().unwrap_or_else(PoisonError::into_inner);
            lookups.kernel.has_realms().ok()
        })
    }

    fn uses_ipsec(&self) -> Option<bool> {
        *self.ipsec.get_or_init(|| ferroute_host::uses_ipsec().ok())
    }

    fn ports_seen(&self, interface: &str, family: IpFamily) -> Vec<String> {
        let is_it = |other: &&HostInterface| other.name == interface && other.kind.as_deref() == Some("bridge");
        let Some(bridge) = self.interfaces.iter().find(is_it) else { return Vec::new() };
        if !self.bridged_packets_pass_netfilter(family) {
            return Vec::new();
        }
        let ports = self.interfaces.iter().filter(|other| other.master == Some(bridge.index));
        ports.map(|port| port.name.clone()).collect()
    }

    fn returns_packets(&self, interface: &str, family: IpFamily) -> bool {
        !self.one_way.iter().any(|bridge| bridge == interface) || !self.bridged_packets_pass_netfilter(family)
    }
}

impl KernelRouter {
    fn bridged_packets_pass_netfilter(&self, family: IpFamily) -> bool {
        self.sysctls.read(&bridge_nf_call(family).replace('.', "/")).is_ok_and(|value| value == "1")
    }

    /// Returns the route of table `local` to an address.
    fn own_route(&self, address: IpAddr) -> Option<&(IpNet, AddressKind, Option<u32>)> {
        let own = self.own.iter().filter(|(network, ..)| network.contains(&address));
        own.max_by_key(|(network, ..)| network.prefix_len())
    }

    /// Returns the query for a route that is selected by its source: the kernel accepts sources of other hosts only in
    /// received packets, and may require that their route back uses the input interface.
    fn with_source(&self, packet: &RoutedPacket<'_>, query: &RouteQuery) -> Vec<RouteQuery> {
        let Some(source) = packet.source else { return Vec::new() };
        let input = packet.input.and_then(|name| self.index(name));
        let query = RouteQuery { source: Some(source), input, ..query.clone() };
        if source.is_ipv6() || self.address_type(source) == Some(AddressKind::Local) {
            return vec![query];
        }
        let behind = match self.look_up(query_to(source)) {
            RouteDecision::Unicast { interface, .. } => self.index(&interface),
            _ => None,
        };
        let inputs = [input.or_else(|| self.index("lo")), behind].into_iter().flatten();
        inputs.map(|input| RouteQuery { input: Some(input), ..query.clone() }).collect()
    }

    /// Returns the route of a neighbour on an interface.
    fn unicast(&self, interface: u32) -> RouteDecision {
        let interface = self.interface(interface).map_or("", |interface| &interface.name).into();
        RouteDecision::Unicast { interface, gateway: None, source: None }
    }

    fn vrf_of(&self, interface: &HostInterface) -> Option<&HostInterface> {
        self.interface(interface.master?).filter(|master| master.kind.as_deref() == Some("vrf"))
    }
}

/// Reports whether a bridge has no port to which it returns packets.
fn is_one_way(bridge: &Bridge) -> bool {
    !bridge.is_promiscuous && !bridge.ports.is_empty() && bridge.ports.iter().all(|port| !port.hairpin)
}

fn query_to(destination: IpAddr) -> RouteQuery {
    RouteQuery { destination, source: None, input: None, output: None, mark: 0, transport: None }
}

fn index(interfaces: &[HostInterface], name: &str) -> Option<u32> {
    interfaces.iter().find(|interface| interface.name == name).map(|interface| interface.index)
}

/// Reports whether packets with a route of this type are for the host.
fn is_for_host(kind: u8) -> bool {
    [libc::RTN_LOCAL, libc::RTN_BROADCAST, libc::RTN_ANYCAST, libc::RTN_MULTICAST].contains(&kind)
}

/// Reports whether masquerading may use an IPv4 address.
fn is_candidate(address: &InterfaceAddress) -> bool {
    address.address.is_ipv4() && address.is_global && !address.is_secondary
}

fn network(address: &InterfaceAddress) -> Option<IpNet> {
    IpNet::new(address.address, address.prefix_len).ok()
}
