use std::fmt;

use super::{Comment, Name, Rule};

/// A chain of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The name, unique among the table's chains.
    pub name: Name,
    /// The hook of a base chain; `None` for a regular chain, which only jumps and gotos enter.
    pub base: Option<BaseChain>,
    /// The chain's comment.
    pub comment: Option<Comment>,
}

/// A chain with its rules, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainWithRules {
    /// The chain.
    pub chain: Chain,
    /// The rules.
    pub rules: Vec<Rule>,
}

/// The type, hook, priority and policy of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// The chain type.
    pub kind: ChainType,
    /// The hook.
    pub hook: Hook,
    /// The priority; the chains of a hook run in ascending order.
    pub priority: i32,
    /// The policy; `accept` in the planner's chains.
    pub policy: Policy,
}

/// The policy of a base chain: the verdict for packets that no rule decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// `accept`.
    #[default]
    Accept,
    /// `drop`.
    Drop,
}

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainType {
    /// `filter`: sees all packets.
    Filter,
    /// `nat`: sees the first packet of each connection.
    Nat,
    /// `route`: sees all packets; the kernel looks up the route again if a rule changed the packet. The planner does
    /// not write it.
    Route,
}

/// A netfilter hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Incoming packets, before the routing decision.
    Prerouting,
    /// Packets to this host.
    Input,
    /// Forwarded packets.
    Forward,
    /// Packets of this host's processes.
    Output,
    /// Outgoing packets, after the routing decision.
    Postrouting,
}

/// A verdict.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// `accept`: ends the base chain.
    Accept,
    /// `drop`.
    Drop,
    /// `return`: continues after the jump that led to this chain.
    Return,
    /// `jump`: continues in another chain and returns here at its end.
    Jump(Name),
    /// `goto`: continues in another chain and does not return to this one.
    Goto(Name),
    /// `continue`: continues with the rest of the rule, as without a verdict.
    Continue,
}

impl Chain {
    /// Returns a regular chain.
    pub fn new(name: impl Into<Name>) -> Self {
        Self { name: name.into(), base: None, comment: None }
    }

    /// Makes it a base chain with policy `accept`.
    pub fn base(self, kind: ChainType, hook: Hook, priority: i32) -> Self {
        Self { base: Some(BaseChain { kind, hook, priority, policy: Policy::Accept }), ..self }
    }

    /// Sets the comment.
    pub fn comment(self, comment: &'static str) -> Self {
        Self { comment: Some(Comment::fixed(comment)), ..self }
    }

    /// Adds rules.
    pub fn rules(self, rules: impl Into<Vec<Rule>>) -> ChainWithRules {
        ChainWithRules { chain: self, rules: rules.into() }
    }

    /// Returns the chain's properties, each in `nft` syntax.
    pub fn properties(&self) -> Vec<String> {
        let mut properties = Vec::new();
        if let Some(BaseChain { kind, hook, priority, policy }) = self.base {
            properties.push(format!("type {kind} hook {hook} priority {priority}"));
            properties.push(format!("policy {policy}"));
        }
        properties.extend(self.comment.as_ref().map(Comment::to_string));
        properties
    }
}

impl ChainType {
    /// Returns the name in `nft` syntax, which is also the kernel's (`NFTA_CHAIN_TYPE`).
    pub fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }
}

impl Policy {
    /// Returns the name in `nft` syntax.
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

impl fmt::Display for ChainType {
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
            Self::Continue => f.write_str("continue"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}
