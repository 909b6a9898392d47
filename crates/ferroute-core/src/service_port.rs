use std::{net::IpAddr, num::NonZeroU16};

use ipnet::IpNet;

/// Which endpoints may serve a kind of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// All of the cluster's.
    #[default]
    Cluster,
    /// This node's only.
    Local,
}

/// Client-IP affinity: a client keeps its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// Seconds after its last new connection that a client is remembered.
    pub timeout_seconds: u32,
}

/// One port of a Service as one IP family sees it: every address here is of that family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// The address for traffic from inside the cluster.
    pub cluster_ip: IpAddr,
    /// The port of `cluster_ip`, `external_ips` and `load_balancer_vips`.
    pub port: u16,
    /// The port on every node's addresses, if any.
    pub node_port: Option<NonZeroU16>,
    /// Addresses that others route to this node.
    pub external_ips: Vec<IpAddr>,
    /// Load-balancer addresses that packets arrive with (`ipMode` VIP).
    pub load_balancer_vips: Vec<IpAddr>,
    /// Sources that may use `load_balancer_vips`; empty for all.
    pub load_balancer_source_ranges: Vec<IpNet>,
    /// Where this node tells load balancers how many endpoints it has; only with external policy Local.
    pub health_check_node_port: Option<NonZeroU16>,
    /// Whether clients keep their endpoint.
    pub affinity: Option<Affinity>,
    /// For traffic to `cluster_ip`.
    pub internal_policy: TrafficPolicy,
    /// For traffic to all other addresses.
    pub external_policy: TrafficPolicy,
}

impl ServicePort {
    /// Has any address for traffic from outside.
    pub fn externally_accessible(&self) -> bool {
        self.node_port.is_some() || !self.external_ips.is_empty() || !self.load_balancer_vips.is_empty()
    }

    /// Traffic to the cluster IP stays on this node.
    pub fn internal_local(&self) -> bool {
        self.internal_policy == TrafficPolicy::Local
    }

    /// Traffic from outside stays on this node.
    pub fn external_local(&self) -> bool {
        self.external_policy == TrafficPolicy::Local
    }

    /// Some traffic may go to any endpoint of the cluster. With external policy Local too, because pods and the node
    /// itself reach external addresses as if through a load balancer.
    pub fn uses_cluster_endpoints(&self) -> bool {
        !self.internal_local() || self.externally_accessible()
    }

    /// Some traffic may go to this node's endpoints only.
    pub fn uses_local_endpoints(&self) -> bool {
        self.internal_local() || (self.external_local() && self.externally_accessible())
    }
}
