//! The messages between the proxy and its worker process: JSON, each after its length.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    time::Duration,
};

use ferroute_core::{IpFamily, Protocol};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{ListenerSpec, ListenerStats, engine::EngineListener};

/// A request to the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Open or change listeners; answered by [`Response::Ports`].
    Set(Vec<WireListener>),
    /// Close listeners; answered by [`Response::Done`].
    Close(Vec<String>),
    /// Close the listeners whose keys start with the prefix, except these; answered by [`Response::Done`].
    Retain {
        /// The prefix.
        prefix: String,
        /// The keys to keep.
        keep: Vec<String>,
    },
    /// Return all listeners; answered by [`Response::Listeners`].
    List,
    /// Return the statistics of all listeners, without their endpoints; answered by [`Response::Stats`].
    Stats,
    /// Return the ports on which UDP flows are relayed, including while the worker drains; answered by
    /// [`Response::RelayPorts`].
    RelayPorts,
    /// Show that the worker runs; answered by [`Response::Done`].
    Ping,
    /// Stop accepting, and exit once the last connection has ended or the time has passed; answered by
    /// [`Response::Draining`].
    Drain {
        /// Seconds until remaining connections are reset.
        deadline: u64,
    },
}

/// A response of the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Response {
    /// The port of each listener, or why it could not be opened.
    Ports(Vec<Result<u16, String>>),
    /// All listeners.
    Listeners(Vec<OpenListener>),
    /// Keys of all listeners, and their statistics since they were opened.
    Stats(Vec<(String, ListenerStats)>),
    /// The ports on which UDP flows are relayed, and whether they are IPv6.
    RelayPorts(Vec<(bool, u16)>),
    /// The worker drains.
    Draining {
        /// Whether an earlier request has started it.
        already: bool,
    },
    /// The request was carried out.
    Done,
}

/// A listener to open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireListener {
    pub(crate) key: String,
    ipv6: bool,
    udp: bool,
    endpoints: Vec<SocketAddr>,
    /// The timeout of session affinity in seconds.
    affinity: Option<u64>,
}

/// An open listener of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenListener {
    /// Key, as [`ListenerKey`](crate::plan::ListenerKey) prints it.
    pub key: String,
    /// Port.
    pub port: u16,
    ipv6: bool,
    udp: bool,
    /// The endpoints for new connections.
    pub endpoints: Vec<SocketAddr>,
    /// The timeout of session affinity in seconds.
    pub affinity: Option<u64>,
    /// Statistics since it was opened.
    pub stats: ListenerStats,
    /// The number of connections or flows that each endpoint got.
    pub connections: Vec<u64>,
}

impl WireListener {
    /// Converts a listener, whose protocol must be TCP or UDP.
    pub(crate) fn new(key: String, spec: &ListenerSpec) -> Self {
        Self {
            key,
            ipv6: spec.family == IpFamily::V6,
            udp: spec.protocol == Protocol::Udp,
            endpoints: spec.endpoints.clone(),
            affinity: spec.affinity.map(|affinity| affinity.as_secs()),
        }
    }

    pub(crate) fn into_spec(self) -> (String, ListenerSpec) {
        let spec = ListenerSpec {
            family: if self.ipv6 { IpFamily::V6 } else { IpFamily::V4 },
            protocol: if self.udp { Protocol::Udp } else { Protocol::Tcp },
            endpoints: self.endpoints,
            affinity: self.affinity.map(Duration::from_secs),
        };
        (self.key, spec)
    }
}

impl OpenListener {
    pub(crate) fn new(listener: EngineListener<'_, String>) -> Self {
        let EngineListener { key, port, spec, stats, connections } = listener;
        let WireListener { key, ipv6, udp, endpoints, affinity } = WireListener::new(key.clone(), spec);
        Self { key, port, ipv6, udp, endpoints, affinity, stats, connections }
    }

    /// Returns the name of the service port: `shop/web:http`.
    pub fn service_port(&self) -> &str {
        service_port(&self.key)
    }

    /// Returns the IP family.
    pub fn family(&self) -> IpFamily {
        if self.ipv6 { IpFamily::V6 } else { IpFamily::V4 }
    }

    /// Returns the protocol.
    pub fn protocol(&self) -> Protocol {
        if self.udp { Protocol::Udp } else { Protocol::Tcp }
    }
}

/// Returns the name of the service port in a listener's key.
pub(crate) fn service_port(key: &str) -> &str {
    let name = key.split(' ').nth(1).unwrap_or_default();
    name.rsplit_once('/').map_or(name, |(name, _)| name)
}

/// Writes a message.
pub(crate) fn send(out: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    out.write_all(&encode(message)?)
}

/// Encodes a message.
pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LENGTH];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - LENGTH).map_err(|_| too_long())?;
    bytes[..LENGTH].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

/// Reads a message.
pub(crate) fn receive<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<T> {
    let mut length = [0; LENGTH];
    input.read_exact(&mut length)?;
    let mut bytes = vec![0; body_length(length)?];
    input.read_exact(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// Returns the length of the text after this prefix.
pub(crate) fn body_length(prefix: [u8; LENGTH]) -> io::Result<usize> {
    let length = u32::from_le_bytes(prefix) as usize;
    if length > MAX_MESSAGE { Err(too_long()) } else { Ok(length) }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message is too long")
}

/// The size of the length before each message.
pub(crate) const LENGTH: usize = 4;

/// Maximum length of a message: 256 listeners with a few thousand endpoints each, or a list of all listeners of a large
/// cluster.
const MAX_MESSAGE: usize = 64 << 20;
