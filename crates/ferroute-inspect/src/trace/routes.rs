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
    Local { source: Option<IpAddr> },
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
                ["inet" | "inet6", address, ..] => router.add_address(&interface, address),
                // Of `ip -oneline address`.
                [number, name, "inet" | "inet6", address, ..] if number.ends_with(':') => {
                    router.add_address(name, address);
                }
                // Of `ip -brief address`.
                [name, "UP" | "DOWN" | "UNKNOWN", addresses @ ..] => {
                    let name = name.split('@').next().unwrap_or(name);
                    addresses.iter().for_each(|address| router.add_address(name, address));
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
                // Of other tables, which policy rules select.
                _ if after("table").is_some_and(|table| !["main", "local", "default"].contains(table)) => {}
                _ if words.contains(&"dead") => {}
                [first, rest @ ..] => {
                    let family = if text_is_v6(line) { IpFamily::V6 } else { IpFamily::V4 };
                    let address = |word| after(word).and_then(|text| text.parse::<IpAddr>().ok());
                    let unicast = || Kind::Unicast {
                        interface: after("dev").map(|name| (*name).to_owned()),
                        gateway: address("via"),
                        source: address("src"),
                    };
                    let (to, kind) = match (*first, rest.first()) {
                        ("unicast", Some(to)) => (*to, unicast()),
                        ("blackhole", Some(to)) => (*to, Kind::Blackhole),
                        // Without a policy rule that follows, `throw` is the end of the search.
                        ("unreachable" | "throw", Some(to)) => (*to, Kind::Unreachable),
                        ("prohibit", Some(to)) => (*to, Kind::Prohibit),
                        ("local", Some(to)) => (*to, Kind::Local { source: address("src") }),
                        (to, _) => (to, unicast()),
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

    fn add_address(&mut self, interface: &str, address: &str) {
        let net = address.parse::<IpNet>().or_else(|_| address.parse::<IpAddr>().map(IpNet::from));
        self.addresses.extend(net.ok().map(|net| (interface.to_owned(), net)));
    }

    /// Returns the addresses of interfaces, and those that routes use as sources.
    fn own_addresses(&self) -> Vec<IpAddr> {
        let of_routes = self.routes.iter().filter_map(|route| match &route.kind {
            Kind::Unicast { source, .. } => *source,
            Kind::Local { .. } => Some(route.to.addr()),
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

impl Router for StaticRouter {
    fn route(&self, packet: &RoutedPacket<'_>) -> RouteDecision {
        let family = IpFamily::of(packet.destination);
        match self.route_to(packet.destination).map(|route| &route.kind) {
            Some(Kind::Local { source }) => RouteDecision::Local { source: *source },
            _ if packet.destination.is_loopback() || self.own_addresses().contains(&packet.destination) => {
                RouteDecision::Local { source: None }
            }
            None | Some(Kind::Unreachable) => RouteDecision::Unreachable,
            Some(Kind::Prohibit) => RouteDecision::Prohibited,
            Some(Kind::Blackhole) => RouteDecision::Dropped("blackhole route".into()),
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
            Some(Kind::Local { .. }) => AddressKind::Local,
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
        // The kernel prefers addresses of the destination's scope to those of the interface.
        let is_usable = |address: &IpAddr| !is_link_local(*address) || is_link_local(destination);
        let on_link = self.addresses.iter().find(|(name, net)| name == interface && net.contains(&next_hop));
        let on_link = on_link.map(|(_, net)| net.addr()).filter(is_usable);
        let source = on_link.or_else(|| self.addresses_of(interface, family).find(is_usable));
        // An interface without addresses borrows one.
        let is_of_family = |address: &IpAddr| IpFamily::of(*address) == family;
        source.or_else(|| self.own_addresses().into_iter().filter(is_of_family).find(is_usable))
    }

    fn address_of(&self, interface: &str, family: IpFamily) -> Option<IpAddr> {
        self.addresses_of(interface, family).next()
    }

    fn vrf(&self, _: &str) -> Option<Arc<str>> {
        None
    }
}

/// Reports whether an address is an IPv6 one that is valid on one link.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn text_is_v6(line: &str) -> bool {
    // `default dev eth0 metric 1024 pref medium` has no address, nor has `unreachable default dev lo metric 1 error -101`.
    line.contains(" pref ")
        || line.contains(" error -")
        || line.split_whitespace().any(|word| word.matches(':').count() > 1)
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
                    default via 192.168.6.1 dev eth0 \nblackhole 10.244.1.0/24 proto bird \nthrow 10.97.0.0/16 \n\
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
        assert_eq!(route("10.97.0.1"), "Unreachable");
        assert_eq!(route("8.8.8.8"), "eth0 192.168.6.121");
        assert_eq!(route("198.51.100.7"), "eth0 192.168.6.121");
        assert_eq!(route("2001:db8::1"), "eth0 ");
        assert_eq!(router.address_type("192.168.6.255".parse().unwrap()), Some(AddressKind::Broadcast));
    }

    #[test]
    fn sources_have_the_scope_of_the_destination() {
        let text = "2: eth0: <UP>\n    inet 192.168.6.121/24 scope global eth0\n    inet 192.168.6.122/24 scope global secondary eth0\n\
                    inet6 fd00:6::121/64 scope global\n3: cali1: <UP>\n    inet6 fe80::ee/64 scope link\n\
                    4: kube-ipvs0: <NOARP>\n    inet 10.96.0.1/32 scope global kube-ipvs0\n\
                    default via 192.168.6.1 dev eth0\nfd00:244::5 dev cali1 metric 1024\n\
                    local 192.168.6.122 dev eth0 table local proto kernel scope host src 192.168.6.121\n";
        let router = StaticRouter::parse(text);
        let masqueraded = |to: &str| router.masquerade_source(to.parse().unwrap(), "cali1", None).unwrap().to_string();
        assert_eq!([masqueraded("fd00:244::5"), masqueraded("fe80::5")], ["fd00:6::121", "fe80::ee"]);
        let host = Host { addresses: router.own_addresses(), router: Some(Arc::new(router)), ..Host::default() };
        for (to, source) in [
            ("192.168.6.122", "192.168.6.121"),
            ("10.96.0.1", "10.96.0.1"),
            ("203.0.113.7", "192.168.6.121"),
            ("127.0.0.1", "127.0.0.1"),
        ] {
            assert_eq!(host.source_to(to.parse().unwrap()).unwrap().to_string(), source, "{to}");
        }
    }

    #[test]
    fn other_forms_of_ip_are_read() {
        let text = "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever\n\
                    2: eth0    inet 192.168.6.121/24 brd 192.168.6.255 scope global eth0\\       valid_lft forever\n\
                    eth1@if7         UP             192.168.7.121/24 fd00:7::121/64 fe80::1/64 \n\
                    default via 192.168.9.1 dev eth9 table 100 \n192.0.2.0/24 dev eth8 proto kernel scope link dead linkdown \n\
                    unicast default via 192.168.6.1 dev eth0 proto dhcp \nunreachable default dev lo metric 4294967295 error -101 pref medium\n\
                    0:\tfrom all lookup local \n32765:\tfrom all fwmark 0x1 lookup 100 \n";
        let router = StaticRouter::parse(text);
        let own: Vec<String> = router.own_addresses().iter().map(ToString::to_string).collect();
        assert_eq!(own, ["192.168.6.121", "192.168.7.121", "fd00:7::121", "fe80::1"]);
        let interface = |to: &str| match router.route_to(to.parse().unwrap()).map(|route| &route.kind) {
            Some(Kind::Unicast { interface, .. }) => interface.clone().unwrap(),
            other => format!("{other:?}"),
        };
        assert_eq!(["203.0.113.7", "192.0.2.9", "2001:db8::1"].map(interface), ["eth0", "eth0", "Some(Unreachable)"]);
    }
}
