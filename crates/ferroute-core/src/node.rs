use std::net::IpAddr;

use ipnet::IpNet;

use crate::IpFamily;

/// What the proxy knows about the node that it runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Name of the Node object.
    pub name: String,
    /// Zone, where the node has the label for it.
    pub zone: Option<String>,
    /// The node's IP addresses, best first: internal ones before external ones.
    pub addresses: Vec<IpAddr>,
    /// Pod networks, at most one per family.
    pub pod_cidrs: Vec<IpNet>,
    /// Is being deleted, or has the taint [`ferroute_api::labels::TO_BE_DELETED_TAINT`]: load balancers should send
    /// nothing new.
    pub to_be_deleted: bool,
}

impl NodeView {
    /// The node's best address of a family.
    pub fn primary_address(&self, family: IpFamily) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| IpFamily::of(*address) == family)
    }

    /// The node's pod network of a family.
    pub fn pod_cidr(&self, family: IpFamily) -> Option<IpNet> {
        self.pod_cidrs.iter().copied().find(|net| IpFamily::of(net.addr()) == family)
    }
}
