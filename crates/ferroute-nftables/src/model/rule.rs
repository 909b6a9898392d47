use std::{borrow::Cow, cmp::Ordering, fmt, net::IpAddr, time::Duration};

use ferroute_core::{InterfacePattern, IpFamily};
use ipnet::IpNet;

use super::{ClassId, Comment, DataType, Elements, Foreign, Name, Value, Verdict};

/// A rule: statements that are evaluated from left to right until a match fails.
///
/// A statement that looks up a key in a map also ends the rule if the map has no such key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The statements, in order.
    pub statements: Vec<Statement>,
    /// The rule's comment.
    pub comment: Option<Comment>,
}

/// A property of a packet that a rule can load: `ip saddr`, `meta mark`, `ct state`, …
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// `ip saddr` or `ip6 saddr`.
    Saddr,
    /// `ip saddr & mask` or `ip6 saddr & mask`: the network of the source with this prefix length.
    SaddrNetwork(u8),
    /// `ip daddr` or `ip6 daddr`.
    Daddr,
    /// `meta l4proto`.
    L4proto,
    /// `th dport`.
    Dport,
    /// `meta priority`.
    MetaPriority,
    /// `meta priority & mask`.
    PriorityBits(ClassId),
    /// `ct original ip daddr` or `ct original ip6 daddr`: the destination before its translation.
    CtOriginalDaddr,
    /// `ct original proto-dst`: the destination port before its translation.
    CtOriginalDport,
    /// `th sport`. The planner writes neither this field nor those below.
    Sport,
    /// `meta mark`.
    MetaMark,
    /// `iifname`.
    Iifname,
    /// `oifname`.
    Oifname,
    /// `ct state`, one bit per state (`NF_CT_STATE_BIT`).
    CtState,
    /// `ct status` (`IPS_*`).
    CtStatus,
    /// `fib saddr type` (`RTN_*`).
    FibSaddrType,
    /// `fib daddr type` (`RTN_*`).
    FibDaddrType,
    /// `numgen random mod count offset first`: a random number in `first..first + count`.
    NumgenRandom {
        /// Number of values; at least 1.
        count: u32,
        /// The smallest number.
        first: u32,
    },
    /// `numgen inc mod count offset first`: the numbers of `first..first + count`, in turn.
    NumgenInc {
        /// Number of values; at least 1.
        count: u32,
        /// The smallest number.
        first: u32,
    },
    /// `jhash … mod count seed … offset first`: a hash in `first..first + count`.
    Jhash {
        /// The input.
        input: HashInput,
        /// Number of values; at least 1.
        count: u32,
        /// The seed.
        seed: u32,
        /// The smallest number.
        first: u32,
    },
}

/// The input of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashInput {
    /// `ip saddr` or `ip6 saddr`.
    Saddr,
    /// `ip saddr . th sport` or `ip6 saddr . th sport`.
    SaddrSport,
}

/// A statement of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// A match: ends the rule for packets that do not fulfil the condition.
    Match(Match),
    /// `meta priority set key map @map`.
    MetaPriorityMap {
        /// The key.
        key: Vec<Field>,
        /// Map from keys of this type to class ids.
        map: Name,
    },
    /// `meta priority set meta priority & mask | bits`.
    MetaPriorityBits(PriorityBits),
    /// `meta priority set none`.
    MetaPriorityNone,
    /// `meta mark set meta mark | bits`.
    MetaMarkOr(u32),
    /// `meta mark set meta mark ^ bits`.
    MetaMarkXor(u32),
    /// `meta mark set meta mark & mask ^ xor`. The planner does not write it.
    MetaMarkSet {
        /// The bits to keep.
        mask: u32,
        /// The bits to flip afterwards.
        xor: u32,
    },
    /// `update @map { key timeout t : meta priority }`: adds an element, or restarts the timeout of an existing one,
    /// which keeps its data.
    UpdateMap {
        /// The element's key.
        key: Vec<Field>,
        /// Map from keys of this type to class ids.
        map: Name,
        /// The element's timeout.
        timeout: Duration,
    },
    /// `delete @map { key : meta priority }`.
    DeleteFromMap {
        /// The element's key.
        key: Vec<Field>,
        /// Map from keys of this type to class ids.
        map: Name,
    },
    /// `update @set { key }`: adds an element, or restarts the timeout of an existing one. With a [`Limit`](super::Limit) of the
    /// set, it is also a condition.
    UpdateSet {
        /// The element's key.
        key: Vec<Field>,
        /// Set with keys of this type.
        set: Name,
        /// The element's timeout; `None` if it has none.
        timeout: Option<Duration>,
    },
    /// `dnat to key map @map`. Ends the base chain.
    DnatMap {
        /// The key.
        key: Vec<Field>,
        /// Map from keys of this type to an address and port, or to an address alone.
        map: Name,
    },
    /// `dnat to address:port`. Ends the base chain.
    Dnat {
        /// The address.
        address: IpAddr,
        /// The port; `None` keeps the packet's.
        port: Option<u16>,
    },
    /// `snat to address`. Ends the base chain.
    Snat(IpAddr),
    /// `masquerade`. Ends the base chain.
    Masquerade {
        /// `fully-random`: always choose a random source port.
        fully_random: bool,
    },
    /// `reject`.
    Reject(RejectWith),
    /// `flow add @flowtable`: later packets of the connection skip the hooks.
    FlowAdd(Name),
    /// `log prefix "prefix" group group`: a copy of the packet for a program.
    Log {
        /// Passed to the program.
        prefix: Cow<'static, str>,
        /// The number that the program receives packets by.
        group: u16,
    },
    /// `notrack`.
    Notrack,
    /// A verdict.
    Verdict(Verdict),
    /// `key vmap @map`.
    Vmap {
        /// The key.
        key: Vec<Field>,
        /// Map from keys of this type to verdicts.
        map: Name,
    },
    /// Expressions that this model cannot represent.
    Opaque(Opaque),
}

/// A change of some bits of the priority. Equal changes compare equal, since no bit is both kept and set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityBits {
    kept: ClassId,
    set: ClassId,
}

/// The reply to a rejected packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectWith {
    /// ICMP or ICMPv6 port unreachable, the default of `reject`.
    PortUnreachable,
    /// A TCP reset.
    TcpReset,
    /// ICMP or ICMPv6 destination unreachable with another code.
    Icmp(u8),
    /// A family-independent code (`NFT_REJECT_ICMPX_*`).
    Icmpx(u8),
}

/// Kernel expressions of other programs' rules that have no counterpart in [`Statement`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opaque {
    /// The expressions as the kernel lists them.
    pub expressions: Vec<Expression>,
    /// The construct in `nft` syntax, or in that of `iptables` for its modules and targets; empty for
    /// [`Outcome::Foreign`].
    pub text: String,
    /// Possible effects of the expressions.
    pub outcome: Outcome,
}

/// An expression as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    /// The expression type (`NFTA_EXPR_NAME`).
    pub name: String,
    /// The attributes (`NFTA_EXPR_DATA`), encoded.
    pub data: Vec<u8>,
}

/// Possible effects of an [`Opaque`] statement on the evaluation of its rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No effect on other rules, such as counting or logging.
    Nothing,
    /// A condition, which may match or not.
    Condition,
    /// Assigns the packet to a socket (`tproxy`); the rule ends if there is none.
    Socket,
    /// Sets the zone of the packet's connection before it is tracked; `None` if the number is unknown.
    Zone(Option<u16>),
    /// A program decides about the packet (`queue`).
    Queue,
    /// Any effect, including a verdict or a change of the packet.
    Anything,
    /// A part of a rule of `iptables`, in whose syntax the text is: `-m NAME OPTIONS`, `-j NAME OPTIONS` or
    /// `-s ADDRESS -p PROTOCOL`.
    Iptables,
    /// The effect of this construct of other programs' rules.
    Foreign(Foreign),
}

impl Outcome {
    /// Returns the outcome of `ct count`. The packet's own connection counts, so that there are always more than none.
    pub(crate) fn of_connection_count(text: &str) -> Self {
        if text == "ct count over 0" { Self::Nothing } else { Self::Condition }
    }

    /// Reports whether the rule may end at the statement, although the packet stays the same.
    pub fn is_condition(&self) -> bool {
        matches!(self, Self::Condition | Self::Socket)
    }
}

/// A condition.
///
/// `eq` is `true` for `==`, which `nft` leaves out, and `false` for `!=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// `key @set` or `key != @set`.
    InSet {
        /// The key.
        key: Vec<Field>,
        /// Set with keys of this type.
        set: Name,
        /// Whether the set must contain the key.
        eq: bool,
    },
    /// `ip saddr net`.
    Saddr {
        /// The network.
        net: IpNet,
        /// Whether the address must be in the network.
        eq: bool,
    },
    /// `ip daddr net`.
    Daddr {
        /// The network.
        net: IpNet,
        /// Whether the address must be in the network.
        eq: bool,
    },
    /// `iifname "name"`.
    Iifname {
        /// The name or prefix.
        name: InterfacePattern,
        /// Whether the interface must match.
        eq: bool,
    },
    /// `fib saddr type local`.
    FibSaddrLocal,
    /// `fib daddr type local`.
    FibDaddrLocal,
    /// `ct state new`.
    CtStateNew,
    /// `ct status dnat`.
    CtStatusDnat,
    /// `ct packets > number`: the connection has had more packets than this in both directions.
    CtPacketsAbove(u64),
    /// `meta mark & bits != 0`.
    MetaMark(u32),
    /// `meta nfproto`, in tables of family `inet`.
    Nfproto(IpFamily),
    /// `field & mask op value`, for comparisons without a separate variant.
    Cmp {
        /// The left-hand side.
        field: Field,
        /// A mask for numbers; all bits set for other fields.
        mask: u32,
        /// The operator.
        op: CmpOp,
        /// The right-hand side.
        value: Value,
    },
    /// `field first-last`.
    Range {
        /// The left-hand side.
        field: Field,
        /// The smallest value of the range.
        first: Value,
        /// The largest value of the range.
        last: Value,
        /// Whether the field must be in the range.
        eq: bool,
    },
}

/// A comparison operator (`NFT_CMP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmpOp {
    /// `==`.
    Eq,
    /// `!=`.
    Neq,
    /// `<`.
    Lt,
    /// `<=`.
    Lte,
    /// `>`.
    Gt,
    /// `>=`.
    Gte,
}

impl Statement {
    /// `masquerade fully-random`, as the planner writes it.
    pub const MASQUERADE: Self = Self::Masquerade { fully_random: true };
    /// `reject`, as the planner writes it.
    pub const REJECT: Self = Self::Reject(RejectWith::PortUnreachable);
}

impl PriorityBits {
    /// Returns the change that keeps the bits of `mask`, sets `bits` and clears all others.
    pub const fn new(mask: ClassId, bits: ClassId) -> Self {
        Self { kept: ClassId(mask.0 & !bits.0), set: bits }
    }

    /// Returns the bits to keep, without those to set.
    pub const fn kept(self) -> ClassId {
        self.kept
    }

    /// Returns the bits to set.
    pub const fn set(self) -> ClassId {
        self.set
    }

    /// Returns a priority after the change.
    pub const fn apply(self, priority: ClassId) -> ClassId {
        ClassId(priority.masked(self.kept).0 | self.set.0)
    }
}

impl Field {
    /// Returns the type of the field's value in packets of an IP family.
    pub fn data_type(self, family: IpFamily) -> DataType {
        match self {
            Self::Saddr | Self::SaddrNetwork(_) | Self::Daddr | Self::CtOriginalDaddr => DataType::address(family),
            Self::L4proto => DataType::InetProto,
            Self::Dport | Self::Sport | Self::CtOriginalDport => DataType::InetService,
            Self::MetaPriority | Self::PriorityBits(_) => DataType::ClassId,
            Self::Iifname | Self::Oifname => DataType::IfName,
            Self::MetaMark
            | Self::CtState
            | Self::CtStatus
            | Self::FibSaddrType
            | Self::FibDaddrType
            | Self::NumgenRandom { .. }
            | Self::NumgenInc { .. }
            | Self::Jhash { .. } => DataType::Integer,
        }
    }
}

impl CmpOp {
    /// Reports whether the comparison is true for two values with this ordering.
    pub fn matches(self, ordering: Ordering) -> bool {
        match self {
            Self::Eq => ordering.is_eq(),
            Self::Neq => ordering.is_ne(),
            Self::Lt => ordering.is_lt(),
            Self::Lte => ordering.is_le(),
            Self::Gt => ordering.is_gt(),
            Self::Gte => ordering.is_ge(),
        }
    }
}

impl Rule {
    /// Returns a rule without a comment.
    pub fn new(statements: impl Into<Vec<Statement>>) -> Self {
        Self { statements: statements.into(), comment: None }
    }

    /// Sets the comment.
    pub fn comment(self, comment: &'static str) -> Self {
        Self { comment: Some(Comment::fixed(comment)), ..self }
    }

    /// Returns the rule in `nft` syntax, for a table of this family.
    pub fn text(&self, family: IpFamily) -> impl fmt::Display + '_ {
        super::text::RuleText { rule: self, family, elements: &|_| None }
    }

    /// Returns the rule like [`Rule::text`]. `elements` returns the elements of anonymous sets.
    pub fn text_with<'a>(&'a self, family: IpFamily, elements: &'a Elements<'a>) -> impl fmt::Display + 'a {
        super::text::RuleText { rule: self, family, elements }
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
