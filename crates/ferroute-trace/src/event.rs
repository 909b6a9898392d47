use std::{
    borrow::Cow,
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::{Deserialize, Serialize};

use crate::walk::{Walker, without_parts};

/// A netfilter hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    /// Incoming packets, before routing.
    Prerouting,
    /// Packets for a local process.
    Input,
    /// Forwarded packets.
    Forward,
    /// Packets sent by a local process.
    Output,
    /// Outgoing packets, after routing.
    Postrouting,
}

/// The final result for a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "verdict")]
pub enum Verdict {
    /// The packet reaches a local process, or leaves the host for its destination.
    Delivered {
        /// The destination.
        to: SocketAddr,
        /// The source address that the receiver sees. Masquerading keeps the port if it can.
        from: IpAddr,
        /// Whether the destination differs from the original one. If not, the packet was not for a Service.
        translated: bool,
        /// The output interface; `None` for a local process.
        interface: Option<String>,
    },
    /// The sender gets an ICMP error or a TCP reset.
    Rejected {
        /// Kind of reply, in the syntax of the rule.
        with: String,
    },
    /// The packet is dropped silently.
    Dropped,
    /// There is no route to the destination.
    NoRoute,
    /// The rules alone do not determine the result.
    Unknown {
        /// The unknown part.
        reason: String,
    },
}

/// A leaf of the trace tree: one possible result, with the events that lead to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf {
    /// The result.
    pub verdict: Verdict,
    /// Probability of this leaf, 0 to 1, if all assumptions are true. Without assumptions, the shares of all leaves add
    /// up to 1.
    pub share: f64,
    /// Assumptions about conditions that cannot be evaluated.
    pub assumptions: Vec<Assumption>,
    /// All events, in order; empty if only verdicts were requested.
    pub events: Vec<Event>,
}

/// An assumption about a condition that cannot be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Assumption {
    /// The condition, as a sentence.
    pub condition: String,
    /// Whether it is assumed to be true.
    pub holds: bool,
}

/// An event in the walk of a packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "event")]
pub enum Event {
    /// The packet enters a base chain.
    Hook {
        /// The chain's hook.
        hook: Hook,
        /// The chain's table.
        table: Cow<'static, str>,
        /// The chain.
        chain: String,
    },
    /// A rule is evaluated.
    Rule {
        /// The rule's chain.
        chain: String,
        /// The rule's position in its chain, from 1.
        number: usize,
        /// The rule in the syntax of `iptables-save` or `nft`.
        text: String,
        /// The depth of the chain in the call stack: 0 for the base chain.
        depth: usize,
        /// The first condition that does not match; `None` if the rule matches.
        mismatch: Option<String>,
        /// Probability of this branch among packets that reach the rule; `None` if the rule does not decide at random.
        chance: Option<f64>,
    },
    /// A rule changes the packet or ends the walk.
    Effect {
        /// The hook.
        hook: Hook,
        /// The rule's table.
        table: Cow<'static, str>,
        /// The call stack, base chain first.
        path: Vec<String>,
        /// The effect.
        #[serde(flatten)]
        effect: Effect,
    },
    /// The packet reaches the end of a base chain that has rules or a drop policy.
    Policy {
        /// The chain.
        chain: String,
        /// The chain's policy: `ACCEPT` or `DROP`.
        policy: Cow<'static, str>,
    },
    /// The kernel looks up the route.
    Routed {
        /// The output interface; `None` for the host itself.
        interface: Option<String>,
    },
    /// The kernel drops the packet without a rule.
    Discarded {
        /// The kernel's reason.
        reason: Cow<'static, str>,
    },
}

/// The effect of a rule on a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "effect")]
pub enum Effect {
    /// The mark changes.
    Mark {
        /// The old mark.
        before: u32,
        /// The new mark.
        after: u32,
    },
    /// The destination changes.
    Dnat {
        /// The old destination.
        before: SocketAddr,
        /// The new destination.
        after: SocketAddr,
    },
    /// A process of the host accepts the connection and opens another one. The endpoint's peer is the host.
    Connect {
        /// The address on which the connection is accepted.
        before: SocketAddr,
        /// The endpoint.
        after: SocketAddr,
    },
    /// The source becomes the host's address (masquerade) or an address that the rule names (SNAT).
    Masquerade {
        /// The old source.
        before: IpAddr,
        /// The new source.
        after: IpAddr,
    },
    /// The packet is accepted.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The packet is rejected.
    Reject {
        /// Kind of reply, in the syntax of the rule.
        with: String,
    },
}

impl From<(Verdict, Walker<'_>)> for Leaf {
    fn from((verdict, walker): (Verdict, Walker<'_>)) -> Self {
        let events = walker.record.events();
        Self { verdict, share: walker.share, assumptions: without_parts(&walker.assumptions), events }
    }
}

impl Event {
    /// Reports whether this is a change or a verdict.
    pub(crate) fn is_step(&self) -> bool {
        matches!(self, Self::Effect { .. } | Self::Discarded { .. })
    }
}

impl Hook {
    /// Returns the name of the iptables chain at this hook.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prerouting => "PREROUTING",
            Self::Input => "INPUT",
            Self::Forward => "FORWARD",
            Self::Output => "OUTPUT",
            Self::Postrouting => "POSTROUTING",
        }
    }
}

impl fmt::Display for Assumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { condition, holds } = self;
        if *holds { f.write_str(condition) } else { f.write_str(&negation(condition)) }
    }
}

/// Returns the sentence with the opposite of a condition.
pub(crate) fn negation(condition: &str) -> String {
    let by_end = VERBS.iter().find_map(|(verb, negated)| Some((condition.strip_suffix(verb)?, "", *negated)));
    let by_middle = || {
        let verbs = [(" yields ", " does not yield "), (" is ", " is not ")];
        verbs
            .into_iter()
            .find_map(|(verb, negated)| condition.split_once(verb).map(|(subject, rest)| (subject, rest, negated)))
    };
    match by_end.or_else(by_middle) {
        Some((subject, rest, negated)) => format!("{subject}{negated}{rest}"),
        None => format!("not: {condition}"),
    }
}

/// Returns the reason why a condition on a value does not match.
pub(crate) fn mismatch_text(
    subject: &str,
    actual: impl fmt::Display,
    wanted: &impl fmt::Display,
    negated: bool,
) -> String {
    if negated {
        format!("{subject} is {actual}, and {wanted} is excluded")
    } else {
        format!("{subject} is {actual}, not {wanted}")
    }
}

/// Ends of conditions, with their opposites.
const VERBS: [(&str, &str); 3] = [
    (" matches", " does not match"),
    (" finds a socket", " finds no socket"),
    (" accepts the packet", " does not accept the packet"),
];
