//! Rules as `nft` prints them. What it prints it also reads.

use std::{
    fmt::{self, Write},
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use ferroute_core::IpFamily;

use super::{Field, InterfaceName, Match, Rule, Statement, Value};

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
            Statement::Translate { key, map } => write!(f, "dnat {ip} to {} map @{map}", self.key(key)),
            Statement::Masquerade => f.write_str("masquerade fully-random"),
            Statement::Reject => f.write_str("reject"),
            Statement::Verdict(verdict) => write!(f, "{verdict}"),
            Statement::Dispatch(map) => write!(f, "meta priority vmap @{map}"),
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
                write!(f, "iifname {}\"{name}\"", sense(is))
            }
            Match::Interface { name: InterfaceName::Prefix(prefix), is } => {
                write!(f, "iifname {}\"{prefix}*\"", sense(is))
            }
            Match::SourceIsLocal => f.write_str("fib saddr type local"),
            Match::DestinationIsLocal => f.write_str("fib daddr type local"),
            Match::New => f.write_str("ct state new"),
            Match::Translated => f.write_str("ct status dnat"),
            Match::Marked(bits) => write!(f, "meta mark & {bits:#010x} != 0x00000000"),
        }
    }

    fn key(&self, key: &[Field]) -> String {
        let ip = family_name(self.family);
        let fields: Vec<String> = key
            .iter()
            .map(|field| match field {
                Field::Source => format!("{ip} saddr"),
                Field::Destination => format!("{ip} daddr"),
                Field::NoDestination => match self.family {
                    IpFamily::V4 => format!("{ip} daddr & {}", Ipv4Addr::UNSPECIFIED),
                    IpFamily::V6 => format!("{ip} daddr & {}", Ipv6Addr::UNSPECIFIED),
                },
                Field::Protocol => "meta l4proto".to_owned(),
                Field::Port => "th dport".to_owned(),
                Field::Priority => "meta priority".to_owned(),
            })
            .collect();
        join(&fields, " . ")
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
