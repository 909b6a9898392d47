//! Walks the first packet of a connection through iptables and nftables rules and explains the result.
//!
//! ```text
//!   Packet  ─┐
//!   Ruleset ─┼──► walk ──► one Leaf per branch of the trace tree, with its probability
//!   Host    ─┘             merged into a Trace: text, JSON or a flowchart
//! ```
//!
//! There is no second model of the rules: the walk evaluates the values that a planner created or that were read from
//! the kernel. [`Ruleset`] holds the base chains of all tables, hook by hook, as the kernel does; a packet passes
//! iptables and nftables chains in the order of their priorities. Other rules, or other handlers of packets at a
//! netfilter hook, can be added by implementing [`BaseChain`]; a set of rules implements [`Traceable`].
//!
//! This crate neither plans rules nor reads them from the kernel. Packets of established connections are not traced.
//!
//! # Example
//!
//! ```
//! use ferroute_core::{IpFamily, Protocol};
//! use ferroute_iptables::RuleSet;
//! use ferroute_trace::{Host, Packet, Ruleset, write_summary_into};
//!
//! let rules = "*nat\n\
//!              -A PREROUTING -d 10.96.0.1/32 -p tcp -j DNAT --to-destination 192.0.2.7:8080\n\
//!              COMMIT\n";
//! let rules = RuleSet::parse_save(IpFamily::V4, rules)?;
//! let host = Host { addresses: vec!["192.0.2.7".parse()?], ..Host::default() };
//! let packet = Packet::arriving(Protocol::Tcp, "203.0.113.9:40000".parse()?, "10.96.0.1:80".parse()?, "eth0");
//!
//! let trace = Ruleset::from_rules(&rules).summary(&host, &packet);
//! let mut text = String::new();
//! write_summary_into(&mut text, &trace)?;
//! assert_eq!(
//!     text,
//!     "nat PREROUTING: DNAT 10.96.0.1:80 to 192.0.2.7:8080\n\
//!      => delivered to 192.0.2.7:8080 on this host, with source 203.0.113.9\n"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod changes;
mod event;
mod host;
mod ipset;
mod iptables;
mod ipvs;
mod jhash;
pub mod mermaid;
mod nftables;
mod packet;
mod record;
mod render;
mod ruleset;
mod state;
#[cfg(test)]
mod testing;
mod trace;
mod userspace;
mod walk;

pub use event::{Assumption, Effect, Event, Hook, Leaf, Verdict};
pub use host::{AddressKind, Host, Route, RouteDecision, RoutedPacket, Router, Transport};
pub use ipset::{Ipset, IpsetEntry, Ipsets};
pub use iptables::{priority as iptables_priority, value_and_mask};
pub use ipvs::TABLE as IPVS_TABLE;
pub use packet::{Origin, Packet};
pub use render::{Names, TextOptions, write_leaf_into, write_summary_into, write_trace_into};
pub use ruleset::{BaseChain, MatchingLeaves, Ruleset, Tie, Traceable};
pub use state::PacketState;
pub use trace::{Branch, Choice, Outcome, Step, Trace};
pub use walk::{ChainVerdict, Forks, Walker};
