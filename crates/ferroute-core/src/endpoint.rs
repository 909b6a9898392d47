use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// Topology hints: the zones and nodes that should use an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    /// Names of zones; empty without zone hints.
    pub zones: Vec<Box<str>>,
    /// Names of nodes; empty without node hints.
    pub nodes: Vec<Box<str>>,
}

/// An address and port that serves a service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the pod or host.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Accepts new connections.
    pub ready: bool,
    /// Responds, possibly while terminating.
    pub serving: bool,
    /// Is being terminated.
    pub terminating: bool,
    /// Runs on this node.
    pub local: bool,
    /// Whether the node of the endpoint is unknown, so that it may be this one.
    pub node_unknown: bool,
    /// Topology hints, shared between endpoints with the same hints.
    pub hints: Option<Arc<Hints>>,
    /// Share of the connections relative to the weights of the other endpoints; 0 for no new connections.
    pub weight: u16,
    /// Whether the endpoint did not answer. It then gets no connections for a while if there are enough other
    /// endpoints.
    pub ejected: bool,
}

impl Endpoint {
    /// The weight of an endpoint whose slice states none.
    pub const DEFAULT_WEIGHT: u16 = 1;

    /// Returns the address and port.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Reports whether the endpoint is ready and may get connections.
    pub fn accepts(&self) -> bool {
        self.ready && self.weight > 0
    }

    /// Reports whether the endpoint runs on this node or on an unknown one. Rules that are harmless for remote
    /// endpoints apply to an endpoint on an unknown node. Traffic policy Local does not use it, because every node
    /// would use it.
    pub fn may_be_local(&self) -> bool {
        self.local || self.node_unknown
    }

    /// Reports whether the endpoint serves while terminating: the fallback if no endpoint is ready.
    pub fn is_serving_terminating(&self) -> bool {
        self.serving && self.terminating && self.weight > 0
    }

    /// Reports whether the endpoint may get connections, at least if no endpoint is ready.
    pub fn is_usable(&self) -> bool {
        self.accepts() || self.is_serving_terminating()
    }

    /// Reports whether there is a hint for the zone.
    pub fn is_hinted_for_zone(&self, zone: &str) -> bool {
        self.hints.as_ref().is_some_and(|hints| hints.zones.iter().any(|name| **name == *zone))
    }

    /// Reports whether there is a hint for the node.
    pub fn is_hinted_for_node(&self, node: &str) -> bool {
        self.hints.as_ref().is_some_and(|hints| hints.nodes.iter().any(|name| **name == *node))
    }
}

impl fmt::Display for Endpoint {
    /// Writes `10.0.0.1:80` or `[fd00::1]:80`, the form that is hashed into chain names and that endpoints are sorted by.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::endpoint;

    #[test]
    fn endpoints_are_written_as_address_and_port() {
        assert_eq!(endpoint("10.244.0.2:80").to_string(), "10.244.0.2:80");
        assert_eq!(endpoint("[fd00:0:0::2]:80").to_string(), "[fd00::2]:80");
    }

    #[test]
    fn hints_match_their_own_names_only() {
        let hints = Hints { zones: vec!["a".into(), "b".into()], nodes: vec!["node-1".into()] };
        let hinted = Endpoint { hints: Some(Arc::new(hints)), ..endpoint("10.244.0.2:80") };
        assert!(hinted.is_hinted_for_zone("a") && hinted.is_hinted_for_zone("b"));
        assert!(hinted.is_hinted_for_node("node-1") && !hinted.is_hinted_for_node("a"));
        assert!(!hinted.is_hinted_for_zone("node-1") && !hinted.is_hinted_for_zone(""));
        let plain = endpoint("10.244.0.2:80");
        assert!(!plain.is_hinted_for_zone("a") && !plain.is_hinted_for_node("node-1"));
    }
}
