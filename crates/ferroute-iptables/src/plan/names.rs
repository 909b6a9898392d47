use std::net::IpAddr;

use arrayvec::ArrayString;
use data_encoding::BASE32;
use ferroute_core::ServicePortName;
use sha2::{Digest, Sha256};

use crate::{ChainName, spelling};

/// Names of the chains that are there whatever the Services.
pub mod chains {
    use crate::ChainName;

    /// nat: sends each Service's address to its chain. filter: refuses traffic to cluster IPs without endpoints.
    pub const SERVICES: ChainName = ChainName::literal("KUBE-SERVICES");
    /// filter: refuses traffic to external addresses without endpoints.
    pub const EXTERNAL_SERVICES: ChainName = ChainName::literal("KUBE-EXTERNAL-SERVICES");
    /// nat: sends each node port to its Service's chain. filter: lets health checks in.
    pub const NODE_PORTS: ChainName = ChainName::literal("KUBE-NODEPORTS");
    /// nat: masquerades marked packets.
    pub const POSTROUTING: ChainName = ChainName::literal("KUBE-POSTROUTING");
    /// nat: marks packets to be masqueraded.
    pub const MARK_MASQ: ChainName = ChainName::literal("KUBE-MARK-MASQ");
    /// filter: lets forwarded Service traffic pass.
    pub const FORWARD: ChainName = ChainName::literal("KUBE-FORWARD");
    /// filter: drops what a Service's source ranges do not allow.
    pub const PROXY_FIREWALL: ChainName = ChainName::literal("KUBE-PROXY-FIREWALL");
    /// filter: shields localhost from packets of others. The kubelet makes and uses the same chain.
    pub const FIREWALL: ChainName = ChainName::literal("KUBE-FIREWALL");
    /// In every table, empty: when it is gone, somebody has flushed the table.
    pub const CANARY: ChainName = ChainName::literal("KUBE-PROXY-CANARY");
}

/// First parts of the names of chains that belong to one service port or endpoint.
const SVC: &str = "KUBE-SVC-";
const SVL: &str = "KUBE-SVL-";
const FW: &str = "KUBE-FW-";
const EXT: &str = "KUBE-EXT-";
const SEP: &str = "KUBE-SEP-";
/// Before version 1.24, what `KUBE-EXT-` is now.
const XLB: &str = "KUBE-XLB-";

/// The chain belongs to one service port or endpoint, of now or of earlier times.
pub fn is_service_chain(chain: ChainName) -> bool {
    [SVC, SVL, FW, EXT, SEP, XLB].iter().any(|prefix| chain.as_str().starts_with(prefix))
}

/// Names of a service port's own chains.
pub(super) struct OwnNames {
    /// Chooses among the endpoints of policy Cluster.
    pub(super) cluster: ChainName,
    /// Chooses among the endpoints of policy Local.
    pub(super) local: ChainName,
    /// Applies the source ranges.
    pub(super) firewall: ChainName,
    /// Where traffic to all addresses but the cluster IP goes.
    pub(super) external: ChainName,
    /// Has taken in the service port's name and protocol.
    hash: Sha256,
}

impl OwnNames {
    /// `name` is the text of `of`.
    pub(super) fn new(of: &ServicePortName, name: &str) -> Self {
        let hash = Sha256::new().chain_update(name).chain_update(of.protocol.as_str());
        let suffix = suffix(hash.clone());
        Self {
            cluster: named(SVC, &suffix),
            local: named(SVL, &suffix),
            firewall: named(FW, &suffix),
            external: named(EXT, &suffix),
            hash,
        }
    }

    /// The chain of one endpoint.
    pub(super) fn endpoint(&self, address: IpAddr, port: u16) -> ChainName {
        let text = spelling::socket(address, port);
        named(SEP, &suffix(self.hash.clone().chain_update(text.as_bytes())))
    }
}

/// The first 16 characters of the hash in base 32, which stand for its first 80 bits.
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

    fn names(of: &ServicePortName) -> OwnNames {
        OwnNames::new(of, &of.to_string())
    }

    #[test]
    fn names_are_those_that_were_recorded() {
        let names = names(&port_name("ns1/web:http"));
        assert_eq!(names.cluster.as_str(), "KUBE-SVC-4LVCYZMTA5CQO6SX");
        assert_eq!(names.external.as_str(), "KUBE-EXT-4LVCYZMTA5CQO6SX");
        assert_eq!(names.endpoint("10.180.1.2".parse().unwrap(), 8080).as_str(), "KUBE-SEP-FUK7TXNM7XSYG2LQ");
        assert_eq!(names.endpoint("fd00:10:180:2::3".parse().unwrap(), 8080).as_str(), "KUBE-SEP-6C5U2RAUMHXB3V5O");
    }

    #[test]
    fn the_same_port_over_another_protocol_has_other_chains() {
        assert_ne!(names(&port_name("ns1/dns:dns")).cluster, names(&udp_port_name("ns1/dns:dns")).cluster);
    }

    #[test]
    fn fixed_chains_are_no_service_chains() {
        assert!(!is_service_chain(chains::SERVICES));
        assert!(!is_service_chain(chains::FIREWALL));
    }
}
