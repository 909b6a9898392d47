use std::fmt;

use super::{Comment, Name, Rule};

/// A chain of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Unique among the table's chains.
    pub name: Name,
    /// Where the kernel enters it by itself; `None` if only rules lead there.
    pub base: Option<Base>,
    /// For people.
    pub comment: Option<Comment>,
}

/// A chain with its rules, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainWithRules {
    /// The chain.
    pub chain: Chain,
    /// Its rules.
    pub rules: Vec<Rule>,
}

/// Where the kernel enters a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// Which packets it sees.
    pub kind: BaseKind,
    /// Where on their way.
    pub hook: Hook,
    /// In which order among the chains of the hook, lowest first.
    pub priority: i32,
    /// What becomes of what reaches its end; the planner's chains accept it.
    pub policy: Policy,
}

/// What becomes of packets at the end of a base chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// They pass.
    #[default]
    Accept,
    /// They are thrown away.
    Drop,
}

/// Which packets a base chain sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseKind {
    /// All.
    Filter,
    /// The first one of each connection.
    Nat,
    /// All; the kernel looks for their way again when something of them has changed. Only others have such chains.
    Route,
}

/// A place on a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// It has just come in.
    Prerouting,
    /// It is for this host.
    Input,
    /// It is for another host.
    Forward,
    /// It was made on this host.
    Output,
    /// It is about to leave, or to be delivered here after [`Hook::Output`].
    Postrouting,
}

/// What is to be done with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let it pass this hook's priority.
    Accept,
    /// Throw it away.
    Drop,
    /// Go on behind the jump that led here.
    Return,
    /// Go on in another chain, and come back at its end.
    Jump(Name),
    /// Go on in another chain, and at its end behind the last jump.
    Goto(Name),
}

impl Chain {
    /// A chain that only rules lead to.
    pub fn new(name: impl Into<Name>) -> Self {
        Self { name: name.into(), base: None, comment: None }
    }

    /// The same, entered by the kernel.
    pub fn base(self, kind: BaseKind, hook: Hook, priority: i32) -> Self {
        Self { base: Some(Base { kind, hook, priority, policy: Policy::Accept }), ..self }
    }

    /// The same, with a comment.
    pub fn comment(self, comment: &'static str) -> Self {
        Self { comment: Some(Comment::fixed(comment)), ..self }
    }

    /// The same, with rules.
    pub fn rules(self, rules: impl Into<Vec<Rule>>) -> ChainWithRules {
        ChainWithRules { chain: self, rules: rules.into() }
    }

    /// Its properties, each as `nft` writes it.
    pub fn properties(&self) -> Vec<String> {
        let mut properties = Vec::new();
        if let Some(Base { kind, hook, priority, policy }) = self.base {
            properties.push(format!("type {kind} hook {hook} priority {priority}"));
            properties.push(format!("policy {policy}"));
        }
        properties.extend(self.comment.as_ref().map(Comment::to_string));
        properties
    }
}

impl BaseKind {
    /// Its name, in `nft` and in the kernel.
    pub fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }
}

impl Policy {
    /// Its name in `nft`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Drop => "drop",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for BaseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Return => f.write_str("return"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}
