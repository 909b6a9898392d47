//! How the proxy modes differ from each other in what they do with connections: one field per difference, one constant per mode.

use crate::{Balancing, Client, Method, Protocol};

/// What a proxy mode does differently from others. [`forwarding`](crate::PortForwarding) applies the traits, planners encode the
/// result, and the commands compare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeTraits {
    /// The policy Local without a usable endpoint on this node.
    pub without_local_endpoints: WithoutLocalEndpoints,
    /// External policy Local also applies to pods of this node and to the node itself.
    pub local_policy_for_all_clients: bool,
    /// The source address that endpoints see.
    pub sources: Sources,
    /// The protocols that are served. Connections by others are rejected.
    pub protocols: &'static [Protocol],
    /// The endpoints whose connections to themselves are masqueraded.
    pub hairpin: Hairpin,
    /// The node's own connections to an external IP or a load balancer IP without endpoints are rejected. Otherwise they leave
    /// the node, where another host may have the address.
    pub rejects_own_external_connections: bool,
    /// The clients to which source ranges are applied before connections to a Service without endpoints are rejected.
    pub source_ranges_before_rejection: &'static [Client],
    /// Source ranges apply to a load balancer IP even if the Service also lists it as an external IP.
    pub source_ranges_on_external_ips: bool,
    /// Connections to a port of a cluster IP that its Service does not have.
    pub unknown_ports: Unserved,
    /// Packets to addresses in the networks of cluster IPs that no Service has.
    pub unassigned_addresses: Unserved,
    /// Node ports without endpoints are rejected or dropped at all addresses of the node, not only at those that serve node
    /// ports.
    pub refuses_node_ports_at_all_addresses: bool,
    /// Node ports can be served on 127.0.0.1.
    pub localhost_node_ports: bool,
    /// Service addresses are addresses of the host, which respond to ping.
    pub binds_service_addresses: bool,
    /// Rules accept traffic of Services that a firewall in the iptables tables would drop.
    pub accepts_in_firewalls: bool,
    /// The methods that can choose endpoints. A Service that requests another one gets the mode's own.
    pub methods: &'static [Method],
    /// Endpoints get connections in proportion to their weights.
    pub weights: bool,
}

/// What happens to connections with policy Local where this node has no usable endpoint and others have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutLocalEndpoints {
    /// They are dropped, so that a load balancer or the client tries another node.
    Drop,
    /// They use the endpoints of policy Cluster, if the service port has such traffic.
    UseCluster,
}

/// The source address that endpoints see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// The client's, unless the connection has to be masqueraded for its replies to return through this node.
    Clients,
    /// As [`Sources::Clients`], but the node's own connections have the Service's address as their source: those to cluster IPs
    /// are always masqueraded, and those to external addresses with policy Local never.
    ServiceOfNode,
    /// The node's: a process relays all connections.
    Node,
}

/// The endpoints whose connections to themselves through a Service are masqueraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hairpin {
    /// All endpoints.
    All,
    /// Endpoints on this node, and those whose node is unknown.
    OnThisNode,
}

/// What happens to packets for which no Service has a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// No rule matches; they are routed as without a proxy.
    Routed,
    /// They are rejected.
    Rejected,
    /// They are dropped.
    Dropped,
}

impl Unserved {
    /// Returns the value as a participle.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Routed => "routed",
            Self::Rejected => "rejected",
            Self::Dropped => "dropped",
        }
    }
}

impl ModeTraits {
    /// Returns the requested method if the mode does not support it.
    pub fn unsupported_method(&self, balancing: &Balancing) -> Option<Method> {
        balancing.method.filter(|method| !self.methods.contains(method))
    }

    /// kube-proxy's iptables mode.
    pub const IPTABLES: Self = Self {
        without_local_endpoints: WithoutLocalEndpoints::Drop,
        local_policy_for_all_clients: false,
        sources: Sources::Clients,
        protocols: &Protocol::ALL,
        hairpin: Hairpin::All,
        rejects_own_external_connections: false,
        source_ranges_before_rejection: &[],
        source_ranges_on_external_ips: false,
        unknown_ports: Unserved::Routed,
        unassigned_addresses: Unserved::Routed,
        refuses_node_ports_at_all_addresses: true,
        localhost_node_ports: true,
        binds_service_addresses: false,
        accepts_in_firewalls: true,
        methods: &[Method::Random],
        weights: false,
    };

    /// nftables mode.
    pub const NFTABLES: Self = Self {
        hairpin: Hairpin::OnThisNode,
        rejects_own_external_connections: true,
        source_ranges_before_rejection: &Client::ALL,
        source_ranges_on_external_ips: true,
        unknown_ports: Unserved::Rejected,
        unassigned_addresses: Unserved::Dropped,
        refuses_node_ports_at_all_addresses: false,
        accepts_in_firewalls: false,
        methods: &[Method::Random, Method::RoundRobin, Method::SourceHash, Method::SourcePortHash],
        weights: true,
        ..Self::IPTABLES
    };

    /// kube-proxy's ipvs mode.
    pub const IPVS: Self = Self {
        without_local_endpoints: WithoutLocalEndpoints::UseCluster,
        local_policy_for_all_clients: true,
        sources: Sources::ServiceOfNode,
        hairpin: Hairpin::OnThisNode,
        rejects_own_external_connections: true,
        source_ranges_before_rejection: &[Client::Pod, Client::Outside],
        source_ranges_on_external_ips: true,
        unknown_ports: Unserved::Rejected,
        refuses_node_ports_at_all_addresses: false,
        localhost_node_ports: false,
        binds_service_addresses: true,
        methods: &[],
        ..Self::IPTABLES
    };

    /// The historical userspace mode.
    pub const USERSPACE: Self = Self {
        sources: Sources::Node,
        protocols: &[Protocol::Tcp, Protocol::Udp],
        methods: &[Method::RoundRobin],
        ..Self::IPTABLES
    };
}

#[cfg(test)]
mod tests;
