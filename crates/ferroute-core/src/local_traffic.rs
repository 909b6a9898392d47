use std::net::IpAddr;

use ipnet::IpNet;

use crate::{IpFamily, NodeView};

/// The method of recognising packets from local pods (`detectLocalMode`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalTrafficDetector {
    /// No detection; rules that depend on it are not written.
    #[default]
    None,
    /// Source address in the cluster's pod networks (`ClusterCIDR`), at most one per family.
    ClusterCidr(Vec<IpNet>),
    /// Source address in this node's pod networks (`NodeCIDR`).
    NodeCidr,
    /// Name of the bridge that packets arrive on (`BridgeInterface`).
    BridgeInterface(String),
    /// Prefix of the name of the interface that packets arrive on (`InterfaceNamePrefix`).
    InterfaceNamePrefix(String),
}

/// [`LocalTrafficDetector`] resolved for one family: a match for packets from local pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalTraffic {
    /// Source address in this network.
    Source(IpNet),
    /// Input interface with this name.
    Interface(String),
    /// Input interface whose name has this prefix.
    InterfacePrefix(String),
}

impl LocalTrafficDetector {
    /// Returns the match for packets of a family; `None` if they cannot be recognised.
    pub fn resolve(&self, family: IpFamily, node: &NodeView) -> Option<LocalTraffic> {
        match self {
            Self::None => None,
            Self::ClusterCidr(networks) => {
                networks.iter().copied().find(|net| IpFamily::of(net.addr()) == family).map(LocalTraffic::Source)
            }
            Self::NodeCidr => node.pod_cidr(family).map(LocalTraffic::Source),
            Self::BridgeInterface(name) => Some(LocalTraffic::Interface(name.clone())),
            Self::InterfaceNamePrefix(prefix) => Some(LocalTraffic::InterfacePrefix(prefix.clone())),
        }
    }
}

impl LocalTraffic {
    /// Reports whether a packet matches; `interface` is the one that it arrives on.
    pub fn matches(&self, source: IpAddr, interface: Option<&str>) -> bool {
        match self {
            Self::Source(net) => net.contains(&source),
            Self::Interface(name) => interface == Some(name),
            Self::InterfacePrefix(prefix) => interface.is_some_and(|name| name.starts_with(prefix)),
        }
    }
}

#[cfg(test)]
mod tests;
