use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferroute_core::{IpFamily, Protocol};

use super::parse_rule::Word;
use crate::{
    AddressType, ChainName, CtStates, MarkMatch, Match, PortList, PortRange, PortSide, Probability, Recent,
    RecentAction, RejectWith, Sense, SetMatch, Target, VirtualServerMatch,
};

/// An option of a module or target, with its arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opt<'a> {
    /// Preceded by `!`.
    pub(super) negated: bool,
    /// The name, with its dashes.
    pub(super) name: &'a str,
    /// The arguments.
    pub(super) args: &'a [Word<'a>],
}

impl<'a> Opt<'a> {
    /// Returns the only argument if it is printed without quotes.
    fn arg(&self) -> Option<&'a str> {
        match self.args {
            [word] => word.plain(),
            _ => None,
        }
    }

    /// Returns the only argument, quoted or not, of an option that is not negated.
    fn text(&self) -> Option<&'a str> {
        match self.args {
            [word] if !self.negated => Some(&word.text),
            _ => None,
        }
    }

    /// Returns the only argument of an option that is not negated, if it is printed without quotes.
    fn plain_arg(&self) -> Option<&'a str> {
        if self.negated { None } else { self.arg() }
    }

    /// Reports whether the option has neither arguments nor a negation.
    fn is_flag(&self) -> bool {
        !self.negated && self.args.is_empty()
    }
}

/// Reports whether an option takes exactly one argument, which may look like an option.
pub(super) fn takes_any_word(option: &str) -> bool {
    matches!(option, "--comment" | "--nfacct-name" | "--name" | "--log-prefix" | "--nflog-prefix" | "--string")
}

/// Reports whether a module has an option. `iptables` queries each loaded module, so an option may be apart from its `-m`.
pub(super) fn has_option(module: &str, option: &str) -> bool {
    match module {
        "comment" => option == "--comment",
        "tcp" | "udp" | "sctp" => is_port_option(option),
        "conntrack" => option.starts_with("--ct"),
        "state" => option == "--state",
        "multiport" => PortSide::from_option(option).is_some(),
        "mark" => option == "--mark",
        "addrtype" => matches!(option, "--src-type" | "--dst-type" | "--limit-iface-in" | "--limit-iface-out"),
        "statistic" => matches!(option, "--mode" | "--probability" | "--every" | "--packet"),
        "recent" => matches!(
            option,
            "--set"
                | "--rcheck"
                | "--update"
                | "--remove"
                | "--seconds"
                | "--reap"
                | "--hitcount"
                | "--rttl"
                | "--name"
                | "--mask"
                | "--rsource"
                | "--rdest"
        ),
        "nfacct" => option == "--nfacct-name",
        "set" => option == "--match-set",
        "physdev" => option.starts_with("--physdev-"),
        "ipvs" => matches!(option, "--vproto" | "--vaddr" | "--vport"),
        _ => false,
    }
}

/// Reports whether an option belongs to the module of a transport protocol, which `-p` loads implicitly.
pub(super) fn is_port_option(option: &str) -> bool {
    matches!(
        option,
        "--sport"
            | "--source-port"
            | "--dport"
            | "--destination-port"
            | "--tcp-flags"
            | "--syn"
            | "--tcp-option"
            | "--chunk-types"
    )
}

/// Parses a module; `None` if the module or one of its options is unsupported.
pub(super) fn parse_match(family: IpFamily, module: &str, options: &[Opt<'_>]) -> Option<Match> {
    match (module, options) {
        ("comment", [comment]) => Some(Match::Comment(comment.text()?.into())),
        ("tcp" | "udp" | "sctp", _) => transport(module.parse().ok()?, options),
        ("conntrack", [state]) if state.name == "--ctstate" => {
            Some(Match::Conntrack(Sense::new(state.negated, CtStates::parse(state.arg()?)?)))
        }
        ("state", [state]) if state.name == "--state" => {
            Some(Match::State(Sense::new(state.negated, CtStates::parse(state.arg()?)?)))
        }
        ("multiport", [list]) => {
            let side = PortSide::from_option(list.name)?;
            let ranges = list.arg()?.split(',').map(ports).collect::<Option<Vec<_>>>()?;
            Some(Match::Multiport { side, ports: Sense::new(list.negated, PortList::new(ranges)) })
        }
        ("mark", [mark]) if mark.name == "--mark" => {
            let (value, mask) = masked_number(mark.arg()?)?;
            Some(Match::Mark(Sense::new(mark.negated, MarkMatch { value, mask })))
        }
        ("addrtype", _) => address_types(options),
        ("statistic", [mode, chance] | [chance, mode]) if mode.name == "--mode" && chance.name == "--probability" => {
            (mode.plain_arg()? == "random").then_some(())?;
            Some(Match::Statistic(Sense::new(chance.negated, Probability::parse(chance.arg()?)?)))
        }
        ("recent", _) => recent(family, options).map(Match::Recent),
        ("nfacct", [name]) if name.name == "--nfacct-name" => Some(Match::Nfacct(name.text()?.into())),
        ("set", [set]) if set.name == "--match-set" => match set.args {
            [name, sides] => Some(Match::Set(Sense::new(set.negated, SetMatch::parse(name.plain()?, sides.plain()?)?))),
            _ => None,
        },
        ("physdev", [Opt { negated, name: "--physdev-is-in", args: [] }]) => {
            Some(Match::PhysdevIsIn(Sense::new(*negated, ())))
        }
        ("ipvs", [_, _, _]) => virtual_server(options).map(Match::Ipvs),
        _ => None,
    }
}

fn virtual_server(options: &[Opt<'_>]) -> Option<VirtualServerMatch> {
    let value = |name| options.iter().find(|option| option.name == name)?.plain_arg();
    let address = value("--vaddr")?;
    Some(VirtualServerMatch {
        address: address.trim_end_matches("/32").trim_end_matches("/128").parse().ok()?,
        protocol: Protocol::from_number(value("--vproto")?.parse().ok()?)?,
        port: value("--vport")?.parse().ok()?,
    })
}

/// Parses a target; `None` if the target or one of its options is unsupported.
pub(super) fn parse_target(family: IpFamily, name: &str, options: &[Opt<'_>]) -> Option<Target> {
    match (name, options) {
        ("ACCEPT", []) => Some(Target::Accept),
        ("DROP", []) => Some(Target::Drop),
        ("RETURN", []) => Some(Target::Return),
        ("REJECT", []) => Some(Target::Reject(match family {
            IpFamily::V4 => RejectWith::IcmpPortUnreachable,
            IpFamily::V6 => RejectWith::Icmp6PortUnreachable,
        })),
        ("REJECT", [with]) if with.name == "--reject-with" => {
            Some(Target::Reject(RejectWith::from_word(with.plain_arg()?)))
        }
        ("MARK", [mark]) => set_mark(mark.name, mark.plain_arg()?),
        ("MASQUERADE", []) => Some(Target::Masquerade { random_fully: false }),
        ("MASQUERADE", [random]) if random.name == "--random-fully" && random.is_flag() => {
            Some(Target::Masquerade { random_fully: true })
        }
        ("SNAT", [to]) if to.name == "--to-source" => source(to.plain_arg()?, false),
        ("SNAT", [to, random]) if to.name == "--to-source" && random.name == "--random-fully" && random.is_flag() => {
            source(to.plain_arg()?, true)
        }
        ("DNAT", [to]) if to.name == "--to-destination" => destination(to.plain_arg()?),
        (_, []) if !EXTENSIONS.contains(&name) => ChainName::new(name).ok().map(Target::Jump),
        _ => None,
    }
}

fn transport(protocol: Protocol, options: &[Opt<'_>]) -> Option<Match> {
    let (mut source, mut destination) = (None, None);
    for option in options {
        let slot = match option.name {
            "--sport" | "--source-port" => &mut source,
            "--dport" | "--destination-port" => &mut destination,
            _ => return None,
        };
        let range = Sense::new(option.negated, ports(option.arg()?)?);
        if slot.replace(range).is_some() {
            return None;
        }
    }
    let is_condition = |range: &Sense<PortRange>| *range != Sense::Is(PortRange::ALL);
    Some(Match::Transport {
        protocol,
        source: source.filter(is_condition),
        destination: destination.filter(is_condition),
    })
}

/// Parses `80`, `80:90`, `:90`, `80:`.
fn ports(text: &str) -> Option<PortRange> {
    let number = |text: &str, default| if text.is_empty() { Some(default) } else { text.parse().ok() };
    let range = match text.split_once(':') {
        None => PortRange::one(text.parse().ok()?),
        Some((first, last)) => PortRange { first: number(first, 0)?, last: number(last, u16::MAX)? },
    };
    (range.first <= range.last).then_some(range)
}

fn address_types(options: &[Opt<'_>]) -> Option<Match> {
    let (mut source, mut destination) = (None, None);
    for option in options {
        let slot = match option.name {
            "--src-type" => &mut source,
            "--dst-type" => &mut destination,
            _ => return None,
        };
        let kind = Sense::new(option.negated, AddressType::from_word(option.arg()?)?);
        if slot.replace(kind).is_some() {
            return None;
        }
    }
    (source.is_some() || destination.is_some()).then_some(Match::AddrType { source, destination })
}

fn recent(family: IpFamily, options: &[Opt<'_>]) -> Option<Recent> {
    let mut action = None;
    let mask = match family {
        IpFamily::V4 => IpAddr::V4(Ipv4Addr::BROADCAST),
        IpFamily::V6 => IpAddr::V6(Ipv6Addr::from(u128::MAX)),
    };
    let mut recent = Recent { action: RecentAction::Check, seconds: None, reap: false, name: "DEFAULT".into(), mask };
    for option in options {
        match option.name {
            "--set" if option.is_flag() && action.is_none() => action = Some(RecentAction::Set),
            "--rcheck" if option.is_flag() && action.is_none() => action = Some(RecentAction::Check),
            "--seconds" => recent.seconds = Some(option.plain_arg()?.parse().ok()?),
            "--reap" if option.is_flag() => recent.reap = true,
            "--name" => recent.name = option.plain_arg()?.into(),
            "--mask" => recent.mask = option.plain_arg()?.parse().ok()?,
            "--rsource" if option.is_flag() => {}
            _ => return None,
        }
    }
    recent.action = action?;
    Some(recent)
}

fn set_mark(option: &str, text: &str) -> Option<Target> {
    match option {
        "--set-xmark" => masked_number(text).map(|(value, mask)| Target::Mark { value, mask }),
        "--set-mark" => masked_number(text).map(|(value, mask)| Target::Mark { value, mask: mask | value }),
        "--or-mark" => number(text).map(Target::or_mark),
        "--xor-mark" => number(text).map(Target::xor_mark),
        "--and-mark" => number(text).map(Target::and_mark),
        _ => None,
    }
}

/// Parses the argument of `--to-source`; `None` if it has ports or is a range.
fn source(text: &str, random_fully: bool) -> Option<Target> {
    text.parse().ok().map(|address| Target::Snat { address, random_fully })
}

fn destination(text: &str) -> Option<Target> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some(Target::Dnat { address: socket.ip(), port: Some(socket.port()) });
    }
    text.parse().ok().map(|address| Target::Dnat { address, port: None })
}

/// Parses `VALUE` or `VALUE/MASK`; the default mask has all bits.
fn masked_number(text: &str) -> Option<(u32, u32)> {
    match text.split_once('/') {
        None => Some((number(text)?, u32::MAX)),
        Some((value, mask)) => Some((number(value)?, number(mask)?)),
    }
}

/// Parses a number as C does: `0x…` is hexadecimal, `0…` octal.
fn number(text: &str) -> Option<u32> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        u32::from_str_radix(hex, 16).ok()
    } else if let Some(octal) = text.strip_prefix('0').filter(|rest| !rest.is_empty()) {
        u32::from_str_radix(octal, 8).ok()
    } else {
        text.parse().ok()
    }
}

/// Targets that are kernel modules. `iptables` rejects chains with such a name.
const EXTENSIONS: [&str; 43] = [
    "ACCEPT",
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CLUSTERIP",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DNAT",
    "DNPT",
    "DROP",
    "DSCP",
    "ECN",
    "HL",
    "HMARK",
    "IDLETIMER",
    "LED",
    "LOG",
    "MARK",
    "MASQUERADE",
    "MIRROR",
    "NETMAP",
    "NFLOG",
    "NFQUEUE",
    "NOTRACK",
    "QUEUE",
    "RATEEST",
    "REDIRECT",
    "REJECT",
    "RETURN",
    "SECMARK",
    "SET",
    "SNAT",
    "SNPT",
    "SYNPROXY",
    "TCPMSS",
    "TCPOPTSTRIP",
    "TEE",
    "TOS",
    "TPROXY",
    "TRACE",
    "TTL",
    "ULOG",
];
