use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use crate::{IpFamily, NodeView};

/// Which of a node's addresses answer on node ports (`nodePortAddresses`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All of them.
    #[default]
    All,
    /// The node's primary address of each family.
    Primary,
    /// Those within one of these networks.
    Within(Vec<IpNet>),
}

/// [`NodePortAddresses`] as one family's rules need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortMatch {
    /// Every address that is local to the host.
    AnyLocal,
    /// Just these, sorted; none at all when empty.
    Addresses(Vec<IpAddr>),
}

impl NodePortAddresses {
    /// Picks this family's addresses. `host` holds all addresses of the host's interfaces, of both families.
    ///
    /// As in kube-proxy, an address that no interface has is not taken, not even the primary one; a network that holds
    /// every address (`0.0.0.0/0`) counts as «all»; and so does a choice that says nothing about this family: a list
    /// without any network of it, a node without any address of it.
    pub fn resolve(&self, family: IpFamily, node: &NodeView, host: &[IpAddr]) -> NodePortMatch {
        let networks = self.networks(family, node);
        if networks.is_empty() || networks.iter().any(|net| net.prefix_len() == 0) {
            return NodePortMatch::AnyLocal;
        }
        // No network holds an address of the other family.
        let within = |address: &&IpAddr| networks.iter().any(|net| net.contains(*address));
        let mut addresses: Vec<IpAddr> = host.iter().filter(within).copied().collect();
        addresses.sort_unstable();
        addresses.dedup();
        NodePortMatch::Addresses(addresses)
    }

    /// Whether 127.0.0.0/8 can be among the addresses, so that node ports on localhost make sense.
    pub fn may_hold_ipv4_loopback(&self) -> bool {
        match self {
            Self::All => true,
            Self::Primary => false,
            Self::Within(networks) => {
                let mut ipv4 = networks.iter().filter(|net| net.addr().is_ipv4()).peekable();
                // Of two networks that have an address in common, one holds the first address of the other.
                let first = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0));
                ipv4.peek().is_none() || ipv4.any(|net| net.addr().is_loopback() || net.contains(&first))
            }
        }
    }

    /// Whether somebody has asked for 127.0.0.0/8, or a part of it, in particular.
    pub fn names_ipv4_loopback(&self) -> bool {
        match self {
            Self::All | Self::Primary => false,
            Self::Within(networks) => networks.iter().any(
                |net| matches!(net, IpNet::V4(net) if net.network().is_loopback() && net.broadcast().is_loopback()),
            ),
        }
    }

    /// The networks of this family that the choice is narrowed to; none when it is not narrowed.
    fn networks(&self, family: IpFamily, node: &NodeView) -> Vec<IpNet> {
        match self {
            Self::All => Vec::new(),
            Self::Primary => {
                let primary = node.primary_address(family).filter(|address| !address.is_loopback());
                primary.into_iter().map(IpNet::from).collect()
            }
            Self::Within(networks) => {
                networks.iter().copied().filter(|net| IpFamily::of(net.addr()) == family).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests;
