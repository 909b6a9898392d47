use std::{collections::HashMap, net::IpAddr, sync::Arc};

use ferroute_core::{IpFamily, LocalTraffic};
use ferroute_flows::{FlowEvent, Peer, PeerKind};
use ipnet::IpNet;

use crate::desired::{AddressOwner, Desired};

/// Owners of addresses, as far as known.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    names: HashMap<IpAddr, (PeerKind, Arc<str>)>,
    /// Name and addresses of this node. Some of the addresses have no other owner.
    node: (Arc<str>, Vec<IpAddr>),
    pod_networks: Vec<IpNet>,
}

impl Labels {
    /// Returns the owners of addresses in this state. Among pods, these are only endpoints, unless the objects include
    /// pods.
    pub fn new(desired: &Desired) -> Self {
        let mut labels = Self::default();
        for (owner, addresses) in desired.names.owners() {
            let (kind, name): (PeerKind, Arc<str>) = match owner {
                AddressOwner::Pod { namespace, name } => (PeerKind::Pod, format!("{namespace}/{name}").into()),
                AddressOwner::Node(name) => (PeerKind::Node, name.as_str().into()),
                AddressOwner::Machine(name) => (PeerKind::Outside, (*name).into()),
            };
            labels.names.extend(addresses.into_iter().map(|address| (address, (kind, Arc::clone(&name)))));
        }
        let node = desired.node();
        labels.node = (node.name.as_str().into(), desired.host.addresses.clone());
        labels.pod_networks.clone_from(&node.pod_cidrs);
        for family in IpFamily::BOTH {
            if let Some(LocalTraffic::Source(network)) = desired.resolved.settings.detector.resolve(family, node) {
                labels.pod_networks.push(network);
            }
        }
        labels
    }

    /// Adds a pod.
    pub fn add_pod(&mut self, address: IpAddr, name: &str) {
        self.names.insert(address, (PeerKind::Pod, name.into()));
    }

    /// Keeps earlier names of addresses that have no owner now, such as those of deleted pods, which flows of the last
    /// minutes may have. They are discarded if there are too many.
    pub fn keep(&mut self, earlier: Self) {
        for (address, owner) in earlier.names {
            if self.names.len() >= MAX_NAMES {
                return;
            }
            self.names.entry(address).or_insert(owner);
        }
    }

    /// Adds the owners of the peers of flows.
    pub fn apply(&self, event: &mut FlowEvent) {
        match event {
            FlowEvent::Flow(flow) => {
                self.label(&mut flow.client);
                flow.endpoint.iter_mut().for_each(|endpoint| self.label(endpoint));
            }
            FlowEvent::Summary(summary) => {
                for edge in &mut summary.edges {
                    self.label(&mut edge.client);
                    edge.endpoint.iter_mut().for_each(|endpoint| self.label(endpoint));
                }
            }
            FlowEvent::Start(_) | FlowEvent::Lost(_) | FlowEvent::RecentEnd(_) => {}
        }
    }

    /// Adds the owner of a peer. An existing name is kept unless there is a better one.
    pub fn label(&self, peer: &mut Peer) {
        let (own_name, own_addresses) = &self.node;
        if let Some((kind, name)) = self.names.get(&peer.address) {
            (peer.kind, peer.name) = (Some(*kind), Some(Arc::clone(name)));
        } else if peer.name.is_some() {
        } else if peer.kind == Some(PeerKind::Node)
            || peer.address.is_loopback()
            || own_addresses.contains(&peer.address)
        {
            let name = (!own_name.is_empty()).then(|| Arc::clone(own_name));
            (peer.kind, peer.name) = (Some(PeerKind::Node), name);
        } else if self.pod_networks.iter().any(|network| network.contains(&peer.address)) {
            peer.kind = Some(PeerKind::Pod);
        } else if peer.kind.is_none() {
            peer.kind = Some(PeerKind::Outside);
        }
    }
}

/// Maximum number of names that are kept, unless the objects have more.
const MAX_NAMES: usize = 100_000;
