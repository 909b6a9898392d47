//! Names of the proxy's chains, and of the chains that other modes and earlier versions of kube-proxy left behind.

use std::net::IpAddr;

use arrayvec::ArrayString;
use data_encoding::BASE32;
use ferroute_core::ServicePortName;
use sha2::{Digest, Sha256};

use super::SharedChain;
use crate::{ChainName, Rule, TableName, address_text, exec::ChainMode};

/// Names of the chains that exist regardless of Services.
pub mod chains {
    use crate::ChainName;

    /// nat: sends each Service's address to its chain. filter: rejects traffic to cluster IPs without endpoints.
    pub const SERVICES: ChainName = ChainName::literal("KUBE-SERVICES");
    /// filter: rejects traffic to external addresses without endpoints.
    pub const EXTERNAL_SERVICES: ChainName = ChainName::literal("KUBE-EXTERNAL-SERVICES");
    /// nat: sends each node port to its Service's chain. filter: accepts health checks.
    pub const NODE_PORTS: ChainName = ChainName::literal("KUBE-NODEPORTS");
    /// nat: masquerades marked packets.
    pub const POSTROUTING: ChainName = ChainName::literal("KUBE-POSTROUTING");
    /// nat: marks packets to be masqueraded.
    pub const MARK_MASQ: ChainName = ChainName::literal("KUBE-MARK-MASQ");
    /// filter: accepts forwarded Service traffic.
    pub const FORWARD: ChainName = ChainName::literal("KUBE-FORWARD");
    /// filter: drops traffic from outside of a Service's source ranges.
    pub const PROXY_FIREWALL: ChainName = ChainName::literal("KUBE-PROXY-FIREWALL");
    /// filter: blocks packets from other hosts to localhost. The kubelet creates and uses the same chain.
    pub const FIREWALL: ChainName = ChainName::literal("KUBE-FIREWALL");
    /// nat, userspace mode: sends Services' addresses to listeners, for packets from pods and other hosts.
    pub const PORTALS_CONTAINER: ChainName = ChainName::literal("KUBE-PORTALS-CONTAINER");
    /// nat, userspace mode: the same for packets from the node itself.
    pub const PORTALS_HOST: ChainName = ChainName::literal("KUBE-PORTALS-HOST");
    /// nat, userspace mode: sends node ports to listeners, for packets from pods and other hosts.
    pub const NODEPORT_CONTAINER: ChainName = ChainName::literal("KUBE-NODEPORT-CONTAINER");
    /// nat, userspace mode: the same for packets from the node itself.
    pub const NODEPORT_HOST: ChainName = ChainName::literal("KUBE-NODEPORT-HOST");
    /// filter, userspace mode: protects the ports of listeners.
    pub const NODEPORT_NON_LOCAL: ChainName = ChainName::literal("KUBE-NODEPORT-NON-LOCAL");
    /// filter, userspace mode: rejects or drops traffic that no listener serves. kube-proxy had no such chain.
    pub const PORTALS_FILTER: ChainName = ChainName::literal("KUBE-PORTALS-FILTER");
    /// filter, userspace mode: the same for external addresses without usable endpoints.
    pub const PORTALS_EXTERNAL: ChainName = ChainName::literal("KUBE-PORTALS-EXTERNAL");
    /// filter, ipvs mode: accepts connections to virtual servers. kube-proxy has no such chain.
    pub const IPVS_ACCEPT: ChainName = ChainName::literal("KUBE-IPVS-ACCEPT");
    /// The canary chain: in every table, empty. Its absence shows that the table was flushed.
    pub const CANARY: ChainName = ChainName::literal("KUBE-PROXY-CANARY");
}

/// Prefixes of the names of chains that belong to one service port or endpoint.
const SVC: &str = "KUBE-SVC-";
const SVL: &str = "KUBE-SVL-";
const FW: &str = "KUBE-FW-";
const EXT: &str = "KUBE-EXT-";
const SEP: &str = "KUBE-SEP-";
/// The prefix that `KUBE-EXT-` replaced in Kubernetes 1.24.
const XLB: &str = "KUBE-XLB-";

/// Reports whether a chain belongs to one service port or endpoint, in this or an earlier version of kube-proxy.
pub fn is_service_chain(chain: ChainName) -> bool {
    [SVC, SVL, FW, EXT, SEP, XLB].iter().any(|prefix| chain.as_str().starts_with(prefix))
}

/// Reports whether iptables mode writes the chain.
pub(crate) fn is_iptables_mode_chain(table: TableName, chain: ChainName) -> bool {
    let fixed = match table {
        TableName::Filter => [chains::FORWARD, chains::FIREWALL, chains::CANARY].contains(&chain),
        TableName::Nat => [chains::POSTROUTING, chains::MARK_MASQ, chains::CANARY].contains(&chain),
        TableName::Mangle => chain == chains::CANARY,
        TableName::Raw | TableName::Security => false,
    };
    let shared = || SharedChain::ALL.iter().any(|shared| shared.table() == table && shared.name() == chain);
    fixed || shared() || (table == TableName::Nat && is_service_chain(chain))
}

/// Chains of other modes in table nat: those of ipvs mode, then those of the userspace mode, which Kubernetes 1.26 removed.
const NAT_LEFTOVERS: [&str; 7] = [
    "KUBE-NODE-PORT",
    "KUBE-LOAD-BALANCER",
    // Dropped traffic from outside of the source ranges, until 1.26. The kubelet's chain of this name is in table filter.
    "KUBE-FIREWALL",
    "KUBE-PORTALS-CONTAINER",
    "KUBE-PORTALS-HOST",
    "KUBE-NODEPORT-CONTAINER",
    "KUBE-NODEPORT-HOST",
];

/// Chains of other modes in table filter.
const FILTER_LEFTOVERS: [&str; 8] = [
    "KUBE-NODE-PORT",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
    "KUBE-IPVS-ACCEPT",
    "KUBE-NODEPORT-NON-LOCAL",
    "KUBE-PORTALS-FILTER",
    "KUBE-PORTALS-EXTERNAL",
];

/// A chain that ipvs mode always creates, in tables nat and filter. Its presence shows that the mode was active.
pub(crate) const IPVS_NODE_PORT: ChainName = ChainName::literal("KUBE-NODE-PORT");

/// Comments of the jumps into `KUBE-PROXY-FIREWALL` in iptables mode and ipvs mode. All other jumps into chains of both
/// modes are the same.
pub(super) const IPTABLES_FIREWALL_COMMENT: &str = "kubernetes load balancer firewall";
const IPVS_FIREWALL_COMMENT: &str = "kube-proxy firewall rules";

/// Reports whether another mode, or an earlier version of kube-proxy, left the chain behind.
pub(crate) fn is_leftover_chain(table: TableName, chain: ChainName) -> bool {
    match table {
        TableName::Nat => NAT_LEFTOVERS.contains(&chain.as_str()),
        TableName::Filter => FILTER_LEFTOVERS.contains(&chain.as_str()),
        TableName::Mangle | TableName::Raw | TableName::Security => false,
    }
}

/// Reports whether ipvs mode writes the chain.
pub(crate) fn is_ipvs_mode_chain(table: TableName, chain: ChainName) -> bool {
    let own = match table {
        TableName::Nat => &["KUBE-NODE-PORT", "KUBE-LOAD-BALANCER"][..],
        TableName::Filter => &[
            "KUBE-NODE-PORT",
            "KUBE-SOURCE-RANGES-FIREWALL",
            "KUBE-IPVS-FILTER",
            "KUBE-IPVS-OUT-FILTER",
            "KUBE-IPVS-ACCEPT",
        ],
        TableName::Mangle | TableName::Raw | TableName::Security => return false,
    };
    let shared = match table {
        TableName::Nat => [chains::SERVICES, chains::POSTROUTING, chains::MARK_MASQ],
        _ => [chains::FORWARD, chains::PROXY_FIREWALL, chains::PROXY_FIREWALL],
    };
    own.contains(&chain.as_str()) || shared.contains(&chain)
}

/// Reports whether the chain belongs to userspace mode, which shares no chains with other modes.
pub(crate) fn is_userspace_mode_chain(table: TableName, chain: ChainName) -> bool {
    use chains::{
        NODEPORT_CONTAINER, NODEPORT_HOST, NODEPORT_NON_LOCAL, PORTALS_CONTAINER, PORTALS_EXTERNAL, PORTALS_FILTER,
        PORTALS_HOST,
    };
    match table {
        TableName::Nat => [PORTALS_CONTAINER, PORTALS_HOST, NODEPORT_CONTAINER, NODEPORT_HOST].contains(&chain),
        TableName::Filter => [NODEPORT_NON_LOCAL, PORTALS_FILTER, PORTALS_EXTERNAL].contains(&chain),
        TableName::Mangle | TableName::Raw | TableName::Security => false,
    }
}

/// Reports whether a rule of a builtin chain is another mode's jump into a chain that `active` also has.
pub(crate) fn is_foreign_jump(active: ChainMode, to: ChainName, rule: &Rule) -> bool {
    let foreign = match active {
        ChainMode::Iptables => IPVS_FIREWALL_COMMENT,
        ChainMode::Ipvs => IPTABLES_FIREWALL_COMMENT,
        // It shares no chains.
        ChainMode::Userspace => return false,
    };
    to == chains::PROXY_FIREWALL && rule.first_comment() == Some(foreign)
}

/// Reports whether a chain belongs exclusively to kube-proxy or Ferroute, in any mode. `KUBE-FIREWALL` in table filter,
/// which the kubelet shares, does not.
pub fn is_proxy_chain(table: TableName, chain: ChainName) -> bool {
    let is_shared = table == TableName::Filter && chain == chains::FIREWALL;
    !is_shared && (is_iptables_mode_chain(table, chain) || is_leftover_chain(table, chain))
}

/// Names of the chains that belong to one service port.
pub(super) struct ServiceChainNames {
    /// Chooses among the endpoints of traffic policy Cluster.
    pub(super) cluster: ChainName,
    /// Chooses among the endpoints of traffic policy Local.
    pub(super) local: ChainName,
    /// Applies the source ranges.
    pub(super) firewall: ChainName,
    /// Receives traffic to all addresses but the cluster IP.
    pub(super) external: ChainName,
    /// The hash state after the service port's name and protocol.
    hash: Sha256,
}

impl ServiceChainNames {
    /// Derives the names for `port`, whose text is `name`.
    pub(super) fn new(port: &ServicePortName, name: &str) -> Self {
        let hash = Sha256::new().chain_update(name).chain_update(port.protocol.as_str());
        let suffix = suffix(hash.clone());
        Self {
            cluster: named(SVC, &suffix),
            local: named(SVL, &suffix),
            firewall: named(FW, &suffix),
            external: named(EXT, &suffix),
            hash,
        }
    }

    /// Derives the name of the chain of one endpoint.
    pub(super) fn endpoint(&self, address: IpAddr, port: u16) -> ChainName {
        let text = address_text::socket(address, port);
        named(SEP, &suffix(self.hash.clone().chain_update(text.as_bytes())))
    }
}

/// Returns the first 80 bits of the hash as 16 characters in base 32.
fn suffix(hash: Sha256) -> [u8; 16] {
    let mut suffix = [0; 16];
    BASE32.encode_mut(&hash.finalize()[..10], &mut suffix);
    suffix
}

fn named(prefix: &str, suffix: &[u8; 16]) -> ChainName {
    let mut name = ArrayString::<{ ChainName::MAX_LEN }>::from(prefix).expect("prefixes are short");
    name.push_str(str::from_utf8(suffix).expect("base 32 is ASCII"));
    ChainName::literal(&name)
}

#[cfg(test)]
mod tests {
    use ferroute_core::testing::{port_name, udp_port_name};

    use super::*;

    fn names(port: &ServicePortName) -> ServiceChainNames {
        ServiceChainNames::new(port, &port.to_string())
    }

    #[test]
    fn names_equal_those_recorded_from_kube_proxy() {
        let names = names(&port_name("ns1/web:http"));
        assert_eq!(names.cluster.as_str(), "KUBE-SVC-4LVCYZMTA5CQO6SX");
        assert_eq!(names.external.as_str(), "KUBE-EXT-4LVCYZMTA5CQO6SX");
        assert_eq!(names.endpoint("10.180.1.2".parse().unwrap(), 8080).as_str(), "KUBE-SEP-FUK7TXNM7XSYG2LQ");
        assert_eq!(names.endpoint("fd00:10:180:2::3".parse().unwrap(), 8080).as_str(), "KUBE-SEP-6C5U2RAUMHXB3V5O");
    }

    #[test]
    fn chain_names_depend_on_the_protocol() {
        assert_ne!(names(&port_name("ns1/dns:dns")).cluster, names(&udp_port_name("ns1/dns:dns")).cluster);
    }

    #[test]
    fn fixed_chains_are_not_service_chains() {
        assert!(!is_service_chain(chains::SERVICES));
        assert!(!is_service_chain(chains::FIREWALL));
    }
}
