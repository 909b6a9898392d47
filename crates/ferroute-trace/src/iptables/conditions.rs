use std::{fmt, net::IpAddr};

use ferroute_iptables::{AddressType, Match, PortList, PortSide, ProtocolMatch, Recent, RecentAction, Rule, Sense};

use crate::{Host, state::State};

/// Whether a packet meets a rule's conditions.
#[derive(Debug, PartialEq)]
pub(super) enum Finding {
    /// Not all of them. A sentence tells of the first: what it asks for and what the packet has.
    Mismatch(String),
    /// All that can be told.
    Match {
        /// How likely chance lets it, 0 to 1.
        chance: f64,
        /// A condition that cannot be told, as a sentence.
        unknown: Option<String>,
    },
}

/// Whether a packet meets one module of a rule.
enum ModuleFinding {
    Match,
    Chance(f64),
    Mismatch(String),
    Unknown(String),
}

impl State<'_> {
    /// Looks at a rule's conditions in the kernel's order: what belongs to the rule itself, then its modules.
    pub(super) fn meets_rule(&self, rule: &Rule) -> Finding {
        if let Some(why) = self.header_mismatch(rule) {
            return Finding::Mismatch(why);
        }
        let (mut chance, mut unknown) = (1.0, Vec::new());
        for module in &rule.matches {
            match self.meets_module(module) {
                ModuleFinding::Match => {}
                ModuleFinding::Chance(probability) => chance *= probability,
                ModuleFinding::Unknown(what) => unknown.push(what),
                ModuleFinding::Mismatch(why) => return Finding::Mismatch(why),
            }
        }
        Finding::Match { chance, unknown: (!unknown.is_empty()).then(|| unknown.join(" and ")) }
    }

    fn header_mismatch(&self, rule: &Rule) -> Option<String> {
        let (source, destination) = (self.packet.source.ip(), self.packet.destination.ip());
        self.refuse("source", rule.source.as_ref(), source, |wanted| wanted.contains(source))
            .or_else(|| {
                self.refuse("destination", rule.destination.as_ref(), destination, |net| net.contains(destination))
            })
            .or_else(|| {
                let has = self.packet.in_interface.unwrap_or(NO_INTERFACE);
                self.refuse("input interface", rule.in_interface.as_ref(), has, |wanted| {
                    self.packet.in_interface.is_some_and(|name| wanted.matches(name))
                })
            })
            .or_else(|| {
                let has = self.packet.out_interface.unwrap_or(NO_INTERFACE);
                self.refuse("output interface", rule.out_interface.as_ref(), has, |wanted| {
                    self.packet.out_interface.is_some_and(|name| wanted.matches(name))
                })
            })
            .or_else(|| {
                self.refuse("protocol", rule.protocol.as_ref(), self.packet.sent.protocol, |wanted| match wanted {
                    ProtocolMatch::Transport(protocol) => *protocol == self.packet.sent.protocol,
                    ProtocolMatch::Other(_) => false,
                })
            })
    }

    fn meets_module(&self, module: &Match) -> ModuleFinding {
        let mismatch = match module {
            Match::Comment(_) | Match::Nfacct(_) => None,
            Match::Transport { source, destination, .. } => {
                let (from, to) = (self.packet.source.port(), self.packet.destination.port());
                self.refuse("source port", source.as_ref(), from, |ports| ports.contains(from))
                    .or_else(|| self.refuse("destination port", destination.as_ref(), to, |ports| ports.contains(to)))
            }
            Match::Multiport { side, ports } => {
                let (from, to) = (self.packet.source.port(), self.packet.destination.port());
                let (has, what) = match side {
                    PortSide::Source => (&[from][..], "source port"),
                    PortSide::Destination => (&[to][..], "destination port"),
                    PortSide::Either => (&[from, to][..], "source and destination port"),
                };
                let any = |wanted: &PortList| has.iter().any(|port| wanted.contains(*port));
                let text = has.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
                self.refuse(what, Some(ports), text, any)
            }
            Match::Conntrack(states) | Match::State(states) => {
                self.refuse("connection state", Some(states), self.connection, |wanted| {
                    wanted.intersects(self.connection)
                })
            }
            Match::Mark(mark) => (!mark.allows(|wanted| wanted.matches(self.mark))).then(|| {
                let wanted = mark.value();
                let wanted = format!("{:#x}/{:#x}", wanted.value, wanted.mask);
                refusal("mark", format_args!("{:#x}", self.mark), &wanted, mark.is_negated())
            }),
            Match::AddrType { source, destination } => {
                let of_source = meets_type("source", source.as_ref(), self.packet.source.ip(), self.packet.host);
                if !matches!(of_source, ModuleFinding::Match) {
                    return of_source;
                }
                return meets_type("destination", destination.as_ref(), self.packet.destination.ip(), self.packet.host);
            }
            Match::Statistic(Sense::Is(probability)) => return ModuleFinding::Chance(probability.as_f64()),
            Match::Statistic(Sense::Not(probability)) => return ModuleFinding::Chance(1.0 - probability.as_f64()),
            Match::Recent(recent) => self.recent_mismatch(recent),
            Match::Other(text) => return ModuleFinding::Unknown(format!("`{text}` holds")),
        };
        mismatch.map_or(ModuleFinding::Match, ModuleFinding::Mismatch)
    }

    fn refuse<T: fmt::Display>(
        &self,
        what: &str,
        wanted: Option<&Sense<T>>,
        has: impl fmt::Display,
        holds: impl FnOnce(&T) -> bool,
    ) -> Option<String> {
        let wanted = wanted?;
        let why =
            || if self.explains { refusal(what, has, wanted.value(), wanted.is_negated()) } else { String::new() };
        (!wanted.allows(holds)).then(why)
    }

    fn recent_mismatch(&self, recent: &Recent) -> Option<String> {
        if recent.action == RecentAction::Set {
            return None;
        }
        let list = &recent.name;
        match (self.remembered.get(&**list), recent.seconds) {
            (None, _) => Some(format!("client is not in list {list}")),
            (Some(age), Some(limit)) if *age > limit => {
                Some(format!("client is in list {list} since {age} s, not at most {limit} s"))
            }
            (Some(_), _) => None,
        }
    }
}

fn meets_type(what: &str, wanted: Option<&Sense<AddressType>>, address: IpAddr, host: &Host) -> ModuleFinding {
    let Some(wanted) = wanted else { return ModuleFinding::Match };
    let kind = wanted.value();
    let is = if wanted.is_negated() { "is not" } else { "is" };
    let is_not = if wanted.is_negated() { "is" } else { "is not" };
    match is_of_type(address, *kind, host) {
        None => ModuleFinding::Unknown(format!("{what} {address} {is} of type {kind}")),
        Some(holds) if wanted.allows(|_| holds) => ModuleFinding::Match,
        Some(_) => ModuleFinding::Mismatch(format!("{what} {address} {is_not} of type {kind}")),
    }
}

/// Whether an address is of a type; `None` where that takes more of a routing table than we have. Only LOCAL and its
/// opposite matter to a service proxy.
fn is_of_type(address: IpAddr, wanted: AddressType, host: &Host) -> Option<bool> {
    match wanted {
        AddressType::Local => Some(host.owns(address)),
        AddressType::Multicast => Some(address.is_multicast()),
        _ if host.owns(address) || address.is_multicast() => Some(false),
        _ => None,
    }
}

fn refusal(what: &str, has: impl fmt::Display, wanted: &impl fmt::Display, negated: bool) -> String {
    if negated {
        format!("{what} is {has}, and {wanted} is excluded")
    } else {
        format!("{what} is {has}, not {wanted}")
    }
}

/// What is said of a packet that the host sends, or that is for it.
const NO_INTERFACE: &str = "none";
