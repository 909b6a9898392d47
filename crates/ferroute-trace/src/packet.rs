use std::{collections::BTreeMap, net::SocketAddr};

use ferroute_core::{IpFamily, Protocol};
use serde::Serialize;

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Packet {
    /// Its protocol.
    #[serde(serialize_with = "crate::story::as_text")]
    pub protocol: Protocol,
    /// Who sends it.
    pub source: SocketAddr,
    /// Where to; of the same IP family as `source`.
    pub destination: SocketAddr,
    /// How it comes to this host.
    pub origin: Origin,
    /// Its mark; other programs may have set one before.
    pub mark: u32,
    /// Lists of the `recent` module that have the source, and how many seconds ago it was put there: clients whose
    /// endpoint is remembered.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub remembered: BTreeMap<String, u32>,
}

/// How a packet comes to a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// A program of the host sends it.
    Local,
    /// It arrives through this interface.
    Interface(String),
}

impl Packet {
    /// A packet that a program of the host sends.
    pub fn local(protocol: Protocol, source: SocketAddr, destination: SocketAddr) -> Self {
        Self { protocol, source, destination, origin: Origin::Local, mark: 0, remembered: BTreeMap::new() }
    }

    /// A packet that arrives through `interface`.
    pub fn arriving(protocol: Protocol, source: SocketAddr, destination: SocketAddr, interface: &str) -> Self {
        Self { origin: Origin::Interface(interface.to_owned()), ..Self::local(protocol, source, destination) }
    }

    /// The IP family of its addresses.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.destination.ip())
    }
}
