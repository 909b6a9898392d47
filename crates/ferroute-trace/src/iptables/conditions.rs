use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ferroute_iptables::{
    AddressType, Match, PortList, PortSide, ProtocolMatch, Rule, Sense, SetMatch, SetSide, VirtualServerMatch,
};
use ferroute_ipvs::IpvsObjects;

use super::{foreign::Words, recent::Recent};
use crate::{AddressKind, PacketState, event::mismatch_text, walk::Unknown};

/// The result of matching a packet against a rule.
#[derive(Debug, PartialEq)]
pub(super) enum MatchResult {
    /// A condition does not match, with the expected and the actual value as a sentence.
    Mismatch(String),
    /// All conditions that can be evaluated match.
    Match {
        /// The probability that random conditions match, 0 to 1.
        chance: f64,
        /// The matches that cannot be evaluated.
        unknown: Vec<Unknown>,
    },
}

/// The result of matching a packet against one match extension of a rule.
pub(crate) enum ExtensionResult {
    Match,
    Chance(f64),
    Mismatch(String),
    Unknown(Unknown),
}

impl PacketState<'_> {
    /// Matches the packet against a rule in the kernel's order: header fields first, then match extensions.
    pub(super) fn matches_rule(&self, rule: &Rule) -> MatchResult {
        if let Some(reason) = self.header_mismatch(rule) {
            return MatchResult::Mismatch(reason);
        }
        let (mut chance, mut unknown) = (1.0, Vec::new());
        for extension in &rule.matches {
            match self.matches_extension(extension) {
                ExtensionResult::Match => {}
                ExtensionResult::Chance(probability) => chance *= probability,
                ExtensionResult::Unknown(condition) => unknown.push(condition.of(extension)),
                ExtensionResult::Mismatch(reason) => return MatchResult::Mismatch(reason),
            }
        }
        MatchResult::Match { chance, unknown }
    }

    pub(crate) fn header_mismatch(&self, rule: &Rule) -> Option<String> {
        let (source, destination) = (self.source.ip(), self.destination.ip());
        self.mismatch("source", rule.source.as_ref(), source, |net| net.contains(source))
            .or_else(|| {
                self.mismatch("destination", rule.destination.as_ref(), destination, |net| net.contains(destination))
            })
            .or_else(|| {
                let interface = self.in_interface.as_deref().unwrap_or(NO_INTERFACE);
                self.mismatch("input interface", rule.in_interface.as_ref(), interface, |wanted| {
                    self.in_interface.as_deref().is_some_and(|name| wanted.matches(name))
                })
            })
            .or_else(|| {
                let interface = self.out_interface.as_deref().unwrap_or(NO_INTERFACE);
                self.mismatch("output interface", rule.out_interface.as_ref(), interface, |wanted| {
                    self.out_interface.as_deref().is_some_and(|name| wanted.matches(name))
                })
            })
            .or_else(|| {
                self.mismatch("protocol", rule.protocol.as_ref(), self.protocol(), |wanted| match wanted {
                    ProtocolMatch::Transport(protocol) => *protocol == self.protocol(),
                    ProtocolMatch::Other(_) => false,
                })
            })
    }

    pub(crate) fn matches_extension(&self, extension: &Match) -> ExtensionResult {
        if let Some(recent) = Recent::of(extension) {
            return self.matches_recent(&recent);
        }
        let mismatch = match extension {
            Match::Comment(_) | Match::Nfacct(_) => None,
            Match::Transport { source, destination, .. } => {
                let (from, to) = (self.source.port(), self.destination.port());
                self.mismatch("source port", source.as_ref(), from, |ports| ports.contains(from))
                    .or_else(|| self.mismatch("destination port", destination.as_ref(), to, |ports| ports.contains(to)))
            }
            Match::Multiport { side, ports } => {
                let (from, to) = (self.source.port(), self.destination.port());
                let (actual, subject) = match side {
                    PortSide::Source => (&[from][..], "source port"),
                    PortSide::Destination => (&[to][..], "destination port"),
                    PortSide::Either => (&[from, to][..], "source and destination port"),
                };
                let matches = |wanted: &PortList| actual.iter().any(|port| wanted.contains(*port));
                let text = actual.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
                self.mismatch(subject, Some(ports), text, matches)
            }
            Match::Conntrack(states) | Match::State(states) => {
                self.mismatch("connection state", Some(states), self.connection, |wanted| {
                    wanted.intersects(self.connection)
                })
            }
            Match::Mark(mark) => (!mark.allows(|wanted| wanted.matches(self.mark))).then(|| {
                let wanted = mark.value();
                let wanted = format!("{:#x}/{:#x}", wanted.value, wanted.mask);
                mismatch_text("mark", format_args!("{:#x}", self.mark), &wanted, mark.is_negated())
            }),
            Match::AddrType { source, destination } => {
                let result = self.matches_type("source", source.as_ref(), self.source.ip());
                if !matches!(result, ExtensionResult::Match) {
                    return result;
                }
                return self.matches_type("destination", destination.as_ref(), self.destination.ip());
            }
            Match::Statistic(Sense::Is(probability)) => return ExtensionResult::Chance(probability.as_f64()),
            Match::Statistic(Sense::Not(probability)) => return ExtensionResult::Chance(1.0 - probability.as_f64()),
            Match::Recent(_) => None,
            Match::Set(set) => return self.matches_set(set),
            Match::PhysdevIsIn(wanted) => {
                let is_in = self.passes_port("--physdev-is-in", None) == Some(true);
                let did = if is_in { "arrived" } else { "did not arrive" };
                (!wanted.allows(|_| is_in)).then(|| format!("packet {did} through a port of a bridge"))
            }
            Match::Ipvs(VirtualServerMatch { address, protocol, port }) => {
                let (original, wanted) = (self.original.destination, SocketAddr::new(*address, *port));
                let is_same = self.resent && original == wanted && *protocol == self.protocol();
                (!is_same).then(|| format!("virtual server is {original}, not {wanted}"))
            }
            Match::Other(text) => return self.matches_text(text),
        };
        mismatch.map_or(ExtensionResult::Match, ExtensionResult::Mismatch)
    }

    /// Matches the packet against a match extension, as [`Ruleset::matches_destination`](crate::Ruleset::matches_destination)
    /// does.
    pub(crate) fn matches_destination(&self, extension: &Match) -> Option<bool> {
        const OPTIONS: [&str; 7] = [
            "--dst-range",
            "--dport",
            "--destination-port",
            "--ctorigdst",
            "--ctorigdstport",
            "--ctproto",
            "--ctstate",
        ];
        let depends_on_destination = match extension {
            Match::Set(set) => set.value().sides.iter().all(|side| *side == SetSide::Destination),
            Match::Conntrack(_) | Match::State(_) | Match::Comment(_) | Match::Nfacct(_) => true,
            Match::Other(text) => text
                .strip_prefix("-m ")
                .and_then(Words::parse)
                .is_some_and(|words| words.options.iter().all(|(_, option, _)| OPTIONS.contains(option))),
            _ => false,
        };
        match self.matches_extension(extension) {
            ExtensionResult::Match if depends_on_destination => Some(true),
            ExtensionResult::Mismatch(_) if depends_on_destination => Some(false),
            _ => None,
        }
    }

    fn matches_set(&self, wanted: &Sense<SetMatch>) -> ExtensionResult {
        let set = wanted.value();
        let lookup = |objects: &&dyn IpvsObjects| objects.matches(set, self.protocol(), self.source, self.destination);
        let contains = self.ipvs.iter().find_map(lookup);
        let Some(contains) = contains.or_else(|| self.is_in_ipset(&set.name, &set.sides)) else {
            let condition = format!("packet is in set {set}");
            return ExtensionResult::Unknown(Unknown::new(condition).negated(wanted.is_negated()));
        };
        if wanted.allows(|_| contains) {
            return ExtensionResult::Match;
        }
        let is = if contains { "is" } else { "is not" };
        ExtensionResult::Mismatch(format!("packet {is} in set {}", set.name))
    }

    fn matches_type(&self, subject: &str, wanted: Option<&Sense<AddressType>>, address: IpAddr) -> ExtensionResult {
        let Some(wanted) = wanted else { return ExtensionResult::Match };
        let kind = wanted.value();
        let is_not = if wanted.is_negated() { "is" } else { "is not" };
        match self.is_of_types(address, &[*kind], None) {
            None => {
                let condition = format!("{subject} {address} is of type {kind}");
                ExtensionResult::Unknown(Unknown::new(condition).negated(wanted.is_negated()))
            }
            Some(holds) if wanted.allows(|_| holds) => ExtensionResult::Match,
            Some(_) => ExtensionResult::Mismatch(format!("{subject} {address} {is_not} of type {kind}")),
        }
    }

    /// Reports whether an address is of one of these types, for packets of an interface if there is one; `None` if this
    /// depends on routing tables that are unknown.
    ///
    /// The module `xt_addrtype` looks up IPv4 addresses in table local. For an IPv6 address, it first decides whether
    /// it is multicast or unicast, if one of these types is requested, and then looks up the route for the other types.
    pub(super) fn is_of_types(&self, address: IpAddr, wanted: &[AddressType], interface: Option<&str>) -> Option<bool> {
        let kind = || match interface {
            Some(interface) => self.address_type_on(address, interface),
            None => self.address_type(address),
        };
        let wants = |kind: AddressType| wanted.contains(&kind);
        if address.is_ipv6() {
            let is_multicast = address.is_multicast();
            if (wants(AddressType::Multicast) && !is_multicast)
                || (wants(AddressType::Unicast) && (is_multicast || address.is_unspecified()))
            {
                return Some(false);
            }
            let is_local = || kind() == Some(AddressKind::Local);
            let by_route = [AddressType::Anycast, AddressType::Unreachable].into_iter().any(wants);
            return match wants(AddressType::Local) {
                true if is_local() => Some(true),
                _ if by_route => kind().filter(|_| interface.is_none()).map(|kind| {
                    let is_refused = [AddressKind::Blackhole, AddressKind::Unreachable, AddressKind::Prohibit];
                    wants(AddressType::Unreachable) && is_refused.contains(&kind)
                }),
                is_wanted => Some(!is_wanted),
            };
        }
        match kind() {
            Some(AddressKind::Unicast) => Some(wants(AddressType::Unicast)),
            Some(AddressKind::Local) => Some(wants(AddressType::Local)),
            Some(AddressKind::Broadcast) => Some(wants(AddressType::Broadcast)),
            Some(AddressKind::Multicast) => Some(wants(AddressType::Multicast)),
            Some(AddressKind::Blackhole | AddressKind::Unreachable | AddressKind::Prohibit) => Some(false),
            // An address of unknown type is neither local nor multicast.
            None => wanted
                .iter()
                .all(|kind| matches!(kind, AddressType::Local | AddressType::Multicast))
                .then_some(false)
                .filter(|_| !self.is_local(address)),
        }
    }

    fn mismatch<T: fmt::Display>(
        &self,
        subject: &str,
        wanted: Option<&Sense<T>>,
        actual: impl fmt::Display,
        matches: impl FnOnce(&T) -> bool,
    ) -> Option<String> {
        let wanted = wanted?;
        let reason = || match self.explain {
            true => mismatch_text(subject, actual, wanted.value(), wanted.is_negated()),
            false => String::new(),
        };
        (!wanted.allows(matches)).then(reason)
    }
}

/// Shown instead of the interface of a packet that has none: a local packet, or one for the host.
const NO_INTERFACE: &str = "none";
