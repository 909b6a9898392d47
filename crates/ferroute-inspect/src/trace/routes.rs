//! Addresses and routes in files: the output of `ip address`, `ip route`, `ip -6 route` and `ip rule`, of any host.

use std::{collections::HashMap, net::IpAddr, path::Path, sync::Arc};

use anyhow::{Context, bail};
use ferroute_core::IpFamily;
use ferroute_trace::{AddressKind, Host, Route, RouteDecision, RoutedPacket, Router};
use ipnet::IpNet;

use super::{
    dump::read_text,
    policy::{Action, PolicyRules},
};

/// The routes of a host.
#[derive(Debug, Default)]
struct StaticRouter {
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
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct StaticRoute {
    /// The name or number of the table.
    table: String,
    to: IpNet,
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

/// Reads the addresses and routes of a host; `-` is the standard input. Sysctls are assumed to be those of a node.
///
/// # Errors
/// If the file cannot be read, or contains neither addresses nor routes.
pub(super) fn read(file: &Path) -> anyhow::Result<Host> {
    let text = read_text(file).with_context(|| format!("cannot read routes in {}", file.display()))?;
    let router = StaticRouter::parse(&text);
    if let Some(reason) = router.why_useless(&text) {
        bail!("cannot read routes in {}: {reason}", file.display());
    }
    let addresses = router.own_addresses();
    Ok(Host { addresses, router: Some(Arc::new(router)), route_localnet: true, ..Host::default() })
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
    fn parse(text: &str) -> Self {
        let mut router = Self::default();
        let mut interface = String::new();
        // Source of the multipath route whose first line was read last.
        let mut multipath = None;
        // What the last command says about the routes that it prints.
        let mut command = Command::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let Some(next) = Command::parse(&words) {
                if next.object == Object::Rule {
                    router.rules.begin(next.family);
                }
                router.listed.extend(next.table.clone());
                command = next;
                continue;
            }
            match words.as_slice() {
                [priority, rest @ ..] if router.rules.add(priority, rest) => {}
                // `2: eth0@if3: <BROADCAST> …` of `ip address`.
                [number, name, ..] if number.ends_with(':') && name.ends_with(':') => {
                    let name = name.trim_end_matches(':');
                    name.split('@').next().unwrap_or(name).clone_into(&mut interface);
                    let master = after(&words, "master").map(str::to_owned);
                    router.masters.extend(master.map(|master| (interface.clone(), master)));
                }
                ["vrf" | "vrf_slave", "table", table, ..] => {
                    router.vrf_tables.insert(interface.clone(), (*table).to_owned());
                }
                ["inet" | "inet6", address, ..] => router.add_address(&interface, address, after(&words, "scope")),
                // Output of `ip -oneline address`.
                [number, name, "inet" | "inet6", address, ..] if number.ends_with(':') => {
                    router.add_address(name, address, after(&words, "scope"));
                }
                // Output of `ip -brief address`.
                [name, "UP" | "DOWN" | "UNKNOWN", addresses @ ..] => {
                    let name = name.split('@').next().unwrap_or(name);
                    addresses.iter().for_each(|address| router.add_address(name, address, None));
                }
                ["nexthop", rest @ ..] => {
                    if let (Some(source), Some(StaticRoute { kind: Kind::Unicast(paths), .. })) =
                        (multipath, router.routes.last_mut())
                        && !rest.iter().any(|word| ["dead", "linkdown"].contains(word))
                    {
                        paths.extend(NextHop::parse(rest).map(|path| NextHop { source, ..path }));
                    }
                }
                _ if words.contains(&"dead") => {}
                [first, rest @ ..] => {
                    let family = if text_is_v6(line) { IpFamily::V6 } else { command.family };
                    let source = after(&words, "src").and_then(|text| text.parse::<IpAddr>().ok());
                    let unicast = || Kind::Unicast(NextHop::parse(&words).into_iter().collect());
                    let (to, kind) = match (*first, rest.first()) {
                        ("unicast", Some(to)) => (*to, unicast()),
                        ("blackhole", Some(to)) => (*to, Kind::Blackhole),
                        ("throw", Some(to)) => (*to, Kind::Throw),
                        ("unreachable", Some(to)) => (*to, Kind::Unreachable),
                        ("prohibit", Some(to)) => (*to, Kind::Prohibit),
                        ("local", Some(to)) => (*to, Kind::Local { source }),
                        (to, _) => (to, unicast()),
                    };
                    let Some(to) = network(to, family) else { continue };
                    multipath = matches!(&kind, Kind::Unicast(paths) if paths.is_empty()).then_some(source);
                    let table = after(&words, "table").or(command.table.as_deref()).unwrap_or("main");
                    router.has_all_tables |= table == "local";
                    router.routes.push(StaticRoute { table: table.to_owned(), to, kind });
                }
                [] => {}
            }
        }
        router.routes.retain(|route| !matches!(&route.kind, Kind::Unicast(paths) if paths.is_empty()));
        router
    }

    /// Returns the reason why the parsed text is insufficient; `None` if it has routes.
    fn why_useless(&self, text: &str) -> Option<&'static str> {
        let begins = |start: &str| text.lines().any(|line| line.trim_start().starts_with(start));
        let of_others = ["Kernel IP", "Destination ", "Iface ", "Network Destination"];
        match text.trim() {
            _ if !self.routes.is_empty() => None,
            "" => Some("it is empty"),
            text if text.starts_with(['[', '{']) => Some("it is JSON: use the output of ip without -j"),
            _ if of_others.into_iter().any(begins) || text.contains("flags=") => {
                Some("use the output of ip address and ip route, not that of ifconfig, route or netstat")
            }
            _ if self.addresses.is_empty() => Some("neither output of ip route nor of ip address"),
            _ => Some("it has addresses, but no routes: add the output of ip route"),
        }
    }

    fn add_address(&mut self, interface: &str, address: &str, scope: Option<&str>) {
        let net = address.parse::<IpNet>().or_else(|_| address.parse::<IpAddr>().map(IpNet::from));
        let Ok(net) = net else { return };
        self.addresses.push((interface.to_owned(), net));
        if scope.is_some_and(|scope| scope != "global") {
            self.scoped.push(net.addr());
        }
    }

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

    fn route_in(&self, table: &str, address: IpAddr) -> Option<&StaticRoute> {
        let routes = self.routes.iter().filter(|route| route.table == table && route.to.contains(&address));
        // Among equal routes, `ip route` prints the one with the lowest metric first.
        routes.fold(None, |best: Option<&StaticRoute>, route| match best {
            Some(best) if best.to.prefix_len() >= route.to.prefix_len() => Some(best),
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

/// A command of a shell whose output follows.
#[derive(Debug)]
struct Command {
    object: Object,
    family: IpFamily,
    /// The table whose routes are printed, without its name.
    table: Option<String>,
}

/// What a command prints.
#[derive(Debug, PartialEq, Eq)]
enum Object {
    Route,
    Rule,
    Other,
}

impl Default for Command {
    fn default() -> Self {
        Self { object: Object::Other, family: IpFamily::V4, table: None }
    }
}

impl Command {
    /// Reads a line with a command: `ip` with its options, or another one after a prompt.
    fn parse(words: &[&str]) -> Option<Self> {
        let is_ip = |word: &&str| word.trim_start_matches(QUOTES).rsplit('/').next() == Some("ip");
        let mut rest = words.iter().position(is_ip).map_or(&[][..], |at| &words[at + 1..]);
        let mut family = IpFamily::V4;
        while let [option, after @ ..] = rest
            && let Some(name) = option.strip_prefix('-')
        {
            rest = after;
            match name.trim_start_matches('-') {
                "6" => family = IpFamily::V6,
                "f" | "family" | "n" | "netns" | "b" | "batch" | "l" | "loops" | "rc" | "rcvbuf" => {
                    if let [value, after @ ..] = rest {
                        family = if *value == "inet6" { IpFamily::V6 } else { family };
                        rest = after;
                    }
                }
                _ => {}
            }
        }
        // `ip` accepts beginnings of words, and prefers the first of these objects.
        let objects = [("address", Object::Other), ("route", Object::Route), ("rule", Object::Rule)];
        let object = rest.first().map(|word| word.trim_end_matches(QUOTES)).filter(|word| !word.is_empty());
        let object = object.and_then(|word| objects.into_iter().find(|(name, _)| name.starts_with(word)));
        let is_output = !rest.get(1).is_some_and(|word| NO_LISTS.contains(word));
        let Some((_, object)) = object.filter(|_| is_output) else {
            let is_prompt = |word: &&str| word.ends_with(['#', '$']);
            let has_prompt = words.len() > 1 && words.iter().take(MAX_PROMPT).any(is_prompt);
            return has_prompt.then(Self::default);
        };
        let is_table = |word: &&str| ["t", "ta", "tab", "tabl", "table"].contains(word);
        let table = rest.iter().position(is_table).and_then(|at| rest.get(at + 1));
        let table = table.map(|table| table.trim_end_matches(QUOTES)).filter(|table| !["all", "0"].contains(table));
        Some(Self { table: table.filter(|_| object == Object::Route).map(str::to_owned), object, family })
    }
}

impl NextHop {
    /// Reads a path of a route; `None` if there is no interface.
    fn parse(words: &[&str]) -> Option<Self> {
        let address = |word| {
            let text = after(words, word)?;
            // `via inet6 fe80::1`, for an IPv4 route.
            let text = if text == "inet6" { after(words, text)? } else { text };
            text.parse::<IpAddr>().ok()
        };
        Some(Self {
            interface: after(words, "dev")?.to_owned(),
            gateway: address("via"),
            source: address("src"),
            weight: after(words, "weight").and_then(|weight| weight.parse().ok()).unwrap_or(1),
        })
    }
}

impl Router for StaticRouter {
    fn route(&self, packet: &RoutedPacket<'_>) -> RouteDecision {
        let destination = packet.destination;
        let local = self.route_in("local", destination);
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
            let found = self.route_in(table, destination).filter(|route| !rule.suppresses(route.to.prefix_len()));
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
        let tables = DEFAULT_TABLES.iter().filter_map(|table| self.route_in(table, address));
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

fn text_is_v6(line: &str) -> bool {
    // `default dev eth0 metric 1024 pref medium` has no address, and neither has `unreachable default dev lo metric 1
    // error -101`.
    line.contains(" pref ")
        || line.contains(" error -")
        || line.split_whitespace().any(|word| word.matches(':').count() > 1)
}

/// Returns the word after another one.
fn after<'w>(words: &[&'w str], word: &str) -> Option<&'w str> {
    let at = words.iter().position(|other| *other == word)?;
    words.get(at + 1).copied()
}

fn network(text: &str, family: IpFamily) -> Option<IpNet> {
    if text == "default" {
        return match family {
            IpFamily::V4 => "0.0.0.0/0".parse().ok(),
            IpFamily::V6 => "::/0".parse().ok(),
        };
    }
    parse_network(text).map(|net| net.trunc())
}

/// Parses a network, or an address as the network of it alone.
pub(super) fn parse_network(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()
}

/// Characters around commands.
const QUOTES: [char; 8] = ['\'', '"', '`', '(', ')', ':', ';', ','];

/// Commands of `ip route` and `ip rule` that print no list.
const NO_LISTS: [&str; 11] =
    ["add", "append", "prepend", "replace", "change", "del", "delete", "get", "flush", "save", "restore"];

/// The maximum number of words of a prompt.
const MAX_PROMPT: usize = 3;

/// Tables that every host has.
const DEFAULT_TABLES: [&str; 3] = ["local", "main", "default"];

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
        assert!(
            route("198.51.100.7").starts_with("Paths([(1, Unicast { interface: \"eth0\""),
            "{}",
            route("198.51.100.7")
        );
        assert_eq!(route("2001:db8::1"), "eth0 ");
        assert_eq!(router.address_type("192.168.6.255".parse().unwrap()), Some(AddressKind::Broadcast));
    }

    #[test]
    fn sources_have_the_scope_of_the_destination() {
        let text = "1: lo: <UP>\n    inet 10.88.8.8/32 scope link lo\n\
                    2: eth0: <UP>\n    inet 192.168.6.121/24 scope global eth0\n    inet 192.168.6.122/24 scope global secondary eth0\n\
                    inet6 fd00:6::121/64 scope global\n3: cali1: <UP>\n    inet6 fe80::ee/64 scope link\n\
                    4: kube-ipvs0: <NOARP>\n    inet 10.96.0.1/32 scope global kube-ipvs0\n\
                    default via 192.168.6.1 dev eth0\nfd00:244::5 dev cali1 metric 1024\n\
                    local 192.168.6.122 dev eth0 table local proto kernel scope host src 192.168.6.121\n";
        let router = StaticRouter::parse(text);
        let masqueraded = |to: &str| router.masquerade_source(to.parse().unwrap(), "cali1", None).unwrap().to_string();
        assert_eq!([masqueraded("fd00:244::5"), masqueraded("fe80::5")], ["fd00:6::121", "fe80::ee"]);
        assert_eq!(masqueraded("10.244.1.5"), "192.168.6.121");
        let host = Host { addresses: router.own_addresses(), router: Some(Arc::new(router)), ..Host::default() };
        for (to, source) in [
            ("192.168.6.122", "192.168.6.121"),
            ("10.96.0.1", "10.96.0.1"),
            ("203.0.113.7", "192.168.6.121"),
            ("127.0.0.1", "127.0.0.1"),
        ] {
            assert_eq!(host.source_to(to.parse().unwrap(), None).unwrap().to_string(), source, "{to}");
        }
    }

    #[test]
    fn source_of_the_host_depends_on_rules_for_protocols_and_ports() {
        let text = "2: eth0: <UP>\n    inet 192.168.6.121/24 scope global eth0\n3: eth1: <UP>\n    inet 192.168.7.121/24 scope global eth1\n\
                    0:\tfrom all lookup local\n100:\tfrom all ipproto udp lookup 101\n101:\tfrom all dport 80 lookup 101\n\
                    102:\tfrom all dport 90 lookup 102\n32766:\tfrom all lookup main\n\
                    default via 192.168.6.1 dev eth0\ndefault via 192.168.7.1 dev eth1 table 101\n";
        let router = StaticRouter::parse(text);
        let host = Host { addresses: router.own_addresses(), router: Some(Arc::new(router)), ..Host::default() };
        let to = "198.51.100.7".parse().unwrap();
        let source =
            |protocol, port| host.source_to(to, Some((protocol, 40_000, port))).map(|source| source.to_string());
        use ferroute_core::Protocol::{Tcp, Udp};
        let [first, second] = ["192.168.6.121", "192.168.7.121"].map(|source| Some(source.to_owned()));
        assert_eq!(
            [source(Tcp, 443), source(Tcp, 80), source(Udp, 443), source(Tcp, 90)],
            [first, second.clone(), second, None]
        );
        let reason = host.unknown_route(to, Some((Tcp, 40_000, 90))).unwrap();
        assert!(reason.contains("table 102"), "{reason}");
    }

    #[test]
    fn tables_paths_and_policy_rules_are_followed() {
        let text = "2: eth0: <UP>\n    inet 192.168.6.121/24 scope global eth0\n3: eth1: <UP>\n    inet 192.168.7.121/24 scope global eth1\n\
                    0:\tfrom all lookup local\n512:\tfrom all fwmark 0x80/0xff lookup 101\n513:\tfrom 10.244.1.9 lookup 102\n\
                    514:\tfrom all lookup main suppress_prefixlength 0\n515:\tfrom 10.244.1.5 lookup vpn\n32766:\tfrom all lookup main\n\
                    default via 192.168.7.1 dev eth1 table 101\nthrow 203.0.113.0/24 table 101\ndefault via 192.168.7.9 dev eth1 table vpn\n\
                    default proto static \n\tnexthop via 192.168.6.1 dev eth0 weight 1 \n\tnexthop via 192.168.7.1 dev eth1 weight 3 \n\
                    \tnexthop via 192.168.8.1 dev eth2 weight 1 dead linkdown\n\
                    192.168.6.0/24 dev eth0 proto kernel scope link src 192.168.6.121\n";
        let router = StaticRouter::parse(text);
        assert!(router.has_several_paths());
        let route = |to: &str, from: &str, mark| {
            let (destination, source) = (to.parse().unwrap(), Some(from.parse().unwrap()));
            let paths = |decision| match decision {
                RouteDecision::Unicast { interface, gateway, .. } => format!("{interface} {}", gateway.unwrap()),
                other => format!("{other:?}"),
            };
            match router.route(&RoutedPacket { destination, source, input: Some("cali1"), mark, transport: None }) {
                RouteDecision::Paths(all) => all
                    .into_iter()
                    .map(|(weight, path)| format!("{weight}: {}", paths(path)))
                    .collect::<Vec<_>>()
                    .join(", "),
                one => paths(one),
            }
        };
        let all = "1: eth0 192.168.6.1, 3: eth1 192.168.7.1";
        assert_eq!(route("198.51.100.7", "10.244.1.6", 0), all);
        assert_eq!(route("198.51.100.7", "10.244.1.6", 0x180), "eth1 192.168.7.1");
        assert_eq!(route("203.0.113.7", "10.244.1.6", 0x80), all);
        assert_eq!(route("198.51.100.7", "10.244.1.5", 0), "eth1 192.168.7.9");
        assert!(
            route("198.51.100.7", "10.244.1.9", 0).contains("table 102: add the output of ip route show table all")
        );
        assert!(route("192.168.6.121", "10.244.1.9", 0).starts_with("Local"));
    }

    #[test]
    fn commands_beside_routes_tell_their_table_and_family() {
        let v4 = "default via 192.168.7.1 dev eth1\n";
        let main = "default via 192.168.6.1 dev eth0\n";
        for command in [
            "root@node:~# ip route show table 2\n",
            "[root@node ~]# ip r s t 2\n",
            "ip -4 -d route list table 2\n",
            "$ sudo ip -n red r ls tab 2\n",
            "# ip route show table 2:\n",
            "+ /sbin/ip route show table 2\n",
            "kubectl exec -n x pod -- ip route show table 2\n",
            "Output of `ip route show table 2`\n",
        ] {
            for text in [format!("{command}{v4}root@node:~# ip route\n{main}"), format!("{main}{command}{v4}$ exit\n")]
            {
                let router = StaticRouter::parse(&text);
                let tables: Vec<String> =
                    router.routes.iter().map(|route| format!("{} {}", route.table, route.to)).collect();
                let mut sorted = tables.clone();
                sorted.sort();
                assert_eq!(sorted, ["2 0.0.0.0/0", "main 0.0.0.0/0"], "{text}");
            }
        }
        let text = "$ ip -6 route\ndefault dev eth0 metric 1024\n$ ip route show table 5\n$ ip rule\n0: from all lookup local\n\
                    5: from all lookup 5\n32766: from all lookup main\n$ ip -6 rule\n0: from all lookup local\n5: from all lookup 6\n\
                    $ ip route show table all\n10.0.0.0/8 dev eth1 table 7\n192.0.2.0/24 dev eth0\n";
        let router = StaticRouter::parse(text);
        let tables: Vec<String> = router.routes.iter().map(|route| format!("{} {}", route.table, route.to)).collect();
        assert_eq!(tables, ["main ::/0", "7 10.0.0.0/8", "main 192.0.2.0/24"]);
        let route = |to: &str| {
            let destination = to.parse().unwrap();
            router.route(&RoutedPacket { destination, source: None, input: None, mark: 0, transport: None })
        };
        // Scripts that change routes and rules have no output.
        let text = "ip rule add from fd00::/8 lookup 5\nip route add 10.0.0.0/8 dev eth1 table 5\ndefault via 192.168.6.1 dev eth0\n";
        let changed = StaticRouter::parse(text);
        assert_eq!((changed.routes.len(), changed.routes[0].table.as_str()), (1, "main"));
        assert!(!changed.is_known("5"));
        // Table 5 is empty.
        assert!(matches!(route("192.0.2.7"), RouteDecision::Unicast { .. }));
        assert!(matches!(route("2001:db8::1"), RouteDecision::Unknown(reason) if reason.contains("table 6")));
    }

    #[test]
    fn text_without_routes_is_an_error_that_says_what_to_use() {
        for (text, remedy) in [
            ("\n", Some("empty")),
            ("[{\"dst\":\"default\"}]\n", Some("without -j")),
            (
                "Kernel IP routing table\nDestination     Gateway\n0.0.0.0         192.168.6.1\n",
                Some("not that of ifconfig"),
            ),
            ("eth0: flags=4163<UP>  mtu 1500\n        inet 192.168.6.121  netmask 255.255.255.0\n", Some("ifconfig")),
            ("2: eth0: <UP>\n    inet 192.168.6.121/24\n", Some("add the output of ip route")),
            ("hello\n", Some("neither")),
            ("default via 192.168.6.1 dev eth0\n", None),
        ] {
            let reason = StaticRouter::parse(text).why_useless(text);
            let is_expected = reason.zip(remedy).map_or(reason == remedy, |(reason, remedy)| reason.contains(remedy));
            assert!(is_expected, "{text}: {reason:?}");
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
        let interface = |to: &str| match router.route_in("main", to.parse().unwrap()).map(|route| &route.kind) {
            Some(Kind::Unicast(paths)) => paths[0].interface.clone(),
            other => format!("{other:?}"),
        };
        assert_eq!(["203.0.113.7", "192.0.2.9", "2001:db8::1"].map(interface), ["eth0", "eth0", "Some(Unreachable)"]);
    }

    #[test]
    fn rules_that_skip_others_and_tables_of_vrfs_are_followed() {
        let rules = "0:\tfrom all lookup local\n100:\tfrom all nop\n200:\tfrom 10.244.1.9 goto 32766\n\
                     1000:\tfrom all lookup [l3mdev-table]\n2000:\tfrom all unreachable\n32766:\tfrom all lookup main\n\
                     default via 192.168.6.1 dev eth0\ndefault via 192.168.7.1 dev eth1 table 10\n";
        let links = "2: eth0: <UP> mtu 1500\n    inet 192.168.6.121/24 scope global eth0\n\
                     3: red: <NOARP,MASTER,UP> mtu 65575\n    link/ether 02:00:00:00:00:01\n    vrf table 10 addrgenmode eui64\n\
                     4: eth1@if9: <UP> mtu 1500 qdisc noqueue master red state UP\n    vrf_slave table 10 addrgenmode eui64\n\
                     5: eth2: <UP> mtu 1500 master blue\n";
        let router = StaticRouter::parse(&format!("{links}{rules}"));
        let route = |from: &str, input| {
            let (destination, source) = ("198.51.100.7".parse().unwrap(), Some(from.parse().unwrap()));
            match router.route(&RoutedPacket { destination, source, input: Some(input), mark: 0, transport: None }) {
                RouteDecision::Unicast { interface, .. } => interface.to_string(),
                RouteDecision::Unknown(reason) => reason,
                other => format!("{other:?}"),
            }
        };
        assert_eq!(route("10.244.1.9", "eth0"), "eth0");
        assert_eq!(route("10.244.1.5", "eth0"), "Unreachable");
        assert_eq!([route("10.244.1.5", "eth1"), route("10.244.1.5", "red")], ["eth1", "eth1"]);
        assert!(route("10.244.1.5", "eth2").contains("if blue is a VRF: add the output of ip -details address"));
        assert_eq!(router.vrf("eth1").as_deref(), Some("red"));
    }
}
