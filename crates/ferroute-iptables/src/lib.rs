//! kube-proxy's iptables mode: rules as typed values, the planner, and the executor of the iptables programs.
//!
//! ```text
//!   ServiceTable ──► plan ──► Rule, chain by chain ──► text ──► exec ──► iptables-restore ──► kernel
//!                                                       ▲         ◄──── iptables-save ◄────────┘
//!                      iptables-save text ──────────────┘
//! ```
//!
//! [`Rule`] is the only model of a rule: the planner returns it, `iptables-save` text parses into it, and code that
//! explains or checks rules walks it. Everything outside of [`exec`] is a pure function. This crate does not use
//! Kubernetes objects.
//!
//! # Examples
//!
//! ```
//! use ferroute_core::{HostState, IpFamily, NodeView, ProxySettings, ServiceTable};
//! use ferroute_iptables::{ChainName, IptablesContext, RuleSet, TableName, plan::chains, render};
//!
//! // Plan the rules of a cluster without Services, on a host without optional features.
//! let table = ServiceTable::new(IpFamily::V4, NodeView::default().into());
//! let context = IptablesContext::new(&ProxySettings::default(), &table, &HostState::default());
//! let planned = render(&table, &context);
//! assert!(planned.to_string().contains(":KUBE-SERVICES - [0:0]"));
//!
//! // Parse the output of iptables-save.
//! let text = "*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n";
//! let saved = RuleSet::parse_save(IpFamily::V4, text)?;
//! assert_eq!(saved.rules(TableName::Nat, ChainName::PREROUTING)[0].next_chain(), Some(chains::SERVICES));
//! # Ok::<(), ferroute_iptables::ParseError>(())
//! ```

mod address_text;
pub mod exec;
pub mod extension;
pub mod native;
pub mod plan;
pub mod rule;
mod ruleset;
mod sink;
pub mod text;

pub use exec::{BackendSnapshot, GenerationTracker, HostAccess, HostExec, IptablesDataplane, IptablesPrograms};
pub use extension::{
    AddressType, CtStates, MarkMatch, PortList, PortRange, PortSide, Probability, Recent, RecentAction, RejectWith,
    SetMatch, SetSide, VirtualServerMatch,
};
pub use plan::{ChainState, Difference, IptablesContext, KernelChains, KernelChainsReader, render};
pub use rule::{AddressMatch, InterfaceMatch, Match, ProtocolMatch, Rule, Sense, Target};
pub use ruleset::{Chain, ChainHead, ChainName, Counters, InvalidChainName, Policy, RuleSet, Table, TableName};
pub use text::{ParseError, ParseErrorKind, RuleCounters, SaveItem, SaveParser, SavedRules, SavedRulesReader};
