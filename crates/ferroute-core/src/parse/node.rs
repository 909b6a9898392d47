use ferroute_api::{self as api, labels};
use ipnet::IpNet;

use super::{Faults, InvalidObject, parse_ip, parse_network};
use crate::NodeView;

/// Reads a Node.
pub fn parse_node(node: &api::Node) -> Result<NodeView, InvalidObject> {
    let mut faults = Faults::default();
    let mut addresses = Vec::new();
    // Internal addresses come first, as in kube-proxy: others may be behind a NAT that this host does not see.
    for wanted in ["InternalIP", "ExternalIP"] {
        // Some clouds list an external address for a node that has none, and leave it empty.
        let given = |address: &api::NodeAddress| address.type_ == wanted && !address.address.is_empty();
        for (i, address) in node.status.addresses.iter().enumerate().filter(|(_, address)| given(address)) {
            addresses.extend(faults.keep(format!("status.addresses[{i}].address"), parse_ip(&address.address)));
        }
    }
    let view = NodeView {
        name: node.metadata.name.clone(),
        zone: node.metadata.labels.get(labels::ZONE).filter(|zone| !zone.is_empty()).cloned(),
        addresses,
        pod_cidrs: pod_cidrs(&mut faults, &node.spec),
        to_be_deleted: is_to_be_deleted(node),
    };
    faults.finish("Node", &node.metadata, view)
}

fn is_to_be_deleted(node: &api::Node) -> bool {
    let is_announced = |taint: &api::Taint| taint.key == labels::TO_BE_DELETED_TAINT;
    node.metadata.deletion_timestamp.is_some() || node.spec.taints.iter().any(is_announced)
}

fn pod_cidrs(faults: &mut Faults, spec: &api::NodeSpec) -> Vec<IpNet> {
    if spec.pod_cidrs.is_empty() {
        let single = spec.pod_cidr.as_deref().filter(|cidr| !cidr.is_empty());
        return single.and_then(|cidr| faults.keep("spec.podCIDR", parse_network(cidr))).into_iter().collect();
    }
    let each = spec.pod_cidrs.iter().enumerate();
    each.filter_map(|(i, cidr)| faults.keep(format!("spec.podCIDRs[{i}]"), parse_network(cidr))).collect()
}
