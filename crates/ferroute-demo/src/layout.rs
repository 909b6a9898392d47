//! The machines, networks and addresses of the demo's cluster.
//!
//! ```text
//!   outside 192.168.49.100 ──┐
//!                            │ lan 192.168.49.1   (a switch, and a gateway that rejects)
//!   node    192.168.49.2 ────┤
//!     └ cni0 172.17.0.1      │
//!         ├ pod 172.17.0.4   │
//!         └ pod …            │
//!   node2   192.168.49.3 ────┘
//!     └ cni0 172.17.1.1
//!         └ pod 172.17.1.4 …
//! ```
//!
//! Every machine and pod also has an IPv6 address with the same digits: `172.17.0.14` and `fd00:172:17::14`.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ferroute_core::IpFamily;
use serde::{Deserialize, Serialize};

/// A node: a machine that runs pods and a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeId {
    /// The first node, the default for pods.
    #[default]
    Node,
    /// The second node.
    Node2,
}

/// The addresses of a machine or pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Addresses {
    /// The IPv4 address.
    pub v4: Ipv4Addr,
    /// The IPv6 address; `None` without IPv6 support.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v6: Option<Ipv6Addr>,
}

impl NodeId {
    /// All nodes.
    pub const ALL: [Self; 2] = [Self::Node, Self::Node2];

    /// Returns the name of the Node object, also used by `ferroute demo exec`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Node2 => "node2",
        }
    }

    /// Returns the node with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|node| node.name() == name)
    }

    /// Returns the node's addresses on the network between the machines.
    pub fn addresses(self, ipv6: bool) -> Addresses {
        lan_addresses(2 + self.index(), ipv6)
    }

    /// Returns the addresses of the node's bridge, which is the gateway of its pods.
    pub fn bridge_addresses(self, ipv6: bool) -> Addresses {
        self.pod_addresses(1, ipv6)
    }

    /// Returns the addresses of the pod with host number `host` on this node.
    pub fn pod_addresses(self, host: u8, ipv6: bool) -> Addresses {
        let net = self.index();
        Addresses {
            v4: Ipv4Addr::new(172, 17, net, host),
            v6: ipv6.then(|| Ipv6Addr::new(0xfd00, 0x172, 0x17, u16::from(net), 0, 0, 0, digits_as_hex(host))),
        }
    }

    /// Returns the node's pod network, as in `spec.podCIDRs` of the Node object.
    pub fn pod_network(self, family: IpFamily) -> String {
        match family {
            IpFamily::V4 => format!("172.17.{}.0/24", self.index()),
            IpFamily::V6 => {
                format!("{}/64", Ipv6Addr::new(0xfd00, 0x172, 0x17, u16::from(self.index()), 0, 0, 0, 0))
            }
        }
    }

    fn index(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Addresses {
    /// Returns the address of an IP family.
    pub fn get(&self, family: IpFamily) -> Option<IpAddr> {
        match family {
            IpFamily::V4 => Some(self.v4.into()),
            IpFamily::V6 => self.v6.map(IpAddr::from),
        }
    }

    /// Returns all addresses, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + use<> {
        [Some(IpAddr::from(self.v4)), self.v6.map(IpAddr::from)].into_iter().flatten()
    }
}

impl fmt::Display for Addresses {
    /// `172.17.0.4, fd00:172:17::4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.v4.fmt(f)?;
        self.v6.iter().try_for_each(|v6| write!(f, ", {v6}"))
    }
}

/// Returns the addresses of the external client.
pub fn outside_addresses(ipv6: bool) -> Addresses {
    lan_addresses(100, ipv6)
}

/// Returns the addresses of the machines' default gateway, which rejects all packets as unreachable.
pub(crate) fn gateway_addresses(ipv6: bool) -> Addresses {
    lan_addresses(1, ipv6)
}

fn lan_addresses(host: u8, ipv6: bool) -> Addresses {
    Addresses {
        v4: Ipv4Addr::new(192, 168, 49, host),
        v6: ipv6.then(|| Ipv6Addr::new(0xfd00, 0x192, 0x168, 0x49, 0, 0, 0, digits_as_hex(host))),
    }
}

/// Returns the number whose hexadecimal digits are the decimal digits of `number`: 0x14 for 14.
fn digits_as_hex(number: u8) -> u16 {
    let number = u16::from(number);
    number / 100 * 0x100 + number / 10 % 10 * 0x10 + number % 10
}

/// The name of the external client.
pub const OUTSIDE: &str = "outside";

/// The name of the switch between the machines.
pub(crate) const LAN: &str = "lan";

/// The bridge of each node's pods.
pub const BRIDGE: &str = "cni0";

/// Returns the networks of all pods, for the proxies' `clusterCIDR`.
pub fn cluster_networks(ipv6: bool) -> &'static str {
    if ipv6 { "172.17.0.0/16,fd00:172:17::/48" } else { "172.17.0.0/16" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_addresses_of_pod_have_same_digits() {
        let addresses = NodeId::Node2.pod_addresses(214, true);
        assert_eq!(addresses.to_string(), "172.17.1.214, fd00:172:17:1::214");
    }

    #[test]
    fn ipv6_addresses_of_pods_are_unique() {
        let all: std::collections::BTreeSet<_> =
            (1..=254).map(|host| NodeId::Node.pod_addresses(host, true).v6).collect();
        assert_eq!(all.len(), 254);
    }

    #[test]
    fn there_are_no_ipv6_addresses_without_ipv6() {
        assert_eq!(outside_addresses(false).iter().collect::<Vec<_>>(), [IpAddr::from([192, 168, 49, 100])]);
    }
}
