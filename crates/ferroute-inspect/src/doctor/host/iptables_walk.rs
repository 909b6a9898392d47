//! Rules of iptables that take packets to Services before the proxy. Conditions that do not depend on the destination are assumed
//! to be true, because some client satisfies them.

use std::net::SocketAddr;

use ferroute_core::{IpFamily, ModeTraits};
use ferroute_iptables::{
    AddressMatch, AddressType, ChainName, Match, PortSide, ProtocolMatch, Rule, RuleSet, TableName, Target,
    plan::{chains, is_proxy_chain},
    text::Line,
};
use ferroute_modes::kernel_rules::KernelRules;
use ferroute_trace::{Packet, Ruleset};

use super::{
    destinations::{CLIENT_PORT, Destination, outside_address},
    translations::effect_of,
};
use crate::doctor::{EarlierEffect, EarlierRule};

/// Returns the rules in these tables, each with one Service.
pub(super) fn by_iptables(
    destinations: &[Destination],
    rules: &KernelRules,
    tables: &[TableName],
    traits: &ModeTraits,
) -> Vec<EarlierRule> {
    let mut found: Vec<EarlierRule> = Vec::new();
    let program = if rules.family == IpFamily::V4 { "iptables" } else { "ip6tables" };
    let mut sets = Ruleset::new();
    sets.add_ipsets(&rules.ipsets);
    for backend in &rules.iptables {
        for destination in destinations {
            let walks = tables.iter().flat_map(|table| {
                let walk = Walk { rules: &backend.saved.rules, table: *table, sets: &sets, destination };
                [ChainName::PREROUTING, ChainName::OUTPUT].map(|chain| walk.first_effect(chain))
            });
            for (effect, rule) in walks.flatten() {
                let rule = format!("{program} {rule}");
                if let Some(effect) = destination.suffers(effect, traits)
                    && found.iter().all(|other| other.rule != rule)
                {
                    found.push(EarlierRule { effect, rule, service: destination.service.clone() });
                }
            }
        }
    }
    found
}

/// A walk of packets to one destination through a table, up to the proxy's rules.
#[derive(Clone, Copy)]
struct Walk<'a> {
    rules: &'a RuleSet,
    table: TableName,
    /// Evaluates conditions with ipsets and other modules.
    sets: &'a Ruleset<'a>,
    destination: &'a Destination,
}

/// Whether packets to a destination match a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    None,
    /// Those of some clients, or possibly.
    Some,
    All,
}

/// The result of a chain.
enum End {
    /// A rule that takes the packets.
    Taken(EarlierEffect, String),
    /// All packets leave the table.
    Left,
    /// Some packets reach the end of the chain.
    Reached,
}

impl Walk<'_> {
    /// Returns the first rule that may take packets, from a built-in chain.
    fn first_effect(&self, chain: ChainName) -> Option<(EarlierEffect, String)> {
        match self.walk(chain, 0) {
            End::Taken(effect, rule) => Some((effect, rule)),
            End::Left | End::Reached => None,
        }
    }

    fn walk(&self, name: ChainName, depth: usize) -> End {
        let Some(chain) = self.rules.chain(self.table, name) else { return End::Reached };
        // ipvs mode translates packets later, and exempts them from the rules after its own rules.
        let ours = chain.rules.iter().position(is_entry);
        if self.table == TableName::Nat && depth == 0 && ours.is_none() {
            return End::Left;
        }
        for rule in chain.rules.iter().take(ours.unwrap_or(usize::MAX)) {
            let (fit, Some(target)) = (self.fit(rule), &rule.target) else { continue };
            if fit == Fit::None {
                continue;
            }
            let effect = match target {
                Target::Dnat { .. } => Some(EarlierEffect::Translated),
                Target::Other(text) if is_translation(text) => Some(EarlierEffect::Translated),
                Target::Other(text) => effect_of(&format!("-j {text}")),
                _ => None,
            };
            if let Some(effect) = effect {
                return End::Taken(effect, format!("-t {} {}", self.table, Line(name, rule)));
            }
            match target {
                Target::Jump(next) | Target::Goto(next) if depth < MAX_DEPTH && !is_proxy_chain(self.table, *next) => {
                    match self.walk(*next, depth + 1) {
                        End::Left if fit == Fit::Some => {}
                        End::Reached if fit == Fit::Some || matches!(target, Target::Jump(_)) => {}
                        end => return end,
                    }
                }
                Target::Return if fit == Fit::All => return End::Reached,
                Target::Accept | Target::Drop | Target::Reject(_) if fit == Fit::All => return End::Left,
                _ => {}
            }
        }
        End::Reached
    }

    fn fit(&self, rule: &Rule) -> Fit {
        let Destination { address, is_local, port, protocol, .. } = self.destination;
        let is_protocol = |wanted: &ProtocolMatch| *wanted == ProtocolMatch::Transport(*protocol);
        let all_if = |holds: bool| if holds { Fit::All } else { Fit::None };
        let by_protocol = all_if(rule.protocol.as_ref().is_none_or(|wanted| wanted.allows(is_protocol)));
        let by_destination = match &rule.destination {
            Some(wanted) if matches!(wanted.value(), AddressMatch::Masked { .. }) => Fit::Some,
            Some(wanted) => {
                all_if(wanted.allows(|wanted| matches!(wanted, AddressMatch::Net(net) if net.contains(address))))
            }
            None => Fit::All,
        };
        let has_others = rule.source.is_some() || rule.in_interface.is_some() || rule.out_interface.is_some();
        let by_others = if has_others { Fit::Some } else { Fit::All };
        let by_modules = rule.matches.iter().map(|module| match module {
            Match::Transport { protocol: wanted, source, destination } => {
                // Ports of clients are high.
                let from =
                    source.as_ref().map_or(Fit::All, |range| match range.allows(|range| range.contains(CLIENT_PORT)) {
                        true => Fit::Some,
                        false => Fit::None,
                    });
                let to = destination.as_ref().is_none_or(|range| range.allows(|range| range.contains(*port)));
                all_if(wanted == protocol && to).min(from)
            }
            Match::AddrType { source, destination } => {
                let to = destination
                    .as_ref()
                    .map_or(Fit::All, |kind| all_if(kind.allows(|kind| (*kind == AddressType::Local) == *is_local)));
                to.min(if source.is_some() { Fit::Some } else { Fit::All })
            }
            Match::Multiport { side: PortSide::Destination, ports } => {
                all_if(ports.allows(|ports| ports.contains(*port)))
            }
            Match::Multiport { side: PortSide::Source, ports } => {
                match ports.allows(|ports| ports.contains(CLIENT_PORT)) {
                    true => Fit::Some,
                    false => Fit::None,
                }
            }
            module => {
                let from = SocketAddr::new(outside_address(IpFamily::of(*address)), CLIENT_PORT);
                let packet = Packet::local(*protocol, from, self.destination.socket());
                self.sets.matches_destination(&packet, module).map_or(Fit::Some, all_if)
            }
        });
        [by_protocol, by_destination, by_others].into_iter().chain(by_modules).min().unwrap_or(Fit::All)
    }
}

/// Reports whether a rule leads to the proxy's rules for Services.
fn is_entry(rule: &Rule) -> bool {
    let entries = [chains::SERVICES, chains::PORTALS_HOST, chains::PORTALS_CONTAINER];
    rule.next_chain().is_some_and(|chain| entries.contains(&chain))
}

/// Reports whether an unsupported target translates the destination.
fn is_translation(target: &str) -> bool {
    let word = target.split_whitespace().next().unwrap_or_default();
    ["DNAT", "REDIRECT", "NETMAP"].contains(&word)
}

/// The tables whose chains see packets before they are translated, in the kernel's order.
pub(super) const TABLES: [TableName; 3] = [TableName::Raw, TableName::Mangle, TableName::Nat];
/// The maximum number of frontends that are compared with rules of iptables.
pub(super) const MAX_DESTINATIONS: usize = 5000;
/// The maximum depth of chains.
const MAX_DEPTH: usize = 8;

#[cfg(test)]
mod tests {
    use ferroute_trace::Ipsets;

    use super::{super::destinations::tests::destination, *};

    fn first_effect(table: TableName, port: u16, rules: &str, sets: &str) -> Option<(EarlierEffect, String)> {
        let text =
            format!("*{table}\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:HOSTPORT - [0:0]\n{rules}COMMIT\n");
        let rules = RuleSet::parse_save(IpFamily::V4, &text).unwrap();
        let mut ipsets = Ipsets::default();
        ipsets.add_save(sets);
        let mut sets = Ruleset::new();
        sets.add_ipsets(&ipsets);
        let destination = destination(port);
        let walk = Walk { rules: &rules, table, sets: &sets, destination: &destination };
        walk.first_effect(ChainName::PREROUTING)
    }

    fn translation(port: u16, rules: &str) -> Option<String> {
        first_effect(TableName::Nat, port, rules, "").map(|(effect, rule)| {
            assert_eq!(effect, EarlierEffect::Translated, "{rule}");
            rule
        })
    }

    const HOST_PORT: &str = "-A PREROUTING -m addrtype --dst-type LOCAL -j HOSTPORT\n";
    const DNAT: &str = "-A HOSTPORT -p tcp -m tcp --dport 30080 -j DNAT --to-destination 10.88.0.2:80\n";
    const ENTRY: &str = "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n";

    #[test]
    fn host_port_before_the_services_translates_the_same_port() {
        let found = translation(30080, &format!("{HOST_PORT}{ENTRY}{DNAT}")).unwrap();
        assert!(found.contains("HOSTPORT") && found.contains("--dport 30080"), "{found}");
        assert_eq!(translation(30081, &format!("{HOST_PORT}{ENTRY}{DNAT}")), None);
        let other =
            "-A HOSTPORT -d 198.51.100.1/32 -p tcp -m tcp --dport 30080 -j DNAT --to-destination 10.88.0.2:80\n";
        assert_eq!(translation(30080, &format!("{HOST_PORT}{ENTRY}{other}")), None);
        let redirect = "-A HOSTPORT -p tcp -j REDIRECT --to-ports 15001\n";
        assert!(translation(30080, &format!("{HOST_PORT}{ENTRY}{redirect}")).is_some());
    }

    #[test]
    fn rules_that_take_packets_before_they_are_translated_are_found_by_their_destination() {
        use EarlierEffect::{Translated, TransparentProxy, Untracked};
        let sets = "create services hash:ip family inet\nadd services 192.0.2.1\n\
                    create ports hash:ip,port family inet\nadd ports 192.0.2.1,tcp:80\n\
                    create others hash:net family inet\nadd others 198.51.100.0/24\n";
        for (table, rules, expected) in [
            ("raw", "-A PREROUTING -d 192.0.2.1/32 -p tcp -m tcp --dport 80 -j CT --notrack", Some(Untracked)),
            ("raw", "-A PREROUTING -d 192.0.0.0/16 -j NOTRACK", Some(Untracked)),
            ("raw", "-A PREROUTING -d 198.51.100.0/24 -j NOTRACK", None),
            ("raw", "-A PREROUTING -p tcp -m tcp --dport 81 -j NOTRACK", None),
            ("raw", "-A PREROUTING -p udp -m udp --dport 80 -j NOTRACK", None),
            // Replies of a process.
            ("raw", "-A PREROUTING -p tcp -m tcp --sport 53 -j NOTRACK", None),
            ("raw", "-A PREROUTING -i eth1 -s 10.0.0.0/8 -j NOTRACK", Some(Untracked)),
            ("raw", "-A PREROUTING -j CT --zone 5", None),
            ("raw", "-A PREROUTING -m set --match-set services dst -j CT --notrack", Some(Untracked)),
            ("raw", "-A PREROUTING -m set ! --match-set services dst -j CT --notrack", None),
            ("raw", "-A PREROUTING -m set --match-set others dst -j CT --notrack", None),
            ("raw", "-A PREROUTING -m set --match-set ports dst,dst -j CT --notrack", Some(Untracked)),
            ("raw", "-A PREROUTING -m set --match-set others src -j CT --notrack", Some(Untracked)),
            ("raw", "-A PREROUTING -m set --match-set unread dst -j CT --notrack", Some(Untracked)),
            ("raw", "-A PREROUTING -m iprange --dst-range 192.0.2.0-192.0.2.9 -j NOTRACK", Some(Untracked)),
            ("raw", "-A PREROUTING -m iprange --dst-range 192.0.2.2-192.0.2.9 -j NOTRACK", None),
            // Chains and exceptions.
            ("raw", "-A PREROUTING -j HOSTPORT\n-A HOSTPORT -d 192.0.2.1/32 -j NOTRACK", Some(Untracked)),
            ("raw", "-A PREROUTING -d 192.0.2.0/24 -j ACCEPT\n-A PREROUTING -j NOTRACK", None),
            ("raw", "-A PREROUTING -i lo -d 192.0.2.0/24 -j ACCEPT\n-A PREROUTING -j NOTRACK", Some(Untracked)),
            ("raw", "-A PREROUTING -j HOSTPORT\n-A HOSTPORT -d 192.0.2.1/32 -j RETURN\n-A HOSTPORT -j NOTRACK", None),
            ("raw", "-A PREROUTING -g HOSTPORT\n-A PREROUTING -j NOTRACK", None),
            (
                "mangle",
                "-A PREROUTING -p tcp -j TPROXY --on-port 15006 --on-ip 127.0.0.1 --tproxy-mark 0x1/0xff",
                Some(TransparentProxy),
            ),
            ("mangle", "-A PREROUTING -d 198.51.100.1/32 -p tcp -j TPROXY --on-port 15006", None),
            ("mangle", "-A PREROUTING -m set --match-set services dst -j TPROXY --on-port 1", Some(TransparentProxy)),
            ("mangle", "-A PREROUTING -j MARK --set-xmark 0x1/0x1", None),
            (
                "nat",
                "-A PREROUTING -m set --match-set others dst -p tcp -j REDIRECT --to-ports 1\n-A PREROUTING -j KUBE-SERVICES",
                None,
            ),
            (
                "nat",
                "-A PREROUTING -p tcp -m set --match-set services dst -j REDIRECT --to-ports 1\n-A PREROUTING -j KUBE-SERVICES",
                Some(Translated),
            ),
        ] {
            let table = TableName::from_word(table).unwrap();
            let found = first_effect(table, 80, &format!("{rules}\n"), sets).map(|(effect, _)| effect);
            assert_eq!(found, expected, "{rules}");
        }
    }

    #[test]
    fn rules_after_the_services_do_not_matter() {
        let rules = format!("{ENTRY}{HOST_PORT}{DNAT}");
        assert_eq!(translation(30080, &rules), None);
        assert_eq!(translation(30080, &format!("{HOST_PORT}{DNAT}")), None, "no proxy has rules");
    }
}
