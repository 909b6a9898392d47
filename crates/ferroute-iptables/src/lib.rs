//! kube-proxy's iptables rules as typed values.
//!
//! ```text
//!   ServiceTable ──► plan ──► Rule, chain by chain ──► text ──► runner ──► iptables-restore
//!                                                       ▲
//!                     iptables-save ────────────────────┘
//! ```
//!
//! [`Rule`] is the one model of a rule: the planner makes it, `iptables-save` text is read into it, and whoever explains
//! or checks rules walks it. Everything but the runner is a pure function. What is *not* here: Kubernetes objects.

mod chain;
pub mod plan;
pub mod rule;
mod ruleset;
pub mod runner;
mod spelling;
pub mod text;

pub use chain::{BadChainName, ChainName, TableName};
pub use plan::{Difference, HostFacts, InForce, InForceReader, Ledger, NfacctCounters, PlanContext, render};
pub use rule::{
    AddressMatch, AddressType, CtStates, InterfaceMatch, MarkMatch, Match, PortList, PortRange, PortSide, Probability,
    ProtocolMatch, Recent, RecentAction, RejectWith, Rule, Sense, Target,
};
pub use ruleset::{Chain, ChainHead, Counters, Policy, RuleSet, Table};
pub use runner::{FoundRules, Generations, Host, HostPrograms, IptablesDataplane, Tools};
pub use text::{ParseError, ParseErrorKind, RestoreWriter, RuleCounters, SaveItem, SaveParser, Saved, SavedReader};
