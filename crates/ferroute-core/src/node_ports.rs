use std::{
    net::{IpAddr, Ipv4Addr},
    ops::RangeInclusive,
};

use ipnet::IpNet;

use crate::{IpFamily, NodeView};

/// The node ports that an API server assigns unless it is configured otherwise (`--service-node-port-range`).
pub const DEFAULT_NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// The node's addresses that accept connections to node ports (`nodePortAddresses`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All addresses.
    #[default]
    All,
    /// The primary address of each family.
    Primary,
    /// The addresses within these networks.
    Within(Vec<IpNet>),
    /// The primary address of each family, and the addresses within these networks.
    PrimaryAnd(Vec<IpNet>),
}

/// [`NodePortAddresses`] resolved for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortMatch {
    /// All local addresses of the host.
    AnyLocal,
    /// These addresses only, sorted.
    Addresses(Vec<IpAddr>),
}

impl NodePortAddresses {
    /// Returns the addresses of a family. `host` contains all addresses of the host's interfaces, of both families.
    ///
    /// As in kube-proxy, only addresses of interfaces are returned, even for the primary address. The result is
    /// [`NodePortMatch::AnyLocal`] if a network contains all addresses (`0.0.0.0/0`), and if the setting does not apply
    /// to this family: no network, or no address of the node, is of this family.
    pub fn resolve(&self, family: IpFamily, node: &NodeView, host: &[IpAddr]) -> NodePortMatch {
        let networks = self.networks(family, node);
        if networks.is_empty() || networks.iter().any(|net| net.prefix_len() == 0) {
            return NodePortMatch::AnyLocal;
        }
        // Networks contain no addresses of the other family.
        let is_within = |address: &&IpAddr| networks.iter().any(|net| net.contains(*address));
        let mut addresses: Vec<IpAddr> = host.iter().filter(is_within).copied().collect();
        addresses.sort_unstable();
        addresses.dedup();
        NodePortMatch::Addresses(addresses)
    }

    /// Reports whether addresses in 127.0.0.0/8 may be included, so that node ports on localhost are possible.
    pub(crate) fn may_include_ipv4_loopback(&self) -> bool {
        match self {
            Self::All => true,
            Self::Primary => false,
            Self::PrimaryAnd(networks) if !networks.iter().any(|net| net.addr().is_ipv4()) => false,
            Self::Within(networks) | Self::PrimaryAnd(networks) => {
                let mut ipv4 = networks.iter().filter(|net| net.addr().is_ipv4()).peekable();
                // If two networks overlap, one contains the first address of the other.
                let first = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0));
                ipv4.peek().is_none() || ipv4.any(|net| net.addr().is_loopback() || net.contains(&first))
            }
        }
    }

    /// Reports whether the loopback addresses of a family, or some of them, are listed explicitly.
    pub fn has_loopback_network(&self, family: IpFamily) -> bool {
        match self {
            Self::All | Self::Primary => false,
            Self::Within(networks) | Self::PrimaryAnd(networks) => {
                networks.iter().any(|net| family.loopback().contains(net))
            }
        }
    }

    /// Returns the networks of a family that addresses are restricted to; empty without a restriction.
    fn networks(&self, family: IpFamily, node: &NodeView) -> Vec<IpNet> {
        let primary = || node.primary_address(family).filter(|address| !address.is_loopback()).map(IpNet::from);
        let of_family = |networks: &[IpNet]| -> Vec<IpNet> {
            networks.iter().copied().filter(|net| IpFamily::of(net.addr()) == family).collect()
        };
        match self {
            Self::All => Vec::new(),
            Self::Primary => primary().into_iter().collect(),
            Self::Within(networks) => of_family(networks),
            Self::PrimaryAnd(networks) => primary().into_iter().chain(of_family(networks)).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
