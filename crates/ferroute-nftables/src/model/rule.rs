use std::{cmp::Ordering, fmt, net::IpAddr, time::Duration};

use ferroute_core::IpFamily;
use ipnet::IpNet;

use super::{Class, Comment, DataType, Name, Value, Verdict};

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
    /// Of the priority, if it is a slot, what tells whose it is: see [`Class::owner`].
    SlotOwner,
    /// The source port. This and what follows are asked for by others' rules only.
    SourcePort,
    /// The mark.
    Mark,
    /// The name of the interface that the packet came in through.
    InputInterface,
    /// The name of the interface that it leaves through.
    OutputInterface,
    /// The state of its connection, a bit for each (`NF_CT_STATE_BIT`).
    ConnectionState,
    /// What has become of its connection (`IPS_*`).
    ConnectionStatus,
    /// What kind of address the source is to this host (`RTN_*`).
    SourceKind,
    /// What kind of address the destination is to this host.
    DestinationKind,
    /// One of several numbers in a row, each with the same probability.
    Random {
        /// How many there are; at least 1.
        count: u32,
        /// The first.
        first: u32,
    },
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
    /// Clear bits of the mark, and flip others; by others' rules.
    ChangeMark {
        /// The bits that are not cleared.
        keep: u32,
        /// The bits that are then flipped.
        flip: u32,
    },
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
    /// Add an element to a set, or let it live longer.
    Note {
        /// The element's key.
        key: Vec<Field>,
        /// A set of such keys.
        set: Name,
    },
    /// Send the connection to the address and port that a map says of a key, or to the address alone. Ends the chains of
    /// this hook and priority.
    Translate {
        /// The key.
        key: Vec<Field>,
        /// A map from such keys to addresses and ports.
        map: Name,
    },
    /// Send the connection to this address.
    TranslateTo {
        /// The address.
        address: IpAddr,
        /// The port; `None` keeps it.
        port: Option<u16>,
    },
    /// Let the connection come from this address.
    SourceFrom(IpAddr),
    /// Let the connection come from this host's address.
    Masquerade {
        /// And from a random port; else the port is kept where it can be.
        fully_random: bool,
    },
    /// Answer that the packet is refused.
    Reject(RejectWith),
    /// Do not track the packet's connection.
    NoTrack,
    /// Do this with the packet.
    Verdict(Verdict),
    /// Do what a map says of a key.
    Dispatch {
        /// The key.
        key: Vec<Field>,
        /// A map from such keys to verdicts.
        map: Name,
    },
    /// Something that cannot be said here.
    Opaque(Opaque),
}

/// How the sender of a packet is told that it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectWith {
    /// The port is unreachable.
    PortUnreachable,
    /// By a TCP reset.
    TcpReset,
    /// By another ICMP message of destinations that are unreachable, of this code.
    Icmp(u8),
    /// By one that the kernel chooses for both families (`NFT_REJECT_ICMPX_*`).
    Icmpx(u8),
}

/// Expressions of the kernel that only others' rules have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opaque {
    /// The expressions as the kernel lists them.
    pub expressions: Vec<Expression>,
    /// What they are about, for people.
    pub text: String,
    /// What can come of them.
    pub outcome: Outcome,
}

/// An expression as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    /// The kernel's name for its kind.
    pub name: String,
    /// Its attributes, as they are in netlink messages.
    pub data: Vec<u8>,
}

/// What can come of something that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing that a rule could notice: it counts or logs.
    Nothing,
    /// The packet matches or not.
    Condition,
    /// Anything.
    Anything,
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
    /// The packet is of this family; asked for in tables that see both.
    Family(IpFamily),
    /// A field, or some bits of it, compare so with a value; what the other conditions do not say.
    Compare {
        /// What is compared.
        field: Field,
        /// Which of its bits, if it is a number; all bits are set for other fields.
        mask: u32,
        /// How.
        relation: Relation,
        /// With what.
        value: Value,
    },
    /// A field is in a range, or is not.
    Within {
        /// The field.
        field: Field,
        /// The least value of the range.
        first: Value,
        /// The greatest.
        last: Value,
        /// Whether it is.
        is: bool,
    },
}

/// How two values compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The same.
    Equal,
    /// Not the same.
    NotEqual,
    /// Less.
    Less,
    /// Less or the same.
    AtMost,
    /// Greater.
    Greater,
    /// Greater or the same.
    AtLeast,
}

/// Names of interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceName {
    /// Just this one.
    Exact(Box<str>),
    /// All that start so.
    Prefix(Box<str>),
}

impl Statement {
    /// What the planner writes: the port is random.
    pub const MASQUERADE: Self = Self::Masquerade { fully_random: true };
    /// What the planner writes: the port is unreachable.
    pub const REJECT: Self = Self::Reject(RejectWith::PortUnreachable);
}

impl Field {
    /// The type of what it is, in packets of a family.
    pub fn data_type(self, family: IpFamily) -> DataType {
        match self {
            Self::Source | Self::Destination | Self::NoDestination => DataType::address(family),
            Self::Protocol => DataType::Protocol,
            Self::Port | Self::SourcePort => DataType::Port,
            Self::Priority | Self::SlotOwner => DataType::Class,
            Self::InputInterface | Self::OutputInterface => DataType::Interface,
            Self::Mark
            | Self::ConnectionState
            | Self::ConnectionStatus
            | Self::SourceKind
            | Self::DestinationKind
            | Self::Random { .. } => DataType::Number,
        }
    }
}

impl Relation {
    /// Whether it holds of two values that are ordered so.
    pub fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::AtMost => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::AtLeast => order.is_ge(),
        }
    }
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
