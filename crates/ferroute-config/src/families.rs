//! The IP families that the proxy serves.
//!
//! Like kube-proxy, it serves both families if the host supports them, regardless of the families that the cluster
//! uses. If the host supports only one family, it must be the primary one.

use ferroute_core::{IpFamily, LocalTrafficDetector, NodeView};
use ipnet::IpNet;

use crate::Resolved;

/// The IP families that the host supports, as determined by the caller: in iptables and ipvs mode by running the family's
/// programs, in every mode by the existence of `/proc/net/if_inet6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilySupport {
    /// IPv4 is supported.
    pub ipv4: bool,
    /// IPv6 is supported.
    pub ipv6: bool,
}

/// The families to serve: the primary one, and the other one if the host supports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    primary: IpFamily,
    dual_stack: bool,
}

/// The proxy cannot serve this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FamilyError {
    /// The host does not support the primary family.
    #[error("no support for primary IP family {0} on this host")]
    Unsupported(IpFamily),
    /// The host supports one family, and `clusterCIDR` has only networks of the other family.
    #[error("cluster is {0}-only but clusterCIDR has only networks of the other IP family")]
    ClusterCidr(IpFamily),
    /// All pod CIDRs of the node belong to the family that is not primary.
    #[error("primary IP family is {0} but the node's podCIDRs are all of the other IP family")]
    PodCidrs(IpFamily),
}

impl FamilySupport {
    /// Reports whether a family is supported.
    pub fn of(self, family: IpFamily) -> bool {
        match family {
            IpFamily::V4 => self.ipv4,
            IpFamily::V6 => self.ipv6,
        }
    }
}

impl Families {
    /// Returns the primary family.
    pub fn primary(self) -> IpFamily {
        self.primary
    }

    /// Returns the families to serve, IPv4 first.
    pub fn iter(self) -> impl Iterator<Item = IpFamily> {
        IpFamily::BOTH.into_iter().filter(move |family| self.dual_stack || *family == self.primary)
    }
}

impl Resolved {
    /// Returns the node with `bindAddress`, if set, as its first address.
    pub fn effective_node(&self, mut node: NodeView) -> NodeView {
        if let Some(own) = self.node_ip {
            node.addresses.retain(|address| *address != own);
            node.addresses.insert(0, own);
        }
        node
    }

    /// Returns the families to serve. The primary family is that of `bindAddress`, else that of the node's first address,
    /// else IPv4.
    ///
    /// # Errors
    ///
    /// The host does not support the primary family, or local traffic of that family cannot be detected because all
    /// configured networks are of the other family.
    pub fn families(&self, node: &NodeView, support: FamilySupport) -> Result<Families, FamilyError> {
        let first = self.node_ip.or_else(|| node.addresses.first().copied());
        let primary = first.map_or(IpFamily::V4, IpFamily::of);
        if !support.of(primary) {
            return Err(FamilyError::Unsupported(primary));
        }
        let dual_stack = support.ipv4 && support.ipv6;
        match &self.settings.detector {
            LocalTrafficDetector::ClusterCidr(networks) if !dual_stack && all_other_family(networks, primary) => {
                Err(FamilyError::ClusterCidr(primary))
            }
            LocalTrafficDetector::NodeCidr if all_other_family(&node.pod_cidrs, primary) => {
                Err(FamilyError::PodCidrs(primary))
            }
            _ => Ok(Families { primary, dual_stack }),
        }
    }
}

fn all_other_family(networks: &[IpNet], family: IpFamily) -> bool {
    !networks.is_empty() && networks.iter().all(|network| IpFamily::of(network.addr()) != family)
}

#[cfg(test)]
mod tests;
