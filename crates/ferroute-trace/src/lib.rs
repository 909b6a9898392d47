//! Walks the first packet of a connection through typed rules and tells what happens to it and why.
//!
//! ```text
//!   Packet ─┐
//!   rules  ─┼──► walk ──► one Ending for each way that chance can take, with its share
//!   Host   ─┘             and, when asked for, the Story of how it came to it, or a Summary of all stories
//! ```
//!
//! There is no second model of the rules: what is walked is what the planner made or what was read from the kernel. A
//! packet meets the rules of `iptables` and of nftables on the same way, so there is one walk, from one chain of a hook to
//! the next, see [`Ruleset`]; within such a chain each mode has a walker of its own. The story's types know no mode.
//!
//! What is *not* here: how rules got there, the kernel, connections that are established already.

mod account;
mod host;
pub mod iptables;
mod journey;
pub mod mermaid;
pub mod nftables;
mod packet;
mod path;
mod print;
mod ruleset;
mod state;
mod story;
mod summary;
mod tell;
#[cfg(test)]
mod testing;
mod way;

pub use account::{Account, Outcome, Told};
pub use host::{Host, Route};
pub use packet::{Origin, Packet};
pub use print::{Names, Style, write_summary_into};
pub use ruleset::Ruleset;
pub use story::{Assumption, Effect, Ending, Event, Hook, Story, Verdict};
pub use summary::{Choice, Group, Step, Summary};
pub use tell::{Manner, write_account_into, write_story_into};
