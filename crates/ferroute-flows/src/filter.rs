use std::{fmt, str::FromStr};

use ferroute_core::Escaped;
use ipnet::IpNet;

use crate::{Edge, Flow, Peer, PeerKind};

/// Selection of flows that a reader shows, by names that the source of flows does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// Only these clients; empty for all.
    pub clients: Vec<PeerFilter>,
    /// Only these endpoints; empty for all.
    pub endpoints: Vec<PeerFilter>,
}

/// Selects peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerFilter {
    /// All peers of a kind: `pod`, `node`, `outside`.
    Kind(PeerKind),
    /// A network that contains the address, and the port unless it is `None`.
    Network(IpNet, Option<u16>),
    /// A name, or its part after the namespace.
    Name(String),
}

/// The error for a text that selects no peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPeer(String);

impl FlowFilter {
    /// Reports whether a flow is shown.
    pub fn matches(&self, flow: &Flow) -> bool {
        self.matches_peers(&flow.client, flow.endpoint.as_ref())
    }

    /// Reports whether an edge of a summary is shown. Its client has no port.
    pub fn matches_edge(&self, edge: &Edge) -> bool {
        self.matches_peers(&edge.client, edge.endpoint.as_ref())
    }

    fn matches_peers(&self, client: &Peer, endpoint: Option<&Peer>) -> bool {
        let is_in = |filters: &[PeerFilter], peer: Option<&Peer>| {
            filters.is_empty() || peer.is_some_and(|peer| filters.iter().any(|filter| filter.matches(peer)))
        };
        is_in(&self.clients, Some(client)) && is_in(&self.endpoints, endpoint)
    }
}

impl PeerFilter {
    /// Reports whether a peer is selected.
    pub fn matches(&self, peer: &Peer) -> bool {
        match self {
            Self::Kind(kind) => peer.kind == Some(*kind),
            Self::Network(network, port) => {
                network.contains(&peer.address) && port.is_none_or(|port| peer.port == Some(port))
            }
            Self::Name(name) => peer.name.as_deref().is_some_and(|known| {
                known == name || known.rsplit_once('/').is_some_and(|(_, without_namespace)| without_namespace == name)
            }),
        }
    }
}

impl FromStr for PeerFilter {
    type Err = InvalidPeer;

    /// Parses `pod`, `node`, `outside`, an address, `ADDRESS:PORT`, a network, or the name of a pod or node.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let kind = [PeerKind::Pod, PeerKind::Node, PeerKind::Outside].into_iter().find(|kind| kind.as_str() == text);
        if let Some(kind) = kind {
            return Ok(Self::Kind(kind));
        }
        if let Ok(address) = text.parse::<std::net::SocketAddr>() {
            return Ok(Self::Network(address.ip().into(), Some(address.port())));
        }
        if let Ok(address) = text.parse::<std::net::IpAddr>() {
            return Ok(Self::Network(address.into(), None));
        }
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(Self::Network(network, None));
        }
        let name = ["pod/", "node/"].iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(text);
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-./".contains(letter);
        match !name.is_empty() && name.chars().all(is_name) && name.chars().any(|letter| letter.is_ascii_alphabetic()) {
            true => Ok(Self::Name(name.to_owned())),
            false => Err(InvalidPeer(text.to_owned())),
        }
    }
}

impl fmt::Display for InvalidPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        write!(f, "{}: must be pod, node, outside, an address, ADDRESS:PORT, a network, or a name", Escaped(text))
    }
}

impl std::error::Error for InvalidPeer {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_selected_by_kind_address_and_name() {
        let named = |address: &str, name: Option<&str>| Peer {
            kind: Some(PeerKind::Pod),
            name: name.map(Into::into),
            ..Peer::new(address.parse().unwrap())
        };
        let web = named("10.244.0.2:8080", Some("shop/web-1"));
        for text in ["pod", "10.244.0.2", "10.244.0.2:8080", "10.244.0.0/16", "web-1", "shop/web-1", "pod/shop/web-1"] {
            assert!(text.parse::<PeerFilter>().unwrap().matches(&web), "{text}");
        }
        for text in ["node", "10.244.0.3", "10.244.0.2:80", "10.245.0.0/16", "web", "other/web-1"] {
            assert!(!text.parse::<PeerFilter>().unwrap().matches(&web), "{text}");
        }
        assert!(!"web-1".parse::<PeerFilter>().unwrap().matches(&named("10.244.0.2:8080", None)));
        for text in ["", "10.244.0", "a b", "10.0.0.0/99", "pod/"] {
            assert!(text.parse::<PeerFilter>().is_err(), "{text}");
        }
    }
}
