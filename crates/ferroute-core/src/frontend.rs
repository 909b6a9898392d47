use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::{Deserialize, Serialize};

use crate::{Protocol, ServicePort};

/// An address, protocol and port on which a service port accepts connections.
///
/// Several service ports may claim the same frontend, for example one as an external IP and another as a load
/// balancer's address; [`Claim`](crate::Claim) defines the owner. The [`FrontendKind`] is therefore not part of a
/// frontend; [`ServicePort::frontends`] returns both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Frontend {
    /// Address; `None` for a node port, which exists at all addresses of [`ProxySettings::node_ports`].
    ///
    /// [`ProxySettings::node_ports`]: crate::ProxySettings::node_ports
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// The field of a Service that a frontend comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FrontendKind {
    /// The cluster IP.
    ClusterIp,
    /// An external IP.
    ExternalIp,
    /// A load balancer's address with `ipMode` VIP.
    #[serde(rename = "loadBalancerIp")]
    LoadBalancer,
    /// The node port.
    NodePort,
}

impl Frontend {
    /// Reports whether packets to `destination` are for this frontend, if their protocol is the same. `is_local` reports
    /// whether an address is one of the host's.
    pub fn matches(&self, destination: SocketAddr, is_local: impl FnOnce(IpAddr) -> bool) -> bool {
        self.port == destination.port()
            && match self.address {
                Some(address) => address == destination.ip(),
                None => is_local(destination.ip()),
            }
    }
}

impl FrontendKind {
    /// Returns the name for users: `cluster IP`, `external IP`, `load balancer IP` or `node port`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "cluster IP",
            Self::ExternalIp => "external IP",
            Self::LoadBalancer => "load balancer IP",
            Self::NodePort => "node port",
        }
    }
}

impl ServicePort {
    /// Returns the frontends with their kinds: the cluster IP, external IPs, load balancer addresses and the node port,
    /// in this order. An address that the Service lists twice is returned twice.
    ///
    /// The node port's addresses depend on the host: [`ProxySettings::node_ports`] resolves them from the settings, the
    /// Node and the addresses of the host's interfaces.
    ///
    /// [`ProxySettings::node_ports`]: crate::ProxySettings::node_ports
    pub fn frontends(&self, protocol: Protocol) -> impl Iterator<Item = (FrontendKind, Frontend)> + '_ {
        let at = move |kind, address| (kind, Frontend { address: Some(address), protocol, port: self.port });
        let node_port = self.node_port.map(|port| Frontend { address: None, protocol, port: port.get() }).into_iter();
        let cluster_ip = self.cluster_ip.iter().map(move |address| at(FrontendKind::ClusterIp, *address));
        cluster_ip
            .chain(self.external_ips.iter().map(move |address| at(FrontendKind::ExternalIp, *address)))
            .chain(self.load_balancer_vips.iter().map(move |address| at(FrontendKind::LoadBalancer, *address)))
            .chain(node_port.map(|frontend| (FrontendKind::NodePort, frontend)))
    }

    /// Returns the frontends in the order of [`ServicePort::frontends`], but an address that the Service lists twice
    /// once, with the kind of the service port's [`Claim`](crate::Claim).
    pub fn claims(&self, protocol: Protocol) -> impl Iterator<Item = (FrontendKind, Frontend)> + '_ {
        let mut left = self.ranked(protocol);
        self.frontends(protocol).filter(move |(kind, frontend)| {
            left.binary_search(&(*frontend, *kind)).map(|claim| left.remove(claim)).is_ok()
        })
    }

    /// Returns the frontends, each with its best kind, sorted.
    pub(crate) fn ranked(&self, protocol: Protocol) -> Vec<(Frontend, FrontendKind)> {
        let mut claims: Vec<_> = self.frontends(protocol).map(|(kind, frontend)| (frontend, kind)).collect();
        claims.sort_unstable_by_key(|(frontend, kind)| (*frontend, kind.rank()));
        claims.dedup_by_key(|(frontend, _)| *frontend);
        claims
    }

    /// Removes the frontends for which `is_kept` returns false.
    pub fn retain_frontends(&mut self, protocol: Protocol, is_kept: impl Fn(Frontend) -> bool) {
        let is_kept = |address: Option<IpAddr>, port: u16| is_kept(Frontend { address, protocol, port });
        let port = self.port;
        self.cluster_ip = self.cluster_ip.filter(|address| is_kept(Some(*address), port));
        self.external_ips.retain(|address| is_kept(Some(*address), port));
        self.load_balancer_vips.retain(|address| is_kept(Some(*address), port));
        self.node_port = self.node_port.filter(|port| is_kept(None, port.get()));
    }
}

impl fmt::Display for Frontend {
    /// Writes `10.96.0.1:80/tcp`, or `node port 30080/tcp`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{}/{}", SocketAddr::new(address, self.port), self.protocol),
            None => write!(f, "node port {}/{}", self.port, self.protocol),
        }
    }
}

impl fmt::Display for FrontendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::service_port;

    #[test]
    fn frontends_are_all_addresses_and_the_node_port() {
        let port = ServicePort {
            node_port: std::num::NonZeroU16::new(30080),
            external_ips: vec!["198.51.100.1".parse().unwrap()],
            load_balancer_vips: vec!["203.0.113.1".parse().unwrap(), "198.51.100.1".parse().unwrap()],
            ..service_port("10.96.0.1:80")
        };
        let mut frontends: Vec<String> =
            port.frontends(Protocol::Tcp).map(|(kind, frontend)| format!("{kind} {frontend}")).collect();
        assert_eq!(
            frontends,
            [
                "cluster IP 10.96.0.1:80/tcp",
                "external IP 198.51.100.1:80/tcp",
                "load balancer IP 203.0.113.1:80/tcp",
                "load balancer IP 198.51.100.1:80/tcp",
                "node port node port 30080/tcp",
            ]
        );
        let claims = port.claims(Protocol::Tcp).map(|(kind, frontend)| format!("{kind} {frontend}"));
        frontends.remove(1);
        assert_eq!(claims.collect::<Vec<_>>(), frontends);
    }

    #[test]
    fn ipv6_frontends_have_brackets() {
        let only: Vec<_> = service_port("[fd00:96::1]:53").frontends(Protocol::Udp).collect();
        assert_eq!(only.len(), 1);
        assert_eq!(only[0].1.to_string(), "[fd00:96::1]:53/udp");
    }

    #[test]
    fn node_ports_match_local_addresses_only() {
        let destination = "192.168.0.1:30080".parse().unwrap();
        let node_port = Frontend { address: None, protocol: Protocol::Tcp, port: 30080 };
        assert!(node_port.matches(destination, |_| true) && !node_port.matches(destination, |_| false));
        let address = Frontend { address: Some(destination.ip()), ..node_port };
        assert!(address.matches(destination, |_| false));
        assert!(!address.matches("192.168.0.2:30080".parse().unwrap(), |_| true));
        assert!(!Frontend { port: 80, ..address }.matches(destination, |_| true));
    }
}
