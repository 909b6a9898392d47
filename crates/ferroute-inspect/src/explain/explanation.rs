use std::{
    borrow::Cow,
    fmt,
    net::{IpAddr, SocketAddr},
    num::{NonZeroU16, NonZeroU32},
};

use ferroute_admin::{health::HealthCheck, history::Unapplied};
use ferroute_core::{
    Affinity, ConnectionLimits, Ejection, Eligibility, FrontendKind, IpFamily, Method, Protocol, Refusal, Reservation,
    TrafficPolicy,
};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Explanation of the handling of a Service by the proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `namespace/name`.
    pub service: String,
    /// The `type` field.
    #[serde(rename = "type")]
    pub type_: String,
    /// The node that the explanation is for.
    pub node: String,
    /// The node's zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Handling of the Service.
    #[serde(flatten)]
    pub handling: Handling,
    /// The cluster IPs to which this node has no route, so that its own connections fail.
    #[serde(rename = "unroutedAddresses", default, skip_serializing_if = "Vec::is_empty")]
    pub unrouted: Vec<IpAddr>,
    /// Reason why the state of the kernel is missing or incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_error: Option<String>,
}

impl Explanation {
    /// Removes all ports but those with a name or number.
    ///
    /// # Errors
    /// If the Service has no such port.
    pub fn select_port(&mut self, selected: &str) -> Result<(), String> {
        let Handling::Served { ports, .. } = &mut self.handling else { return Ok(()) };
        let has_number =
            |port: &ExplainedPort| port.frontends.iter().any(|frontend| frontend.port.to_string() == selected);
        let is_selected = |port: &ExplainedPort| port.name == selected || has_number(port);
        if !ports.iter().any(is_selected) {
            let mut numbers: Vec<String> = ports.iter().filter_map(ExplainedPort::number).collect();
            numbers.dedup();
            return Err(format!("{} has no port {selected} (it has {})", self.service, numbers.join(", ")));
        }
        ports.retain(is_selected);
        Ok(())
    }
}

impl ExplainedPort {
    /// Returns the port of the first frontend with its protocol: `80/tcp`.
    fn number(&self) -> Option<String> {
        self.frontends.first().map(|frontend| format!("{}/{}", frontend.port, self.protocol))
    }
}

/// Handling of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "handling")]
#[expect(clippy::large_enum_variant, reason = "there is one value in an answer")]
pub enum Handling {
    /// The proxy serves it.
    #[serde(rename_all = "camelCase")]
    Served {
        /// Policies of all its ports.
        policies: Policies,
        /// Ignored fields, with the reasons. Those of EndpointSlices begin with the slice.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ignored: Vec<String>,
        /// Errors of the last version, by field: the proxy keeps the rules of an earlier one.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        invalid_update: Vec<String>,
        /// Ports, IPv4 first.
        ports: Vec<ExplainedPort>,
        /// Slices of an IP family in which the Service has no cluster IP.
        #[serde(rename = "unexpectedSlices", default, skip_serializing_if = "Vec::is_empty")]
        unused_slices: Vec<UnusedSlice>,
    },
    /// The proxy skips it.
    #[serde(rename = "notServed")]
    Skipped {
        /// The reason.
        reason: String,
        /// The reason as a word: `otherProxy`, `externalName`, `headless`.
        #[serde(default)]
        code: Cow<'static, str>,
    },
    /// Invalid: the proxy has no rules for it, or keeps those of its last valid version.
    Invalid {
        /// The file that defines it, if it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<String>,
        /// Its first line in the file, from 1, if it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        line: Option<usize>,
        /// The errors, by field.
        #[serde(rename = "problems")]
        errors: Vec<String>,
    },
}

/// The policies of all ports of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policies {
    /// `internalTrafficPolicy`, for cluster IPs.
    pub internal_traffic: TrafficPolicy,
    /// `externalTrafficPolicy`, for all other addresses; `None` if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_traffic: Option<TrafficPolicy>,
    /// Session affinity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// The clients that may use the load balancer's addresses; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ranges: Vec<IpNet>,
    /// Other addresses that only these clients may use: `cluster-ip`, `external-ips`, `node-ports`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ranges_scope: Vec<String>,
    /// Balancing of connections among endpoints, if the Service requests it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balancing: Option<ExplainedBalancing>,
    /// The limits of the connections to each port, in each IP family and on each node by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ConnectionLimits>,
    /// IP families whose load balancer addresses are open to all clients, because all source ranges are of the other
    /// family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unrestricted_families: Vec<IpFamily>,
    /// The preferred endpoints. The proxy only uses the hints in the slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<String>,
    /// The health check for load balancers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<ExplainedHealthCheck>,
}

/// The health check of a Service, and where it is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedHealthCheck {
    /// The health check.
    #[serde(flatten)]
    pub check: HealthCheck,
    /// The node's addresses that serve it; an unspecified address for all of its IP family.
    pub node_addresses: Vec<IpAddr>,
}

/// Balancing of connections among the endpoints of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedBalancing {
    /// Method; `None` for the default of the mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// The failed connections for which an endpoint gets no connections for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passive_ejection: Option<Ejection>,
    /// Seconds in which a new endpoint reaches its full share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_start_seconds: Option<NonZeroU32>,
    /// Number of connections of an endpoint in the node's zone for each connection of an endpoint elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone_weight: Option<NonZeroU16>,
    /// Seconds after which open connections to a terminating endpoint end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_timeout_seconds: Option<NonZeroU32>,
    /// Number of positions of the hash table; `None` for methods that do not use hashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_size: Option<usize>,
}

/// A port of a Service, in one IP family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedPort {
    /// Name; may be empty.
    pub name: String,
    /// The IP family.
    pub family: IpFamily,
    /// The protocol.
    pub protocol: Protocol,
    /// Reason why the running proxy has not applied these rules, if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_applied: Option<Unapplied>,
    /// Frontends.
    pub frontends: Vec<ExplainedFrontend>,
    /// All endpoints that the slices have for it.
    pub endpoints: Vec<ExplainedEndpoint>,
    /// The number of further endpoints, which are not used because there are too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub excess_endpoints: usize,
    /// Slices of the Service without this port.
    #[serde(rename = "unexpectedSlices", default, skip_serializing_if = "Vec::is_empty")]
    pub unused_slices: Vec<UnusedSlice>,
    /// Rules and connections in the kernel, if they could be read.
    #[serde(rename = "applied", default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelState>,
}

/// A frontend of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedFrontend {
    /// Kind.
    pub kind: FrontendKind,
    /// Addresses; for a node port, the node addresses that serve it, empty for all.
    pub addresses: Vec<IpAddr>,
    /// Addresses of the node that do not serve the node port, although all others do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<NodeAddresses>,
    /// Port.
    pub port: u16,
    /// Handling of connections, by client; empty if the frontend has another owner, or if no address serves it.
    pub answers: Vec<Answer>,
    /// The outcome of connections to the node port at the other addresses of the node, if they are refused as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<Outcome>,
    /// Whether no address of the node serves the node port, because none is in `nodePortAddresses`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unserved: bool,
    /// The owner of the frontend, if it is not this service port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<FrontendOwner>,
}

/// Addresses that every node may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeAddresses {
    /// `127.0.0.0/8` or `::1`.
    Localhost,
    /// IPv6 link-local addresses.
    LinkLocal,
}

impl NodeAddresses {
    /// Returns the addresses in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Localhost => "localhost",
            Self::LinkLocal => "link-local ones",
        }
    }
}

/// The owner of a frontend that the service port does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase", untagged)]
pub enum FrontendOwner {
    /// Another service port.
    ServicePort {
        /// `namespace/name:port`.
        service_port: String,
        /// The kind of its claim.
        kind: FrontendKind,
    },
    /// Reserved; no Service may have the frontend.
    Reserved {
        /// Reason of the reservation.
        reserved: Reservation,
    },
}

impl fmt::Display for FrontendOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServicePort { service_port, kind } => write!(f, "belongs to {service_port} ({kind})"),
            Self::Reserved { reserved } => write!(f, "is reserved for {reserved}"),
        }
    }
}

/// Handling of connections of some clients to a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The clients.
    pub clients: Clients,
    /// Outcome of their connections.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A group of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Clients {
    /// All clients.
    All,
    /// The cluster's pods, as detected by `detectLocalMode`, and the node itself.
    PodsAndNode,
    /// The cluster's pods, as detected by `detectLocalMode`.
    Pods,
    /// The node itself.
    Node,
    /// All other clients, within the source ranges if there are any.
    Others,
    /// Clients outside of the load balancer's source ranges.
    OutsideSourceRanges,
    /// The same without the node itself.
    OthersOutsideSourceRanges,
}

/// Outcome of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "outcome")]
pub enum Outcome {
    /// An endpoint serves it.
    Served {
        /// The traffic policy that selects the endpoints.
        policy: TrafficPolicy,
        /// The number of endpoints.
        endpoints: usize,
        /// The source address that they see.
        source: Source,
    },
    /// Rejected.
    Rejected {
        /// The reason.
        reason: Reason,
    },
    /// Dropped.
    Dropped {
        /// The reason.
        reason: Reason,
    },
    /// Not handled: the proxy has no rule for the connection, which leaves the node.
    NotHandled,
}

/// The reason why a connection reaches no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// There are no usable endpoints.
    NoEndpoints,
    /// The traffic policy is Local, and this node has no usable endpoint.
    NoLocalEndpoints,
    /// The proxy mode does not support the protocol.
    UnsupportedProtocol,
    /// The client is outside of the load balancer's source ranges.
    SourceRanges,
}

/// The source address that an endpoint sees. For hairpin connections it is always the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// The client's.
    Client,
    /// The node's: the connection is masqueraded.
    Node,
    /// The client's address if it is a pod of the cluster, otherwise the node's.
    PodOrNode,
    /// The Service's, from which the node sends to the Service in ipvs mode.
    Service,
}

/// An endpoint, and whether it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedEndpoint {
    /// Address and port.
    pub address: SocketAddr,
    /// The pod's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The node on which it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// State.
    pub state: EndpointState,
    /// Whether it is on this node.
    pub local: bool,
    /// Whether the endpoint is in `noMasqueradeCIDRs`, so that it sees the addresses of clients even if other endpoints
    /// see the node's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_sources: bool,
    /// Weight, if it is not 1 and the mode uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Whether its node is unknown, because the slice has no `nodeName`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub node_unknown: bool,
    /// The zones in its hints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hinted_zones: Vec<String>,
    /// The nodes in its hints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hinted_nodes: Vec<String>,
    /// Use for traffic with policy Cluster; `None` if the Service has no such traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Usage>,
    /// Use for traffic with policy Local; `None` if the Service has no such traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_only: Option<Usage>,
}

/// The state of an endpoint, from its three conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EndpointState {
    /// Ready.
    Ready,
    /// Terminating, but ready because of `publishNotReadyAddresses`.
    ReadyTerminating,
    /// Neither ready nor terminating.
    NotReady,
    /// Terminating and still serving.
    ServingTerminating,
    /// Terminating and not serving.
    Terminating,
}

/// Whether and why an endpoint is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "UsageFields", from = "UsageFields")]
pub struct Usage(
    /// Eligibility.
    pub Eligibility,
);

/// The fields of [`Usage`] in JSON.
#[derive(Serialize, Deserialize)]
struct UsageFields {
    used: bool,
    reason: Eligibility,
}

/// A slice whose endpoints are not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnusedSlice {
    /// `namespace/name` of the slice.
    pub slice: String,
    /// The number of its endpoints.
    pub endpoints: usize,
    /// The reason.
    pub reason: String,
    /// The reason as a word: `otherFamily` or `otherPorts`.
    #[serde(default)]
    pub code: Cow<'static, str>,
}

/// The state of a service port in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelState {
    /// Rules, or elements of sets and maps; `None` if they could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<ServiceRule>>,
    /// The connections to its frontends, by endpoint; `None` if they could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<Vec<ConnectionCount>>,
}

/// A rule or element of a service port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRule {
    /// Table and chain, or table and set.
    pub location: String,
    /// The rule in the syntax of its tool.
    pub text: String,
    /// The packets counted, in `nat` tables only the first of each connection; `None` without a counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// The bytes counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// The number of connections to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionCount {
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// The number of conntrack entries.
    pub connections: usize,
    /// Number of entries whose connection is still open.
    pub open: usize,
    /// Whether new connections may use the endpoint.
    pub current: bool,
    /// Whether the endpoint is terminating, so that its open connections are draining.
    pub terminating: bool,
}

impl From<Refusal> for Reason {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoEndpoints => Self::NoEndpoints,
            Refusal::NoLocalEndpoints => Self::NoLocalEndpoints,
            Refusal::UnsupportedProtocol => Self::UnsupportedProtocol,
            Refusal::SourceRanges => Self::SourceRanges,
        }
    }
}

// === texts ===

impl Reason {
    /// Returns the reason as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoEndpoints => "no usable endpoints",
            Self::NoLocalEndpoints => "policy Local, and no endpoint on this node",
            Self::UnsupportedProtocol => "the proxy mode does not support the protocol",
            Self::SourceRanges => "not in the source ranges",
        }
    }
}

impl Usage {
    /// Returns the reason.
    pub fn reason(self) -> &'static str {
        match self.0 {
            Eligibility::Ready => "ready",
            Eligibility::ServingTerminating => "terminating, but no endpoint is ready",
            Eligibility::NotReady => "not ready",
            Eligibility::TerminatingNotServing => "terminating and not serving",
            Eligibility::Terminating => "terminating, and other endpoints are ready",
            Eligibility::OtherNode => "on another node",
            Eligibility::HintedOtherNode => "hints name other nodes",
            Eligibility::HintedOtherZone => "hints name other zones",
            Eligibility::Drained => "weight 0",
            Eligibility::Ejected => "its connections failed",
            Eligibility::UnsupportedProtocol => "the proxy mode does not support the protocol",
        }
    }

    /// Reports whether new connections may use the endpoint.
    pub fn is_used(self) -> bool {
        self.0.is_eligible()
    }
}

impl From<Usage> for UsageFields {
    fn from(usage: Usage) -> Self {
        Self { used: usage.is_used(), reason: usage.0 }
    }
}

impl From<UsageFields> for Usage {
    fn from(fields: UsageFields) -> Self {
        Self(fields.reason)
    }
}

impl EndpointState {
    /// Returns the state as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::ReadyTerminating => "ready, terminating",
            Self::NotReady => "not ready",
            Self::ServingTerminating => "terminating, still serving",
            Self::Terminating => "terminating",
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}
