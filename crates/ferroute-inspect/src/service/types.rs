use std::net::{IpAddr, SocketAddr};

use ferroute_core::{FrontendKind, IpFamily, Protocol, Eligibility, TrafficPolicy};
use ipnet::IpNet;
use serde::{Serialize, Serializer};

/// What the proxy makes of one Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `namespace/name`.
    pub service: String,
    /// Its type, as the object says it.
    #[serde(rename = "type")]
    pub type_: String,
    /// The node that this is true on.
    pub node: String,
    /// The node's zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// What is done.
    #[serde(flatten)]
    pub handling: Handling,
    /// Why what is in the kernel is not told, or not all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
}

/// Whether a Service is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "handling")]
pub enum Handling {
    /// It is.
    #[serde(rename_all = "camelCase")]
    Served {
        /// What it asks for, for all its ports.
        policies: Policies,
        /// Its ports, those of IPv4 first.
        ports: Vec<ExplainedPort>,
        /// Slices of a family that it has no cluster IP of.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        strays: Vec<Stray>,
    },
    /// It is none of this proxy's business.
    NotServed {
        /// Why.
        why: String,
    },
    /// Something is wrong with it, so there are no rules for it, or those for what it was before.
    Invalid {
        /// What, by field.
        faults: Vec<String>,
    },
}

/// What a Service asks for, for all its ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policies {
    /// For traffic to cluster IPs.
    #[serde(serialize_with = "api_policy")]
    pub internal_traffic: TrafficPolicy,
    /// For traffic to all other addresses; `None` where there are none.
    #[serde(serialize_with = "optional_policy", skip_serializing_if = "Option::is_none")]
    pub external_traffic: Option<TrafficPolicy>,
    /// Clients keep their endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Who may use the load balancer's addresses; empty for everybody.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source_ranges: Vec<IpNet>,
    /// Which endpoints it would have clients prefer. What counts are the hints in its slices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<String>,
    /// The port that tells load balancers about this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
}

/// Client-IP affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    /// Seconds after its last new connection that a client is remembered.
    pub timeout_seconds: u32,
}

/// What load balancers hear from a health-check node port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// The port, on every address of the node.
    pub port: u16,
    /// Ready endpoints of this node, each address once. With none the answer is 503.
    pub local_endpoints: usize,
}

/// A port of a Service, in one IP family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedPort {
    /// Its name; empty where it has none.
    pub name: String,
    /// The family.
    #[serde(serialize_with = "crate::text")]
    pub family: IpFamily,
    /// The protocol.
    #[serde(serialize_with = "crate::text")]
    pub protocol: Protocol,
    /// Where clients connect to.
    pub frontends: Vec<ExplainedFrontend>,
    /// All endpoints that slices name for it.
    pub endpoints: Vec<ExplainedEndpoint>,
    /// Slices of the Service that have nothing for this port.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strays: Vec<Stray>,
    /// What is in the kernel, where it could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_force: Option<InForce>,
}

/// A place that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedFrontend {
    /// What it is.
    #[serde(serialize_with = "frontend_kind")]
    pub kind: FrontendKind,
    /// Its addresses; for a node port those that it answers on, none if it answers on all of the node's.
    pub addresses: Vec<IpAddr>,
    /// Its port.
    pub port: u16,
    /// What becomes of connections, by who makes them.
    pub answers: Vec<Answer>,
}

/// What becomes of connections to a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Whose.
    pub clients: Clients,
    /// What.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Clients {
    /// Anybody.
    All,
    /// This cluster's pods, as far as they can be told, and the node itself.
    PodsAndNode,
    /// The node itself; pods cannot be told from others.
    Node,
    /// All but those named before.
    Others,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "outcome")]
pub enum Outcome {
    /// It gets to an endpoint.
    Served {
        /// The policy whose endpoints are used.
        #[serde(serialize_with = "api_policy")]
        policy: TrafficPolicy,
        /// How many there are.
        endpoints: usize,
        /// Whose address they see.
        source: Source,
    },
    /// It is refused: nothing serves anywhere.
    Refused,
    /// It is dropped: policy Local asks for an endpoint of this node, and there is none.
    Dropped,
}

/// Whose address an endpoint sees. One that calls itself always sees the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// The client's.
    Client,
    /// The node's: the connection is masqueraded.
    Node,
    /// The client's if it is a pod of this cluster, else the node's.
    PodOrNode,
}

/// An endpoint and what it is good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedEndpoint {
    /// Address and port.
    pub address: SocketAddr,
    /// The pod there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Its state.
    pub state: EndpointState,
    /// It runs on this node.
    pub local: bool,
    /// Zones that should use it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hinted_zones: Vec<String>,
    /// Nodes that should use it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hinted_nodes: Vec<String>,
    /// Whether traffic of policy Cluster uses it; `None` if there is no such traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Usage>,
    /// Whether traffic of policy Local uses it; `None` if there is no such traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_only: Option<Usage>,
}

/// The state of an endpoint, from its three conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum EndpointState {
    /// Takes connections.
    Ready,
    /// Takes connections although it is on its way out (`publishNotReadyAddresses`).
    ReadyTerminating,
    /// Takes none, and is not on its way out.
    NotReady,
    /// Is on its way out and still answers.
    ServingTerminating,
    /// Is on its way out and answers no more.
    Terminating,
}

/// Whether an endpoint is used, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "UsageText")]
pub struct Usage(
    /// How it stands in the choice.
    pub Eligibility,
);

#[derive(Serialize)]
struct UsageText {
    used: bool,
    why: &'static str,
}

/// A slice of which nothing is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stray {
    /// `namespace/name` of the slice.
    pub slice: String,
    /// How many endpoints it has.
    pub endpoints: usize,
    /// Why they are not used.
    pub why: String,
}

/// What the kernel holds of a service port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InForce {
    /// Rules, or elements of sets and maps, that come from it; `None` if they could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<OwnRule>>,
    /// Connections to its frontends, by the endpoint that answers; `None` if they could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<Vec<FlowCount>>,
}

/// A rule or element that comes from a service port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnRule {
    /// Table and chain, or table and set.
    pub place: String,
    /// As its tool prints it.
    pub text: String,
    /// Packets that it has counted; in `nat` tables only the first of each connection comes by. `None`: it does not
    /// count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Their bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// How many connections an endpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowCount {
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// Entries of the connection table that lead there.
    pub flows: usize,
    /// It is one of those that are used now; connections to others were made before it was taken out.
    pub current: bool,
}

// === texts ===

impl Usage {
    /// Why, in a few words.
    pub fn why(self) -> &'static str {
        match self.0 {
            Eligibility::Ready => "ready",
            Eligibility::ServingTerminating => "as the last resort, for nothing is ready",
            Eligibility::NotReady => "not ready",
            Eligibility::TerminatingNotServing => "terminating, and serves no more",
            Eligibility::Terminating => "terminating, while others are ready",
            Eligibility::OtherNode => "on another node",
            Eligibility::HintedOtherNode => "its hints are for other nodes",
            Eligibility::HintedOtherZone => "its hints are for other zones",
        }
    }

    /// New connections go there.
    pub fn is_used(self) -> bool {
        self.0.is_eligible()
    }
}

impl From<Usage> for UsageText {
    fn from(usage: Usage) -> Self {
        Self { used: usage.is_used(), why: usage.why() }
    }
}

impl EndpointState {
    /// In a few words.
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

/// The API's word for a policy.
pub(super) fn policy_name(policy: TrafficPolicy) -> &'static str {
    match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn frontend_kind<S: Serializer>(kind: &FrontendKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match kind {
        FrontendKind::ClusterIp => "clusterIp",
        FrontendKind::ExternalIp => "externalIp",
        FrontendKind::LoadBalancer => "loadBalancerIp",
        FrontendKind::NodePort => "nodePort",
    })
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn api_policy<S: Serializer>(policy: &TrafficPolicy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(policy_name(*policy))
}

fn optional_policy<S: Serializer>(policy: &Option<TrafficPolicy>, serializer: S) -> Result<S::Ok, S::Error> {
    policy.map(policy_name).serialize(serializer)
}
