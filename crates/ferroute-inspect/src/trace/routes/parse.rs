//! The output of `ip address`, `ip route`, `ip -6 route` and `ip rule`, as it is printed or as people paste it, with the commands.

use std::net::IpAddr;

use ferroute_core::IpFamily;
use ipnet::IpNet;

use super::{Kind, NextHop, StaticRoute, StaticRouter};

impl StaticRouter {
    pub(super) fn parse(text: &str) -> Self {
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
            let has_realm = words.iter().any(|word| ["realm", "realms"].contains(word));
            match words.as_slice() {
                [priority, rest @ ..] if router.rules.add(priority, rest) => router.has_realms |= has_realm,
                // `2: eth0@if3: <BROADCAST> …` of `ip address`.
                [number, name, ..] if number.ends_with(':') && name.ends_with(':') => {
                    let name = name.trim_end_matches(':');
                    name.split('@').next().unwrap_or(name).clone_into(&mut interface);
                    let master = after(&words, "master").map(str::to_owned);
                    router.masters.extend(master.map(|master| (interface.clone(), master)));
                    let group = match after(&words, "group") {
                        Some("default") => Some(0),
                        group => group.and_then(|group| group.parse().ok()),
                    };
                    router.groups.extend(group.map(|group| (interface.clone(), group)));
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
                    router.has_realms |= has_realm;
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
                    router.has_realms |= has_realm;
                    multipath = matches!(&kind, Kind::Unicast(paths) if paths.is_empty()).then_some(source);
                    let table = after(&words, "table").or(command.table.as_deref()).unwrap_or("main");
                    router.has_all_tables |= table == "local";
                    let from = after(&words, "from").and_then(parse_network).filter(|from| from.prefix_len() > 0);
                    router.routes.push(StaticRoute { table: table.to_owned(), to, from, kind });
                }
                [] => {}
            }
        }
        router.routes.retain(|route| !matches!(&route.kind, Kind::Unicast(paths) if paths.is_empty()));
        router
    }

    /// Reports whether a text is output of `ip route`.
    pub(in crate::trace) fn has_routes(text: &str) -> bool {
        !Self::parse(text).routes.is_empty()
    }

    /// Returns the reason why the parsed text is insufficient; `None` if it has routes.
    pub(super) fn why_useless(&self, text: &str) -> Option<&'static str> {
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
pub(in super::super) fn parse_network(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()
}

/// Characters around commands.
const QUOTES: [char; 8] = ['\'', '"', '`', '(', ')', ':', ';', ','];

/// Commands of `ip route` and `ip rule` that print no list.
const NO_LISTS: [&str; 11] =
    ["add", "append", "prepend", "replace", "change", "del", "delete", "get", "flush", "save", "restore"];

/// The maximum number of words of a prompt.
const MAX_PROMPT: usize = 3;
