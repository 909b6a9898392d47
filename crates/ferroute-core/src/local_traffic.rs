use ipnet::IpNet;

use crate::{IpFamily, NodeView};

/// How to tell packets of this cluster's pods from others (`detectLocalMode`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalTrafficDetector {
    /// Cannot be told; nothing that depends on it is done.
    #[default]
    None,
    /// By source address in the cluster's pod networks (`ClusterCIDR`), at most one per family.
    ClusterCidr(Vec<IpNet>),
    /// By source address in this node's pod networks (`NodeCIDR`).
    NodeCidr,
    /// By the bridge that they come through (`BridgeInterface`).
    BridgeInterface(String),
    /// By the first letters of the interface that they come through (`InterfaceNamePrefix`).
    InterfaceNamePrefix(String),
}

/// [`LocalTrafficDetector`] as one family's rules need it: what a packet of a local pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalTraffic {
    /// A source address in this network.
    From(IpNet),
    /// This input interface.
    Interface(String),
    /// An input interface that starts so.
    InterfacePrefix(String),
}

impl LocalTrafficDetector {
    /// What to look for in this family's packets; `None` where it cannot be told.
    pub fn resolve(&self, family: IpFamily, node: &NodeView) -> Option<LocalTraffic> {
        match self {
            Self::None => None,
            Self::ClusterCidr(networks) => {
                networks.iter().copied().find(|net| IpFamily::of(net.addr()) == family).map(LocalTraffic::From)
            }
            Self::NodeCidr => node.pod_cidr(family).map(LocalTraffic::From),
            Self::BridgeInterface(name) => Some(LocalTraffic::Interface(name.clone())),
            Self::InterfaceNamePrefix(prefix) => Some(LocalTraffic::InterfacePrefix(prefix.clone())),
        }
    }
}

#[cfg(test)]
mod tests;
