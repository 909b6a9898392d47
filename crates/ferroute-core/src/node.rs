use std::net::IpAddr;

use ipnet::IpNet;

use crate::IpFamily;

/// The properties of the proxy's node that rules depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Name of the Node object.
    pub name: String,
    /// Topology zone, if the node has the label.
    pub zone: Option<String>,
    /// IP addresses, internal ones before external ones.
    pub addresses: Vec<IpAddr>,
    /// Pod networks, at most one per family.
    pub pod_cidrs: Vec<IpNet>,
    /// Whether the node is being deleted or has the taint [`ferroute_api::labels::TO_BE_DELETED_TAINT`], so that load
    /// balancers should not send new connections.
    pub to_be_deleted: bool,
}

impl NodeView {
    /// Returns the first address of a family.
    pub fn primary_address(&self, family: IpFamily) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| IpFamily::of(*address) == family)
    }

    /// Returns the pod network of a family.
    pub fn pod_cidr(&self, family: IpFamily) -> Option<IpNet> {
        self.pod_cidrs.iter().copied().find(|net| IpFamily::of(net.addr()) == family)
    }
}
