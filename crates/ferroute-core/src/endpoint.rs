use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// Which zones and nodes should use an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Names of zones; empty: no hint by zone.
    pub zones: Vec<Box<str>>,
    /// Names of nodes; empty: no hint by node.
    pub nodes: Vec<Box<str>>,
}

/// One place that a service port's traffic can go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the pod or host.
    pub address: IpAddr,
    /// Port there.
    pub port: u16,
    /// Takes new connections.
    pub ready: bool,
    /// Answers, even while it terminates.
    pub serving: bool,
    /// Is on its way out.
    pub terminating: bool,
    /// Runs on this node.
    pub local: bool,
    /// Topology hints; none on most endpoints, shared between those with the same.
    pub hints: Option<Arc<Hints>>,
}

impl Endpoint {
    /// Address and port.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Serves while it terminates: the fallback where nothing is ready.
    pub fn is_serving_terminating(&self) -> bool {
        self.serving && self.terminating
    }

    /// Has a hint for the zone.
    pub fn hints_zone(&self, zone: &str) -> bool {
        self.hints.as_ref().is_some_and(|hints| hints.zones.iter().any(|name| **name == *zone))
    }

    /// Has a hint for the node.
    pub fn hints_node(&self, node: &str) -> bool {
        self.hints.as_ref().is_some_and(|hints| hints.nodes.iter().any(|name| **name == *node))
    }
}

impl fmt::Display for Endpoint {
    /// `10.0.0.1:80` or `[fd00::1]:80`: the form that is hashed into chain names and that endpoints are sorted by.
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
    fn hints_are_for_the_names_that_they_hold_and_no_others() {
        let hints = Hints { zones: vec!["a".into(), "b".into()], nodes: vec!["node-1".into()] };
        let hinted = Endpoint { hints: Some(Arc::new(hints)), ..endpoint("10.244.0.2:80") };
        assert!(hinted.hints_zone("a") && hinted.hints_zone("b") && hinted.hints_node("node-1"));
        assert!(!hinted.hints_zone("node-1") && !hinted.hints_zone("") && !hinted.hints_node("a"));
        let plain = endpoint("10.244.0.2:80");
        assert!(!plain.hints_zone("a") && !plain.hints_node("node-1"));
    }
}
