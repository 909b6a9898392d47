//! Walks the first packet of a connection through typed rules and tells what happens to it and why.
//!
//! ```text
//!   Packet ─┐
//!   rules  ─┼──► walk ──► one Ending for each way that chance can take, with its share
//!   Host   ─┘             and, when asked for, the Story of how it came to it
//! ```
//!
//! There is no second model of the rules: what is walked is what the planner made or what was read from the kernel. The
//! story's types know no mode; each mode has a walker of its own. What is *not* here: how rules got there, the kernel,
//! connections that are established already.

mod host;
pub mod iptables;
mod packet;
mod story;

pub use host::{Host, Route};
pub use packet::{Origin, Packet};
pub use story::{Effect, Ending, Event, Hook, Story, Verdict, write_effects_into, write_story_into};
