//! Addresses and routes in files, of any host.

mod parse;

use std::{collections::HashMap, net::IpAddr, path::Path, sync::Arc};

use anyhow::{Context, bail};
use ferroute_core::IpFamily;
use ferroute_ipvs::DUMMY_DEVICE;
use ferroute_trace::{AddressKind, Host, Route, RouteDecision, RoutedPacket, Router};
use ipnet::IpNet;

pub(super) use self::parse::parse_network;
use super::{
    dump::read_text,
    policy::{Action, PolicyRules},
};

/// The routes of a host.
#[derive(Debug, Default)]
pub(super) struct StaticRouter {
    addresses: Vec<(String, IpNet)>,
    /// Addresses of a smaller scope than `global`, which are not the source of packets to other hosts.
    scoped: Vec<IpAddr>,
    routes: Vec<StaticRoute>,
    rules: PolicyRules,
    /// The interface that an interface is a port of: a bridge, a bond or a VRF.
    masters: HashMap<String, String>,
    /// The tables of VRFs and of their ports, by interface, which `ip -details` prints.
    vrf_tables: HashMap<String, String>,
    /// The tables that commands beside the routes print.
    listed: Vec<String>,
    /// Whether the routes of all tables are known.
    has_all_tables: bool,
    /// The groups of interfaces, as far as they are known.
    groups: HashMap<String, u32>,
    /// Whether a route or a policy rule gives packets a realm.
    has_realms: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct StaticRoute {
    /// The name or number of the table.
    table: String,
    to: IpNet,
    /// The sources of packets that it is for, of IPv6.
    from: Option<IpNet>,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Through a path; with several paths, through one of them.
    Unicast(Vec<NextHop>),
    Blackhole,
    Unreachable,
    Prohibit,
    /// The search continues with the next policy rule.
    Throw,
    Local {
        source: Option<IpAddr>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NextHop {
    interface: String,
    gateway: Option<IpAddr>,
    source: Option<IpAddr>,
    weight: u32,
}

/// Reads the addresses and routes of a host, and which of the addresses are those of the dummy device of ipvs mode; `-` is
/// the standard input. Sysctls are assumed to be those of a node.
///
/// # Errors
/// If the file cannot be read, or contains neither addresses nor routes.
pub(super) fn read(file: &Path) -> anyhow::Result<(Host, Vec<IpAddr>)> {
    let text = read_text(file).with_context(|| format!("cannot read routes in {}", file.display()))?;
    let router = StaticRouter::parse(&text);
    if let Some(reason) = router.why_useless(&text) {
        bail!("cannot read routes in {}: {reason}", file.display());
    }
    let addresses = router.own_addresses();
    let of_services = router.addresses.iter().filter(|(device, _)| device == DUMMY_DEVICE);
    let of_services = of_services.map(|(_, net)| net.addr()).collect();
    Ok((Host { addresses, router: Some(Arc::new(router)), route_localnet: true, ..Host::default() }, of_services))
}

/// Returns an unknown host: all addresses are behind one interface, and its own addresses are those for documentation.
pub(super) fn unknown_host() -> Host {
    let addresses = [IpAddr::from([192, 0, 2, 1]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1])];
    let routes = addresses.into_iter().filter_map(|source| {
        let to = IpNet::new(source, 0).ok()?.trunc();
        Some(Route { to, interface: "eth0".to_owned(), source })
    });
    Host { addresses: addresses.to_vec(), routes: routes.collect(), route_localnet: true, ..Host::default() }
}

impl StaticRouter {
    /// Returns the addresses of interfaces, and those that routes use as sources.
    fn own_addresses(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = self.addresses.iter().map(|(_, net)| net.addr()).collect();
        for route in &self.routes {
            let of_route = match &route.kind {
                Kind::Unicast(paths) => paths.first().and_then(|path| path.source),
                Kind::Local { .. } => Some(route.to.addr()),
                _ => None,
            };
            addresses.extend(of_route.filter(|address| !addresses.contains(address)));
        }
        addresses.retain(|address| !address.is_loopback());
        addresses
    }

    fn route_in(&self, table: &str, address: IpAddr, source: Option<IpAddr>) -> Option<&StaticRoute> {
        let is_for = |route: &&StaticRoute| {
            let is_source = |from: IpNet| source.is_some_and(|source| from.contains(&source));
            route.table == table && route.to.contains(&address) && route.from.is_none_or(is_source)
        };
        let length = |net: Option<IpNet>| net.map_or(0, |net| net.prefix_len());
        // Among equal routes, `ip route` prints the one with the lowest metric first.
        self.routes.iter().filter(is_for).fold(None, |best: Option<&StaticRoute>, route| match best {
            Some(best) if (best.to.prefix_len(), length(best.from)) >= (route.to.prefix_len(), length(route.from)) => {
                Some(best)
            }
            _ => Some(route),
        })
    }

    fn is_known(&self, table: &str) -> bool {
        let is_listed = || self.listed.iter().any(|listed| listed == table);
        let has_routes = || self.routes.iter().any(|route| route.table == table);
        self.has_all_tables || DEFAULT_TABLES.contains(&table) || is_listed() || has_routes()
    }

    /// Returns the decision of a route; `None` if the search continues.
    fn decision(&self, route: &StaticRoute, destination: IpAddr) -> Option<RouteDecision> {
        let family = IpFamily::of(destination);
        let paths = match &route.kind {
            Kind::Throw => return None,
            Kind::Local { source } => return Some(RouteDecision::Local { source: *source }),
            Kind::Unreachable => return Some(RouteDecision::Unreachable),
            Kind::Prohibit => return Some(RouteDecision::Prohibited),
            Kind::Blackhole => return Some(RouteDecision::Dropped("blackhole route".into())),
            Kind::Unicast(paths) => paths,
        };
        let mut decisions: Vec<(u32, RouteDecision)> = paths
            .iter()
            .map(|NextHop { interface, gateway, source, weight }| {
                let source = source.or_else(|| self.masquerade_source(destination, interface, *gateway));
                let source = source.filter(|source| IpFamily::of(*source) == family);
                (*weight, RouteDecision::Unicast { interface: interface.as_str().into(), gateway: *gateway, source })
            })
            .collect();
        match decisions.len() {
            1 => decisions.pop().map(|(_, decision)| decision),
            _ => Some(RouteDecision::Paths(decisions)),
        }
    }

    /// Returns the table of the VRF of an interface, which is a VRF device itself or a port of one; `None` for other
    /// interfaces.
    ///
    /// # Errors
    /// If it is a port of an interface that may be a VRF device.
    fn vrf_table(&self, interface: &str) -> Result<Option<&String>, String> {
        let Some(table) = self.vrf_tables.get(interface) else {
            return match self.masters.get(interface) {
                Some(master) => Err(format!(
                    "the routes of packets from {interface}, if {master} is a VRF: add the output of ip -details address"
                )),
                None => Ok(None),
            };
        };
        Ok(Some(table))
    }

    /// Returns the addresses of an interface.
    fn addresses_of(&self, interface: &str, family: IpFamily) -> impl Iterator<Item = IpAddr> {
        let of_interface = self.addresses.iter().filter(move |(name, _)| name == interface).map(|(_, net)| net.addr());
        let paths = self.routes.iter().filter_map(|route| match &route.kind {
            Kind::Unicast(paths) => Some(paths),
            _ => None,
        });
        let of_routes = paths.flatten().filter(move |path| path.interface == interface).filter_map(|path| path.source);
        of_interface.chain(of_routes).filter(move |address| IpFamily::of(*address) == family)
    }
}

impl Router for StaticRouter {
    fn route(&self, packet: &RoutedPacket<'_>) -> RouteDecision {
        let destination = packet.destination;
        let local = self.route_in("local", destination, packet.source);
        if local.is_none() && (destination.is_loopback() || self.own_addresses().contains(&destination)) {
            return RouteDecision::Local { source: None };
        }
        let mut first = 0;
        for rule in self.rules.in_order(IpFamily::of(destination)) {
            if rule.priority() < first {
                continue;
            }
            let action = match rule.action_for(packet) {
                Ok(Some(action)) => action,
                Ok(None) => continue,
                Err(reason) => return RouteDecision::Unknown(reason),
            };
            let table = match action {
                Action::Refuse(decision) => return decision.clone(),
                Action::Nop => continue,
                Action::Goto(priority) => {
                    first = *priority;
                    continue;
                }
                Action::Table(table) => table,
                Action::Vrf => match packet.input.map_or(Ok(None), |input| self.vrf_table(input)) {
                    Ok(Some(table)) => table,
                    Ok(None) => continue,
                    Err(reason) => return RouteDecision::Unknown(reason),
                },
            };
            if !self.is_known(table) {
                let remedy = "add the output of ip route show table all";
                return RouteDecision::Unknown(format!("the routes of table {table}: {remedy}"));
            }
            let found = self
                .route_in(table, destination, packet.source)
                .filter(|route| !rule.suppresses(route.to.prefix_len()));
            if let Some(decision) = found.and_then(|route| self.decision(route, destination)) {
                return decision;
            }
        }
        RouteDecision::Unreachable
    }

    fn has_several_paths(&self) -> bool {
        self.routes.iter().any(|route| matches!(&route.kind, Kind::Unicast(paths) if paths.len() > 1))
    }

    fn address_type(&self, address: IpAddr) -> Option<AddressKind> {
        let is_broadcast = |net: &IpNet| net.addr().is_ipv4() && net.prefix_len() < 31 && net.broadcast() == address;
        let tables = DEFAULT_TABLES.iter().filter_map(|table| self.route_in(table, address, None));
        Some(match tables.max_by_key(|route| route.to.prefix_len()).map(|route| &route.kind) {
            Some(Kind::Local { .. }) => AddressKind::Local,
            _ if self.own_addresses().contains(&address) => AddressKind::Local,
            _ if address.is_multicast() => AddressKind::Multicast,
            _ if self.addresses.iter().any(|(_, net)| is_broadcast(net)) => AddressKind::Broadcast,
            _ if address.is_ipv4() => AddressKind::Unicast,
            _ => {
                let packet = RoutedPacket { destination: address, source: None, input: None, mark: 0, transport: None };
                AddressKind::of_route(&self.route(&packet))?
            }
        })
    }

    fn address_type_on(&self, address: IpAddr, interface: &str) -> Option<AddressKind> {
        let is_own = |net: &IpNet| net.addr() == address || (net.addr().is_ipv4() && net.broadcast() == address);
        match self.addresses.iter().find(|(_, net)| is_own(net))? {
            (name, _) if name == interface => self.address_type(address),
            _ => other_interface(address),
        }
    }

    fn masquerade_source(&self, destination: IpAddr, interface: &str, gateway: Option<IpAddr>) -> Option<IpAddr> {
        let family = IpFamily::of(destination);
        let next_hop = gateway.unwrap_or(destination);
        // The kernel prefers addresses of the destination's scope to those of the interface.
        let is_usable =
            |address: &IpAddr| is_link_local(destination) || !is_link_local(*address) && !self.scoped.contains(address);
        let on_link = self.addresses.iter().find(|(name, net)| name == interface && net.contains(&next_hop));
        let on_link = on_link.map(|(_, net)| net.addr()).filter(is_usable);
        let source = on_link.or_else(|| self.addresses_of(interface, family).find(is_usable));
        // An interface without addresses uses one of another interface.
        let is_of_family = |address: &IpAddr| IpFamily::of(*address) == family;
        source.or_else(|| self.own_addresses().into_iter().filter(is_of_family).find(is_usable))
    }

    fn address_of(&self, interface: &str, family: IpFamily) -> Option<IpAddr> {
        self.addresses_of(interface, family).next()
    }

    fn group(&self, interface: &str) -> Option<u32> {
        self.groups.get(interface).copied()
    }

    fn has_realms(&self) -> Option<bool> {
        Some(self.has_realms)
    }

    fn vrf(&self, interface: &str) -> Option<Arc<str>> {
        self.masters
            .get(interface)
            .filter(|master| self.vrf_tables.contains_key(*master))
            .map(|vrf| vrf.as_str().into())
    }
}

/// Returns the type of an address of another interface of the host (`inet_dev_addr_type`, `__nft_fib6_eval_type`). For
/// link-local addresses, IPv6 looks up the route on the interface.
pub(super) fn other_interface(address: IpAddr) -> Option<AddressKind> {
    (!is_link_local(address)).then_some(AddressKind::Unicast)
}

/// Reports whether an address is an IPv6 one that is valid on one link.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Tables that every host has.
const DEFAULT_TABLES: [&str; 3] = ["local", "main", "default"];

#[cfg(test)]
mod tests;
