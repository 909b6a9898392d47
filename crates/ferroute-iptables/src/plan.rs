//! From a service table to rules: a pure function, kube-proxy 1.36's rules in kube-proxy's order.
//!
//! ```text
//!   filter: INPUT, FORWARD, OUTPUT ──► KUBE-SERVICES, KUBE-EXTERNAL-SERVICES   no endpoints: reject or drop
//!                                  ──► KUBE-PROXY-FIREWALL                     not within the source ranges: drop
//!                                  ──► KUBE-NODEPORTS                          health-check ports: accept
//!                                  ──► KUBE-FORWARD, KUBE-FIREWALL
//!
//!   nat: PREROUTING, OUTPUT ──► KUBE-SERVICES ──┬──────────────────► KUBE-SVC-… ──► KUBE-SEP-… (one per endpoint)
//!                                    │          ├► KUBE-FW-… ─┐      KUBE-SVL-… ──►    │
//!                                    ▼          ▼             ▼          ▲             ▼
//!                              KUBE-NODEPORTS ──► KUBE-EXT-… ────────────┘           DNAT
//!        POSTROUTING ──► KUBE-POSTROUTING: masquerade what KUBE-MARK-MASQ has marked
//! ```
//!
//! A service port contributes rules to the [`Dispatch`] chains, which all service ports share, and has chains of its
//! own. [`ServicePlan`] hands both out one after the other and keeps none, so that the rules of a large cluster never
//! are in memory all at once; [`render()`] collects them for those who want to look at them. [`Ledger`] knows what is in
//! force and tells what differs from it, by chain. What is *not* here: running programs, and what the host can do;
//! that comes in as [`HostFacts`].

mod base;
mod context;
mod difference;
mod digest;
mod dispatch;
mod former;
mod in_force;
mod ledger;
mod names;
mod own_chains;
mod render;
mod rules_digest;
mod service;
mod tally;
mod write;

pub use base::{BaseChain, Contents, Jump, base_chains, jumps};
pub use context::{HostFacts, NfacctCounters, PlanContext};
pub use difference::Difference;
pub use digest::ChainDigest;
pub use dispatch::Dispatch;
pub use former::is_of_any_mode;
pub(crate) use former::{OF_IPVS, is_former, is_former_jump};
pub use in_force::{InForce, InForceReader};
pub(crate) use in_force::{is_ours, without_strangers};
pub use ledger::{Damage, Ledger};
pub use names::{chains, is_service_chain};
pub use render::render;
pub use rules_digest::rules_digest;
pub use service::ServicePlan;
pub use tally::{RuleCounts, Tally};
pub use write::Written;
