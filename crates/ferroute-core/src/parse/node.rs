use ferroute_api::{self as api, labels};

use super::{Faults, InvalidObject, parse_ip, parse_network};
use crate::NodeView;

/// Reads a Node.
pub fn parse_node(node: &api::Node) -> Result<NodeView, InvalidObject> {
    let mut faults = Faults::default();
    let mut addresses = Vec::new();
    // Internal addresses come first, as in kube-proxy: others may be behind a NAT that this host does not see.
    for wanted in ["InternalIP", "ExternalIP"] {
        for (i, address) in node.status.addresses.iter().enumerate().filter(|(_, address)| address.type_ == wanted) {
            let ip = faults.keep(format!("status.addresses[{i}].address"), parse_ip(&address.address));
            addresses.extend(ip);
        }
    }
    let cidrs = match (node.spec.pod_cidrs.as_slice(), &node.spec.pod_cidr) {
        ([], Some(one)) => std::slice::from_ref(one),
        (all, _) => all,
    };
    let mut pod_cidrs = Vec::with_capacity(cidrs.len());
    for (i, cidr) in cidrs.iter().enumerate().filter(|(_, cidr)| !cidr.is_empty()) {
        pod_cidrs.extend(faults.keep(format!("spec.podCIDRs[{i}]"), parse_network(cidr)));
    }
    let view = NodeView {
        name: node.metadata.name.clone(),
        zone: node.metadata.labels.get(labels::ZONE).filter(|zone| !zone.is_empty()).cloned(),
        addresses,
        pod_cidrs,
        to_be_deleted: node.spec.taints.iter().any(|taint| taint.key == labels::TO_BE_DELETED_TAINT),
    };
    faults.finish("Node", &node.metadata, view)
}
