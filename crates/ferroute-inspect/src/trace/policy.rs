//! Policy rules in files: the output of `ip rule` and `ip -6 rule`.

use ferroute_trace::{RouteDecision, RoutedPacket, value_and_mask};
use ipnet::IpNet;

use super::routes::parse_network;

/// The policy rules of a host.
#[derive(Debug, Default)]
pub(super) struct PolicyRules(Vec<PolicyRule>);

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
    /// One that is not supported.
    Other,
}

/// What a policy rule does.
#[derive(Debug)]
pub(super) enum Action {
    /// The routes of a table decide.
    Table(String),
    /// The packet is not routed.
    Refuse(RouteDecision),
}

impl PolicyRules {
    /// Adds the rule in a line whose first word is `priority`; `false` if it has none.
    pub(super) fn add(&mut self, priority: &str, words: &[&str]) -> bool {
        let number = priority.strip_suffix(':').and_then(|number| number.parse().ok());
        let Some(priority) = number.filter(|_| words.contains(&"from")) else { return false };
        self.0.push(PolicyRule::parse(priority, words));
        true
    }

    /// Returns the rules in the order of their evaluation; without any, those that every host has.
    pub(super) fn in_order(&self) -> Vec<&PolicyRule> {
        static DEFAULT: std::sync::LazyLock<[PolicyRule; 3]> = std::sync::LazyLock::new(|| {
            [(0, "local"), (32_766, "main"), (32_767, "default")]
                .map(|(priority, table)| PolicyRule::parse(priority, &["from", "all", "lookup", table]))
        });
        let mut rules: Vec<&PolicyRule> = self.0.iter().collect();
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
                "lookup" => rule.action = words.next().map(|table| Action::Table(table.to_owned())),
                "suppress_prefixlength" => rule.suppressed = words.next().and_then(|length| length.parse().ok()),
                "blackhole" => rule.action = Some(Action::Refuse(RouteDecision::Dropped("blackhole rule".into()))),
                "unreachable" => rule.action = Some(Action::Refuse(RouteDecision::Unreachable)),
                "prohibit" => rule.action = Some(Action::Refuse(RouteDecision::Prohibited)),
                "proto" | "protocol" => _ = words.next(),
                _ => rule.selectors.push(Selector::Other),
            }
        }
        rule
    }

    /// Returns the action for a packet; `None` if the rule is not about it.
    ///
    /// # Errors
    /// If that is not known.
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
    /// Reports whether a packet has the property; `None` if that is not known.
    fn matches(&self, packet: &RoutedPacket<'_>) -> Option<bool> {
        match self {
            // The source of a packet of the host that has none yet is all zeros.
            Self::From(net) => Some(packet.source.is_some_and(|source| net.contains(&source))),
            Self::To(net) => Some(net.contains(&packet.destination)),
            Self::Input(name) => Some(packet.input.unwrap_or("lo") == name),
            Self::Mark { value, mask } => Some(packet.mark & mask == *value),
            Self::Other => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "0:\tfrom all lookup local \n\
        512:\tfrom all fwmark 0x80/0xff lookup 101 \n\
        600:\tnot from 10.244.0.0/16 iif eth1 unreachable\n\
        700:\tfrom 10.244.1.5 to 198.51.100.0/24 lookup 102 suppress_prefixlength 0 proto static\n\
        800:\tfrom all ipproto tcp dport 9000 lookup 103\n\
        32766:\tfrom all lookup main \n32767:\tfrom all lookup default \n";

    /// Returns the number or name of the first table, or the other decision.
    fn first(packet: &RoutedPacket<'_>) -> Vec<String> {
        let mut rules = PolicyRules::default();
        for line in RULES.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert!(rules.add(words[0], &words[1..]), "{line}");
        }
        let actions = rules.in_order().into_iter().map(|rule| rule.action_for(packet));
        let text = |action: Result<Option<&Action>, String>| match action {
            Ok(None) => None,
            Ok(Some(Action::Table(table))) => Some(table.clone()),
            Ok(Some(Action::Refuse(decision))) => Some(format!("{decision:?}")),
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
        let unknown = "the policy rule `from all ipproto tcp dport 9000 lookup 103`, which is not supported";
        assert_eq!(first(&packet), ["101", "102", unknown, "main", "default"]);
        let source = Some("192.0.2.1".parse().unwrap());
        assert_eq!(first(&RoutedPacket { source, mark: 0, ..packet }), ["Unreachable", unknown, "main", "default"]);
        // `not` is about the whole rule (`FIB_RULE_INVERT`).
        let elsewhere = RoutedPacket { mark: 1, input: None, ..packet };
        assert_eq!(first(&elsewhere), ["Unreachable", "102", unknown, "main", "default"]);
    }

    #[test]
    fn without_rules_there_are_those_of_every_host() {
        let rules = PolicyRules::default();
        assert_eq!(rules.in_order().len(), 3);
        assert!(!PolicyRules::default().add("1:", &["lo:", "<LOOPBACK>"]), "no rule");
    }
}
