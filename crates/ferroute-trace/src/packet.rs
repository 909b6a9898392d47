use std::{collections::BTreeMap, net::SocketAddr};

use ferroute_core::{IpFamily, Protocol};
use serde::{Deserialize, Serialize};

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The source address and port.
    pub source: SocketAddr,
    /// The destination address and port, of the same IP family as `source`.
    pub destination: SocketAddr,
    /// Point at which the packet enters the walk.
    pub origin: Origin,
    /// The initial mark, which other programs may have set.
    pub mark: u32,
    /// Lists of the iptables module `recent` that contain the source, with the age of the entry in seconds. They
    /// implement session affinity.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub remembered: BTreeMap<String, u32>,
}

/// The origin of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// A process on the host.
    Local,
    /// The input interface of a packet from another host or a pod.
    Interface(String),
}

impl Packet {
    /// A packet sent by a process on the host.
    pub fn local(protocol: Protocol, source: SocketAddr, destination: SocketAddr) -> Self {
        Self { protocol, source, destination, origin: Origin::Local, mark: 0, remembered: BTreeMap::new() }
    }

    /// A packet received on `interface`.
    pub fn arriving(protocol: Protocol, source: SocketAddr, destination: SocketAddr, interface: &str) -> Self {
        Self { origin: Origin::Interface(interface.to_owned()), ..Self::local(protocol, source, destination) }
    }

    /// Returns the IP family of the addresses.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.destination.ip())
    }
}
