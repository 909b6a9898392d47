//! Policy rules in files: the output of `ip rule` and `ip -6 rule`.

use std::ops::RangeInclusive;

use ferroute_core::{IpFamily, Protocol};
use ferroute_trace::{RouteDecision, RoutedPacket, value_and_mask};
use ipnet::IpNet;

use super::routes::parse_network;

/// The policy rules of a host: a list for each output of `ip rule`.
#[derive(Debug, Default)]
pub(super) struct PolicyRules(Vec<RuleList>);

/// The policy rules of an IP family.
#[derive(Debug, Default)]
struct RuleList {
    /// The family, as far as the command or an address tells it.
    family: Option<IpFamily>,
    rules: Vec<PolicyRule>,
}

/// A policy rule.
#[derive(Debug)]
pub(super) struct PolicyRule {
    priority: u32,
    text: String,
    negated: bool,
    selectors: Vec<Selector>,
    action: Option<Action>,
    /// Routes with prefixes up to this length are ignored.
    suppressed: Option<u8>,
}

#[derive(Debug)]
enum Selector {
    From(IpNet),
    To(IpNet),
    Input(String),
    Mark {
        value: u32,
        mask: u32,
    },
    Protocol(u8),
    SourcePort(RangeInclusive<u16>),
    DestinationPort(RangeInclusive<u16>),
    /// The socket is bound to an interface, like sockets of programs in VRFs.
    BoundSocket,
    /// The user of the process.
    User(RangeInclusive<u32>),
    /// An unsupported property.
    Other,
}

/// Action of a policy rule.
#[derive(Debug)]
pub(super) enum Action {
    /// The routes of a table decide.
    Table(String),
    /// The routes of the packet's VRF decide, if it has one.
    Vrf,
    /// The evaluation continues at a priority.
    Goto(u32),
    /// No effect.
    Nop,
    /// The packet is not routed.
    Refuse(RouteDecision),
}

impl PolicyRules {
    /// Begins the output of a command for an IP family.
    pub(super) fn begin(&mut self, family: IpFamily) {
        self.0.push(RuleList { family: Some(family), rules: Vec::new() });
    }

    /// Adds the rule in a line whose first word is `priority`; returns `false` if it contains no rule.
    pub(super) fn add(&mut self, priority: &str, words: &[&str]) -> bool {
        let number = priority.strip_suffix(':').and_then(|number| number.parse().ok());
        let Some(priority) = number.filter(|_| words.contains(&"from")) else { return false };
        let rule = PolicyRule::parse(priority, words);
        let family = rule.family();
        let continues = |list: &RuleList| {
            let is_of_other = list.family.is_some() && family.is_some() && list.family != family;
            let begins_again = rule.is_first() && list.rules.iter().any(PolicyRule::is_first);
            !is_of_other && !begins_again
        };
        if !self.0.last().is_some_and(continues) {
            self.0.push(RuleList::default());
        }
        if let Some(list) = self.0.last_mut() {
            list.family = list.family.or(family);
            list.rules.push(rule);
        }
        true
    }

    /// Returns the rules for an IP family in the order of their evaluation; if there are none, the rules that every
    /// host has.
    pub(super) fn in_order(&self, family: IpFamily) -> Vec<&PolicyRule> {
        static DEFAULT: std::sync::LazyLock<[PolicyRule; 3]> = std::sync::LazyLock::new(|| {
            [(0, "local"), (32_766, "main"), (32_767, "default")]
                .map(|(priority, table)| PolicyRule::parse(priority, &["from", "all", "lookup", table]))
        });
        // Rules of IPv4 come first, as `ip` has them by default.
        let is_known = |list: &RuleList, family| list.family == Some(family) && !list.rules.is_empty();
        let mut unknown =
            IpFamily::BOTH.into_iter().filter(|family| !self.0.iter().any(|list| is_known(list, *family)));
        let of = |list: &RuleList| list.family.or_else(|| unknown.next()).unwrap_or(IpFamily::V6);
        let mut families: Vec<IpFamily> = Vec::with_capacity(self.0.len());
        families.extend(self.0.iter().map(of));
        let lists = self.0.iter().zip(families).filter(|(_, of)| *of == family);
        let mut rules: Vec<&PolicyRule> = lists.flat_map(|(list, _)| &list.rules).collect();
        if rules.is_empty() {
            rules.extend(DEFAULT.iter());
        }
        rules.sort_by_key(|rule| rule.priority);
        rules
    }
}

impl PolicyRule {
    fn parse(priority: u32, words: &[&str]) -> Self {
        let mut rule = Self {
            priority,
            text: words.join(" "),
            negated: false,
            selectors: Vec::new(),
            action: None,
            suppressed: None,
        };
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            match word {
                "not" => rule.negated = true,
                "from" | "to" => match words.next() {
                    Some("all") | None => {}
                    Some(text) => rule.selectors.push(match (parse_network(text), word) {
                        (Some(net), "from") => Selector::From(net),
                        (Some(net), _) => Selector::To(net),
                        (None, _) => Selector::Other,
                    }),
                },
                "iif" => rule.selectors.push(Selector::Input(words.next().unwrap_or_default().to_owned())),
                "fwmark" => {
                    let mark = words.next().and_then(value_and_mask);
                    rule.selectors.push(mark.map_or(Selector::Other, |(value, mask)| Selector::Mark { value, mask }));
                }
                "lookup" => {
                    rule.action = words.next().map(|table| match table {
                        "[l3mdev-table]" => Action::Vrf,
                        table => Action::Table(table.to_owned()),
                    });
                }
                "ipproto" => {
                    let number = words.next().and_then(protocol_number);
                    rule.selectors.push(number.map_or(Selector::Other, Selector::Protocol));
                }
                "sport" => rule.selectors.push(range(words.next()).map_or(Selector::Other, Selector::SourcePort)),
                "dport" => rule.selectors.push(range(words.next()).map_or(Selector::Other, Selector::DestinationPort)),
                "oif" => {
                    words.next();
                    rule.selectors.push(Selector::BoundSocket);
                }
                "goto" => rule.action = words.next().and_then(|text| text.parse().ok()).map(Action::Goto),
                "nop" | "[unresolved]" => rule.action = Some(Action::Nop),
                // `[detached]` means that the interface does not exist; its name was matched above.
                "masquerade" | "[detached]" => {}
                "uidrange" => rule.selectors.push(range(words.next()).map_or(Selector::Other, Selector::User)),
                "suppress_prefixlength" => rule.suppressed = words.next().and_then(|length| length.parse().ok()),
                "blackhole" => rule.action = Some(Action::Refuse(RouteDecision::Dropped("blackhole rule".into()))),
                "unreachable" => rule.action = Some(Action::Refuse(RouteDecision::Unreachable)),
                "prohibit" => rule.action = Some(Action::Refuse(RouteDecision::Prohibited)),
                "proto" | "protocol" | "realms" => _ = words.next(),
                _ => rule.selectors.push(Selector::Other),
            }
        }
        rule
    }

    /// Reports whether this is the first rule of every host.
    fn is_first(&self) -> bool {
        self.priority == 0 && matches!(&self.action, Some(Action::Table(table)) if table == "local")
    }

    /// Returns the IP family of the addresses that the rule matches.
    fn family(&self) -> Option<IpFamily> {
        self.selectors.iter().find_map(|selector| match selector {
            Selector::From(net) | Selector::To(net) => Some(IpFamily::of(net.addr())),
            _ => None,
        })
    }

    /// Returns the priority.
    pub(super) fn priority(&self) -> u32 {
        self.priority
    }

    /// Returns the action for a packet; `None` if the rule does not match it.
    ///
    /// # Errors
    /// If it is unknown whether the rule matches.
    pub(super) fn action_for(&self, packet: &RoutedPacket<'_>) -> Result<Option<&Action>, String> {
        let results = self.selectors.iter().map(|selector| selector.matches(packet));
        let is_selected = match results.clone().any(|result| result == Some(false)) {
            true => Some(false),
            false if results.clone().any(|result| result.is_none()) => None,
            false => Some(true),
        };
        let unknown = || format!("the policy rule `{}`, which is not supported", self.text);
        match (is_selected.ok_or_else(unknown)? != self.negated, &self.action) {
            (false, _) => Ok(None),
            (true, Some(action)) => Ok(Some(action)),
            (true, None) => Err(unknown()),
        }
    }

    /// Reports whether routes with a prefix of this length are ignored.
    pub(super) fn suppresses(&self, length: u8) -> bool {
        self.suppressed.is_some_and(|suppressed| length <= suppressed)
    }
}

impl Selector {
    /// Reports whether a packet has the property; `None` if unknown.
    fn matches(&self, packet: &RoutedPacket<'_>) -> Option<bool> {
        match self {
            // If the host has not chosen the source of its packet yet, the source is all zeros.
            Self::From(net) => Some(packet.source.is_some_and(|source| net.contains(&source))),
            Self::To(net) => Some(net.contains(&packet.destination)),
            Self::Input(name) => Some(packet.input.unwrap_or("lo") == name),
            Self::Mark { value, mask } => Some(packet.mark & mask == *value),
            Self::Protocol(number) => packet.transport.map(|(protocol, ..)| protocol.number() == *number),
            Self::SourcePort(ports) => packet.transport.map(|(_, source, _)| ports.contains(&source)),
            Self::DestinationPort(ports) => packet.transport.map(|(.., destination)| ports.contains(&destination)),
            // Packets of other hosts have no socket, and sockets of the host are assumed not to be bound.
            Self::BoundSocket => Some(false),
            Self::User(users) if *users == (0..=u32::MAX) => Some(true),
            // Packets of other hosts are routed as packets of root; the process of a packet of the host is unknown.
            Self::User(users) => packet.input.map(|_| users.contains(&0)),
            Self::Other => None,
        }
    }
}

/// Parses `FIRST-LAST`, or one number.
fn range<T: Copy + std::str::FromStr>(text: Option<&str>) -> Option<RangeInclusive<T>> {
    let text = text?;
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Parses a protocol as `ip rule` prints it: a name of /etc/protocols, or a number.
fn protocol_number(text: &str) -> Option<u8> {
    let named = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|known| known.to_string() == text);
    match (named, text) {
        (Some(protocol), _) => Some(protocol.number()),
        (None, "icmp") => Some(1),
        (None, "ipv6-icmp") => Some(58),
        (None, number) => number.parse().ok().or_else(|| number.strip_prefix("ipproto-")?.parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "0:\tfrom all lookup local \n\
        512:\tfrom all fwmark 0x80/0xff lookup 101 \n\
        600:\tnot from 10.244.0.0/16 iif eth1 unreachable\n\
        700:\tfrom 10.244.1.5 to 198.51.100.0/24 lookup 102 suppress_prefixlength 0 proto static\n\
        800:\tfrom all tos 0x10 lookup 103\n\
        32766:\tfrom all lookup main \n32767:\tfrom all lookup default \n";

    /// Returns the number or name of the first table, or another decision.
    fn first(packet: &RoutedPacket<'_>) -> Vec<String> {
        let mut rules = PolicyRules::default();
        for line in RULES.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert!(rules.add(words[0], &words[1..]), "{line}");
        }
        let actions = rules.in_order(IpFamily::V4).into_iter().map(|rule| rule.action_for(packet));
        let text = |action: Result<Option<&Action>, String>| match action {
            Ok(None) => None,
            Ok(Some(Action::Table(table))) => Some(table.clone()),
            Ok(Some(other)) => Some(format!("{other:?}")),
            Err(reason) => Some(reason),
        };
        actions.filter_map(text).filter(|table| table != "local").collect()
    }

    #[test]
    fn rules_select_tables_by_source_destination_interface_and_mark() {
        let packet = RoutedPacket {
            destination: "198.51.100.7".parse().unwrap(),
            source: Some("10.244.1.5".parse().unwrap()),
            input: Some("eth1"),
            mark: 0x180,
            transport: None,
        };
        let unknown = "the policy rule `from all tos 0x10 lookup 103`, which is not supported";
        assert_eq!(first(&packet), ["101", "102", unknown, "main", "default"]);
        let source = Some("192.0.2.1".parse().unwrap());
        assert_eq!(
            first(&RoutedPacket { source, mark: 0, ..packet }),
            ["Refuse(Unreachable)", unknown, "main", "default"]
        );
        // `not` inverts the whole rule (`FIB_RULE_INVERT`).
        let elsewhere = RoutedPacket { mark: 1, input: None, ..packet };
        assert_eq!(first(&elsewhere), ["Refuse(Unreachable)", "102", unknown, "main", "default"]);
    }

    #[test]
    fn rules_select_by_ports_protocols_users_and_sockets() {
        let matches = |rule: &str, packet: &RoutedPacket<'_>| {
            let words: Vec<&str> = rule.split(' ').collect();
            PolicyRule::parse(0, &words).action_for(packet).map(|action| action.is_some()).ok()
        };
        let arriving = RoutedPacket {
            destination: "198.51.100.7".parse().unwrap(),
            source: Some("10.244.1.5".parse().unwrap()),
            input: Some("eth1"),
            mark: 0,
            transport: Some((Protocol::Tcp, 50000, 443)),
        };
        let local = RoutedPacket { input: None, ..arriving };
        for (rule, of_others, of_the_host) in [
            ("from all ipproto tcp lookup 1", Some(true), Some(true)),
            ("from all ipproto ipproto-253 lookup 1", Some(false), Some(false)),
            ("from all ipproto udp dport 443 lookup 1", Some(false), Some(false)),
            ("from all sport 40000-60000 dport 443 lookup 1", Some(true), Some(true)),
            ("from all uidrange 0-99 lookup 1", Some(true), None),
            ("from all uidrange 1000-1999 lookup 1", Some(false), None),
            ("from all uidrange 0-4294967295 lookup 1", Some(true), Some(true)),
            ("from all oif eth0 lookup 1", Some(false), Some(false)),
            ("from all iif eth9 [detached] lookup 1", Some(false), Some(false)),
            ("from 10.244.1.5 lookup 1 realms 3/4", Some(true), Some(true)),
            ("from all tun_id 3 lookup 1", None, None),
        ] {
            assert_eq!([matches(rule, &arriving), matches(rule, &local)], [of_others, of_the_host], "{rule}");
        }
        assert_eq!(matches("from all dport 443 lookup 1", &RoutedPacket { transport: None, ..local }), None);
    }

    #[test]
    fn rules_are_those_of_one_family() {
        const V4: &str = "0: from all lookup local\n100: from 10.0.0.0/8 lookup 4\n";
        const V6: &str = "0: from all lookup local\n100: from all lookup 6\n";
        const ADDRESSES: &str = "100: from fd00::/8 lookup 6\n";
        let command = |family| format!("begin {family}\n");
        for (text, expected) in [
            (V4.to_owned(), ["4", "default"]),
            (format!("{V4}{V6}"), ["4", "6"]),
            (format!("{V4}{ADDRESSES}"), ["4", "6"]),
            (format!("{ADDRESSES}{V4}"), ["4", "6"]),
            (V6.to_owned(), ["6", "default"]),
            (format!("{}{V6}", command(IpFamily::V6)), ["default", "6"]),
            (format!("{}{V6}{V4}", command(IpFamily::V6)), ["4", "6"]),
            (format!("{}{V6}{}{V4}", command(IpFamily::V6), command(IpFamily::V4)), ["4", "6"]),
            (ADDRESSES.to_owned(), ["default", "6"]),
        ] {
            let mut rules = PolicyRules::default();
            for line in text.lines() {
                match line.split_whitespace().collect::<Vec<_>>().as_slice() {
                    ["begin", family] => rules.begin(if *family == "IPv6" { IpFamily::V6 } else { IpFamily::V4 }),
                    words => assert!(rules.add(words[0], &words[1..])),
                }
            }
            let tables = IpFamily::BOTH.map(|family| {
                let rules = rules.in_order(family);
                let of = |rule: &&PolicyRule| rule.priority == 100;
                rules.into_iter().find(of).map_or("default".to_owned(), |rule| match &rule.action {
                    Some(Action::Table(table)) => table.clone(),
                    other => format!("{other:?}"),
                })
            });
            assert_eq!(tables, expected, "{text}");
        }
    }

    #[test]
    fn without_rules_there_are_those_of_every_host() {
        let rules = PolicyRules::default();
        assert_eq!(rules.in_order(IpFamily::V4).len(), 3);
        assert!(!PolicyRules::default().add("1:", &["lo:", "<LOOPBACK>"]), "no rule");
    }
}
