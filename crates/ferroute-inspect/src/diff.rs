//! Do two sets of rules mean the same? Compared is not text but what becomes of packets.
//!
//! ```text
//!   wanted rules ─┬─► of one service port ─► walk packets to each frontend ─► ends ─┐
//!                 │    (Projection)          (pod, node, outside, itself)           ├─► Finding
//!   other rules ──┴─► of one service port ─► walk the same packets ─────────► ends ─┘
//! ```
//!
//! The walks are those of `ferroute-trace`, so rules of nftables can be compared with rules of iptables; where the modes
//! differ on purpose, the difference has a name ([`ModeDifference`]) and is counted, not held against anybody. Only
//! rules of service proxies are looked at: firewalls and network plugins concern both sides alike. What is *not* here:
//! reading rules, health checks, flows that exist already.

mod clients;
mod compare;
mod ends;
mod findings;
mod iptables;
mod kernel;
mod kube_proxy;
mod modes;
mod nftables;
mod print;
mod report;
mod rules;
mod structure;

pub use clients::{Client, Surroundings};
pub use compare::{Wanted, compare};
pub use ends::{End, Ends, ends};
pub use kernel::{Comparison, compare_with_kernel};
pub use modes::{ModeDifference, ModeFacts};
pub use print::write_report_into;
pub use report::{Answer, Change, Compared, Conclusion, Doubt, Finding, Leftover, Named, Report, Seen};
pub use rules::{Mode, Rules};

#[cfg(test)]
mod tests;
