use std::{fmt, time::Duration};

use ferroute_core::IpFamily;
use ipnet::IpNet;

use super::{Class, Comment, Name, Verdict};

/// A rule: statements that are carried out from left to right until a match fails.
///
/// A statement that looks something up fails like a match where nothing is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it does.
    pub statements: Vec<Statement>,
    /// For people.
    pub comment: Option<Comment>,
}

/// Something of a packet that can be part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
    /// The destination address with all bits cleared: the same for every packet.
    NoDestination,
    /// The transport protocol.
    Protocol,
    /// The destination port.
    Port,
    /// The priority.
    Priority,
}

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// Go on only with such packets.
    Match(Match),
    /// Set the priority to what a map says of a key.
    PriorityFromMap {
        /// The key.
        key: Vec<Field>,
        /// A map from such keys to classes.
        map: Name,
    },
    /// Set the priority to one of several classes in a row, each with the same probability.
    PriorityAtRandom {
        /// How many there are; at least 1.
        count: u32,
        /// The first.
        first: Class,
    },
    /// Set the priority to zero.
    ClearPriority,
    /// Set these bits of the mark.
    SetMark(u32),
    /// Flip these bits of the mark.
    FlipMark(u32),
    /// Add an element that holds the priority; where there is one already, let it live longer but keep what it holds.
    Learn {
        /// The element's key.
        key: Vec<Field>,
        /// A map from such keys to classes.
        map: Name,
        /// How long it lives.
        timeout: Duration,
    },
    /// Remove an element.
    Forget {
        /// The element's key.
        key: Vec<Field>,
        /// A map from such keys to classes.
        map: Name,
    },
    /// Send the connection to the address and port that a map says of a key. Ends the chains of this hook and priority.
    Translate {
        /// The key.
        key: Vec<Field>,
        /// A map from such keys to addresses and ports.
        map: Name,
    },
    /// Let the connection come from this host's address and a random port.
    Masquerade,
    /// Answer that the port is unreachable.
    Reject,
    /// Do this with the packet.
    Verdict(Verdict),
    /// Do what a map says of the priority.
    Dispatch(Name),
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// The key is in a set, or is not.
    Member {
        /// The key.
        key: Vec<Field>,
        /// A set of such keys.
        set: Name,
        /// Whether it is.
        is: bool,
    },
    /// The source address is in a network, or is not.
    Source {
        /// The network.
        net: IpNet,
        /// Whether it is.
        is: bool,
    },
    /// The destination address is in a network, or is not.
    Destination {
        /// The network.
        net: IpNet,
        /// Whether it is.
        is: bool,
    },
    /// The packet came in through such an interface, or did not.
    Interface {
        /// Which.
        name: InterfaceName,
        /// Whether it did.
        is: bool,
    },
    /// The source is an address of this host.
    SourceIsLocal,
    /// The destination is an address of this host.
    DestinationIsLocal,
    /// The packet is the first of its connection.
    New,
    /// The connection's destination was translated.
    Translated,
    /// At least one of these bits of the mark is set.
    Marked(u32),
}

/// Names of interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceName {
    /// Just this one.
    Exact(Box<str>),
    /// All that start so.
    Prefix(Box<str>),
}

impl Rule {
    /// A rule without a comment.
    pub fn new(statements: impl Into<Vec<Statement>>) -> Self {
        Self { statements: statements.into(), comment: None }
    }

    /// The same, with a comment.
    pub fn comment(self, comment: &'static str) -> Self {
        Self { comment: Some(Comment::fixed(comment)), ..self }
    }

    /// The rule as `nft` writes it in a table of this family.
    pub fn text(&self, family: IpFamily) -> impl fmt::Display + '_ {
        super::text::RuleText { rule: self, family }
    }
}

impl From<Match> for Statement {
    fn from(condition: Match) -> Self {
        Self::Match(condition)
    }
}

impl From<Verdict> for Statement {
    fn from(verdict: Verdict) -> Self {
        Self::Verdict(verdict)
    }
}
