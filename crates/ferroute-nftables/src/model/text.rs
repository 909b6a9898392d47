//! Rules in `nft` syntax, as `nft` prints and parses them.

use std::{
    fmt::{self, Write},
    net::{IpAddr, SocketAddr},
};

use ferroute_core::IpFamily;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    ClassId, CmpOp, Elements, Field, HashInput, InterfacePattern, Match, Name, Opaque, Operand, Outcome, Property,
    RejectWith, Rule, Statement, Value, Words,
    foreign::{comparison_text, set_text},
    name::Printable,
    words::duration,
};

/// A rule to print.
pub(super) struct RuleText<'a> {
    pub(super) rule: &'a Rule,
    pub(super) family: IpFamily,
    /// Returns the elements of sets without a name.
    pub(super) elements: &'a Elements<'a>,
}

/// Returns the name of the table family: `ip` or `ip6`.
pub fn family_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip6",
    }
}

/// Returns the netmask of a prefix length.
///
/// # Panics
///
/// The length exceeds the addresses of the family.
pub fn netmask(family: IpFamily, length: u8) -> IpAddr {
    match family {
        IpFamily::V4 => IpNet::V4(Ipv4Net::new_assert([0; 4].into(), length)).netmask(),
        IpFamily::V6 => IpNet::V6(Ipv6Net::new_assert([0; 16].into(), length)).netmask(),
    }
}

/// Joins the printed values with a separator.
pub(crate) fn join<T: fmt::Display>(items: &[T], separator: &str) -> String {
    let mut text = String::new();
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            text.push_str(separator);
        }
        write!(text, "{item}").expect("writing to a string cannot fail");
    }
    text
}

impl fmt::Display for RuleText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut family = self.family;
        for (i, statement) in self.rule.statements.iter().enumerate() {
            if i > 0 {
                f.write_char(' ')?;
            }
            if let Statement::Match(Match::Nfproto(only)) = statement {
                // The remaining statements apply to packets of this family.
                family = *only;
            }
            RuleText { family, ..*self }.statement(f, statement)?;
        }
        match &self.rule.comment {
            Some(comment) => write!(f, " {comment}"),
            None => Ok(()),
        }
    }
}

impl RuleText<'_> {
    fn statement(&self, f: &mut fmt::Formatter<'_>, statement: &Statement) -> fmt::Result {
        let ip = family_name(self.family);
        match statement {
            Statement::Match(condition) => self.condition(f, condition),
            Statement::MetaPriorityMap { key, map } => {
                write!(f, "meta priority set {} map {}", self.key(key), self.set(map, key))
            }
            // As `nft` prints it: with the bits that are set anyway.
            Statement::MetaPriorityBits(change) => {
                let (kept, set) = (change.kept(), change.set());
                write!(f, "meta priority set meta priority & {} | {set}", ClassId(kept.0 | set.0))
            }
            Statement::MetaPriorityNone => f.write_str("meta priority set none"),
            Statement::MetaMarkOr(bits) => write!(f, "meta mark set meta mark | {bits:#010x}"),
            Statement::MetaMarkXor(bits) => write!(f, "meta mark set meta mark ^ {bits:#010x}"),
            Statement::UpdateMap { key, map, timeout } => {
                write!(
                    f,
                    "update @{map} {{ {} timeout {} : meta priority }}",
                    self.key(key),
                    duration(timeout.as_secs())
                )
            }
            Statement::DeleteFromMap { key, map } => write!(f, "delete @{map} {{ {} : meta priority }}", self.key(key)),
            Statement::MetaMarkSet { mask: 0, xor } => write!(f, "meta mark set {xor:#010x}"),
            Statement::MetaMarkSet { mask, xor } => {
                write!(f, "meta mark set meta mark & {mask:#010x} ^ {xor:#010x}")
            }
            Statement::UpdateSet { key, set, timeout } => {
                let timeout = timeout.map(|timeout| format!(" timeout {}", duration(timeout.as_secs())));
                write!(f, "update @{set} {{ {}{} }}", self.key(key), timeout.unwrap_or_default())
            }
            Statement::Dnat { address, port: None } => write!(f, "dnat to {address}"),
            Statement::Dnat { address, port: Some(port) } => {
                write!(f, "dnat to {}", SocketAddr::new(*address, *port))
            }
            Statement::Snat(address) => write!(f, "snat to {address}"),
            Statement::FlowAdd(flowtable) => write!(f, "flow add @{flowtable}"),
            Statement::Log { prefix, group } => write!(f, "log prefix \"{}\" group {group}", Printable(prefix)),
            Statement::Notrack => f.write_str("notrack"),
            Statement::Opaque(Opaque { outcome: Outcome::Foreign(foreign), .. }) => {
                f.write_str(&foreign.text(self.family, self.elements))
            }
            Statement::Opaque(opaque) => f.write_str(&opaque.text),
            Statement::DnatMap { key, map } => {
                write!(f, "dnat {ip} to {} map {}", self.key(key), self.set(map, key))
            }
            Statement::Masquerade { fully_random: true } => f.write_str("masquerade fully-random"),
            Statement::Masquerade { fully_random: false } => f.write_str("masquerade"),
            Statement::Reject(RejectWith::PortUnreachable) => f.write_str("reject"),
            Statement::Reject(with) => write!(f, "reject with {}", with.text(self.family)),
            Statement::Verdict(verdict) => write!(f, "{verdict}"),
            Statement::Vmap { key, map } => write!(f, "{} vmap {}", self.key(key), self.set(map, key)),
        }
    }

    fn condition(&self, f: &mut fmt::Formatter<'_>, condition: &Match) -> fmt::Result {
        let ip = family_name(self.family);
        let operator = |eq: &bool| if *eq { "" } else { "!= " };
        match condition {
            Match::InSet { key, set, eq } => write!(f, "{} {}{}", self.key(key), operator(eq), self.set(set, key)),
            Match::Saddr { net, eq } => write!(f, "{ip} saddr {}{}", operator(eq), Value::Network(*net)),
            Match::Daddr { net, eq } => write!(f, "{ip} daddr {}{}", operator(eq), Value::Network(*net)),
            Match::Iifname { name: InterfacePattern::Exact(name), eq } => {
                write!(f, "iifname {}\"{}\"", operator(eq), Printable(name))
            }
            Match::Iifname { name: InterfacePattern::Prefix(prefix), eq } => {
                write!(f, "iifname {}\"{}*\"", operator(eq), Printable(prefix))
            }
            Match::FibSaddrLocal => f.write_str("fib saddr type local"),
            Match::FibDaddrLocal => f.write_str("fib daddr type local"),
            Match::CtStateNew => f.write_str("ct state new"),
            Match::CtStatusDnat => f.write_str("ct status dnat"),
            Match::CtPacketsAbove(packets) => write!(f, "ct packets > {packets}"),
            Match::MetaMark(bits) => write!(f, "meta mark & {bits:#010x} != 0x00000000"),
            Match::Nfproto(IpFamily::V4) => f.write_str("meta nfproto ipv4"),
            Match::Nfproto(IpFamily::V6) => f.write_str("meta nfproto ipv6"),
            Match::Cmp { field, mask, op, value } => {
                if let (Value::Integer(number), Words::Flags(_) | Words::Names(_)) =
                    (value, Property::Field(*field).words(self.family))
                {
                    let mask = if *mask == u32::MAX { u128::MAX } else { (*mask).into() };
                    let operand = Operand { mask, ..Property::Field(*field).into() };
                    return f.write_str(&comparison_text(operand, *op, (*number).into(), self.family));
                }
                f.write_str(&field_text(*field, self.family))?;
                if *mask != u32::MAX {
                    write!(f, " & {mask:#010x}")?;
                }
                let op = match op {
                    CmpOp::Eq if *mask == u32::MAX => "",
                    CmpOp::Eq => "== ",
                    CmpOp::Neq => "!= ",
                    CmpOp::Lt => "< ",
                    CmpOp::Lte => "<= ",
                    CmpOp::Gt => "> ",
                    CmpOp::Gte => ">= ",
                };
                write!(f, " {op}{value}")
            }
            Match::Range { field, first, last, eq } => {
                write!(f, "{} {}{first}-{last}", field_text(*field, self.family), operator(eq))
            }
        }
    }

    fn key(&self, key: &[Field]) -> String {
        key.iter().map(|field| field_text(*field, self.family)).collect::<Vec<_>>().join(" . ")
    }

    /// Returns a set: by its name or, if it is anonymous, with its elements.
    fn set(&self, name: &Name, key: &[Field]) -> String {
        let key: Vec<Operand> = key.iter().map(|field| Property::Field(*field).into()).collect();
        set_text(name, &key, self.family, self.elements)
    }
}

/// Returns a field in `nft` syntax.
pub(super) fn field_text(field: Field, family: IpFamily) -> String {
    let ip = family_name(family);
    match field {
        Field::Saddr => format!("{ip} saddr"),
        Field::Daddr => format!("{ip} daddr"),
        Field::SaddrNetwork(length) => format!("{ip} saddr & {}", netmask(family, length)),
        Field::L4proto => "meta l4proto".to_owned(),
        Field::Dport => "th dport".to_owned(),
        Field::Sport => "th sport".to_owned(),
        Field::CtOriginalDaddr => format!("ct original {ip} daddr"),
        Field::CtOriginalDport => "ct original proto-dst".to_owned(),
        Field::MetaPriority => "meta priority".to_owned(),
        Field::PriorityBits(mask) => format!("meta priority & {mask}"),
        Field::MetaMark => "meta mark".to_owned(),
        Field::Iifname => "iifname".to_owned(),
        Field::Oifname => "oifname".to_owned(),
        Field::CtState => "ct state".to_owned(),
        Field::CtStatus => "ct status".to_owned(),
        Field::FibSaddrType => "fib saddr type".to_owned(),
        Field::FibDaddrType => "fib daddr type".to_owned(),
        Field::NumgenRandom { count, first: 0 } => format!("numgen random mod {count}"),
        Field::NumgenRandom { count, first } => format!("numgen random mod {count} offset {first}"),
        Field::NumgenInc { count, first: 0 } => format!("numgen inc mod {count}"),
        Field::NumgenInc { count, first } => format!("numgen inc mod {count} offset {first}"),
        Field::Jhash { input, count, seed, first } => {
            let port = match input {
                HashInput::Saddr => "",
                HashInput::SaddrSport => " . th sport",
            };
            let offset = if first == 0 { String::new() } else { format!(" offset {first}") };
            format!("jhash {ip} saddr{port} mod {count} seed {seed:#x}{offset}")
        }
    }
}

impl RejectWith {
    /// Returns the kind of reply to packets of an IP family, in `nft` syntax.
    pub fn text(self, family: IpFamily) -> String {
        let named = |names: &[(u8, &str)], code: u8| {
            let name = names.iter().find(|(known, _)| *known == code);
            name.map_or_else(|| code.to_string(), |(_, name)| (*name).to_owned())
        };
        match (self, family) {
            (Self::PortUnreachable, IpFamily::V4) => "icmp port-unreachable".to_owned(),
            (Self::PortUnreachable, IpFamily::V6) => "icmpv6 port-unreachable".to_owned(),
            (Self::TcpReset, _) => "tcp reset".to_owned(),
            (Self::Icmp(code), IpFamily::V4) => format!("icmp {}", named(&ICMP, code)),
            (Self::Icmp(code), IpFamily::V6) => format!("icmpv6 {}", named(&ICMPV6, code)),
            (Self::Icmpx(code), _) => format!("icmpx {}", named(&ICMPX, code)),
        }
    }
}

impl RejectWith {
    /// Returns the kind of reply with a name: `icmp` and `port-unreachable`. `None` for an unknown name.
    pub(crate) fn parse(kind: &str, name: &str) -> Option<Self> {
        let code = |names: &[(u8, &str)]| {
            let known = names.iter().find(|(_, known)| *known == name).map(|(code, _)| *code);
            known.or_else(|| name.parse().ok())
        };
        Some(match kind {
            "icmp" if name == "port-unreachable" => Self::PortUnreachable,
            "icmpv6" if name == "port-unreachable" => Self::PortUnreachable,
            "icmp" => Self::Icmp(code(&ICMP)?),
            "icmpv6" => Self::Icmp(code(&ICMPV6)?),
            "icmpx" => Self::Icmpx(code(&ICMPX)?),
            _ => return None,
        })
    }
}

/// Codes of ICMP destination unreachable.
const ICMP: [(u8, &str); 7] = [
    (0, "net-unreachable"),
    (1, "host-unreachable"),
    (2, "prot-unreachable"),
    (3, "port-unreachable"),
    (9, "net-prohibited"),
    (10, "host-prohibited"),
    (13, "admin-prohibited"),
];
/// Codes of ICMPv6 destination unreachable.
const ICMPV6: [(u8, &str); 6] = [
    (0, "no-route"),
    (1, "admin-prohibited"),
    (3, "addr-unreachable"),
    (4, "port-unreachable"),
    (5, "policy-fail"),
    (6, "reject-route"),
];
/// `NFT_REJECT_ICMPX_*`.
const ICMPX: [(u8, &str); 4] =
    [(0, "no-route"), (1, "port-unreachable"), (2, "host-unreachable"), (3, "admin-prohibited")];
