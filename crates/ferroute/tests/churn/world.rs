//! The node and its clients, as the specification of Services sees them.

use std::net::IpAddr;

use ferroute_core::ProxySettings;

use crate::network::node_address_towards;

/// The proxy settings and the node's addresses.
#[derive(Clone, Debug)]
pub struct World {
    pub settings: ProxySettings,
    /// The interface of the client, if it is a pod.
    pub pods: &'static str,
    /// All addresses of the node.
    pub host: Vec<IpAddr>,
}

impl World {
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.host.clone()
    }

    pub fn owns(&self, address: IpAddr) -> bool {
        self.host.contains(&address)
    }

    pub fn address_towards(&self, to: IpAddr) -> IpAddr {
        node_address_towards(to)
    }
}

/// A client of Services.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    /// A pod of this node.
    Pod(IpAddr),
    /// A host outside of the cluster.
    Elsewhere(IpAddr),
    /// A process on the node.
    Node,
}
