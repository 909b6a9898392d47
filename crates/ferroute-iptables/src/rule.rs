//! A rule: its conditions and its target.
//!
//! A [`Rule`] is canonical: two rules with the same meaning to the kernel are equal values, regardless of the order of
//! the options in the text that they were parsed from.

mod matches;
mod target;

pub use matches::Match;
pub use target::Target;

use std::{fmt, net::IpAddr, sync::Arc};

use ferroute_core::{LocalTraffic, Protocol};
use ipnet::IpNet;

use crate::{
    ChainName, address_text,
    extension::{PortRange, SetMatch, SetSide},
};

/// A condition or its negation (`!`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sense<T> {
    /// The packet must match.
    Is(T),
    /// The packet must not match.
    Not(T),
}

impl<T> Sense<T> {
    /// Creates [`Sense::Not`] if `negated`, else [`Sense::Is`].
    pub fn new(negated: bool, value: T) -> Self {
        if negated { Self::Not(value) } else { Self::Is(value) }
    }

    /// The condition without its sense.
    pub fn value(&self) -> &T {
        match self {
            Self::Is(value) | Self::Not(value) => value,
        }
    }

    /// Reports whether the condition is negated.
    pub fn is_negated(&self) -> bool {
        matches!(self, Self::Not(_))
    }

    /// Reports whether a packet matches, given a predicate on the condition without its sense.
    pub fn allows(&self, holds: impl FnOnce(&T) -> bool) -> bool {
        holds(self.value()) != self.is_negated()
    }
}

/// A rule of a chain.
///
/// The fields before `matches` are part of the kernel's rule itself and have no order among themselves. `matches` are
/// match modules, which are evaluated in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Source address (`-s`); never a network of length 0, unless negated.
    pub source: Option<Sense<AddressMatch>>,
    /// Destination address (`-d`); never a network of length 0, unless negated.
    pub destination: Option<Sense<AddressMatch>>,
    /// Incoming interface (`-i`).
    pub in_interface: Option<Sense<InterfaceMatch>>,
    /// Outgoing interface (`-o`).
    pub out_interface: Option<Sense<InterfaceMatch>>,
    /// Transport protocol (`-p`).
    pub protocol: Option<Sense<ProtocolMatch>>,
    /// Match modules (`-m`), in order of evaluation.
    pub matches: Vec<Match>,
    /// The target; `None` continues with the next rule.
    pub target: Option<Target>,
}

impl Rule {
    /// Creates a rule that matches every packet and has no target. The methods below add conditions and the target.
    pub fn new() -> Self {
        Self::default()
    }

    /// Matches sources in `net`.
    pub fn source(mut self, net: impl Into<IpNet>) -> Self {
        self.source = AddressMatch::within(net.into()).map(Sense::Is);
        self
    }

    /// Matches sources outside of `net`.
    pub fn source_not(mut self, net: impl Into<IpNet>) -> Self {
        self.source = Some(Sense::Not(AddressMatch::Net(net.into().trunc())));
        self
    }

    /// Matches destinations in `net`.
    pub fn destination(mut self, net: impl Into<IpNet>) -> Self {
        self.destination = AddressMatch::within(net.into()).map(Sense::Is);
        self
    }

    /// Matches destinations outside of `net`.
    pub fn destination_not(mut self, net: impl Into<IpNet>) -> Self {
        self.destination = Some(Sense::Not(AddressMatch::Net(net.into().trunc())));
        self
    }

    /// Matches the incoming interface.
    pub fn in_interface(mut self, interface: Sense<InterfaceMatch>) -> Self {
        self.in_interface = Some(interface);
        self
    }

    /// Matches packets of local pods, or all others. `None` if no packet can match: `iptables-nft` rejects a rule for
    /// sources outside of every network.
    pub fn local_pods(self, pods: Sense<&LocalTraffic>) -> Option<Self> {
        let interface = |interface| Sense::new(pods.is_negated(), interface);
        Some(match pods.value() {
            LocalTraffic::Source(net) if !pods.is_negated() => self.source(*net),
            LocalTraffic::Source(net) if net.prefix_len() == 0 => return None,
            LocalTraffic::Source(net) => self.source_not(*net),
            LocalTraffic::Interface(name) => self.in_interface(interface(InterfaceMatch::Name(name.as_str().into()))),
            LocalTraffic::InterfacePrefix(prefix) => {
                self.in_interface(interface(InterfaceMatch::Prefix(prefix.as_str().into())))
            }
        })
    }

    /// Appends a match module.
    pub fn and(mut self, module: Match) -> Self {
        self.matches.push(module);
        self
    }

    /// Matches packets whose addresses and ports are in the set called `name`.
    pub fn in_set(self, name: impl Into<Box<str>>, sides: impl Into<Box<[SetSide]>>) -> Self {
        self.and(Match::Set(Sense::Is(SetMatch { name: name.into(), sides: sides.into() })))
    }

    /// Appends a comment. Control characters become question marks: `iptables-restore` reads lines, and the text after a
    /// line break would be another command.
    pub fn comment(self, text: impl Into<Arc<str>>) -> Self {
        let mut text = text.into();
        if text.contains(char::is_control) {
            text = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>().into();
        }
        self.and(Match::Comment(text))
    }

    /// Matches a protocol, and loads its match module as kube-proxy does.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(Sense::Is(ProtocolMatch::Transport(protocol)));
        self.and(Match::Transport { protocol, source: None, destination: None })
    }

    /// Matches a protocol and a destination port.
    pub fn port(mut self, protocol: Protocol, port: u16) -> Self {
        self.protocol = Some(Sense::Is(ProtocolMatch::Transport(protocol)));
        self.and(Match::Transport { protocol, source: None, destination: Some(Sense::Is(PortRange::one(port))) })
    }

    /// Sets the target.
    pub fn then(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// Returns the rule's first comment.
    pub fn first_comment(&self) -> Option<&str> {
        self.matches.iter().find_map(|module| match module {
            Match::Comment(text) => Some(&**text),
            _ => None,
        })
    }

    /// Returns the chain that the rule jumps or goes to.
    pub fn next_chain(&self) -> Option<ChainName> {
        match self.target {
            Some(Target::Jump(chain) | Target::Goto(chain)) => Some(chain),
            _ => None,
        }
    }
}

/// A match on an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AddressMatch {
    /// The addresses of a network, whose host bits are zero.
    Net(IpNet),
    /// The addresses with these bits under a mask that is not a prefix. Not written by kube-proxy.
    Masked {
        /// The bits, zero outside of the mask.
        address: IpAddr,
        /// The mask.
        mask: IpAddr,
    },
}

impl AddressMatch {
    /// Matches addresses within `net`; `None` if `net` contains every address, because such a rule has no condition in
    /// the kernel.
    pub fn within(net: IpNet) -> Option<Self> {
        (net.prefix_len() > 0).then(|| Self::Net(net.trunc()))
    }

    /// Matches the bits of `address` under `mask`; `None` if they belong to different families.
    pub(crate) fn with_mask(address: IpAddr, mask: IpAddr) -> Option<Self> {
        if let Ok(net) = IpNet::with_netmask(address, mask) {
            return Some(Self::Net(net.trunc()));
        }
        let address = match (address, mask) {
            (IpAddr::V4(address), IpAddr::V4(mask)) => IpAddr::V4(address & mask),
            (IpAddr::V6(address), IpAddr::V6(mask)) => IpAddr::V6(address & mask),
            _ => return None,
        };
        Some(Self::Masked { address, mask })
    }

    /// Reports whether `address` matches. An address of the other family does not match.
    pub fn contains(&self, address: IpAddr) -> bool {
        match *self {
            Self::Net(net) => net.contains(&address),
            Self::Masked { address: bits, mask } => match (bits, mask, address) {
                (IpAddr::V4(bits), IpAddr::V4(mask), IpAddr::V4(address)) => {
                    u32::from(address) & u32::from(mask) == u32::from(bits)
                }
                (IpAddr::V6(bits), IpAddr::V6(mask), IpAddr::V6(address)) => {
                    u128::from(address) & u128::from(mask) == u128::from(bits)
                }
                _ => false,
            },
        }
    }
}

impl fmt::Display for AddressMatch {
    /// Writes `10.0.0.0/8`, `fd00::1/128` or `10.0.0.1/255.0.0.255`, always with a prefix length or mask.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(net) => write!(f, "{}/{}", address_text::address(net.addr()), net.prefix_len()),
            Self::Masked { address, mask } => {
                write!(f, "{}/{}", address_text::address(*address), address_text::address(*mask))
            }
        }
    }
}

/// A match on a network interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InterfaceMatch {
    /// The interface with this name.
    Name(Box<str>),
    /// Interfaces whose names have this prefix; written with a `+` at the end.
    Prefix(Box<str>),
}

impl InterfaceMatch {
    /// Reports whether the interface called `name` matches.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Name(wanted) => **wanted == *name,
            Self::Prefix(prefix) => name.starts_with(&**prefix),
        }
    }
}

impl fmt::Display for InterfaceMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Prefix(prefix) => write!(f, "{prefix}+"),
        }
    }
}

/// A match on the protocol above IP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProtocolMatch {
    /// A protocol that Services support.
    Transport(Protocol),
    /// Any other protocol, as `iptables-save` spells it: `icmp`, `ipv6-icmp`, `41`.
    Other(Box<str>),
}

impl fmt::Display for ProtocolMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(protocol) => f.write_str(protocol.as_str()),
            Self::Other(name) => f.write_str(name),
        }
    }
}
