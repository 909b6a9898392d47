use std::collections::BTreeMap;

use ferroute_api::{Node, NodeAddress, NodeSpec, NodeStatus, ObjectMeta};
use ferroute_core::IpFamily;

use crate::layout::NodeId;

/// The Node object of a node.
pub(super) fn node(node: NodeId, ipv6: bool) -> Node {
    let name = node.name().to_owned();
    let networks = IpFamily::BOTH.into_iter().filter(|family| ipv6 || *family == IpFamily::V4);
    let networks: Vec<String> = networks.map(|family| node.pod_network(family)).collect();
    let internal = node.addresses(ipv6).iter().map(|ip| address("InternalIP", ip.to_string())).collect::<Vec<_>>();
    Node {
        metadata: ObjectMeta {
            labels: BTreeMap::from([("kubernetes.io/hostname".to_owned(), name.clone())]),
            name: name.clone(),
            ..ObjectMeta::default()
        },
        spec: NodeSpec { pod_cidr: networks.first().cloned(), pod_cidrs: networks, taints: Vec::new() },
        status: NodeStatus { addresses: internal.into_iter().chain([address("Hostname", name)]).collect() },
    }
}

fn address(type_: &str, address: String) -> NodeAddress {
    NodeAddress { type_: type_.to_owned(), address }
}
