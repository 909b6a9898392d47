use std::net::IpAddr;

use crate::{IpFamily, LocalTraffic, LocalTrafficDetector, NodePortAddresses, NodePortMatch, NodeView};

/// What the operator has decided, apart from how rules are written and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// Bit (0 to 31) of the packet mark that says «masquerade».
    pub masquerade_bit: u8,
    /// Let node ports answer on 127.0.0.1 (IPv4 only).
    pub localhost_node_ports: bool,
    /// Which addresses answer on node ports.
    pub node_port_addresses: NodePortAddresses,
    /// How to tell pods' packets.
    pub detector: LocalTrafficDetector,
}

impl Default for ProxySettings {
    /// kube-proxy's defaults in iptables mode.
    fn default() -> Self {
        Self {
            masquerade_all: false,
            masquerade_bit: 14,
            localhost_node_ports: true,
            node_port_addresses: NodePortAddresses::All,
            detector: LocalTrafficDetector::None,
        }
    }
}

impl ProxySettings {
    /// The mark that says «masquerade».
    pub fn masquerade_mark(&self) -> u32 {
        1 << u32::from(self.masquerade_bit)
    }

    /// How this family's packets of local pods look.
    pub fn local_traffic(&self, family: IpFamily, node: &NodeView) -> Option<LocalTraffic> {
        self.detector.resolve(family, node)
    }

    /// Which addresses of this family answer on node ports; `host` holds those of all the host's interfaces.
    pub fn node_ports(&self, family: IpFamily, node: &NodeView, host: &[IpAddr]) -> NodePortMatch {
        self.node_port_addresses.resolve(family, node, host)
    }

    /// Whether node ports answer on localhost in this family: never in IPv6, where the kernel has no `route_localnet`.
    pub fn localhost_node_ports(&self, family: IpFamily) -> bool {
        family == IpFamily::V4 && self.localhost_node_ports && self.node_port_addresses.may_hold_ipv4_loopback()
    }
}

#[cfg(test)]
mod tests;
