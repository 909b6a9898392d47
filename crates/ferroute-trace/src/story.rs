use std::{
    borrow::Cow,
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::Serialize;

/// Where in a packet's way through the kernel rules can look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    /// As it arrives, before routing.
    Prerouting,
    /// On its way to a program of the host.
    Input,
    /// On its way through the host.
    Forward,
    /// As a program of the host sends it.
    Output,
    /// As it leaves, after routing.
    Postrouting,
}

/// What became of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "verdict")]
pub enum Verdict {
    /// It goes on to this address, from this source.
    Delivered {
        /// Where to.
        to: SocketAddr,
        /// From whom, as the receiver sees it; masquerading keeps the port where it can.
        from: IpAddr,
        /// The destination is another one than the sender chose; if not, no rule took the packet for its own.
        translated: bool,
        /// The interface that it leaves through; `None`: to a program of the host.
        through: Option<String>,
    },
    /// The sender is told that nobody listens there.
    Rejected {
        /// How it is told, in the rules' word for it.
        with: String,
    },
    /// It vanishes.
    Dropped,
    /// There is no way to its destination.
    NoRoute,
    /// It depends on something that cannot be known from the rules.
    Unknown {
        /// On what.
        why: String,
    },
}

/// One end that a packet can come to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ending {
    /// What became of it.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// How often chance leads here, 0 to 1, if everything that was assumed is so. Where nothing had to be assumed, the
    /// shares of all endings of a walk add up to 1.
    pub share: f64,
    /// What cannot be known from the rules, and was taken to be so or not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assuming: Vec<Assumption>,
}

/// A guess about something that cannot be known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Assumption {
    /// A condition, as a sentence.
    pub condition: String,
    /// Whether it is taken to hold.
    pub holds: bool,
}

/// An ending with everything that happened on the way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Story {
    /// What happened, in order.
    pub events: Vec<Event>,
    /// What became of the packet.
    pub ending: Ending,
}

/// Something that happened to a packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "event")]
pub enum Event {
    /// It comes to a hook's chain.
    Hook {
        /// The hook.
        hook: Hook,
        /// The table.
        table: Cow<'static, str>,
        /// The chain.
        chain: String,
    },
    /// It meets a rule.
    Rule {
        /// The chain.
        chain: String,
        /// The rule's number in its chain, from 1.
        number: usize,
        /// The rule as its tool prints it.
        text: String,
        /// How many chains called each other to get here, 0 in the hook's own chain.
        depth: usize,
        /// Why it does not match; `None` if it does.
        mismatch: Option<String>,
        /// Chance took part; with this probability it goes this way, given that the packet has come here.
        chance: Option<f64>,
    },
    /// A rule changed something or decided.
    Effect {
        /// Where.
        hook: Hook,
        /// In which table.
        table: Cow<'static, str>,
        /// The chains that led to it, the hook's own first.
        path: Vec<String>,
        /// What.
        #[serde(flatten)]
        effect: Effect,
    },
    /// It reaches the end of a hook's chain that has rules, or drops.
    Policy {
        /// The chain.
        chain: String,
        /// What its policy says: `ACCEPT` or `DROP`.
        policy: &'static str,
    },
    /// The kernel decides where it goes.
    Routed {
        /// Through which interface; `None`: to the host itself.
        to: Option<String>,
    },
    /// The kernel drops it without a rule.
    Discarded {
        /// Why.
        why: &'static str,
    },
}

/// What a rule did to a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "effect")]
pub enum Effect {
    /// Its mark changed.
    Mark {
        /// Before.
        before: u32,
        /// After.
        after: u32,
    },
    /// Its destination changed.
    Dnat {
        /// Before.
        before: SocketAddr,
        /// After.
        after: SocketAddr,
    },
    /// Its source becomes the host's address, or another that a rule gives it.
    Masquerade {
        /// Before.
        before: IpAddr,
        /// After.
        after: IpAddr,
    },
    /// It is accepted.
    Accept,
    /// It is dropped.
    Drop,
    /// It is rejected.
    Reject {
        /// How the sender is told.
        with: String,
    },
}

// === impl Assumption, Hook ===

impl fmt::Display for Assumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { condition, holds } = self;
        if *holds { f.write_str(condition) } else { write!(f, "not: {condition}") }
    }
}

impl Hook {
    /// The hook's name, as `iptables` names the chain there.
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

/// Serializes as its text.
pub(crate) fn as_text<S: serde::Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
