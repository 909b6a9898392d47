//! The ipsets of the mode.

use std::{fmt, net::IpAddr};

use ferroute_core::{IpFamily, Protocol};
use ipnet::IpNet;

use super::ServerKey;

/// An ipset of kube-proxy 1.36 (<https://github.com/kubernetes/kubernetes/blob/v1.36.0/pkg/proxy/ipvs/ipset.go>), or an
/// additional set of Ferroute: [`SetKind::NodePortIps`] or [`SetKind::Remote`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetKind {
    /// `KUBE-LOOP-BACK`: endpoints on this node with their own address as the source, to be masqueraded.
    LoopBack,
    /// `KUBE-CLUSTER-IP`
    ClusterIp,
    /// `KUBE-EXTERNAL-IP`: external IPs with policy Cluster.
    ExternalIp,
    /// `KUBE-EXTERNAL-IP-LOCAL`: external IPs with policy Local.
    ExternalIpLocal,
    /// `KUBE-LOAD-BALANCER`: load balancer IPs.
    LoadBalancer,
    /// `KUBE-LOAD-BALANCER-FW`: load balancer IPs with source ranges.
    LoadBalancerFirewall,
    /// `KUBE-LOAD-BALANCER-LOCAL`: load balancer IPs with policy Local.
    LoadBalancerLocal,
    /// `KUBE-LOAD-BALANCER-SOURCE-IP`: the address itself as a permitted source, for connections of the node.
    LoadBalancerSourceIp,
    /// `KUBE-LOAD-BALANCER-SOURCE-CIDR`: permitted source ranges.
    LoadBalancerSourceCidr,
    /// `KUBE-NODE-PORT-TCP`
    NodePortTcp,
    /// `KUBE-NODE-PORT-LOCAL-TCP`: TCP node ports with policy Local.
    NodePortLocalTcp,
    /// `KUBE-NODE-PORT-UDP`
    NodePortUdp,
    /// `KUBE-NODE-PORT-LOCAL-UDP`: UDP node ports with policy Local.
    NodePortLocalUdp,
    /// `KUBE-NODE-PORT-SCTP-HASH`: SCTP node ports with the addresses of the node.
    NodePortSctp,
    /// `KUBE-NODE-PORT-LOCAL-SCTP-HASH`: SCTP node ports with policy Local.
    NodePortLocalSctp,
    /// `KUBE-HEALTH-CHECK-NODE-PORT`
    HealthCheckNodePort,
    /// `KUBE-IPVS-IPS`: the addresses of the dummy device.
    IpvsIps,
    /// `FERROUTE-NODE-PORT-IPS`: addresses with virtual servers of node ports. It identifies these virtual servers
    /// after the address has left the host; kube-proxy never deletes such virtual servers.
    NodePortIps,
    /// `FERROUTE-REMOTE`: frontends with policy Local whose endpoints are all on other nodes. Connections of the node
    /// itself to them are masqueraded: otherwise their source would be the frontend's address, and replies to it would
    /// not come back.
    Remote,
}

/// The type of an ipset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetType {
    /// `hash:ip`
    Address,
    /// `hash:ip,port`
    Service,
    /// `hash:ip,port,ip`
    ServiceAndAddress,
    /// `hash:ip,port,net`
    ServiceAndNetwork,
    /// `bitmap:port`
    Port,
}

/// A member of an ipset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// Entry of a set of type `hash:ip`.
    Address(IpAddr),
    /// Entry of a set of type `hash:ip,port`.
    Service(ServerKey),
    /// Entry of a set of type `hash:ip,port,ip`.
    ServiceAndAddress(ServerKey, IpAddr),
    /// Entry of a set of type `hash:ip,port,net`. The prefix length is at least one, because ipset cannot store zero.
    ServiceAndNetwork(ServerKey, IpNet),
    /// The same with option `nomatch`, which other programs set: an exception from wider networks.
    ServiceExceptNetwork(ServerKey, IpNet),
    /// Entry of a set of type `bitmap:port`.
    Port(u16),
}

impl SetKind {
    /// All sets.
    pub const ALL: [Self; 19] = [
        Self::LoopBack,
        Self::ClusterIp,
        Self::ExternalIp,
        Self::ExternalIpLocal,
        Self::LoadBalancer,
        Self::LoadBalancerFirewall,
        Self::LoadBalancerLocal,
        Self::LoadBalancerSourceIp,
        Self::LoadBalancerSourceCidr,
        Self::NodePortTcp,
        Self::NodePortLocalTcp,
        Self::NodePortUdp,
        Self::NodePortLocalUdp,
        Self::NodePortSctp,
        Self::NodePortLocalSctp,
        Self::HealthCheckNodePort,
        Self::IpvsIps,
        Self::NodePortIps,
        Self::Remote,
    ];

    /// The sets of type `hash:ip,port` whose members have a virtual server each.
    pub(crate) const WITH_SERVERS: [Self; 6] = [
        Self::ClusterIp,
        Self::ExternalIp,
        Self::ExternalIpLocal,
        Self::LoadBalancer,
        Self::NodePortSctp,
        Self::NodePortLocalSctp,
    ];

    /// Returns the set of node ports; for SCTP, the set of their addresses and ports.
    pub fn node_ports(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::NodePortTcp,
            Protocol::Udp => Self::NodePortUdp,
            Protocol::Sctp => Self::NodePortSctp,
        }
    }

    /// Returns the same for node ports with policy Local.
    pub fn local_node_ports(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::NodePortLocalTcp,
            Protocol::Udp => Self::NodePortLocalUdp,
            Protocol::Sctp => Self::NodePortLocalSctp,
        }
    }

    /// The position in [`SetKind::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The type.
    pub fn set_type(self) -> SetType {
        match self {
            Self::LoopBack | Self::LoadBalancerSourceIp => SetType::ServiceAndAddress,
            Self::LoadBalancerSourceCidr => SetType::ServiceAndNetwork,
            Self::NodePortTcp
            | Self::NodePortLocalTcp
            | Self::NodePortUdp
            | Self::NodePortLocalUdp
            | Self::HealthCheckNodePort => SetType::Port,
            Self::IpvsIps | Self::NodePortIps => SetType::Address,
            Self::ClusterIp
            | Self::ExternalIp
            | Self::ExternalIpLocal
            | Self::LoadBalancer
            | Self::LoadBalancerFirewall
            | Self::LoadBalancerLocal
            | Self::NodePortSctp
            | Self::NodePortLocalSctp
            | Self::Remote => SetType::Service,
        }
    }

    /// The name of the set in an IP family.
    pub fn name(self, family: IpFamily) -> &'static str {
        let [ipv4, ipv6] = self.names();
        match family {
            IpFamily::V4 => ipv4,
            IpFamily::V6 => ipv6,
        }
    }

    /// The names in IPv4 and IPv6. The kernel's limit is 31 bytes; kube-proxy truncates longer names.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::LoopBack => ["KUBE-LOOP-BACK", "KUBE-6-LOOP-BACK"],
            Self::ClusterIp => ["KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP"],
            Self::ExternalIp => ["KUBE-EXTERNAL-IP", "KUBE-6-EXTERNAL-IP"],
            Self::ExternalIpLocal => ["KUBE-EXTERNAL-IP-LOCAL", "KUBE-6-EXTERNAL-IP-LOCAL"],
            Self::LoadBalancer => ["KUBE-LOAD-BALANCER", "KUBE-6-LOAD-BALANCER"],
            Self::LoadBalancerFirewall => ["KUBE-LOAD-BALANCER-FW", "KUBE-6-LOAD-BALANCER-FW"],
            Self::LoadBalancerLocal => ["KUBE-LOAD-BALANCER-LOCAL", "KUBE-6-LOAD-BALANCER-LOCAL"],
            Self::LoadBalancerSourceIp => ["KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-6-LOAD-BALANCER-SOURCE-IP"],
            Self::LoadBalancerSourceCidr => ["KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-6-LOAD-BALANCER-SOURCE-CID"],
            Self::NodePortTcp => ["KUBE-NODE-PORT-TCP", "KUBE-6-NODE-PORT-TCP"],
            Self::NodePortLocalTcp => ["KUBE-NODE-PORT-LOCAL-TCP", "KUBE-6-NODE-PORT-LOCAL-TCP"],
            Self::NodePortUdp => ["KUBE-NODE-PORT-UDP", "KUBE-6-NODE-PORT-UDP"],
            Self::NodePortLocalUdp => ["KUBE-NODE-PORT-LOCAL-UDP", "KUBE-6-NODE-PORT-LOCAL-UDP"],
            Self::NodePortSctp => ["KUBE-NODE-PORT-SCTP-HASH", "KUBE-6-NODE-PORT-SCTP-HASH"],
            Self::NodePortLocalSctp => ["KUBE-NODE-PORT-LOCAL-SCTP-HASH", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"],
            Self::HealthCheckNodePort => ["KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-6-HEALTH-CHECK-NODE-PORT"],
            Self::IpvsIps => ["KUBE-IPVS-IPS", "KUBE-6-IPVS-IPS"],
            Self::NodePortIps => ["FERROUTE-NODE-PORT-IPS", "FERROUTE-6-NODE-PORT-IPS"],
            Self::Remote => ["FERROUTE-REMOTE", "FERROUTE-6-REMOTE"],
        }
    }

    /// Returns the set with this name, and its IP family.
    pub fn from_name(name: &str) -> Option<(Self, IpFamily)> {
        let in_family =
            |family| Self::ALL.into_iter().find(|kind| kind.name(family) == name).map(|kind| (kind, family));
        in_family(IpFamily::V4).or_else(|| in_family(IpFamily::V6))
    }

    /// The comment of kube-proxy's rules that use the set.
    pub(super) fn comment(self) -> &'static str {
        match self {
            Self::LoopBack => "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose",
            Self::ClusterIp => "Kubernetes service cluster ip + port for masquerade purpose",
            Self::ExternalIp => "Kubernetes service external ip + port for masquerade and filter purpose",
            Self::ExternalIpLocal => "Kubernetes service external ip + port with externalTrafficPolicy=local",
            Self::LoadBalancer => "Kubernetes service lb portal",
            Self::LoadBalancerFirewall => {
                "Kubernetes service load balancer ip + port for load balancer with sourceRange"
            }
            Self::LoadBalancerLocal => "Kubernetes service load balancer ip + port with externalTrafficPolicy=local",
            Self::LoadBalancerSourceIp => {
                "Kubernetes service load balancer ip + port + source IP for packet filter purpose"
            }
            Self::LoadBalancerSourceCidr => {
                "Kubernetes service load balancer ip + port + source cidr for packet filter purpose"
            }
            Self::NodePortTcp => "Kubernetes nodeport TCP port for masquerade purpose",
            Self::NodePortLocalTcp => "Kubernetes nodeport TCP port with externalTrafficPolicy=local",
            Self::NodePortUdp => "Kubernetes nodeport UDP port for masquerade purpose",
            Self::NodePortLocalUdp => "Kubernetes nodeport UDP port with externalTrafficPolicy=local",
            Self::NodePortSctp => "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'",
            Self::NodePortLocalSctp => {
                "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'"
            }
            Self::HealthCheckNodePort => "Kubernetes health check node port",
            Self::IpvsIps => "Addresses on the ipvs interface",
            Self::NodePortIps => "Addresses with virtual servers of node ports",
            Self::Remote => "Frontends with policy Local whose endpoints are on other nodes",
        }
    }
}

impl SetType {
    /// The name of the type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Address => "hash:ip",
            Self::Service => "hash:ip,port",
            Self::ServiceAndAddress => "hash:ip,port,ip",
            Self::ServiceAndNetwork => "hash:ip,port,net",
            Self::Port => "bitmap:port",
        }
    }
}

impl fmt::Display for Entry {
    /// Writes the member as `ipset save` prints it: `10.96.0.1,tcp:80`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let service =
            |f: &mut fmt::Formatter<'_>, key: &ServerKey| write!(f, "{},{}:{}", key.address, key.protocol, key.port);
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Port(port) => write!(f, "{port}"),
            Self::Service(key) => service(f, key),
            Self::ServiceAndAddress(key, address) => {
                service(f, key)?;
                write!(f, ",{address}")
            }
            Self::ServiceAndNetwork(key, net) | Self::ServiceExceptNetwork(key, net) => {
                service(f, key)?;
                // ipset omits the length of a single address.
                if net.prefix_len() == net.max_prefix_len() {
                    write!(f, ",{}", net.addr())?;
                } else {
                    write!(f, ",{net}")?;
                }
                f.write_str(if matches!(self, Self::ServiceExceptNetwork(..)) { " nomatch" } else { "" })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_the_kernels_limit_and_are_distinct() {
        for family in IpFamily::BOTH {
            for kind in SetKind::ALL {
                let name = kind.name(family);
                assert!(name.len() <= 31, "{name}");
                assert_eq!(SetKind::from_name(name), Some((kind, family)));
                assert_eq!(SetKind::ALL[kind.index()], kind);
            }
        }
        // As kube-proxy logs them.
        assert_eq!(SetKind::LoadBalancerSourceCidr.name(IpFamily::V6), "KUBE-6-LOAD-BALANCER-SOURCE-CID");
        assert_eq!(SetKind::NodePortLocalSctp.name(IpFamily::V6), "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS");
        assert_eq!(SetKind::from_name("KUBE-OTHER"), None);
    }
}
