use std::{fmt, net::IpAddr, num::NonZeroU16};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Balancing, ConnectionLimits, CreationTime, FrontendKind};

/// A traffic policy of a Service: the endpoints that traffic may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// All endpoints of the cluster.
    #[default]
    Cluster,
    /// Endpoints on this node.
    Local,
}

impl TrafficPolicy {
    /// Returns the value in the Kubernetes API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}

impl fmt::Display for TrafficPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Client IP affinity: connections of a client go to the same endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    /// Seconds after which a client without new connections may get another endpoint.
    pub timeout_seconds: u32,
}

/// Addresses of a Service, other than those of load balancers, to which source ranges apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceRangesScope {
    /// The cluster IP.
    pub cluster_ip: bool,
    /// External IPs.
    pub external_ips: bool,
    /// The node port.
    pub node_ports: bool,
}

impl SourceRangesScope {
    /// All addresses.
    pub const ALL: Self = Self { cluster_ip: true, external_ips: true, node_ports: true };
    /// The names of the kinds of addresses in annotations.
    pub const NAMES: [&str; 3] = ["cluster-ip", "external-ips", "node-ports"];

    /// Reports whether source ranges apply to addresses of this kind.
    pub fn contains(self, kind: FrontendKind) -> bool {
        match kind {
            FrontendKind::ClusterIp => self.cluster_ip,
            FrontendKind::ExternalIp => self.external_ips,
            FrontendKind::LoadBalancer => true,
            FrontendKind::NodePort => self.node_ports,
        }
    }

    /// Returns the names of the kinds of addresses, as in the annotation.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let Self { cluster_ip, external_ips, node_ports } = self;
        Self::NAMES
            .into_iter()
            .zip([cluster_ip, external_ips, node_ports])
            .filter_map(|(name, is_in)| is_in.then_some(name))
    }

    /// Returns the scope with a kind of addresses; `None` if no kind has this name.
    pub fn with(self, name: &str) -> Option<Self> {
        Some(match Self::NAMES.iter().position(|known| *known == name)? {
            0 => Self { cluster_ip: true, ..self },
            1 => Self { external_ips: true, ..self },
            _ => Self { node_ports: true, ..self },
        })
    }
}

/// A port of a Service in one IP family: all addresses are of that family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Address for traffic within the cluster; `None` if another service port owns it.
    pub cluster_ip: Option<IpAddr>,
    /// Port on `cluster_ip`, `external_ips` and `load_balancer_vips`.
    pub port: u16,
    /// Port on the addresses of every node, if any.
    pub node_port: Option<NonZeroU16>,
    /// Addresses that external routers route to nodes.
    pub external_ips: Vec<IpAddr>,
    /// Addresses of load balancers that do not change the destination of packets that they forward (`ipMode` VIP).
    pub load_balancer_vips: Vec<IpAddr>,
    /// Sources that may use `load_balancer_vips`; empty for all.
    pub load_balancer_source_ranges: Vec<IpNet>,
    /// Other addresses to which the source ranges apply.
    pub source_ranges_scope: SourceRangesScope,
    /// Port on which load balancers query the number of local endpoints; only with external policy Local.
    pub health_check_node_port: Option<NonZeroU16>,
    /// Client IP affinity, if enabled.
    pub affinity: Option<Affinity>,
    /// Policy of traffic to `cluster_ip`.
    pub internal_policy: TrafficPolicy,
    /// Policy of traffic to all other addresses.
    pub external_policy: TrafficPolicy,
    /// Balancing of connections among the endpoints.
    pub balancing: Balancing,
    /// Limits of the connections; `None` if there are none.
    pub limits: Option<Box<ConnectionLimits>>,
    /// Creation time of the Service, by which Services that claim the same address are ordered.
    pub created: CreationTime,
    /// Whether the rest of the cluster depends on the service port: it belongs to the API server or to cluster DNS. If
    /// rules are written in several transactions, its rules are in the first.
    pub is_urgent: bool,
}

impl ServicePort {
    /// Reports whether there is an address for external traffic.
    pub fn externally_accessible(&self) -> bool {
        self.node_port.is_some() || !self.external_ips.is_empty() || !self.load_balancer_vips.is_empty()
    }

    /// Reports whether the internal policy is Local.
    pub fn internal_local(&self) -> bool {
        self.internal_policy == TrafficPolicy::Local
    }

    /// Reports whether the external policy is Local.
    pub fn external_local(&self) -> bool {
        self.external_policy == TrafficPolicy::Local
    }

    /// Reports whether some traffic may use all endpoints of the cluster. This includes external policy Local, because
    /// traffic from pods and the node itself to external addresses has policy Cluster.
    pub fn uses_cluster_endpoints(&self) -> bool {
        !self.internal_local() || self.externally_accessible()
    }

    /// Reports whether some traffic may use only endpoints on this node.
    pub fn uses_local_endpoints(&self) -> bool {
        self.internal_local() || (self.external_local() && self.externally_accessible())
    }
}
