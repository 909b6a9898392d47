//! Rules in `nft` syntax, as `nft` prints and parses them.

use std::{
    fmt::{self, Write},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ferroute_core::IpFamily;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    ClassId, CmpOp, Field, HashInput, InterfacePattern, Match, Opaque, Outcome, RejectWith, Rule, Statement, Value,
    name::Printable,
};

/// A rule to print.
pub(super) struct RuleText<'a> {
    pub(super) rule: &'a Rule,
    pub(super) family: IpFamily,
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
        for (i, statement) in self.rule.statements.iter().enumerate() {
            if i > 0 {
                f.write_char(' ')?;
            }
            self.statement(f, statement)?;
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
            Statement::MetaPriorityMap { key, map } => write!(f, "meta priority set {} map @{map}", self.key(key)),
            // As `nft` prints it: with the bits that are set anyway.
            Statement::MetaPriorityBits { mask, bits } => {
                write!(f, "meta priority set meta priority & {} | {bits}", ClassId(mask.0 | bits.0))
            }
            Statement::MetaPriorityNone => f.write_str("meta priority set none"),
            Statement::MetaMarkOr(bits) => write!(f, "meta mark set meta mark | {bits:#010x}"),
            Statement::MetaMarkXor(bits) => write!(f, "meta mark set meta mark ^ {bits:#010x}"),
            Statement::UpdateMap { key, map, timeout } => {
                write!(f, "update @{map} {{ {} timeout {} : meta priority }}", self.key(key), Time(*timeout))
            }
            Statement::DeleteFromMap { key, map } => write!(f, "delete @{map} {{ {} : meta priority }}", self.key(key)),
            Statement::MetaMarkSet { mask: 0, xor } => write!(f, "meta mark set {xor:#010x}"),
            Statement::MetaMarkSet { mask, xor } => {
                write!(f, "meta mark set meta mark & {mask:#010x} ^ {xor:#010x}")
            }
            Statement::UpdateSet { key, set } => write!(f, "update @{set} {{ {} }}", self.key(key)),
            Statement::Dnat { address, port: None } => write!(f, "dnat to {address}"),
            Statement::Dnat { address, port: Some(port) } => {
                write!(f, "dnat to {}", SocketAddr::new(*address, *port))
            }
            Statement::Snat(address) => write!(f, "snat to {address}"),
            Statement::FlowAdd(flowtable) => write!(f, "flow add @{flowtable}"),
            Statement::Notrack => f.write_str("notrack"),
            // In `nft` syntax.
            Statement::Opaque(Opaque { text, outcome: Outcome::Foreign(_), .. }) => f.write_str(text),
            Statement::Opaque(Opaque { text, .. }) if text.starts_with("limit ") => f.write_str(text),
            Statement::Opaque(opaque) => write!(f, "[{}]", opaque.text),
            Statement::DnatMap { key, map } => write!(f, "dnat {ip} to {} map @{map}", self.key(key)),
            Statement::Masquerade { fully_random: true } => f.write_str("masquerade fully-random"),
            Statement::Masquerade { fully_random: false } => f.write_str("masquerade"),
            Statement::Reject(RejectWith::PortUnreachable) => f.write_str("reject"),
            Statement::Reject(with) => write!(f, "reject with {with}"),
            Statement::Verdict(verdict) => write!(f, "{verdict}"),
            Statement::Vmap { key, map } => write!(f, "{} vmap @{map}", self.key(key)),
        }
    }

    fn condition(&self, f: &mut fmt::Formatter<'_>, condition: &Match) -> fmt::Result {
        let ip = family_name(self.family);
        let operator = |eq: &bool| if *eq { "" } else { "!= " };
        match condition {
            Match::InSet { key, set, eq } => write!(f, "{} {}@{set}", self.key(key), operator(eq)),
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
                self.field(f, *field)?;
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
                self.field(f, *field)?;
                write!(f, " {}{first}-{last}", operator(eq))
            }
        }
    }

    fn key(&self, key: &[Field]) -> String {
        let mut text = String::new();
        for (i, field) in key.iter().enumerate() {
            text.push_str(if i > 0 { " . " } else { "" });
            self.field(&mut text, *field).expect("writing to a string cannot fail");
        }
        text
    }

    fn field(&self, f: &mut impl Write, field: Field) -> fmt::Result {
        let ip = family_name(self.family);
        match field {
            Field::Saddr => write!(f, "{ip} saddr"),
            Field::Daddr => write!(f, "{ip} daddr"),
            Field::SaddrNetwork(length) => write!(f, "{ip} saddr & {}", netmask(self.family, length)),
            Field::L4proto => f.write_str("meta l4proto"),
            Field::Dport => f.write_str("th dport"),
            Field::Sport => f.write_str("th sport"),
            Field::CtOriginalDaddr => write!(f, "ct original {ip} daddr"),
            Field::CtOriginalDport => f.write_str("ct original proto-dst"),
            Field::MetaPriority => f.write_str("meta priority"),
            Field::PriorityBits(mask) => write!(f, "meta priority & {mask}"),
            Field::MetaMark => f.write_str("meta mark"),
            Field::Iifname => f.write_str("iifname"),
            Field::Oifname => f.write_str("oifname"),
            Field::CtState => f.write_str("ct state"),
            Field::CtStatus => f.write_str("ct status"),
            Field::FibSaddrType => f.write_str("fib saddr type"),
            Field::FibDaddrType => f.write_str("fib daddr type"),
            Field::NumgenRandom { count, first: 0 } => write!(f, "numgen random mod {count}"),
            Field::NumgenRandom { count, first } => write!(f, "numgen random mod {count} offset {first}"),
            Field::NumgenInc { count, first: 0 } => write!(f, "numgen inc mod {count}"),
            Field::NumgenInc { count, first } => write!(f, "numgen inc mod {count} offset {first}"),
            Field::Jhash { input, count, seed, first } => {
                let port = match input {
                    HashInput::Saddr => "",
                    HashInput::SaddrSport => " . th sport",
                };
                write!(f, "jhash {ip} saddr{port} mod {count} seed {seed:#x}")?;
                if first == 0 { Ok(()) } else { write!(f, " offset {first}") }
            }
        }
    }
}

impl fmt::Display for RejectWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortUnreachable => f.write_str("port-unreachable"),
            Self::TcpReset => f.write_str("tcp reset"),
            Self::Icmp(code) => write!(f, "icmp type {code}"),
            Self::Icmpx(code) => write!(f, "icmpx type {code}"),
        }
    }
}

/// A duration in whole seconds: `1d2h3m4s`.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0.as_secs();
        if left == 0 {
            return f.write_str("0s");
        }
        for (unit, seconds) in [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)] {
            if left >= seconds {
                write!(f, "{}{unit}", left / seconds)?;
                left %= seconds;
            }
        }
        Ok(())
    }
}
