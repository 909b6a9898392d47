//! The planner: a pure function from a service table to kube-proxy 1.36's rules, in kube-proxy's order.
//!
//! ```text
//!   filter: INPUT, FORWARD, OUTPUT ──► KUBE-SERVICES, KUBE-EXTERNAL-SERVICES   no endpoints: reject or drop
//!                                  ──► KUBE-PROXY-FIREWALL                     outside of the source ranges: drop
//!                                  ──► KUBE-NODEPORTS                          health check node ports: accept
//!                                  ──► KUBE-FORWARD, KUBE-FIREWALL
//!
//!   nat: PREROUTING, OUTPUT ──► KUBE-SERVICES ──┬──────────────────► KUBE-SVC-… ──► KUBE-SEP-… (one per endpoint)
//!                                    │          ├► KUBE-FW-… ─┐      KUBE-SVL-… ──►    │
//!                                    ▼          ▼             ▼          ▲             ▼
//!                              KUBE-NODEPORTS ──► KUBE-EXT-… ────────────┘           DNAT
//!        POSTROUTING ──► KUBE-POSTROUTING: masquerade packets marked by KUBE-MARK-MASQ
//! ```
//!
//! A service port has rules in the [`SharedChain`]s and in separate chains. `ServicePlan` passes both to a callback one
//! after the other and stores none, so that the rules of a large cluster are never in memory all at once; [`render`]
//! collects them for printing and analysis. [`ChainState`] holds digests of the applied chains and returns, chain by
//! chain, the [`Difference`] to be written. In [`SharedChain`]s it can be limited to the rules of changed service
//! ports.
//!
//! This module does not run programs or read the state of the host, which is an argument
//! ([`HostState`](ferroute_core::HostState)).

mod chain_group;
mod chain_state;
mod context;
mod difference;
mod digest;
mod edit;
mod fixed;
mod kernel_chains;
mod names;
mod refusal;
mod service;
mod write;

use ferroute_core::{Frontend, Protocol, ServiceTable};

use crate::{AddressMatch, ChainHead, Match, Rule, RuleSet, Sense, TableName};
use fixed::{localnet_rule, node_port_jumps};

pub(crate) use chain_group::ChainGroupCollector;
pub use chain_group::{ChainGroup, GroupCounts, GroupSummary};
pub(crate) use chain_state::callers;
pub use chain_state::{ChainState, Drift, RuleCounts};
pub use context::IptablesContext;
pub use difference::Difference;
pub use digest::rules_digest;
pub(crate) use digest::{ChainDigest, RuleSum};
pub use fixed::{ChainContents, FixedChain, Jump, SharedChain, fixed_chains, jumps};
pub use kernel_chains::{KernelChains, KernelChainsReader};
pub(crate) use kernel_chains::{KernelChainsCollector, ignore_unnameable};
pub(crate) use names::{
    IPVS_NODE_PORT, is_foreign_jump, is_iptables_mode_chain, is_ipvs_mode_chain, is_leftover_chain,
    is_userspace_mode_chain,
};
pub use names::{chains, is_proxy_chain, is_service_chain};
pub use refusal::refusal;
pub(crate) use service::ServicePlan;
pub use write::WriteSummary;

/// Returns the UDP frontend that a rule of table nat matches, in the chains of any mode and version; `None` if it
/// matches other packets.
pub fn udp_frontend(rule: &Rule) -> Option<Frontend> {
    let port = rule.matches.iter().find_map(|module| match module {
        Match::Transport { protocol: Protocol::Udp, destination: Some(Sense::Is(ports)), .. } => {
            (ports.first == ports.last).then_some(ports.first)
        }
        _ => None,
    })?;
    let address = match &rule.destination {
        None => None,
        Some(Sense::Is(AddressMatch::Net(net))) if net.prefix_len() == net.max_prefix_len() => Some(net.addr()),
        Some(_) => return None,
    };
    Some(Frontend { address, protocol: Protocol::Udp, port })
}

/// Returns all rules for a service table, as the kernel would have them without rules of other programs. Chains are
/// sorted by name, builtin ones first.
pub fn render(table: &ServiceTable, context: &IptablesContext) -> RuleSet {
    let mut set = RuleSet::new(table.family);
    for name in TableName::PROXY {
        set.table_mut(name);
    }
    for Jump { table, from, rule } in jumps() {
        set.table_mut(table).chains.entry(from).or_default().rules.insert(0, rule);
    }
    for FixedChain { table, name, contents } in fixed_chains(context) {
        let chain = set.table_mut(table).declare(name, ChainHead::default());
        if let ChainContents::Rules(rules) = contents {
            chain.rules = rules;
        }
    }
    if context.settings.localhost_node_ports {
        set.table_mut(TableName::Filter).append(chains::FIREWALL, localnet_rule(table.family));
    }
    for shared in SharedChain::ALL {
        set.table_mut(shared.table()).declare(shared.name(), ChainHead::default());
    }
    for (name, entry) in &table.entries {
        let plan = ServicePlan::new(table, name, entry, context);
        plan.shared_rules(&mut |shared, rule| set.table_mut(shared.table()).append(shared.name(), rule));
        plan.service_chains(&mut |chain, rules| {
            set.table_mut(TableName::Nat).declare(chain, ChainHead::default()).rules = rules.to_vec();
        });
    }
    for rule in node_port_jumps(context) {
        set.table_mut(TableName::Nat).append(SharedChain::NatServices.name(), rule);
    }
    for table in set.tables.values_mut() {
        table.chains.sort_unstable_by_key(|name, _| (!name.is_builtin(), *name));
    }
    set
}
