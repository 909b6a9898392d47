//! Which IP families are served.
//!
//! kube-proxy serves both wherever the host can, whatever the cluster uses. Only where the host can do just one does
//! it matter which is the primary one.

use std::net::IpAddr;

use ferroute_core::{IpFamily, LocalTrafficDetector, NodeView};
use ipnet::IpNet;

use crate::Resolved;

/// What the host can do, as somebody has found out who can look at it: in iptables and ipvs mode whether the family's
/// tools work, in every mode whether the kernel has IPv6 (`/proc/net/if_inet6` is there).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilySupport {
    /// IPv4 rules can be written.
    pub ipv4: bool,
    /// IPv6 rules can be written.
    pub ipv6: bool,
}

/// The families to serve: the primary one, and the other unless the host cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    primary: IpFamily,
    dual_stack: bool,
}

/// Why the proxy cannot serve this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FamilyError {
    /// The host cannot do the family that the node's first address has.
    #[error("no support for primary IP family {0} on this host")]
    Unsupported(IpFamily),
    /// The host has one family, and `clusterCIDR` only networks of the other.
    #[error("cluster is {0}-only but clusterCIDR has only networks of the other IP family")]
    ClusterCidr(IpFamily),
    /// The node's pod networks are all of the family that is not the primary one.
    #[error("primary IP family is {0} but the node's podCIDRs are all of the other IP family")]
    PodCidrs(IpFamily),
}

impl FamilySupport {
    /// Whether rules of this family can be written.
    pub fn of(self, family: IpFamily) -> bool {
        match family {
            IpFamily::V4 => self.ipv4,
            IpFamily::V6 => self.ipv6,
        }
    }
}

impl Families {
    /// The family of the node's first address.
    pub fn primary(self) -> IpFamily {
        self.primary
    }

    /// Both are served.
    pub fn is_dual_stack(self) -> bool {
        self.dual_stack
    }

    /// The families to serve, IPv4 first.
    pub fn iter(self) -> impl Iterator<Item = IpFamily> {
        IpFamily::BOTH.into_iter().filter(move |family| self.dual_stack || *family == self.primary)
    }
}

impl Resolved {
    /// The node with `bindAddress`, where one is given, as its best address.
    pub fn effective_node(&self, mut node: NodeView) -> NodeView {
        if let Some(own) = self.node_ip {
            node.addresses.retain(|address| *address != own);
            node.addresses.insert(0, own);
        }
        node
    }

    /// Which families to serve on a host that can do `support`.
    ///
    /// The primary one is that of `bindAddress`, else that of the node's first address, else IPv4.
    ///
    /// # Errors
    ///
    /// If the host cannot do the primary family, or if local traffic could not be told in it because all networks are
    /// of the other family.
    pub fn families(&self, node: &NodeView, support: FamilySupport) -> Result<Families, FamilyError> {
        let first = self.node_ip.or_else(|| node.addresses.first().copied());
        let primary = first.map_or(IpFamily::V4, IpFamily::of);
        if !support.of(primary) {
            return Err(FamilyError::Unsupported(primary));
        }
        let dual_stack = support.ipv4 && support.ipv6;
        match &self.settings.detector {
            LocalTrafficDetector::ClusterCidr(networks) if !dual_stack && all_of_other(networks, primary) => {
                Err(FamilyError::ClusterCidr(primary))
            }
            LocalTrafficDetector::NodeCidr if all_of_other(&node.pod_cidrs, primary) => {
                Err(FamilyError::PodCidrs(primary))
            }
            _ => Ok(Families { primary, dual_stack }),
        }
    }
}

fn all_of_other(networks: &[IpNet], family: IpFamily) -> bool {
    let of = |address: IpAddr| IpFamily::of(address);
    !networks.is_empty() && networks.iter().all(|network| of(network.addr()) != family)
}

#[cfg(test)]
mod tests;
