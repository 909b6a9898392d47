//! The planner: a pure function from a service table to listeners and the iptables rules that lead to them.
//!
//! ```text
//!   nat: PREROUTING ──► KUBE-PORTALS-CONTAINER   cluster IPs, external and load balancer IPs: DNAT to a listener
//!                   ──► KUBE-NODEPORT-CONTAINER  node ports: DNAT to a listener
//!        OUTPUT ──────► KUBE-PORTALS-HOST        the same for connections of the node itself
//!               ──────► KUBE-NODEPORT-HOST
//!
//!   filter: INPUT, FORWARD, OUTPUT ──► KUBE-PORTALS-FILTER      cluster IP without endpoints: reject; not permitted: drop
//!           INPUT, FORWARD ──────────► KUBE-PORTALS-EXTERNAL    external address without endpoints: reject or drop
//!           INPUT ───────────────────► KUBE-NODEPORT-NON-LOCAL  ports of listeners: only by way of the rules above
//! ```
//!
//! A service port has one listener for each set of endpoints that its traffic uses: all endpoints of the cluster, those
//! on this node, or both. Listeners accept on the node's address; `REDIRECT` would need an address on the interface on
//! which a packet arrives, and interfaces of pods need not have one.

mod chains;
mod context;
mod names;
mod port_relay;
mod relay_plan;

pub use chains::{Portal, long_chains, portals};
pub use context::RelayContext;
pub use names::ListenerKey;
pub use relay_plan::{ListenerChanges, RelayPlan};
