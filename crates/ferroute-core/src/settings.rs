use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    InterfacePattern, IpFamily, LocalTraffic, LocalTrafficDetector, NodePortAddresses, NodePortMatch, NodeView,
};

/// The settings that rules of every mode depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// Networks of endpoints that see the addresses of clients, even if connections to other endpoints are masqueraded.
    /// See [`PortForwarding::source_address`](crate::PortForwarding::source_address).
    pub no_masquerade_cidrs: Vec<IpNet>,
    /// Bit (0 to 31) of the packet mark of packets to masquerade.
    pub masquerade_bit: u8,
    /// Accept connections to node ports on 127.0.0.1, if [`Self::node_port_addresses`] include it.
    pub localhost_node_ports: bool,
    /// Accept connections to node ports on `::1`.
    pub ipv6_localhost_node_ports: bool,
    /// Addresses that accept connections to node ports.
    pub node_port_addresses: NodePortAddresses,
    /// Method of recognising packets from local pods.
    pub detector: LocalTrafficDetector,
    /// Addresses at which the proxy itself serves health checks and metrics; unspecified addresses stand for all. They
    /// are [reserved](crate::Reservation).
    pub own_listeners: Vec<SocketAddr>,
    /// Ports of the node's own addresses that are [reserved](crate::Reservation) for the node.
    pub protected_node_ports: Vec<RangeInclusive<u16>>,
}

/// Settings of the flowtable of nftables mode: packets of established connections to Services skip the kernel's hooks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowtableSettings {
    /// Devices on which such packets arrive. Packets on other devices pass the hooks.
    pub devices: Vec<InterfacePattern>,
    /// The number of packets of a connection, in both directions, that pass the hooks before.
    pub packets: u32,
}

impl Default for ProxySettings {
    /// Returns the defaults of kube-proxy's iptables mode.
    fn default() -> Self {
        Self {
            masquerade_all: false,
            no_masquerade_cidrs: Vec::new(),
            masquerade_bit: 14,
            localhost_node_ports: true,
            ipv6_localhost_node_ports: false,
            node_port_addresses: NodePortAddresses::All,
            detector: LocalTrafficDetector::None,
            own_listeners: Vec::new(),
            protected_node_ports: Vec::new(),
        }
    }
}

impl ProxySettings {
    /// Returns the mark of packets to masquerade.
    pub fn masquerade_mark(&self) -> u32 {
        1 << u32::from(self.masquerade_bit)
    }

    /// Returns the match for packets from local pods. See [`LocalTrafficDetector::resolve`].
    pub fn local_traffic(&self, family: IpFamily, node: &NodeView) -> Option<LocalTraffic> {
        self.detector.resolve(family, node)
    }

    /// Returns the addresses of a family that accept connections to node ports; `host` contains the addresses of all
    /// interfaces. See [`NodePortAddresses::resolve`].
    pub fn node_ports(&self, family: IpFamily, node: &NodeView, host: &[IpAddr]) -> NodePortMatch {
        self.node_port_addresses.resolve(family, node, host)
    }

    /// Reports whether node ports accept connections on localhost in a family, in modes that can serve them.
    pub fn localhost_node_ports(&self, family: IpFamily) -> bool {
        match family {
            IpFamily::V4 => self.localhost_node_ports && self.node_port_addresses.may_include_ipv4_loopback(),
            IpFamily::V6 => self.ipv6_localhost_node_ports,
        }
    }
}

#[cfg(test)]
mod tests;
