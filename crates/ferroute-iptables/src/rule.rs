//! One rule: what a packet must have, and what then becomes of it.
//!
//! A [`Rule`] is canonical: two rules that mean the same to the kernel are equal values, whatever order the options had
//! in the text that they were read from.

mod address;
mod matches;
mod probability;
mod target;

pub use address::{AddressMatch, InterfaceMatch, ProtocolMatch};
pub use matches::{AddressType, CtStates, MarkMatch, Match, PortList, PortRange, PortSide, Recent, RecentAction};
pub use probability::Probability;
pub use target::{RejectWith, Target};

use std::sync::Arc;

use ferroute_core::Protocol;
use ipnet::IpNet;

/// A condition or its opposite (`!`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sense<T> {
    /// The packet must have it.
    Is(T),
    /// The packet must not have it.
    Not(T),
}

impl<T> Sense<T> {
    /// [`Sense::Not`] where `negated`.
    pub fn new(negated: bool, value: T) -> Self {
        if negated { Self::Not(value) } else { Self::Is(value) }
    }

    /// The condition without its sense.
    pub fn value(&self) -> &T {
        match self {
            Self::Is(value) | Self::Not(value) => value,
        }
    }

    /// Stands for the opposite.
    pub fn is_negated(&self) -> bool {
        matches!(self, Self::Not(_))
    }

    /// Whether a packet passes for which `holds` tells if it has the condition.
    pub fn allows(&self, holds: impl FnOnce(&T) -> bool) -> bool {
        holds(self.value()) != self.is_negated()
    }
}

/// One rule of a chain.
///
/// The fields before `matches` belong to the kernel's rule itself and have no order among themselves; `matches` are
/// its modules, which have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Source address (`-s`); never a network of length 0, unless negated.
    pub source: Option<Sense<AddressMatch>>,
    /// Destination address (`-d`); never a network of length 0, unless negated.
    pub destination: Option<Sense<AddressMatch>>,
    /// The interface it came through (`-i`).
    pub in_interface: Option<Sense<InterfaceMatch>>,
    /// The interface it leaves through (`-o`).
    pub out_interface: Option<Sense<InterfaceMatch>>,
    /// Protocol above IP (`-p`).
    pub protocol: Option<Sense<ProtocolMatch>>,
    /// Match modules (`-m`), looked at in this order.
    pub matches: Vec<Match>,
    /// What happens to a packet that has all this; `None`: nothing, it goes on to the next rule.
    pub target: Option<Target>,
}

impl Rule {
    /// A rule for every packet that has no target, to be filled by the methods below.
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

    /// Matches the input interface.
    pub fn in_interface(mut self, interface: Sense<InterfaceMatch>) -> Self {
        self.in_interface = Some(interface);
        self
    }

    /// Adds a match module after those that are there.
    pub fn and(mut self, module: Match) -> Self {
        self.matches.push(module);
        self
    }

    /// Adds a comment.
    pub fn comment(self, text: impl Into<Arc<str>>) -> Self {
        self.and(Match::Comment(text.into()))
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

    /// What happens to a packet that matches.
    pub fn then(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// The rule's first comment.
    pub fn first_comment(&self) -> Option<&str> {
        self.matches.iter().find_map(|module| match module {
            Match::Comment(text) => Some(&**text),
            _ => None,
        })
    }

    /// The chain that the rule jumps or goes to.
    pub fn next_chain(&self) -> Option<crate::ChainName> {
        match self.target {
            Some(Target::Jump(chain) | Target::Goto(chain)) => Some(chain),
            _ => None,
        }
    }
}
