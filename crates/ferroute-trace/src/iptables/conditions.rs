use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ferroute_core::Protocol;
use ferroute_iptables::{AddressType, CtStates, Match, ProtocolMatch, Recent, RecentAction, Rule, Sense};

use crate::Host;

/// A packet as it is at some rule.
#[derive(Clone, Debug)]
pub(super) struct State<'a> {
    pub(super) protocol: Protocol,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) in_interface: Option<&'a str>,
    pub(super) out_interface: Option<&'a str>,
    pub(super) mark: u32,
    /// Which states its connection has.
    pub(super) connection: CtStates,
    pub(super) remembered: &'a std::collections::BTreeMap<String, u32>,
}

/// Whether a packet meets a rule's conditions.
#[derive(Debug, PartialEq)]
pub(super) enum Finding {
    /// Not this one.
    Mismatch(Mismatch),
    /// All that can be told.
    Match {
        /// How likely chance lets it, 0 to 1.
        chance: f64,
        /// A condition that cannot be told.
        unknown: Option<String>,
    },
}

/// Whether a packet meets one module of a rule.
enum ModuleFinding {
    Match,
    Chance(f64),
    Mismatch(Mismatch),
    Unknown(String),
}

/// The condition that is not met, and what the packet has in its place.
#[derive(Debug, PartialEq)]
pub(super) struct Mismatch {
    what: &'static str,
    has: String,
    wanted: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, not {}", self.what, self.has, self.wanted)
    }
}

impl State<'_> {
    /// Looks at a rule's conditions in the kernel's order: what belongs to the rule itself, then its modules.
    pub(super) fn meets(&self, rule: &Rule, host: &Host) -> Finding {
        if let Some(mismatch) = self.header_mismatch(rule) {
            return Finding::Mismatch(mismatch);
        }
        let (mut chance, mut unknown) = (1.0, Vec::new());
        for module in &rule.matches {
            match self.meets_module(module, host) {
                ModuleFinding::Match => {}
                ModuleFinding::Chance(probability) => chance *= probability,
                ModuleFinding::Unknown(what) => unknown.push(what),
                ModuleFinding::Mismatch(mismatch) => return Finding::Mismatch(mismatch),
            }
        }
        Finding::Match { chance, unknown: (!unknown.is_empty()).then(|| unknown.join(" and ")) }
    }

    fn header_mismatch(&self, rule: &Rule) -> Option<Mismatch> {
        let interface = |name: Option<&str>| name.unwrap_or("").to_owned();
        refuse("source", &rule.source, self.source.ip(), |wanted| wanted.contains(self.source.ip()))
            .or_else(|| {
                let destination = self.destination.ip();
                refuse("destination", &rule.destination, destination, |wanted| wanted.contains(destination))
            })
            .or_else(|| {
                let name = interface(self.in_interface);
                refuse("input interface", &rule.in_interface, name.clone(), |wanted| wanted.matches(&name))
            })
            .or_else(|| {
                let name = interface(self.out_interface);
                refuse("output interface", &rule.out_interface, name.clone(), |wanted| wanted.matches(&name))
            })
            .or_else(|| {
                refuse("protocol", &rule.protocol, self.protocol, |wanted| match wanted {
                    ProtocolMatch::Transport(protocol) => *protocol == self.protocol,
                    ProtocolMatch::Other(_) => false,
                })
            })
    }

    fn meets_module(&self, module: &Match, host: &Host) -> ModuleFinding {
        let mismatch = match module {
            Match::Comment(_) | Match::Nfacct(_) => None,
            Match::Transport { source, destination, .. } => {
                let (from, to) = (self.source.port(), self.destination.port());
                refuse("source port", source, from, |ports| ports.contains(from))
                    .or_else(|| refuse("destination port", destination, to, |ports| ports.contains(to)))
            }
            Match::Conntrack(states) => {
                refuse("connection state", &Some(*states), self.connection, |states| states.intersects(self.connection))
            }
            Match::Mark(mark) => (!mark.allows(|wanted| wanted.matches(self.mark))).then(|| Mismatch {
                what: "mark",
                has: format!("{:#x}", self.mark),
                wanted: sense(mark, |wanted| format!("{:#x}/{:#x}", wanted.value, wanted.mask)),
            }),
            Match::AddrType { source, destination } => {
                return self.meets_types(source.as_ref(), destination.as_ref(), host);
            }
            Match::Statistic(Sense::Is(probability)) => return ModuleFinding::Chance(probability.as_f64()),
            Match::Statistic(Sense::Not(probability)) => return ModuleFinding::Chance(1.0 - probability.as_f64()),
            Match::Recent(recent) => self.recent_mismatch(recent),
            Match::Other(text) => return ModuleFinding::Unknown(format!("`{text}` holds")),
        };
        mismatch.map_or(ModuleFinding::Match, ModuleFinding::Mismatch)
    }

    fn meets_types(
        &self,
        source: Option<&Sense<AddressType>>,
        destination: Option<&Sense<AddressType>>,
        host: &Host,
    ) -> ModuleFinding {
        let sides = [("source", source, self.source.ip()), ("destination", destination, self.destination.ip())];
        for (what, wanted, address) in sides {
            let Some(wanted) = wanted else { continue };
            let Some(found) = address_type(address, *wanted.value(), host) else {
                return ModuleFinding::Unknown(format!(
                    "{what} {address} is of type {}",
                    sense(wanted, ToString::to_string)
                ));
            };
            if !wanted.allows(|_| found) {
                let has = if host.owns(address) { "LOCAL" } else { "not LOCAL" };
                return ModuleFinding::Mismatch(Mismatch {
                    what: if what == "source" { "type of the source" } else { "type of the destination" },
                    has: format!("{has} ({address})"),
                    wanted: sense(wanted, ToString::to_string),
                });
            }
        }
        ModuleFinding::Match
    }

    fn recent_mismatch(&self, recent: &Recent) -> Option<Mismatch> {
        if recent.action == RecentAction::Set {
            return None;
        }
        let age = self.remembered.get(&*recent.name).copied();
        let fresh = age.is_some_and(|age| recent.seconds.is_none_or(|limit| age <= limit));
        (!fresh).then(|| Mismatch {
            what: "client",
            has: age.map_or_else(|| "unknown".to_owned(), |age| format!("known since {age} s")),
            wanted: format!("in list {}", recent.name),
        })
    }
}

/// Whether an address is of a type; `None` where that takes a routing table. Only LOCAL and its opposite matter to a
/// service proxy.
fn address_type(address: IpAddr, wanted: AddressType, host: &Host) -> Option<bool> {
    match wanted {
        AddressType::Local => Some(host.owns(address)),
        AddressType::Multicast => Some(address.is_multicast()),
        _ if host.owns(address) => Some(false),
        AddressType::Unicast if host.route(address).is_some() => Some(!address.is_multicast()),
        _ => None,
    }
}

fn refuse<T: fmt::Display>(
    what: &'static str,
    wanted: &Option<Sense<T>>,
    has: impl fmt::Display,
    holds: impl FnOnce(&T) -> bool,
) -> Option<Mismatch> {
    let wanted = wanted.as_ref()?;
    (!wanted.allows(holds)).then(|| Mismatch { what, has: has.to_string(), wanted: sense(wanted, ToString::to_string) })
}

fn sense<T>(wanted: &Sense<T>, text: impl FnOnce(&T) -> String) -> String {
    match wanted {
        Sense::Is(value) => text(value),
        Sense::Not(value) => format!("outside of {}", text(value)),
    }
}
