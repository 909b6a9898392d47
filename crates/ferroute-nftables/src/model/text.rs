//! Rules as `nft` prints them. What it prints it also reads.

use std::{
    fmt::{self, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use ferroute_core::IpFamily;

use super::{Class, Field, InterfaceName, Match, RejectWith, Relation, Rule, Statement, Value, name::Printable};

/// A rule that is to be printed.
pub(super) struct RuleText<'a> {
    pub(super) rule: &'a Rule,
    pub(super) family: IpFamily,
}

/// The name of a family of tables: `ip` or `ip6`.
pub fn family_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip6",
    }
}

/// The texts of some values with something in between.
pub(crate) fn join<T: fmt::Display>(items: &[T], between: &str) -> String {
    let mut text = String::new();
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            text.push_str(between);
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
            Statement::PriorityFromMap { key, map } => write!(f, "meta priority set {} map @{map}", self.key(key)),
            Statement::PriorityAtRandom { count, first } => {
                write!(f, "meta priority set numgen random mod {count} offset {}", first.0)
            }
            Statement::ClearPriority => f.write_str("meta priority set none"),
            Statement::SetMark(bits) => write!(f, "meta mark set meta mark | {bits:#010x}"),
            Statement::FlipMark(bits) => write!(f, "meta mark set meta mark ^ {bits:#010x}"),
            Statement::Learn { key, map, timeout } => {
                write!(f, "update @{map} {{ {} timeout {} : meta priority }}", self.key(key), Time(*timeout))
            }
            Statement::Forget { key, map } => write!(f, "delete @{map} {{ {} : meta priority }}", self.key(key)),
            Statement::ChangeMark { keep: 0, flip } => write!(f, "meta mark set {flip:#010x}"),
            Statement::ChangeMark { keep, flip } => {
                write!(f, "meta mark set meta mark & {keep:#010x} ^ {flip:#010x}")
            }
            Statement::Note { key, set } => write!(f, "update @{set} {{ {} }}", self.key(key)),
            Statement::TranslateTo { address, port: None } => write!(f, "dnat to {address}"),
            Statement::TranslateTo { address, port: Some(port) } => {
                write!(f, "dnat to {}", SocketAddr::new(*address, *port))
            }
            Statement::SourceFrom(address) => write!(f, "snat to {address}"),
            Statement::NoTrack => f.write_str("notrack"),
            Statement::Opaque(opaque) => write!(f, "[{}]", opaque.text),
            Statement::Translate { key, map } => write!(f, "dnat {ip} to {} map @{map}", self.key(key)),
            Statement::Masquerade { fully_random: true } => f.write_str("masquerade fully-random"),
            Statement::Masquerade { fully_random: false } => f.write_str("masquerade"),
            Statement::Reject(RejectWith::PortUnreachable) => f.write_str("reject"),
            Statement::Reject(with) => write!(f, "reject with {with}"),
            Statement::Verdict(verdict) => write!(f, "{verdict}"),
            Statement::Dispatch { key, map } => write!(f, "{} vmap @{map}", self.key(key)),
        }
    }

    fn condition(&self, f: &mut fmt::Formatter<'_>, condition: &Match) -> fmt::Result {
        let ip = family_name(self.family);
        let sense = |is: &bool| if *is { "" } else { "!= " };
        match condition {
            Match::Member { key, set, is } => write!(f, "{} {}@{set}", self.key(key), sense(is)),
            Match::Source { net, is } => write!(f, "{ip} saddr {}{}", sense(is), Value::Network(*net)),
            Match::Destination { net, is } => write!(f, "{ip} daddr {}{}", sense(is), Value::Network(*net)),
            Match::Interface { name: InterfaceName::Exact(name), is } => {
                write!(f, "iifname {}\"{}\"", sense(is), Printable(name))
            }
            Match::Interface { name: InterfaceName::Prefix(prefix), is } => {
                write!(f, "iifname {}\"{}*\"", sense(is), Printable(prefix))
            }
            Match::SourceIsLocal => f.write_str("fib saddr type local"),
            Match::DestinationIsLocal => f.write_str("fib daddr type local"),
            Match::New => f.write_str("ct state new"),
            Match::Translated => f.write_str("ct status dnat"),
            Match::Marked(bits) => write!(f, "meta mark & {bits:#010x} != 0x00000000"),
            Match::Family(IpFamily::V4) => f.write_str("meta nfproto ipv4"),
            Match::Family(IpFamily::V6) => f.write_str("meta nfproto ipv6"),
            Match::Compare { field, mask, relation, value } => {
                self.field(f, *field)?;
                if *mask != u32::MAX {
                    write!(f, " & {mask:#010x}")?;
                }
                let relation = match relation {
                    Relation::Equal if *mask == u32::MAX => "",
                    Relation::Equal => "== ",
                    Relation::NotEqual => "!= ",
                    Relation::Less => "< ",
                    Relation::AtMost => "<= ",
                    Relation::Greater => "> ",
                    Relation::AtLeast => ">= ",
                };
                write!(f, " {relation}{value}")
            }
            Match::Within { field, first, last, is } => {
                self.field(f, *field)?;
                write!(f, " {}{first}-{last}", sense(is))
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
            Field::Source => write!(f, "{ip} saddr"),
            Field::Destination => write!(f, "{ip} daddr"),
            Field::NoDestination => match self.family {
                IpFamily::V4 => write!(f, "{ip} daddr & {}", Ipv4Addr::UNSPECIFIED),
                IpFamily::V6 => write!(f, "{ip} daddr & {}", Ipv6Addr::UNSPECIFIED),
            },
            Field::Protocol => f.write_str("meta l4proto"),
            Field::Port => f.write_str("th dport"),
            Field::SourcePort => f.write_str("th sport"),
            Field::Priority => f.write_str("meta priority"),
            Field::SlotOwner => write!(f, "meta priority & {}", Class::OWNER),
            Field::Mark => f.write_str("meta mark"),
            Field::InputInterface => f.write_str("iifname"),
            Field::OutputInterface => f.write_str("oifname"),
            Field::ConnectionState => f.write_str("ct state"),
            Field::ConnectionStatus => f.write_str("ct status"),
            Field::SourceKind => f.write_str("fib saddr type"),
            Field::DestinationKind => f.write_str("fib daddr type"),
            Field::Random { count, first: 0 } => write!(f, "numgen random mod {count}"),
            Field::Random { count, first } => write!(f, "numgen random mod {count} offset {first}"),
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

/// A time in whole seconds: `1d2h3m4s`.
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
