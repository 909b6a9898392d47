//! Chains that kube-proxy has, or had, and that iptables mode does not write.

use super::{chains, is_ours};
use crate::{ChainName, Rule, TableName};

/// Chains of table nat: those of ipvs mode, then those of the userspace mode that ended with version 1.25.
const NAT: [&str; 7] = [
    "KUBE-NODE-PORT",
    "KUBE-LOAD-BALANCER",
    // Dropped what source ranges did not allow, until 1.26. The kubelet's chain of this name is in table filter.
    "KUBE-FIREWALL",
    "KUBE-PORTALS-CONTAINER",
    "KUBE-PORTALS-HOST",
    "KUBE-NODEPORT-CONTAINER",
    "KUBE-NODEPORT-HOST",
];

/// The same of table filter.
const FILTER: [&str; 5] = [
    "KUBE-NODE-PORT",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
    "KUBE-NODEPORT-NON-LOCAL",
];

/// The chain of ipvs mode that is always there, in each of these tables: by it that mode is known.
pub(crate) const OF_IPVS: ChainName = ChainName::literal("KUBE-NODE-PORT");

/// What ipvs mode writes at its jumps into `KUBE-PROXY-FIREWALL`, a chain that iptables mode has too and reaches by jumps
/// of its own.
const FIREWALL_COMMENT: &str = "kube-proxy firewall rules";

/// The chain is one that another mode, or an earlier version of kube-proxy, has left.
pub(crate) fn is_former(table: TableName, chain: ChainName) -> bool {
    match table {
        TableName::Nat => NAT.contains(&chain.as_str()),
        TableName::Filter => FILTER.contains(&chain.as_str()),
        TableName::Mangle | TableName::Raw | TableName::Security => false,
    }
}

/// The chain is one of a proxy's alone, of kube-proxy or of Ferroute, in whichever mode. The one that the kubelet shares is
/// not.
pub fn is_of_any_mode(table: TableName, chain: ChainName) -> bool {
    let is_shared = table == TableName::Filter && chain == chains::FIREWALL;
    !is_shared && (is_ours(table, chain) || is_former(table, chain))
}

/// The rule, which is in a builtin chain, is ipvs mode's way into a chain that iptables mode has too.
pub(crate) fn is_former_jump(rule: &Rule) -> bool {
    rule.first_comment() == Some(FIREWALL_COMMENT)
}
