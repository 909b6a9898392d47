use std::{
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
        /// The destination is another one than the sender chose.
        translated: bool,
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
    /// How often chance leads here, 0 to 1; the shares of all endings of a walk add up to 1.
    pub share: f64,
    /// Conditions that we do not know and that were taken as said here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assuming: Vec<String>,
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
        table: &'static str,
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
        /// The rule matches by chance, with this probability, given that the packet has come here.
        chance: Option<f64>,
    },
    /// A rule changed something or decided.
    Effect {
        /// Where.
        hook: Hook,
        /// In which table.
        table: &'static str,
        /// The chains that led to it, the hook's own first.
        path: Vec<String>,
        /// What.
        #[serde(flatten)]
        effect: Effect,
    },
    /// It reaches the end of a hook's chain.
    Policy {
        /// The chain.
        chain: String,
        /// What its policy says: `ACCEPT` or `DROP`.
        policy: &'static str,
    },
    /// The kernel decides where it goes.
    Routed {
        /// To the host itself, or through which interface.
        to: Option<String>,
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
    /// Its source becomes the host's address.
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

// === printing ===

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

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delivered { to, from, translated: true } => write!(f, "delivered to {to}, seen as from {from}"),
            Self::Delivered { to, from, translated: false } => {
                write!(f, "not ours: goes on to {to}, seen as from {from}")
            }
            Self::Rejected { with } => write!(f, "rejected with {with}"),
            Self::Dropped => f.write_str("dropped"),
            Self::NoRoute => f.write_str("no route to its destination"),
            Self::Unknown { why } => write!(f, "cannot be told: {why}"),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mark { before, after } => write!(f, "mark {before:#x} becomes {after:#x}"),
            Self::Dnat { before, after } => write!(f, "DNAT {before} becomes {after}"),
            Self::Masquerade { before, after } => write!(f, "masquerade {before} becomes {after}"),
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Reject { with } => write!(f, "reject with {with}"),
        }
    }
}

/// Tells a story in full, rule by rule.
pub fn write_story_into(out: &mut impl fmt::Write, story: &Story) -> fmt::Result {
    for event in &story.events {
        match event {
            Event::Hook { table, chain, .. } => writeln!(out, "{table} {chain}")?,
            Event::Rule { chain, number, text, depth, mismatch, chance } => {
                let indent = 2 + 2 * depth;
                write!(out, "{:indent$}{chain} {number}: {text}", "")?;
                match (mismatch, chance) {
                    (Some(why), _) => writeln!(out, "\n{:indent$}  no: {why}", "")?,
                    (None, Some(chance)) => writeln!(out, "\n{:indent$}  yes, by chance of {chance:.4}", "")?,
                    (None, None) => writeln!(out, "\n{:indent$}  yes", "")?,
                }
            }
            Event::Effect { path, effect, .. } => writeln!(out, "{:1$}=> {effect}", "", 2 + 2 * path.len())?,
            Event::Policy { chain, policy } => writeln!(out, "  end of {chain}: {policy}")?,
            Event::Routed { to: Some(interface) } => writeln!(out, "routed through {interface}")?,
            Event::Routed { to: None } => writeln!(out, "routed to this host")?,
        }
    }
    write_ending_into(out, &story.ending)
}

/// Tells only what changed or was decided, a line for each, with the chains that led to it.
pub fn write_effects_into(out: &mut impl fmt::Write, story: &Story) -> fmt::Result {
    for event in &story.events {
        if let Event::Effect { table, path, effect, .. } = event {
            writeln!(out, "{table:<6} {}: {effect}", path.join(" → "))?;
        }
    }
    write_ending_into(out, &story.ending)
}

fn write_ending_into(out: &mut impl fmt::Write, ending: &Ending) -> fmt::Result {
    for assumption in &ending.assuming {
        writeln!(out, "assuming that {assumption}")?;
    }
    writeln!(out, "{:5.1} % {}", ending.share * 100.0, ending.verdict)
}

/// Serializes as its text.
pub(crate) fn as_text<S: serde::Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
