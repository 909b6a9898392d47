use std::net::IpAddr;

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
    /// A network that holds every address (`0.0.0.0/0`) counts as «all», and so does a list without any network of
    /// this family, as in kube-proxy.
    pub fn resolve(&self, family: IpFamily, node: &NodeView, host: &[IpAddr]) -> NodePortMatch {
        let of_family = |address: &IpAddr| IpFamily::of(*address) == family;
        let mut addresses: Vec<IpAddr> = match self {
            Self::All => return NodePortMatch::AnyLocal,
            Self::Primary => node.primary_address(family).into_iter().collect(),
            Self::Within(networks) => {
                let networks: Vec<&IpNet> = networks.iter().filter(|net| of_family(&net.addr())).collect();
                if networks.is_empty() || networks.iter().any(|net| net.prefix_len() == 0) {
                    return NodePortMatch::AnyLocal;
                }
                let within = |address: &&IpAddr| networks.iter().any(|net| net.contains(*address));
                host.iter().filter(|address| of_family(address)).filter(within).copied().collect()
            }
        };
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
                ipv4.peek().is_none() || ipv4.any(|net| net.addr().is_loopback() || net.prefix_len() == 0)
            }
        }
    }
}
