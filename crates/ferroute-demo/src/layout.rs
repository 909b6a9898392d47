//! Where everything in the demo's cluster is: machines, networks, addresses.
//!
//! ```text
//!   outside 192.168.49.100 ──┐
//!                            │ lan 192.168.49.1   (a switch, and the gateway to nowhere)
//!   node    192.168.49.2 ────┤
//!     └ cni0 172.17.0.1      │
//!         ├ pod 172.17.0.4   │
//!         └ pod …            │
//!   node2   192.168.49.3 ────┘
//!     └ cni0 172.17.1.1
//!         └ pod 172.17.1.4 …
//! ```
//!
//! Every machine and every pod has an IPv6 address too, which ends in the same digits: `172.17.0.14` goes with
//! `fd00:172:17::14`. Nothing here touches the machine that the demo runs on.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ferroute_core::IpFamily;
use serde::{Deserialize, Serialize};

/// A machine of the demo's cluster that runs pods and a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeId {
    /// The node that pods run on when they do not ask for another.
    #[default]
    Node,
    /// The second node.
    Node2,
}

/// The addresses of a machine or pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Addresses {
    /// IPv4; everything has one.
    pub v4: Ipv4Addr,
    /// IPv6; nothing has one where the kernel has no IPv6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v6: Option<Ipv6Addr>,
}

impl NodeId {
    /// All nodes.
    pub const ALL: [Self; 2] = [Self::Node, Self::Node2];

    /// The name of the Node object, and the one that `ferroute demo exec` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Node2 => "node2",
        }
    }

    /// The node with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|node| node.name() == name)
    }

    /// Its addresses on the network between the machines.
    pub fn addresses(self, ipv6: bool) -> Addresses {
        lan_addresses(2 + self.index(), ipv6)
    }

    /// The addresses of its bridge for pods: what pods have as their gateway.
    pub fn bridge_addresses(self, ipv6: bool) -> Addresses {
        self.pod_addresses(1, ipv6)
    }

    /// The addresses of the pod with the given number on this node.
    pub fn pod_addresses(self, host: u8, ipv6: bool) -> Addresses {
        let net = self.index();
        Addresses {
            v4: Ipv4Addr::new(172, 17, net, host),
            v6: ipv6.then(|| Ipv6Addr::new(0xfd00, 0x172, 0x17, u16::from(net), 0, 0, 0, digits_as_hex(host))),
        }
    }

    /// Its pod network of one family, as `spec.podCIDRs` of the Node object has it.
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
    /// The address of one family.
    pub fn of(&self, family: IpFamily) -> Option<IpAddr> {
        match family {
            IpFamily::V4 => Some(self.v4.into()),
            IpFamily::V6 => self.v6.map(IpAddr::from),
        }
    }

    /// All of them, IPv4 first.
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

/// The addresses of the client outside the cluster.
pub fn outside_addresses(ipv6: bool) -> Addresses {
    lan_addresses(100, ipv6)
}

/// The addresses of the gateway that machines send to what they do not know; it answers «unreachable».
pub(crate) fn gateway_addresses(ipv6: bool) -> Addresses {
    lan_addresses(1, ipv6)
}

fn lan_addresses(host: u8, ipv6: bool) -> Addresses {
    Addresses {
        v4: Ipv4Addr::new(192, 168, 49, host),
        v6: ipv6.then(|| Ipv6Addr::new(0xfd00, 0x192, 0x168, 0x49, 0, 0, 0, digits_as_hex(host))),
    }
}

/// The hexadecimal number that reads like the decimal one: 14 gives 0x14.
fn digits_as_hex(number: u8) -> u16 {
    let number = u16::from(number);
    number / 100 * 0x100 + number / 10 % 10 * 0x10 + number % 10
}

/// Name of the client outside the cluster.
pub const OUTSIDE: &str = "outside";

/// Name of the switch between the machines.
pub(crate) const LAN: &str = "lan";

/// The bridge on each node that its pods are attached to.
pub const BRIDGE: &str = "cni0";

/// All pod networks, for the proxies' `clusterCIDR`.
pub fn cluster_networks(ipv6: bool) -> &'static str {
    if ipv6 { "172.17.0.0/16,fd00:172:17::/48" } else { "172.17.0.0/16" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_addresses_of_a_pod_end_in_the_same_digits() {
        let addresses = NodeId::Node2.pod_addresses(214, true);
        assert_eq!(addresses.to_string(), "172.17.1.214, fd00:172:17:1::214");
    }

    #[test]
    fn no_two_pods_of_a_node_share_an_ipv6_address() {
        let all: std::collections::BTreeSet<_> =
            (1..=254).map(|host| NodeId::Node.pod_addresses(host, true).v6).collect();
        assert_eq!(all.len(), 254);
    }

    #[test]
    fn without_ipv6_nothing_has_an_ipv6_address() {
        assert_eq!(outside_addresses(false).iter().collect::<Vec<_>>(), [IpAddr::from([192, 168, 49, 100])]);
    }
}
