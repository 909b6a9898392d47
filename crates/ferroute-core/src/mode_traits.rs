//! Differences between the proxy modes in the handling of connections: one field per difference, one constant per mode.

use crate::{
    Client, IpFamily, Method, NodePortAddresses, Protocol, ProxySettings,
    limits::{EndpointLimits, MAX_ENDPOINTS},
};

/// Behaviour of a proxy mode that differs from other modes. [`forwarding`](crate::PortForwarding) applies the traits,
/// planners encode the result, and the commands compare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeTraits {
    /// The policy Local without a usable endpoint on this node.
    pub without_local_endpoints: WithoutLocalEndpoints,
    /// Whether external policy Local also applies to pods of this node and to the node itself.
    pub local_policy_for_all_clients: bool,
    /// The source address that endpoints see.
    pub sources: Sources,
    /// The field of the configuration by which all connections to cluster IPs are masqueraded.
    pub masquerade_all: &'static str,
    /// Supported protocols. Connections with other protocols are rejected.
    pub protocols: &'static [Protocol],
    /// Endpoints whose connections to themselves are masqueraded.
    pub hairpin: Hairpin,
    /// Whether the node's own connections to an external IP or a load balancer IP without endpoints are rejected.
    /// Otherwise they leave the node, because another host may have the address.
    pub rejects_own_external_connections: bool,
    /// Clients to which source ranges are applied before connections to a Service without endpoints are rejected.
    pub source_ranges_before_rejection: &'static [Client],
    /// Whether source ranges apply to a load balancer IP that the Service also lists as an external IP.
    pub source_ranges_on_external_ips: bool,
    /// Handling of connections to a port of a cluster IP that its Service does not have.
    pub unknown_ports: Unserved,
    /// Handling of packets to addresses in the networks of cluster IPs that no Service has.
    pub unassigned_addresses: Unserved,
    /// Addresses that serve node ports if none are configured.
    pub node_ports_by_default: NodePortsByDefault,
    /// Whether node ports without endpoints are rejected or dropped at all addresses of the node, not only at those
    /// that serve node ports.
    pub refuses_node_ports_at_all_addresses: bool,
    /// IP families whose node ports can be served on localhost.
    pub localhost_node_ports: &'static [IpFamily],
    /// Whether node ports that are served at all addresses of the node are also served at IPv6 link-local ones.
    pub link_local_node_ports: bool,
    /// Whether Service addresses are addresses of the host, which respond to ping.
    pub binds_service_addresses: bool,
    /// Whether rules accept traffic of Services that a firewall in the iptables tables would drop.
    pub accepts_in_firewalls: bool,
    /// Supported methods of choosing endpoints. A Service that requests an unsupported method gets the default of the
    /// mode.
    pub methods: &'static [Method],
    /// Whether [`Method::LeastConnections`] chooses by weights that the proxy sets, instead of by counts of the kernel.
    pub least_connections_by_weights: bool,
    /// Whether endpoints get connections in proportion to their weights.
    pub weights: bool,
    /// Whether open connections to a terminating endpoint end after the time that a Service requests.
    pub drain_timeouts: bool,
    /// Whether a Service can request source ranges for addresses other than those of load balancers.
    pub source_ranges_scope: bool,
    /// Whether the limits of connections that a Service requests are enforced.
    pub limits: bool,
    /// Maximum numbers of endpoints of a service port.
    pub endpoint_limits: EndpointLimits,
}

/// Handling of connections with policy Local if only other nodes have usable endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutLocalEndpoints {
    /// Dropped, so that a load balancer or the client tries another node.
    Drop,
    /// Forwarded to the endpoints of policy Cluster, if the service port has such traffic.
    UseCluster,
}

/// The source address that endpoints see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// The client's address, unless the connection has to be masqueraded for its replies to return through this node.
    Clients,
    /// As [`Sources::Clients`], but the node's own connections have the Service's address as their source. Those to
    /// cluster IPs are always masqueraded, and those to external addresses with policy Local only if this node has no
    /// endpoint.
    ServiceOfNode,
    /// The node's: a process relays all connections.
    Node,
}

/// Endpoints whose connections to themselves through a Service are masqueraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hairpin {
    /// All endpoints.
    All,
    /// Endpoints on this node or on an unknown one.
    OnThisNode,
}

/// The addresses that serve node ports without `nodePortAddresses`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePortsByDefault {
    /// All addresses of the node.
    AllAddresses,
    /// The node's primary address of each IP family.
    PrimaryAddress,
}

impl From<NodePortsByDefault> for NodePortAddresses {
    fn from(default: NodePortsByDefault) -> Self {
        match default {
            NodePortsByDefault::AllAddresses => Self::All,
            NodePortsByDefault::PrimaryAddress => Self::Primary,
        }
    }
}

/// Handling of packets for which no Service has a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// No rule matches; they are routed as without a proxy.
    Routed,
    /// Rejected.
    Rejected,
    /// Dropped.
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
    /// kube-proxy's iptables mode.
    pub const IPTABLES: Self = Self {
        without_local_endpoints: WithoutLocalEndpoints::Drop,
        local_policy_for_all_clients: false,
        sources: Sources::Clients,
        masquerade_all: "iptables.masqueradeAll",
        protocols: &Protocol::ALL,
        hairpin: Hairpin::All,
        rejects_own_external_connections: false,
        source_ranges_before_rejection: &[],
        source_ranges_on_external_ips: false,
        unknown_ports: Unserved::Routed,
        unassigned_addresses: Unserved::Routed,
        node_ports_by_default: NodePortsByDefault::AllAddresses,
        refuses_node_ports_at_all_addresses: true,
        localhost_node_ports: &[IpFamily::V4],
        link_local_node_ports: true,
        binds_service_addresses: false,
        accepts_in_firewalls: true,
        methods: &[Method::Random],
        least_connections_by_weights: false,
        weights: false,
        drain_timeouts: true,
        source_ranges_scope: false,
        limits: false,
        // Affinity is a rule and a list of clients for each endpoint.
        endpoint_limits: EndpointLimits { balanced: MAX_ENDPOINTS, sticky: 4_095 },
    };

    /// nftables mode.
    pub const NFTABLES: Self = Self {
        masquerade_all: "nftables.masqueradeAll",
        hairpin: Hairpin::OnThisNode,
        rejects_own_external_connections: true,
        source_ranges_before_rejection: &Client::ALL,
        source_ranges_on_external_ips: true,
        unknown_ports: Unserved::Rejected,
        unassigned_addresses: Unserved::Dropped,
        node_ports_by_default: NodePortsByDefault::PrimaryAddress,
        refuses_node_ports_at_all_addresses: false,
        localhost_node_ports: &IpFamily::BOTH,
        accepts_in_firewalls: false,
        methods: &Method::ALL,
        least_connections_by_weights: true,
        weights: true,
        source_ranges_scope: true,
        limits: true,
        // The time to fill a hash table is proportional to its size and to the number of endpoints. The kernel remembers a client's
        // endpoint as a number of 12 bits that is not zero.
        endpoint_limits: EndpointLimits { balanced: 2_048, sticky: 4_095 },
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
        localhost_node_ports: &[],
        link_local_node_ports: false,
        binds_service_addresses: true,
        // The default method is the configured scheduler.
        methods: &[Method::RoundRobin, Method::SourceHash, Method::SourcePortHash, Method::LeastConnections],
        weights: true,
        drain_timeouts: false,
        endpoint_limits: EndpointLimits::NONE,
        ..Self::IPTABLES
    };

    /// The historical userspace mode.
    pub const USERSPACE: Self = Self {
        sources: Sources::Node,
        protocols: &[Protocol::Tcp, Protocol::Udp],
        methods: &[Method::RoundRobin],
        drain_timeouts: false,
        endpoint_limits: EndpointLimits::NONE,
        ..Self::IPTABLES
    };
}

/// A field of [`ModeTraits`] with its description, for documentation and for comparisons of modes.
#[derive(Debug)]
pub struct ModeTrait {
    /// The name in JSON.
    pub name: &'static str,
    /// Description of the trait: a statement or a topic, to which [`ModeTrait::value`] is the answer.
    pub title: &'static str,
    value: fn(&ModeTraits) -> String,
    copy: fn(&mut ConfiguredMode, &ConfiguredMode),
}

/// A mode with the settings that a configuration has for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredMode {
    /// The traits of the mode.
    pub traits: ModeTraits,
    /// The settings.
    pub settings: ProxySettings,
}

impl ModeTrait {
    /// Returns the value in words.
    pub fn value(&self, traits: &ModeTraits) -> String {
        (self.value)(traits)
    }

    /// Returns `mode` with this trait, and the settings that depend on it, taken from `other`.
    pub fn replaced(&self, mode: &ConfiguredMode, other: &ConfiguredMode) -> ConfiguredMode {
        let mut replaced = mode.clone();
        (self.copy)(&mut replaced, other);
        replaced
    }

    /// All traits, in the order of [`ModeTraits`].
    pub const ALL: &'static [Self] = &[
        Self {
            name: "withoutLocalEndpoints",
            title: "policy Local, and no endpoint on this node",
            value: |traits| match traits.without_local_endpoints {
                WithoutLocalEndpoints::Drop => "dropped".to_owned(),
                WithoutLocalEndpoints::UseCluster => "endpoints of other nodes".to_owned(),
            },
            copy: |mode, other| mode.traits.without_local_endpoints = other.traits.without_local_endpoints,
        },
        Self {
            name: "localPolicyForAllClients",
            title: "external policy Local also applies to pods and the node itself",
            value: |traits| yes(traits.local_policy_for_all_clients),
            copy: |mode, other| mode.traits.local_policy_for_all_clients = other.traits.local_policy_for_all_clients,
        },
        Self {
            name: "sources",
            title: "source address that endpoints see, with external policy Local",
            value: |traits| match traits.sources {
                Sources::Clients => "the client's".to_owned(),
                Sources::ServiceOfNode => {
                    "the client's; of the node's own connections the Service's, or the node's without endpoints on it"
                        .to_owned()
                }
                Sources::Node => "always the node's".to_owned(),
            },
            copy: |mode, other| mode.traits.sources = other.traits.sources,
        },
        Self {
            name: "masqueradeAll",
            title: "all connections to cluster IPs are masqueraded by",
            value: |traits| format!("`{}`", traits.masquerade_all),
            copy: |mode, other| {
                mode.traits.masquerade_all = other.traits.masquerade_all;
                mode.settings.masquerade_all = other.settings.masquerade_all;
            },
        },
        Self {
            name: "protocols",
            title: "protocols",
            value: |traits| list(traits.protocols.iter().map(|protocol| protocol.as_str().to_uppercase())),
            copy: |mode, other| mode.traits.protocols = other.traits.protocols,
        },
        Self {
            name: "hairpin",
            title: "connections of an endpoint to itself are masqueraded",
            value: |traits| match traits.hairpin {
                Hairpin::All => "yes".to_owned(),
                Hairpin::OnThisNode => "on this node".to_owned(),
            },
            copy: |mode, other| mode.traits.hairpin = other.traits.hairpin,
        },
        Self {
            name: "rejectsOwnExternalConnections",
            title: "the node's own connections to external addresses without endpoints",
            value: |traits| match traits.rejects_own_external_connections {
                true => "rejected".to_owned(),
                false => "leave the node".to_owned(),
            },
            copy: |mode, other| {
                mode.traits.rejects_own_external_connections = other.traits.rejects_own_external_connections;
            },
        },
        Self {
            name: "sourceRangesBeforeRejection",
            title: "source ranges also apply without endpoints",
            value: |traits| match traits.source_ranges_before_rejection {
                [] => "no".to_owned(),
                [Client::Pod, Client::Outside] => "except for the node's own".to_owned(),
                _ => "yes".to_owned(),
            },
            copy: |mode, other| {
                mode.traits.source_ranges_before_rejection = other.traits.source_ranges_before_rejection;
            },
        },
        Self {
            name: "sourceRangesOnExternalIps",
            title: "source ranges apply to a load balancer IP that is also an external IP",
            value: |traits| yes(traits.source_ranges_on_external_ips),
            copy: |mode, other| mode.traits.source_ranges_on_external_ips = other.traits.source_ranges_on_external_ips,
        },
        Self {
            name: "unknownPorts",
            title: "connections to unknown ports of cluster IPs",
            value: |traits| traits.unknown_ports.as_str().to_owned(),
            copy: |mode, other| mode.traits.unknown_ports = other.traits.unknown_ports,
        },
        Self {
            name: "unassignedAddresses",
            title: "packets to unassigned addresses in ServiceCIDRs",
            value: |traits| traits.unassigned_addresses.as_str().to_owned(),
            copy: |mode, other| mode.traits.unassigned_addresses = other.traits.unassigned_addresses,
        },
        Self {
            name: "nodePortsByDefault",
            title: "node ports are served without `nodePortAddresses` on",
            value: |traits| match traits.node_ports_by_default {
                NodePortsByDefault::AllAddresses => "all addresses of the node".to_owned(),
                NodePortsByDefault::PrimaryAddress => "its primary address".to_owned(),
            },
            copy: |mode, other| {
                mode.traits.node_ports_by_default = other.traits.node_ports_by_default;
                mode.settings.node_port_addresses.clone_from(&other.settings.node_port_addresses);
                copy_localhost_node_ports(mode, other);
            },
        },
        Self {
            name: "refusesNodePortsAtAllAddresses",
            title: "node ports without endpoints are refused at",
            value: |traits| match traits.refuses_node_ports_at_all_addresses {
                true => "all addresses of the node".to_owned(),
                false => "`nodePortAddresses`".to_owned(),
            },
            copy: |mode, other| {
                mode.traits.refuses_node_ports_at_all_addresses = other.traits.refuses_node_ports_at_all_addresses;
            },
        },
        Self {
            name: "localhostNodePorts",
            title: "node ports can be served on localhost",
            value: |traits| match traits.localhost_node_ports {
                [] => "no".to_owned(),
                families => list(families.iter().map(|family| family.localhost().to_string())),
            },
            copy: |mode, other| {
                mode.traits.localhost_node_ports = other.traits.localhost_node_ports;
                copy_localhost_node_ports(mode, other);
            },
        },
        Self {
            name: "linkLocalNodePorts",
            title: "node ports can be served on IPv6 link-local addresses",
            value: |traits| yes(traits.link_local_node_ports),
            copy: |mode, other| mode.traits.link_local_node_ports = other.traits.link_local_node_ports,
        },
        Self {
            name: "bindsServiceAddresses",
            title: "Service addresses are addresses of the host",
            value: |traits| yes(traits.binds_service_addresses),
            copy: |mode, other| mode.traits.binds_service_addresses = other.traits.binds_service_addresses,
        },
        Self {
            name: "acceptsInFirewalls",
            title: "Service traffic is accepted in the iptables tables",
            value: |traits| yes(traits.accepts_in_firewalls),
            copy: |mode, other| mode.traits.accepts_in_firewalls = other.traits.accepts_in_firewalls,
        },
        Self {
            name: "methods",
            title: "methods that choose endpoints",
            value: |traits| list(traits.methods.iter().map(|method| method.as_str().to_owned())),
            copy: |mode, other| mode.traits.methods = other.traits.methods,
        },
        Self {
            name: "leastConnectionsByWeights",
            title: "least connections follow weights, once per second",
            value: |traits| yes(traits.least_connections_by_weights),
            copy: |mode, other| mode.traits.least_connections_by_weights = other.traits.least_connections_by_weights,
        },
        Self {
            name: "weights",
            title: "weights of endpoints",
            value: |traits| yes(traits.weights),
            copy: |mode, other| mode.traits.weights = other.traits.weights,
        },
        Self {
            name: "drainTimeouts",
            title: "deadlines of connections to terminating endpoints",
            value: |traits| yes(traits.drain_timeouts),
            copy: |mode, other| mode.traits.drain_timeouts = other.traits.drain_timeouts,
        },
        Self {
            name: "sourceRangesScope",
            title: "source ranges of other addresses than load balancer IPs",
            value: |traits| yes(traits.source_ranges_scope),
            copy: |mode, other| mode.traits.source_ranges_scope = other.traits.source_ranges_scope,
        },
        Self {
            name: "limits",
            title: "limits of connections",
            value: |traits| yes(traits.limits),
            copy: |mode, other| mode.traits.limits = other.traits.limits,
        },
        Self {
            name: "endpointLimits",
            title: "most endpoints of a port with a method other than `random`; with session affinity",
            value: |traits| {
                let EndpointLimits { balanced, sticky } = traits.endpoint_limits;
                format!("{balanced}; {sticky}")
            },
            copy: |mode, other| mode.traits.endpoint_limits = other.traits.endpoint_limits,
        },
    ];
}

fn copy_localhost_node_ports(mode: &mut ConfiguredMode, other: &ConfiguredMode) {
    mode.settings.localhost_node_ports = other.settings.localhost_node_ports;
    mode.settings.ipv6_localhost_node_ports = other.settings.ipv6_localhost_node_ports;
}

fn yes(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

fn list(values: impl Iterator<Item = String>) -> String {
    values.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
