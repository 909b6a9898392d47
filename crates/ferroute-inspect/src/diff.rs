//! Compares two sets of Service rules by their effect on packets, not by their text.
//!
//! ```text
//!   planned rules ─┬─► those of one service port ─► trace packets to each frontend ─► outcomes ─┐
//!                  │        (Projection)           (from a pod, the node, outside, ...)         ├─► Finding
//!   actual rules ──┴─► those of one service port ─► trace the same packets ─────────► outcomes ─┘
//! ```
//!
//! Packets are traced by `ferroute-trace`, so nftables rules can be compared with iptables rules, and the rules of any
//! other mode with both. If modes differ by design, the traits that differ are counted ([`ModeDifference`]), and the
//! difference is not a finding. Rules of firewalls and network plugins are ignored: they apply to both sides.
//!
//! Rules are read elsewhere; health checks and open connections are not compared.

mod clients;
mod compare;
mod iptables;
mod kernel;
mod mode_differences;
mod nftables;
mod outcomes;
mod print;
mod report;
mod rules;
mod structure;

pub use clients::Client;
pub use compare::{Expected, compare};
pub use kernel::{Comparison, compare_settled, compare_with_kernel};
pub use outcomes::{Outcomes, PacketOutcome, outcomes};
pub use print::write_report_into;
pub use report::{
    Answer, Conclusion, Coverage, DiffReport, Finding, Mismatch, ModeDifference, SourceAddress, StaleFrontend,
    Undetermined,
};
pub use rules::{Rules, RulesKind};

#[cfg(test)]
mod tests;
