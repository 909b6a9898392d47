use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::SystemTime,
};

use ferroute_core::{FrontendKind, Protocol};
use serde::{Deserialize, Serialize};

/// A connection through a Service, or a refused packet that was sent to one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// Identifier of the flow among all flows of one source; later flows have higher numbers.
    pub id: u64,
    /// The time of the first packet; `None` if the connection is older than the first reader and the kernel does not record it.
    #[serde(with = "crate::event::optional_time", default, skip_serializing_if = "Option::is_none")]
    pub time: Option<SystemTime>,
    /// Current state.
    pub state: FlowState,
    /// The protocol.
    pub protocol: Protocol,
    /// Peer that opened the connection.
    pub client: Peer,
    /// Service port; `None` if the reader has no Services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_port: Option<Arc<str>>,
    /// The kind of the frontend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<FrontendKind>,
    /// The address and port that the client used.
    pub destination: SocketAddr,
    /// Selected endpoint; `None` if there is none, or if a process relays the connection (userspace mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Peer>,
    /// Reason why it was rejected or dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    /// The seconds from the first packet to the first answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_seconds: Option<f64>,
    /// The seconds from the first packet to the last change of the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<f64>,
    /// Packets of both directions, once the connection has ended, if the kernel counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// The bytes in these packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FlowState {
    /// The client's first packet was sent to an endpoint a moment ago.
    Opening,
    /// The endpoint has answered.
    Open,
    /// The endpoint did not answer for three seconds, or before the kernel's timeout.
    Unanswered,
    /// The endpoint has reset the connection instead of accepting it.
    Refused,
    /// One side has reset the accepted connection.
    Reset,
    /// Both sides have closed it, or it has expired.
    Closed,
    /// A rule has rejected it.
    Rejected,
    /// A rule has dropped it.
    Dropped,
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// The address.
    pub address: IpAddr,
    /// Port; `None` for all ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Kind of the owner of the address; `None` if it was not determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<PeerKind>,
    /// Name of the owner of the address, `namespace/name` of a pod, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
}

/// Kind of the owner of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PeerKind {
    /// A pod.
    Pod,
    /// A node of the cluster.
    Node,
    /// Any other owner.
    Outside,
}

impl FlowState {
    /// All states.
    pub const ALL: [Self; 8] = [
        Self::Opening,
        Self::Open,
        Self::Unanswered,
        Self::Refused,
        Self::Reset,
        Self::Closed,
        Self::Rejected,
        Self::Dropped,
    ];

    /// Returns the name, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Open => "open",
            Self::Unanswered => "unanswered",
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::Rejected => "rejected",
            Self::Dropped => "dropped",
        }
    }

    /// Reports whether the connection failed for the client.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Unanswered | Self::Refused | Self::Reset | Self::Rejected | Self::Dropped)
    }
}

impl fmt::Display for FlowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Peer {
    /// Creates a peer with an address of unknown owner.
    pub fn new(address: SocketAddr) -> Self {
        Self { address: address.ip(), port: Some(address.port()), kind: None, name: None }
    }

    /// Creates the client of a connection. If the node connects to one of its own addresses, such as those of Services
    /// in ipvs mode, the source is that address.
    pub(crate) fn client(source: SocketAddr, destination: SocketAddr) -> Self {
        Self { kind: (source.ip() == destination.ip()).then_some(PeerKind::Node), ..Self::new(source) }
    }

    /// Replaces kind and name by those of the same address from another node, if that node has more information.
    pub(crate) fn complete_with(&mut self, other: Self) {
        let knowledge = |peer: &Self| (peer.name.is_some(), peer.kind.is_some_and(|kind| kind != PeerKind::Outside));
        if knowledge(&other) > knowledge(self) {
            (self.kind, self.name) = (other.kind, other.name);
        }
    }

    /// Returns the peer without its port.
    #[must_use]
    pub fn without_port(&self) -> Self {
        Self { port: None, ..self.clone() }
    }
}

impl fmt::Display for Peer {
    /// Writes the name, or the address if there is none, followed by the port.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.port) {
            (Some(name), Some(port)) => write!(f, "{}:{port}", ferroute_core::Escaped(name)),
            (Some(name), None) => write!(f, "{}", ferroute_core::Escaped(name)),
            (None, Some(port)) => write!(f, "{}", SocketAddr::new(self.address, port)),
            (None, None) => write!(f, "{}", self.address),
        }
    }
}

impl PeerKind {
    /// Returns the name, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Node => "node",
            Self::Outside => "outside",
        }
    }
}
