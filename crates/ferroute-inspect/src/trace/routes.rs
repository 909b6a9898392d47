//! Addresses and routes in files: the output of `ip address`, `ip route` and `ip -6 route`, of any host.

use std::{net::IpAddr, path::Path, sync::Arc};

use anyhow::{Context, ensure};
use ferroute_core::IpFamily;
use ferroute_trace::{AddressKind, Host, Route, RouteDecision, RoutedPacket, Router};
use ipnet::IpNet;

use super::dump::read_text;

/// The routes of a host, without policy rules and VRFs.
#[derive(Debug, Default)]
struct StaticRouter {
    addresses: Vec<(String, IpNet)>,
    routes: Vec<StaticRoute>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct StaticRoute {
    to: IpNet,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Unicast { interface: Option<String>, gateway: Option<IpAddr>, source: Option<IpAddr> },
    Blackhole,
    Unreachable,
    Prohibit,
    Local,
}

/// Reads the addresses and routes of a host; `-` is the standard input.
///
/// # Errors
/// If the file cannot be read, or has neither.
pub(super) fn read(file: &Path) -> anyhow::Result<Host> {
    let text = read_text(file).with_context(|| format!("cannot read routes in {}", file.display()))?;
    let router = StaticRouter::parse(&text);
    ensure!(
        !router.routes.is_empty() || !router.addresses.is_empty(),
        "{}: neither output of ip route nor of ip address",
        file.display()
    );
    let addresses = router.own_addresses();
    Ok(Host { addresses, router: Some(Arc::new(router)), ..Host::default() })
}

/// A host of which nothing is known: all addresses are behind one interface, and its own are those for documentation.
pub(super) fn unknown_host() -> Host {
    let addresses = [IpAddr::from([192, 0, 2, 1]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1])];
    let routes = addresses.into_iter().filter_map(|source| {
        let to = IpNet::new(source, 0).ok()?.trunc();
        Some(Route { to, interface: "eth0".to_owned(), source })
    });
    Host { addresses: addresses.to_vec(), routes: routes.collect(), ..Host::default() }
}

impl StaticRouter {
    fn parse(text: &str) -> Self {
        let mut router = Self::default();
        let mut interface = String::new();
        let mut is_multipath = false;
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let after = |word: &str| words.iter().position(|other| *other == word).and_then(|at| words.get(at + 1));
            match words.as_slice() {
                // `2: eth0@if3: <BROADCAST> …` of `ip address`.
                [number, name, ..] if number.ends_with(':') && name.ends_with(':') => {
                    let name = name.trim_end_matches(':');
                    name.split('@').next().unwrap_or(name).clone_into(&mut interface);
                }
                ["inet" | "inet6", address, ..] => {
                    let net = address.parse::<IpNet>().or_else(|_| address.parse::<IpAddr>().map(IpNet::from));
                    router.addresses.extend(net.ok().map(|net| (interface.clone(), net)));
                }
                // The first path of a route with several.
                ["nexthop", ..] if is_multipath => {
                    is_multipath = false;
                    if let Some(StaticRoute { kind: Kind::Unicast { interface, gateway, .. }, .. }) =
                        router.routes.last_mut()
                    {
                        *interface = after("dev").map(|name| (*name).to_owned());
                        *gateway = after("via").and_then(|via| via.parse().ok());
                    }
                }
                [first, rest @ ..] => {
                    let family = if text_is_v6(line) { IpFamily::V6 } else { IpFamily::V4 };
                    let (to, kind) = match (*first, rest.first()) {
                        ("blackhole", Some(to)) => (*to, Kind::Blackhole),
                        ("unreachable", Some(to)) => (*to, Kind::Unreachable),
                        ("prohibit", Some(to)) => (*to, Kind::Prohibit),
                        ("local", Some(to)) => (*to, Kind::Local),
                        (to, _) => (to, Kind::unicast(&after)),
                    };
                    let Some(to) = network(to, family) else { continue };
                    let has_path = match &kind {
                        Kind::Unicast { interface, .. } => interface.is_some(),
                        _ => true,
                    };
                    is_multipath = !has_path;
                    router.routes.push(StaticRoute { to, kind });
                }
                [] => {}
            }
        }
        router.routes.retain(|route| !matches!(route.kind, Kind::Unicast { interface: None, .. }));
        router
    }

    /// Returns the addresses of interfaces, and those that routes use as sources.
    fn own_addresses(&self) -> Vec<IpAddr> {
        let of_routes = self.routes.iter().filter_map(|route| match &route.kind {
            Kind::Unicast { source, .. } => *source,
            Kind::Local => Some(route.to.addr()),
            _ => None,
        });
        let mut addresses: Vec<IpAddr> = self.addresses.iter().map(|(_, net)| net.addr()).collect();
        for address in of_routes {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses.retain(|address| !address.is_loopback());
        addresses
    }

    fn route_to(&self, address: IpAddr) -> Option<&StaticRoute> {
        let routes = self.routes.iter().filter(|route| route.to.contains(&address));
        // Of equal ones, `ip route` prints the one with the lowest metric first.
        routes.fold(None, |best: Option<&StaticRoute>, route| match best {
            Some(best) if best.to.prefix_len() >= route.to.prefix_len() => Some(best),
            _ => Some(route),
        })
    }

    /// Returns the addresses of an interface.
    fn addresses_of(&self, interface: &str, family: IpFamily) -> impl Iterator<Item = IpAddr> {
        let of_interface = self.addresses.iter().filter(move |(name, _)| name == interface).map(|(_, net)| net.addr());
        let of_routes = self.routes.iter().filter_map(move |route| match &route.kind {
            Kind::Unicast { interface: Some(name), source, .. } if name == interface => *source,
            _ => None,
        });
        of_interface.chain(of_routes).filter(move |address| IpFamily::of(*address) == family)
    }
}

impl Kind {
    fn unicast<'a>(after: &dyn Fn(&str) -> Option<&'a &'a str>) -> Self {
        let address = |word: &str| after(word).and_then(|text| text.parse::<IpAddr>().ok());
        Self::Unicast {
            interface: after("dev").map(|name| (*name).to_owned()),
            gateway: address("via"),
            source: address("src"),
        }
    }
}

impl Router for StaticRouter {
    fn route(&self, packet: &RoutedPacket<'_>) -> RouteDecision {
        let family = IpFamily::of(packet.destination);
        match self.route_to(packet.destination).map(|route| &route.kind) {
            None | Some(Kind::Unreachable) => RouteDecision::Unreachable,
            Some(Kind::Prohibit) => RouteDecision::Prohibited,
            Some(Kind::Blackhole) => RouteDecision::Dropped("blackhole route".into()),
            Some(Kind::Local) => RouteDecision::Local,
            Some(Kind::Unicast { interface, gateway, source }) => {
                let interface = interface.as_deref().unwrap_or_default();
                let source = source.or_else(|| self.masquerade_source(packet.destination, interface, *gateway));
                let source = source.filter(|source| IpFamily::of(*source) == family);
                RouteDecision::Unicast { interface: interface.into(), gateway: *gateway, source }
            }
        }
    }

    fn address_type(&self, address: IpAddr) -> Option<AddressKind> {
        let is_broadcast = |net: &IpNet| net.addr().is_ipv4() && net.prefix_len() < 31 && net.broadcast() == address;
        Some(match self.route_to(address).map(|route| &route.kind) {
            Some(Kind::Local) => AddressKind::Local,
            _ if self.own_addresses().contains(&address) => AddressKind::Local,
            _ if address.is_multicast() => AddressKind::Multicast,
            _ if self.addresses.iter().any(|(_, net)| is_broadcast(net)) => AddressKind::Broadcast,
            _ => AddressKind::Unicast,
        })
    }

    fn address_type_on(&self, address: IpAddr, interface: &str) -> Option<AddressKind> {
        let is_own = |net: &IpNet| net.addr() == address || (net.addr().is_ipv4() && net.broadcast() == address);
        match self.addresses.iter().find(|(_, net)| is_own(net))? {
            (name, _) if name == interface => self.address_type(address),
            _ if address.is_ipv4() => Some(AddressKind::Unicast),
            // For IPv6, it may have any type.
            _ => None,
        }
    }

    fn masquerade_source(&self, destination: IpAddr, interface: &str, gateway: Option<IpAddr>) -> Option<IpAddr> {
        let family = IpFamily::of(destination);
        let next_hop = gateway.unwrap_or(destination);
        let on_link = self.addresses.iter().find(|(name, net)| name == interface && net.contains(&next_hop));
        let source = on_link.map(|(_, net)| net.addr()).or_else(|| self.addresses_of(interface, family).next());
        // An interface without addresses borrows one.
        source.or_else(|| self.own_addresses().into_iter().find(|address| IpFamily::of(*address) == family))
    }

    fn address_of(&self, interface: &str, family: IpFamily) -> Option<IpAddr> {
        self.addresses_of(interface, family).next()
    }

    fn vrf(&self, _: &str) -> Option<Arc<str>> {
        None
    }
}

fn text_is_v6(line: &str) -> bool {
    line.split_whitespace().any(|word| word.matches(':').count() > 1)
}

fn network(text: &str, family: IpFamily) -> Option<IpNet> {
    if text == "default" {
        return match family {
            IpFamily::V4 => "0.0.0.0/0".parse().ok(),
            IpFamily::V6 => "::/0".parse().ok(),
        };
    }
    text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok().map(|net| net.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_routes_of_an_unnumbered_node_are_read() {
        let text = "1: lo: <LOOPBACK,UP> mtu 65536\n    inet 127.0.0.1/8 scope host lo\n\
                    2: eth0@if9: <BROADCAST> mtu 1500\n    inet 192.168.6.121/24 brd 192.168.6.255 scope global eth0\n\
                    default via 192.168.6.1 dev eth0 \nblackhole 10.244.1.0/24 proto bird \n\
                    10.244.1.5 dev cali1 scope link \n192.168.6.0/24 dev eth0 proto kernel scope link src 192.168.6.121 \n\
                    198.51.100.0/24 \n\tnexthop via 192.168.6.2 dev eth0 weight 1 \n\tnexthop via 192.168.7.2 dev eth1 weight 1 \n\
                    default via fe80::1 dev eth0 metric 1024 pref medium\n";
        let router = StaticRouter::parse(text);
        assert_eq!(router.own_addresses(), ["192.168.6.121".parse::<IpAddr>().unwrap()]);
        let route = |to: &str| {
            let destination = to.parse().unwrap();
            match router.route(&RoutedPacket { destination, source: None, input: None, mark: 0, transport: None }) {
                RouteDecision::Unicast { interface, source, .. } => {
                    format!("{interface} {}", source.map(|source| source.to_string()).unwrap_or_default())
                }
                other => format!("{other:?}"),
            }
        };
        assert_eq!(route("10.244.1.5"), "cali1 192.168.6.121");
        assert_eq!(route("10.244.1.9"), "Dropped(\"blackhole route\")");
        assert_eq!(route("8.8.8.8"), "eth0 192.168.6.121");
        assert_eq!(route("198.51.100.7"), "eth0 192.168.6.121");
        assert_eq!(route("2001:db8::1"), "eth0 ");
        assert_eq!(router.address_type("192.168.6.255".parse().unwrap()), Some(AddressKind::Broadcast));
    }
}
