//! Match modules and targets of other programs' rules, which `ferroute-iptables` keeps as text. `docs/tracing.md` lists
//! the supported ones.

use std::net::IpAddr;

use ferroute_core::{IpFamily, Protocol};
use ferroute_iptables::{AddressType, CtStates};

use super::conditions::ExtensionResult;
use crate::{AddressKind, Origin, PacketState, RoutedPacket, walk::Unknown};

/// A module or target with its options.
pub(super) struct Words<'a> {
    pub(super) name: &'a str,
    pub(super) options: Vec<Opt<'a>>,
}

/// Whether an option is negated, its name, and its arguments.
pub(super) type Opt<'a> = (bool, &'a str, Vec<&'a str>);

impl<'a> Words<'a> {
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let mut words = split(text);
        let name = words.next()?;
        let (mut options, mut negated): (Vec<Opt<'_>>, bool) = (Vec::new(), false);
        for word in words {
            if word == "!" {
                negated = true;
            } else if word.starts_with("--") {
                options.push((std::mem::take(&mut negated), word, Vec::new()));
            } else {
                let (is_negated, _, arguments) = options.last_mut()?;
                // Old versions print the `!` after the option.
                *is_negated |= std::mem::take(&mut negated);
                arguments.push(word);
            }
        }
        Some(Self { name, options })
    }

    /// Returns the only argument of an option.
    pub(super) fn argument(&self, option: &str) -> Option<&'a str> {
        let (_, _, arguments) = self.options.iter().find(|(_, name, _)| *name == option)?;
        arguments.first().copied()
    }

    pub(super) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|(_, name, _)| *name == option)
    }
}

impl PacketState<'_> {
    /// Matches the packet against a module in the text of `iptables-save`: `-m NAME OPTIONS`.
    pub(super) fn matches_text(&self, text: &str) -> ExtensionResult {
        let unknown = || ExtensionResult::Unknown(Unknown::new(format!("`{}` matches", super::shown(text))));
        let words = text.strip_prefix("-m ").and_then(Words::parse);
        let Some(words) = words else {
            return match text {
                // The first packet is not a fragment that follows another.
                "-f" => ExtensionResult::Mismatch("packet is no later fragment".to_owned()),
                "! -f" => ExtensionResult::Match,
                _ => self.matches_list(text).map_or_else(unknown, |matches| self.result(matches, text)),
            };
        };
        if HEADERS.contains(&words.name) {
            return ExtensionResult::Mismatch(format!("the packet has no header `{}`", words.name));
        }
        if words.name == "ipv6header" {
            return words.extension_headers().map_or_else(unknown, |matches| self.result(matches, text));
        }
        if words.options.is_empty() {
            return match words.name {
                "tcp" | "udp" | "sctp" | "comment" => ExtensionResult::Match,
                "rpfilter" => {
                    self.passes_reverse_path_filter(&words).map_or_else(unknown, |passes| self.result(passes, text))
                }
                _ => unknown(),
            };
        }
        if words.name == "rpfilter" {
            return self.passes_reverse_path_filter(&words).map_or_else(unknown, |passes| self.result(passes, text));
        }
        if words.name == "addrtype" {
            return self.matches_types(&words).map_or_else(unknown, |matches| self.result(matches, text));
        }
        if words.name == "statistic" {
            return words.nth().map_or_else(unknown, ExtensionResult::Chance);
        }
        if let ("connlabel", Some(label)) = (words.name, words.argument("--label")) {
            // A new connection has no labels. The kernel takes a packet without a connection for one without labels.
            let is_set = words.has("--set") || self.changes.labels.iter().any(|set| **set == *label);
            let negated = words.options.iter().any(|(negated, ..)| *negated);
            return self.result((self.has_connection() && is_set) != negated, text);
        }
        if !self.has_connection() && ["conntrack", "connmark", "connbytes", "cluster"].contains(&words.name) {
            return self.result(self.matches_without_connection(&words), text);
        }
        let decided = match words.name {
            "connlimit" => words.exceeds_no_connections(),
            "connbytes" => self.matches_counters(&words),
            "cluster" => self.matches_cluster(&words),
            "string" => self.matches_string(&words),
            // No packet has a policy of IPsec, whatever else is wanted of it.
            "policy" if self.host().lacks_ipsec() => words.argument("--pol").map(|wanted| wanted == "none"),
            _ => None,
        };
        if let Some(matches) = decided {
            return self.result(matches, text);
        }
        let mut undecided = Vec::new();
        for option in &words.options {
            let (negated, name, arguments) = option;
            match self.matches_option(words.name, name, arguments) {
                Some(holds) if holds != *negated => {}
                Some(_) => return self.result(false, text),
                None => undecided.push(option),
            }
        }
        match undecided[..] {
            [] => ExtensionResult::Match,
            // A later rule may have the opposite.
            [(negated, option, arguments)] => {
                let text = [&["-m", words.name, option], &arguments[..]].concat().join(" ");
                let condition = format!("`{}` matches", super::shown(&text));
                ExtensionResult::Unknown(Unknown::new(condition).negated(*negated))
            }
            _ => unknown(),
        }
    }

    /// Evaluates `-s` or `-d` with several addresses; `None` for other text.
    fn matches_list(&self, text: &str) -> Option<bool> {
        let (option, list) = text.split_once(' ')?;
        let address = match option {
            "-s" => self.source.ip(),
            "-d" => self.destination.ip(),
            _ => return None,
        };
        let matches: Option<Vec<bool>> = list.split(',').map(|network| in_network(network, address)).collect();
        Some(matches?.contains(&true))
    }

    fn result(&self, matches: bool, text: &str) -> ExtensionResult {
        match matches {
            true => ExtensionResult::Match,
            false if self.explain => {
                ExtensionResult::Mismatch(format!("`{}` does not match this packet", super::shown(text)))
            }
            false => ExtensionResult::Mismatch(String::new()),
        }
    }

    /// Evaluates one option of a module; `None` if the result is unknown.
    fn matches_option(&self, module: &str, option: &str, arguments: &[&str]) -> Option<bool> {
        let first = arguments.first().copied();
        let (source, destination) = (self.source, self.destination);
        let original = self.tracked;
        Some(match (module, option) {
            // The options could not be read.
            (_, "--undecoded") => return None,
            ("tcp" | "udp" | "sctp", "--sport" | "--source-port") => in_ports(first?, source.port())?,
            ("tcp" | "udp" | "sctp", "--dport" | "--destination-port") => in_ports(first?, destination.port())?,
            // The first packet of a connection has the flag SYN alone.
            ("tcp", "--syn") => true,
            ("tcp", "--tcp-flags") => {
                let (mask, wanted) = (tcp_flags(first?)?, tcp_flags(arguments.get(1)?)?);
                SYN & mask == wanted
            }
            ("sctp", "--chunk-types") => init_matches(first?, arguments.get(1)?)?,
            ("devgroup", "--src-group") => self.is_in_group(self.in_interface.as_deref(), first?)?,
            ("devgroup", "--dst-group") => self.is_in_group(self.out_interface.as_deref(), first?)?,
            ("realm", "--realm") if self.host().lacks_realms() => {
                let (realm, _) = value_and_mask(if first? == "cosmos" { "0" } else { first? })?;
                realm == 0
            }
            // Such packets request ECN with other flags.
            ("ecn", "--ecn-tcp-cwr" | "--ecn-tcp-ece") => false,
            ("iprange", "--src-range") => in_addresses(first?, source.ip())?,
            ("iprange", "--dst-range") => in_addresses(first?, destination.ip())?,
            ("connmark", "--mark") => {
                let (value, mask) = value_and_mask(first?)?;
                self.connection_mark & mask == value
            }
            ("pkttype", "--pkt-type") => {
                let is_arriving = matches!(self.original.origin, Origin::Interface(_));
                let kind = self.address_type(destination.ip()).filter(|_| is_arriving);
                match first? {
                    "unicast" | "host" => !matches!(kind, Some(AddressKind::Broadcast | AddressKind::Multicast)),
                    "broadcast" => kind == Some(AddressKind::Broadcast),
                    "multicast" => kind == Some(AddressKind::Multicast),
                    _ => return None,
                }
            }
            ("physdev", option) => self.passes_port(option, first)?,
            ("conntrack", "--ctstate") => first?.split(',').any(|state| self.has_state(state)),
            ("conntrack", "--ctproto") => protocol(first?)? == self.protocol(),
            ("conntrack", "--ctorigsrc") => in_network(first?, original.0.ip())?,
            ("conntrack", "--ctorigdst") => in_network(first?, original.1.ip())?,
            ("conntrack", "--ctorigsrcport") => in_ports(first?, original.0.port())?,
            ("conntrack", "--ctorigdstport") => in_ports(first?, original.1.port())?,
            // Addresses of replies, which the translations so far determine.
            ("conntrack", "--ctreplsrc") => in_network(first?, destination.ip())?,
            ("conntrack", "--ctrepldst") => in_network(first?, source.ip())?,
            ("conntrack", "--ctreplsrcport") => in_ports(first?, destination.port())?,
            ("conntrack", "--ctrepldstport") => in_ports(first?, source.port())?,
            ("conntrack", "--ctdir") => first? == "ORIGINAL",
            // The kernel compares bits, and `NONE` has none.
            ("conntrack", "--ctstatus") => first?.split(',').any(|status| status == "CONFIRMED" && self.looped),
            // The connection is new, and no helper of another connection expects it.
            ("helper", "--helper") => false,
            // Packets of other hosts have no socket.
            ("owner" | "cgroup", _) if matches!(self.original.origin, Origin::Interface(_)) => false,
            _ => return None,
        })
    }

    /// Reports whether an interface is in a group; `None` if the group is unknown.
    fn is_in_group(&self, interface: Option<&str>, wanted: &str) -> Option<bool> {
        let (group, mask) = value_and_mask(if wanted == "default" { "0" } else { wanted })?;
        let Some(interface) = interface else { return Some(false) };
        Some(self.host().group(interface)? & mask == group)
    }

    /// Evaluates conditions on the connection of a packet that has none. The kernel compares only its state.
    fn matches_without_connection(&self, words: &Words<'_>) -> bool {
        let state = words.options.iter().find(|(_, option, _)| *option == "--ctstate");
        state.is_some_and(|(negated, _, arguments)| {
            let mut states = arguments.first().into_iter().flat_map(|list| list.split(','));
            states.any(|state| self.has_state(state)) != *negated
        })
    }

    /// Evaluates the module `addrtype` with several types, or for addresses of one interface; `None` if the result is
    /// unknown.
    fn matches_types(&self, words: &Words<'_>) -> Option<bool> {
        let interface = match (words.has("--limit-iface-in"), words.has("--limit-iface-out")) {
            (true, _) => Some(self.in_interface.as_deref()?),
            (_, true) => Some(self.out_interface.as_deref()?),
            (false, false) => None,
        };
        let mut matches = true;
        for (negated, option, arguments) in &words.options {
            let address = match *option {
                "--src-type" => self.source.ip(),
                "--dst-type" => self.destination.ip(),
                "--limit-iface-in" | "--limit-iface-out" => continue,
                _ => return None,
            };
            let wanted: Option<Vec<AddressType>> = arguments.first()?.split(',').map(AddressType::parse).collect();
            matches &= self.is_of_types(address, &wanted?, interface)? != *negated;
        }
        Some(matches)
    }

    fn has_state(&self, state: &str) -> bool {
        match state {
            "INVALID" => self.connection.intersects(CtStates::INVALID),
            "NEW" => self.connection.intersects(CtStates::NEW),
            "UNTRACKED" => self.connection.intersects(CtStates::UNTRACKED),
            "DNAT" => self.connection.intersects(CtStates::DNAT),
            "SNAT" => self.connection.intersects(CtStates::SNAT),
            _ => false,
        }
    }

    /// Reports whether `-m rpfilter` matches; `None` if unknown.
    fn passes_reverse_path_filter(&self, words: &Words<'_>) -> Option<bool> {
        let supported = ["--loose", "--invert", "--validmark", "--accept-local"];
        if words.options.iter().any(|(_, option, _)| !supported.contains(option)) {
            return None;
        }
        let source = self.source.ip();
        let input = self.in_interface.as_deref();
        let packet = RoutedPacket {
            destination: source,
            source: Some(self.destination.ip()),
            input: None,
            mark: if words.has("--validmark") { self.mark } else { 0 },
            transport: None,
        };
        let outputs = self.host.interfaces_for_rules(&packet).ok()?;
        let passes = if outputs.is_empty() {
            self.is_local(source) && (words.has("--accept-local") || input == Some("lo"))
        } else {
            words.has("--loose") || outputs.iter().any(|output| Some(&**output) == input)
        };
        Some(passes != words.has("--invert"))
    }
}

/// Splits text at blanks that are not in quotes, which remain.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    let words = text.split(move |c: char| {
        quoted ^= c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        c.is_whitespace() && !quoted
    });
    words.filter(|word| !word.is_empty())
}

/// Returns the field and the value of a condition that a field has one value.
pub(crate) fn field_value(condition: &str) -> Option<(&str, u64)> {
    let (field, value) = condition.strip_prefix('`')?.strip_suffix("` matches")?.rsplit_once(' ')?;
    if !SINGLE_VALUES.contains(&field) {
        return None;
    }
    match value.split(':').collect::<Vec<_>>()[..] {
        [value] => number(value).map(u64::from),
        // A MAC address.
        [_, _, _, _, _, _] => u64::from_str_radix(&value.replace(':', ""), 16).ok(),
        _ => None,
    }
    .map(|value| (field, value))
}

fn in_ports(range: &str, port: u16) -> Option<bool> {
    let (first, last) = range.split_once(':').unwrap_or((range, range));
    let first: u16 = if first.is_empty() { 0 } else { first.parse().ok()? };
    let last: u16 = if last.is_empty() { u16::MAX } else { last.parse().ok()? };
    Some((first..=last).contains(&port))
}

fn in_addresses(range: &str, address: IpAddr) -> Option<bool> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last): (IpAddr, IpAddr) = (first.parse().ok()?, last.parse().ok()?);
    Some(IpFamily::of(first) == IpFamily::of(address) && first <= address && address <= last)
}

fn in_network(text: &str, address: IpAddr) -> Option<bool> {
    match text.parse::<ipnet::IpNet>() {
        Ok(network) => Some(network.contains(&address)),
        Err(_) => Some(text.parse::<IpAddr>().ok()? == address),
    }
}

/// Reports whether the first packet of an SCTP connection, whose only chunk is INIT, has `any`, `all` or `only` these chunks.
fn init_matches(which: &str, chunks: &str) -> Option<bool> {
    // The flags of a chunk may follow its name; INIT has none.
    let mut names = chunks.split(',').map(|chunk| chunk.split(':').next().unwrap_or(chunk));
    let is_init = |name: &str| name.eq_ignore_ascii_case("INIT");
    let is_named = chunks == "ALL" || names.clone().any(is_init);
    match which {
        "any" | "only" => Some(is_named),
        "all" => Some(chunks == "NONE" || chunks != "ALL" && names.all(is_init)),
        _ => None,
    }
}

fn tcp_flags(list: &str) -> Option<u8> {
    list.split(',').try_fold(0, |flags, name| {
        Some(
            flags
                | match name {
                    "FIN" => 0x01,
                    "SYN" => SYN,
                    "RST" => 0x04,
                    "PSH" => 0x08,
                    "ACK" => 0x10,
                    "URG" => 0x20,
                    "ALL" => 0x3f,
                    "NONE" => 0,
                    _ => return None,
                },
        )
    })
}

/// Parses a mark, `VALUE` or `VALUE/MASK`; the default mask has all bits.
pub fn value_and_mask(text: &str) -> Option<(u32, u32)> {
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    Some((number(value)?, number(mask)?))
}

pub(super) fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn protocol(text: &str) -> Option<Protocol> {
    match text {
        "tcp" => Some(Protocol::Tcp),
        "udp" => Some(Protocol::Udp),
        "sctp" => Some(Protocol::Sctp),
        _ => Protocol::from_number(text.parse().ok()?),
    }
}

/// Modules for headers that first packets of connections through Services do not have. With any options, such packets
/// do not match.
const HEADERS: [&str; 13] =
    ["ah", "dst", "dccp", "esp", "frag", "hbh", "icmp", "icmp6", "ipcomp", "mh", "rt", "srh", "udplite"];
/// The flag of the first packet of a TCP connection.
const SYN: u8 = 0x02;
/// Options that name the value of a field which a packet keeps.
const SINGLE_VALUES: [&str; 7] = [
    "-m dscp --dscp",
    "-m length --length",
    "-m tcpmss --mss",
    "-m cpu --cpu",
    "-m mac --mac-source",
    "-m owner --uid-owner",
    "-m owner --gid-owner",
];
